"""model.c and model.h of a language model: prefill, decode and sampling over the same weights and state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ingot.emit.interface import declared
from ingot.emit.kernels import kernel_source
from ingot.emit.language.program import prefixed
from ingot.emit.language.steps import steps_text
from ingot.emit.source import chosen, inclusions, supported
from ingot.lower.lowered import FAULT, Lowered, Tensor
from ingot.plan import Plan

MODES = ("prefill", "decode")
_SAMPLER = "sample_f32"
# Arrays of the vocabulary's size that a sampler has.
_SAMPLER_ARRAYS = ("scores", "weights", "tokens", "occurrences", "seen")
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Programs:
    """What is emitted: both modes by name, over one placement of weights. vocab: tokens that have logits. context: the
    most positions. blocks: of the cache. rows: that a prefill takes at most."""

    prefix: str
    modes: Mapping[str, tuple[Lowered, Plan]]
    vocab: int
    context: int
    blocks: int
    rows: int

    def region(self, name: str) -> int:
        """The bytes of a region that all modes share."""
        return max(planned.regions.get(name, 0) for _, planned in self.modes.values())

    @property
    def arena(self) -> int:
        """The bytes that either mode works in."""
        return max(planned.arena_bytes for _, planned in self.modes.values())

    @property
    def sampler(self) -> int:
        """The bytes of a sampler, its struct aside."""
        return len(_SAMPLER_ARRAYS) * self._array

    @property
    def _array(self) -> int:
        return -(-4 * self.vocab // _ALIGNMENT) * _ALIGNMENT

    def sampler_arrays(self) -> str:
        """The statements that give a sampler `s` its arrays behind it."""
        return "".join(
            f"  s->{name} = (void *)((char *)sampler + {self.prefix.upper()}_SAMPLER_STRUCT + {place * self._array});\n"
            for place, name in enumerate(_SAMPLER_ARRAYS)
        )


def language_source(programs: Programs) -> str:
    """model.c."""
    steps = [step for _, planned in programs.modes.values() for step in planned.steps]
    quoted = kernel_source(
        {*(s.kernel for s in steps), _SAMPLER},
        {*(s.args_type for s in steps), "ingot_fault", "ingot_sampler"},
        {name for s in steps for name in chosen(s)},
    )
    bodies = "\n".join(
        [*map(_kernel, sorted({s.kernel for s in steps})), *(_mode(name, *n) for name, n in programs.modes.items())]
    )
    text = prefixed(_SOURCE, programs.prefix)
    for key, value in {
        "@TYPES@": quoted.types,
        "@KERNELS@": quoted.kernels,
        "@MODES@": bodies,
        "@TABLE@": ", ".join(f"K(mode_{name})" for name in (*programs.modes, "sample")),
        "@INCLUDED@": inclusions(programs.prefix, quoted.features),
        "@CHOICE@": _choice(quoted.features),
        "@ARRAYS@": programs.sampler_arrays(),
    }.items():
        text = text.replace(key, value)
    return text


def language_header(programs: Programs) -> str:
    """model.h."""
    text = prefixed(_HEADER, programs.prefix)
    for key, value in {
        "@WEIGHTS@": programs.region("weights"),
        "@STATE@": programs.region("state"),
        "@ARENA@": programs.arena,
        "@ARRAYS@": programs.sampler,
        "@VOCAB@": programs.vocab,
        "@CONTEXT@": programs.context,
        "@BLOCKS@": programs.blocks,
        "@ROWS@": programs.rows,
    }.items():
        text = text.replace(key, str(value))
    return text


def _kernel(name: str) -> str:
    """A kernel as all steps call it."""
    return f"""\
static __attribute__((noinline)) void K(step_{name})(const void *s, int32_t part, int32_t parts) {{
  K({name})(s, part, parts);
}}
"""


def _mode(name: str, lowered: Lowered, planned: Plan) -> str:
    ids = {pointer.tensor for step in planned.steps for pointer in step.pointers}
    kinds = {lowered.tensors[id].kind for id in ids - {FAULT}}
    named: dict[str, Tensor] = {
        external: lowered.tensors[view.tensor]
        for ports in (lowered.inputs, lowered.outputs)
        for external, view in ports.items()
        if view.tensor in ids
    }
    rows = [f"  {declared(tensor, tensor.id)} = a->{external};" for external, tensor in named.items()]
    memory = {
        "const char *weights": {"weight"},
        "char *state": {"state", "update"},
        "char *arena": {"activation", "scratch"},
    }
    rows += [f"  {how} = a->{how.rpartition('*')[2]};" for how, which in memory.items() if kinds & which]
    rows += ["  ingot_fault *fault = a->fault;"] if FAULT in ids else []
    text = steps_text(lowered, planned)
    rows += ["  const int64_t rows = a->rows;"] if "= rows" in text or "rows *" in text else []
    opening = "\n".join(["  const volatile int *stop = a->stop;", *rows])
    return f"static __attribute__((noinline)) void K(mode_{name})(const model_arguments *a) {{\n{opening}\n{text}}}\n"


def _choice(sets: Mapping[str, tuple[str, ...]]) -> str:
    """The table of the best instruction set that this CPU has."""
    tests = [f"  if ({supported(sets[isa])})\n    return programs_{isa};" for isa in reversed(list(sets)) if sets[isa]]
    return "\n".join(tests)


_SOURCE = """\
/* model.c: emitted by Ingot. `cc -O2 -c model.c` builds it; it needs only libc and libm, and allocates nothing.
 *
 * In reading order: argument structs, kernels, the steps of each mode, the entry points. Kernels and steps are compiled
 * once per instruction set: this file includes itself, each time with another ISA defined. The results are the same
 * bits on every instruction set, so multiplications and additions must not be contracted. */
#ifndef ISA

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#include "model.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/* Argument structs of the kernels; sizes and strides are in elements. */

@TYPES@
/* What a mode reads and writes. */
typedef struct {
  const char *weights;
  char *state, *arena;
  const int32_t *ids, *positions, *owners, *blocks, *take;
  float *logits;
  int64_t rows;
  ingot_fault *fault;
  const volatile int *stop;
  ingot_sampler *sampler;
} model_arguments;

typedef void (*model_program)(const model_arguments *);

#else

/* Kernels. Where ISA is avx2, K(relu_f32) is relu_f32_avx2; so is every name in this list. */

@KERNELS@
/* The steps of each mode. A kernel computes part 0 of 1: all of it, or of a turn. It is compiled once for all
 * steps, not into each. */
@MODES@
static __attribute__((noinline)) void K(mode_sample)(const model_arguments *a) {
  K(sample_f32)(a->sampler, 0, 1);
}

static const model_program K(programs)[] = {@TABLE@};

#endif

#ifndef ISA

@INCLUDED@
enum { PREFILL, DECODE, SAMPLE };

static const model_program *programs_of_cpu(void) {
#if defined(__x86_64__)
  __builtin_cpu_init();
@CHOICE@
#endif
#if defined(__aarch64__)
  return programs_neon;
#else
  return programs_scalar;
#endif
}

/* The host may have set another rounding, or denormals to zero: the bits of a result must not depend on it. */
static void run(int mode, const model_arguments *arguments) {
#if defined(__x86_64__)
  const unsigned host_mode = _mm_getcsr();
  _mm_setcsr(_MM_MASK_MASK);
#endif
  programs_of_cpu()[mode](arguments);
#if defined(__x86_64__)
  _mm_setcsr(host_mode);
#endif
}

static int append(int mode, const model_memory *memory, const int32_t *tokens, int64_t count, int64_t position,
                  float *logits, const volatile int *stop) {
  static const int32_t owners[MODEL_PREFILL_ROWS];
  static const volatile int never;
  int32_t positions[MODEL_PREFILL_ROWS], blocks[MODEL_BLOCKS];
  const int32_t take = (int32_t)count - 1;
  ingot_fault fault = {0};
  if (count < 1 || count > MODEL_PREFILL_ROWS || position < 0 || position > MODEL_CONTEXT - count) return 1;
  for (int32_t i = 0; i < count; i++) positions[i] = (int32_t)position + i;
  for (int32_t i = 0; i < MODEL_BLOCKS; i++) blocks[i] = i;
  const model_arguments arguments = {
      .weights = memory->weights, .state = memory->state, .arena = memory->arena,
      .ids = tokens, .positions = positions, .owners = owners, .blocks = blocks, .take = &take,
      .logits = logits, .rows = count, .fault = &fault, .stop = stop ? stop : &never,
  };
  run(mode, &arguments);
  return fault.code ? 1 : *arguments.stop ? 2 : 0;
}

int model_prefill(const model_memory *memory, const int32_t *tokens, int64_t count, int64_t position, float *logits,
                   const volatile int *stop) {
  return append(PREFILL, memory, tokens, count, position, logits, stop);
}

int model_decode(const model_memory *memory, int32_t token, int64_t position, float *logits,
                  const volatile int *stop) {
  return append(DECODE, memory, &token, 1, position, logits, stop);
}

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
  const model_arguments arguments = {.sampler = s};
  s->logits = logits;
  run(SAMPLE, &arguments);
  return s->token;
}
#endif
"""

_HEADER = """\
/* model.h: emitted by Ingot: a language model. model_prefill and model_decode append tokens to a text and give the
 * logits of the next one, model_sample draws it. No function allocates anything. */
#ifndef MODEL_H
#define MODEL_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MODEL_WEIGHTS_BYTES @WEIGHTS@ /* the size of weights.bin */
#define MODEL_STATE_BYTES @STATE@ /* keys and values of all positions */
#define MODEL_ARENA_BYTES @ARENA@
#define MODEL_SAMPLER_STRUCT 512
#define MODEL_SAMPLER_BYTES (MODEL_SAMPLER_STRUCT + @ARRAYS@)
#define MODEL_VOCAB @VOCAB@ /* tokens */
#define MODEL_CONTEXT @CONTEXT@ /* the most positions of a text */
#define MODEL_BLOCKS @BLOCKS@ /* of keys and values */
#define MODEL_PREFILL_ROWS @ROWS@ /* the most tokens of a call of model_prefill */

/* All 64-byte aligned. weights: the bytes of weights.bin. state: what one text's tokens left behind, zeros at first.
 * arena: memory to work in, whatever it holds. Calls with states and arenas of their own may run at the same time. */
typedef struct {
  const void *weights;
  void *state, *arena;
} model_memory;

/* Appends tokens[count] at a position and those behind it; the state holds all before. logits[MODEL_VOCAB]: of what
 * comes after the last. stop: NULL, or what ends the call early once it is not 0. Returns 0; 1 for a token, a count or
 * a position outside its range; 2 where it was stopped. Unless it is 0, the logits and those positions mean nothing. */
int model_prefill(const model_memory *memory, const int32_t *tokens, int64_t count, int64_t position, float *logits,
                   const volatile int *stop);

/* The same for one token. */
int model_decode(const model_memory *memory, int32_t token, int64_t position, float *logits,
                  const volatile int *stop);

/* How a token is chosen: penalties first, then temperature (0 takes the most probable one), top_k (0: all), top_p,
 * min_p, and a draw by the seed. */
typedef struct {
  float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  int64_t top_k;
  uint64_t seed;
} model_sampling;

/* Begins a sampler in MODEL_SAMPLER_BYTES of memory, 64-byte aligned. */
void model_sampler(void *sampler, const model_sampling *options);

/* Tells the penalty of repetitions about a token of the prompt. */
void model_seen(void *sampler, int32_t token);

/* The next token, or -1 where the logits are no numbers. */
int32_t model_sample(void *sampler, const float *logits);

#ifdef __cplusplus
}
#endif

#endif
"""
