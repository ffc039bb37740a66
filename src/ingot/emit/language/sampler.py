"""Emit the additions to model.c and model.h of a language model: sizes, and the sampler."""

from __future__ import annotations

from ingot.emit.interface import LINE_BYTES, Companion
from ingot.emit.language.program import prefixed

_KERNEL = "sample_f32"
_ARRAYS = ("scores", "weights", "tokens", "occurrences", "seen")  # of the vocabulary's size


def sampler(prefix: str, *, vocab: int, context: int, blocks: int, rows: int) -> Companion:
    """Return the sampler of a language model.

    vocab: tokens with logits. context: the most positions. blocks: of the key/value cache. rows: the most of a prefill.
    """
    nbytes = -(-4 * vocab // LINE_BYTES) * LINE_BYTES
    arrays = "".join(
        f"  s->{name} = (void *)((char *)sampler + MODEL_SAMPLER_STRUCT + {index * nbytes});\n"
        for index, name in enumerate(_ARRAYS)
    )
    header = _HEADER
    for key, value in {
        "@ARRAYS@": len(_ARRAYS) * nbytes,
        "@VOCAB@": vocab,
        "@CONTEXT@": context,
        "@BLOCKS@": blocks,
        "@ROWS@": rows,
    }.items():
        header = header.replace(key, str(value))
    return Companion(
        kernels=(_KERNEL,),
        types=("ingot_sampler",),
        functions=prefixed(_FUNCTIONS.replace("@ARRAYS@", arrays), prefix),
        header=prefixed(header, prefix),
        names=tuple(f"{prefix}_{name}" for name in ("sampling", "sampler", "seen", "sample")),
    )


_FUNCTIONS = """\
_Static_assert(sizeof(ingot_sampler) <= MODEL_SAMPLER_STRUCT, "a sampler fits");

void model_sampler(void *sampler, const model_sampling *options) {
  ingot_sampler *s = sampler;
  memset(sampler, 0, MODEL_SAMPLER_BYTES);
@ARRAYS@  s->vocab = MODEL_VOCAB;
  s->seed = options->seed;
  s->top_k = options->top_k;
  s->temperature = options->temperature;
  s->top_p = options->top_p;
  s->min_p = options->min_p;
  s->repetition_penalty = options->repetition_penalty;
  s->presence_penalty = options->presence_penalty;
  s->frequency_penalty = options->frequency_penalty;
  const int penalises = s->repetition_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0;
  if (!penalises) s->scores = NULL, s->occurrences = NULL, s->seen = NULL;
}

void model_seen(void *sampler, int32_t token) {
  ingot_sampler *s = sampler;
  if (!s->occurrences || token < 0 || token >= MODEL_VOCAB || s->occurrences[token]) return;
  s->occurrences[token] = 1;
  s->seen[s->seen_count++] = token;
}

int32_t model_sample(void *sampler, const float *logits) {
  ingot_sampler *s = sampler;
  s->logits = logits;
  alone_sample_f32(s);
  return s->token;
}
"""

_HEADER = """
/* A run appends tokens to the text whose keys and values the state has, and computes the logits after the last token.
 * ids: the tokens. positions: of each, counted from 0; all earlier positions are already computed. owners: zeros.
 * blocks: of keys and values, 0, 1, 2 and so on. take: the last row, rows - 1. */
#define MODEL_VOCAB @VOCAB@ /* tokens */
#define MODEL_CONTEXT @CONTEXT@ /* the most positions of a text */
#define MODEL_BLOCKS @BLOCKS@ /* of keys and values */
#define MODEL_PREFILL_ROWS @ROWS@ /* the most tokens of a run of model_prefill */
#define MODEL_SAMPLER_STRUCT 512
#define MODEL_SAMPLER_BYTES (MODEL_SAMPLER_STRUCT + @ARRAYS@)

/* Sampling options, in order: penalties, temperature (0: the most probable token), top_k (0: all), top_p, min_p, and
 * the seed of the draw. */
typedef struct {
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  int64_t top_k;
  uint64_t seed;
} model_sampling;

/* Initialises a sampler in MODEL_SAMPLER_BYTES of memory, 64-byte aligned. */
void model_sampler(void *sampler, const model_sampling *options);

/* Adds a token of the prompt to the repetition penalty. */
void model_seen(void *sampler, int32_t token);

/* Returns the next token, or -1 if the logits are invalid. */
int32_t model_sample(void *sampler, const float *logits);
"""
