/* model_language.c: emitted by Ingot: prompts to answers. */
#include "model_language.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_check.h"
#include "model_facts.h"

/* tokens[count]: the text. positions, owners, blocks: inputs of runs, for all positions. */
struct model_language {
  model_tokenizer *tokenizer;
  void *weights, *memory, *sampler;
  model_state *state;
  float *logits;
  int32_t *tokens, *positions, *owners, *blocks;
  int64_t count;
};

static const char *const errors[] = {
    [-MODEL_NO_MEMORY] = "out of memory",
    [-MODEL_NO_WEIGHTS] = "weights.bin: cannot be opened",
    [-MODEL_OTHER_WEIGHTS] = "weights.bin: not the weights of this model, or damaged",
    [-MODEL_NO_TOKENIZER] = "tokenizer.bin: cannot be opened",
    [-MODEL_OTHER_TOKENIZER] = "tokenizer.bin: no tokenizer, or damaged",
    [-MODEL_NO_TEXT] = "prompt: not UTF-8",
    [-MODEL_CONTROL_TEXT] = "prompt: becomes a control token, whatever it is cut into",
    [-MODEL_OTHER_LENGTH] = "prompt: has no tokens, or more than there are positions",
    [-MODEL_OTHER_TOKEN] = "prompt: has a token that the model has not",
    [-MODEL_NO_NUMBERS] = "model: the logits are no numbers",
    [-MODEL_STRAYED] = "model: a step wrote outside of its results",
};

const char *model_language_error(int code) {
  return code < 0 && code >= MODEL_STRAYED ? errors[-code] : "none";
}

void model_request_begin(model_request *request) {
  *request = (model_request){.sampling = MODEL_DEFAULT_SAMPLING, .max_tokens = -1};
}

/* -- files and memory ---------------------------------------------------------------------------------------------- */

static void *allocated(size_t bytes) {
  return aligned_alloc(64, bytes / 64 * 64 + 64);
}

/* Returns the path of a file in a folder; the caller frees it. NULL without memory. */
static char *path_in(const char *folder, const char *name) {
  const size_t length = strlen(folder), bytes = length + strlen(name) + 2;
  char *path = malloc(bytes);
  if (path) snprintf(path, bytes, "%s%s%s", folder, length && folder[length - 1] != '/' ? "/" : "", name);
  return path;
}

/* Returns 0, or an error. */
static int read_weights(model_language *l, const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) return MODEL_NO_WEIGHTS;
  l->weights = allocated(MODEL_WEIGHTS_BYTES);
  const int is_whole =
      l->weights && fread(l->weights, 1, MODEL_WEIGHTS_BYTES, file) == MODEL_WEIGHTS_BYTES && fgetc(file) == EOF;
  fclose(file);
  if (!l->weights) return MODEL_NO_MEMORY;
  return is_whole && model_weights_fit(l->weights, MODEL_WEIGHTS_BYTES) ? 0 : MODEL_OTHER_WEIGHTS;
}

static int read_files(model_language *l, const char *folder) {
  char *weights = path_in(folder, "weights.bin"), *tokenizer = path_in(folder, "tokenizer.bin");
  int is_found, code = weights && tokenizer ? read_weights(l, weights) : MODEL_NO_MEMORY;
  if (!code) {
    l->tokenizer = model_tokenizer_open(tokenizer, &is_found);
    if (!l->tokenizer) code = is_found ? MODEL_OTHER_TOKENIZER : MODEL_NO_TOKENIZER;
  }
  free(weights);
  free(tokenizer);
  return code;
}

/* Returns the numbers 0, step, 2 * step and so on; NULL without memory. */
static int32_t *numbered(int32_t count, int32_t step) {
  int32_t *row = allocated(sizeof(int32_t) * (size_t)count);
  for (int32_t i = 0; row && i < count; i++) row[i] = step * i;
  return row;
}

/* Returns 0, or an error. */
static int begin(model_language *l, int threads) {
  l->memory = allocated(MODEL_STATE_BYTES);
  l->sampler = allocated(MODEL_SAMPLER_BYTES);
  l->logits = allocated(sizeof(float) * MODEL_VOCAB);
  l->tokens = numbered(MODEL_CONTEXT + 1, 0);
  l->positions = numbered(MODEL_CONTEXT, 1);
  l->owners = numbered(MODEL_PREFILL_ROWS, 0);
  l->blocks = numbered(MODEL_BLOCKS, 1);
  if (!l->memory || !l->sampler || !l->logits || !l->tokens || !l->positions || !l->owners || !l->blocks)
    return MODEL_NO_MEMORY;
  l->state = model_init(l->memory, l->weights, threads);
  return 0;
}

model_language *model_language_open(const char *folder, int threads, int *error) {
  model_language *l = calloc(1, sizeof *l);
  *error = l ? read_files(l, folder) : MODEL_NO_MEMORY;
  if (!*error) *error = begin(l, threads);
  if (!*error) return l;
  model_language_close(l);
  return NULL;
}

void model_language_close(model_language *l) {
  if (!l) return;
  void *const all[] = {l->weights, l->memory, l->sampler, l->logits, l->tokens, l->positions, l->owners, l->blocks};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  model_tokenizer_close(l->tokenizer);
  free(l);
}

const model_tokenizer *model_language_tokenizer(const model_language *l) {
  return l->tokenizer;
}

int64_t model_language_count(const model_language *l) {
  return l->count;
}

/* -- text as it comes ---------------------------------------------------------------------------------------------- */

/* The undecided rest of an answer's text. bytes: of an incomplete character. pending: possibly the start of a stop
 * text. */
typedef struct {
  const model_request *request;
  model_byte_list bytes, pending;
  int has_begun, is_stopped;
} text_stream;

static void pass_text(const text_stream *s, const char *text, size_t count) {
  if (count && s->request->take_text) s->request->take_text(s->request->given, text, count);
}

/* Passes on text that has no stop text and cannot become part of one. */
static void search(text_stream *s, const char *fresh, size_t count) {
  model_append_bytes(&s->pending, fresh, count);
  const char *text = s->pending.bytes;
  const size_t length = s->pending.count;
  size_t end = SIZE_MAX, keep = length;
  for (size_t i = 0; i < s->request->stop_count; i++) {
    const size_t size = strlen(s->request->stops[i]);
    for (size_t at = 0; at + size <= length && at + size <= end; at++) {
      if (memcmp(text + at, s->request->stops[i], size) != 0) continue;
      if (at + size < end || at < keep) keep = at;
      end = at + size, s->is_stopped = 1;
      break;
    }
  }
  for (size_t i = 0; i < s->request->stop_count && !s->is_stopped; i++) {
    const size_t size = strlen(s->request->stops[i]);
    for (size_t at = length < size ? 0 : length - size + 1; at < keep; at++)
      if (memcmp(text + at, s->request->stops[i], length - at) == 0) keep = at;
  }
  pass_text(s, text, keep);
  memmove(s->pending.bytes, text + keep, length - keep);
  s->pending.count = s->is_stopped ? 0 : length - keep;
}

/* The bytes at the start of a text that are no character; *is_begun: whether more bytes may complete one. */
static size_t broken_bytes(const char *text, size_t count, int *is_begun) {
  const unsigned char *s = (const unsigned char *)text;
  const size_t wanted = s[0] < 0xc2 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 1;
  const unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
  const unsigned high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
  size_t length = 1;
  for (; length < wanted && length < count; length++)
    if (s[length] < (length == 1 ? low : 0x80) || s[length] > (length == 1 ? high : 0xbf)) break;
  *is_begun = length == count && length < wanted;
  return length;
}

/* Passes on whole characters, U+FFFD for invalid bytes; is_last: an incomplete character is invalid too. */
static void pass_characters(text_stream *s, int is_last) {
  model_byte_list whole = {0};
  size_t at = 0;
  while (at < s->bytes.count && !s->is_stopped) {
    uint32_t code;
    int is_begun = 0;
    const char *here = s->bytes.bytes + at;
    const size_t left = s->bytes.count - at, length = model_utf8_next(here, left, &code);
    const size_t broken = length ? 0 : broken_bytes(here, left, &is_begun);
    if (is_begun && !is_last) break;
    model_append_bytes(&whole, length ? here : "\xef\xbf\xbd", length ? length : 3);
    at += length + broken;
  }
  if (s->bytes.count) memmove(s->bytes.bytes, s->bytes.bytes + at, s->bytes.count - at);
  s->bytes.count -= at;
  if (whole.count) search(s, whole.bytes, whole.count);
  free(whole.bytes);
}

static void push_token(text_stream *s, const model_tokenizer *t, int32_t token) {
  size_t count;
  int kind;
  const char *piece = model_tokenizer_piece(t, token, &count, &kind);
  if (s->request->take_token) s->request->take_token(s->request->given, token);
  if (kind == MODEL_PIECE_HIDDEN) return;
  if (model_tokenizer_separates(t) && kind == MODEL_PIECE_TEXT) pass_characters(s, 1);
  const int is_first = !s->has_begun && kind == MODEL_PIECE_TEXT;
  if (is_first && model_tokenizer_strips(t) && count && piece[0] == ' ') piece++, count--;
  s->has_begun = 1;
  model_append_bytes(&s->bytes, piece, count);
  pass_characters(s, 0);
}

static void finish_text(text_stream *s) {
  if (!s->is_stopped) pass_characters(s, 1);
  if (!s->is_stopped && s->pending.count) pass_text(s, s->pending.bytes, s->pending.count);
  free(s->bytes.bytes);
  free(s->pending.bytes);
}

/* -- tokens -------------------------------------------------------------------------------------------------------- */

/* How many tokens of a prompt are already in the state; at most all but one. */
static int64_t known_tokens(const model_language *l, const model_token_list *prompt) {
  const int64_t length = (int64_t)prompt->count;
  int64_t shared = 0;
  while (shared < length && shared < l->count && l->tokens[shared] == prompt->ids[shared]) shared++;
  if (shared < (l->count < length ? l->count : length) / 2) return 0;
  return shared < length ? shared : length - 1;
}

/* Converts the return code of a run to an error or a reason to end; only a checked run returns less than 0. */
static int ended_by(int code) {
  return code < 0 ? MODEL_STRAYED : code == 1 ? MODEL_OTHER_TOKEN : MODEL_ENDED_INTERRUPT;
}

/* Runs a prompt, for the logits after it. Returns the run's code. */
static int read_prompt(model_language *l, const model_token_list *prompt) {
  const model_prefill_outputs outputs = {.logits = l->logits};
  l->count = known_tokens(l, prompt);
  while (l->count < (int64_t)prompt->count) {
    const int64_t left = (int64_t)prompt->count - l->count;
    const int32_t rows = left < MODEL_PREFILL_ROWS ? (int32_t)left : MODEL_PREFILL_ROWS, take = rows - 1;
    const model_prefill_inputs inputs = {
        .ids = prompt->ids + l->count, .positions = l->positions + l->count, .owners = l->owners,
        .blocks = l->blocks, .take = &take, .rows = rows,
    };
    const int code = model_prefill(l->state, &inputs, &outputs);
    if (code) return code;
    for (int32_t i = 0; i < rows; i++, l->count++) l->tokens[l->count] = prompt->ids[l->count];
  }
  return 0;
}

/* Runs a token that was drawn. Returns the run's code. */
static int read_token(model_language *l, int32_t token) {
  static const int32_t first = 0;
  const model_decode_inputs inputs = {
      .ids = &token, .positions = l->positions + l->count, .owners = l->owners, .blocks = l->blocks, .take = &first,
  };
  const int code = model_decode(l->state, &inputs, &(model_decode_outputs){.logits = l->logits});
  if (!code) l->tokens[l->count++] = token;
  return code;
}

static int is_end(int32_t token) {
  static const int32_t ends[] = MODEL_END_TOKENS;
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
    if (token == ends[i]) return 1;
  return 0;
}

static int draw_tokens(model_language *l, int64_t most, text_stream *s) {
  for (int64_t drawn = 1;; drawn++) {
    const int32_t token = model_sample(l->sampler, l->logits);
    if (token < 0) return MODEL_NO_NUMBERS;
    if (is_end(token)) return MODEL_ENDED_STOP;
    push_token(s, l->tokenizer, token);
    if (s->is_stopped) return MODEL_ENDED_STOP;
    if (drawn >= most) return MODEL_ENDED_LENGTH;
    if (s->request->interrupt && *s->request->interrupt) return MODEL_ENDED_INTERRUPT;
    const int code = read_token(l, token);
    if (code) return ended_by(code);
  }
}

int model_language_answer(model_language *l, const model_token_list *prompt, const model_request *request) {
  const int64_t room = MODEL_CONTEXT + 1 - (int64_t)prompt->count;
  const int64_t most = request->max_tokens < 0 || request->max_tokens > room ? room : request->max_tokens;
  if (!prompt->count || room < 1) return MODEL_OTHER_LENGTH;
  model_sampler(l->sampler, &request->sampling);
  for (size_t i = 0; i < prompt->count; i++) model_seen(l->sampler, prompt->ids[i]);
  if (!most) return MODEL_ENDED_LENGTH;
  model_watch(l->state, request->interrupt);
  const int code = read_prompt(l, prompt);
  if (code) return ended_by(code);
  text_stream stream = {.request = request};
  const int ended = draw_tokens(l, most, &stream);
  finish_text(&stream);
  return ended;
}

int model_language_tokens(const model_language *l, const char *text, size_t count, model_token_list *ids) {
  size_t before;
  if (!model_is_utf8(text, count)) return MODEL_NO_TEXT;
  const int32_t *prefix = model_tokenizer_prefix(l->tokenizer, &before);
  for (size_t i = 0; i < before; i++) model_append_id(ids, prefix[i]);
  return model_tokenizer_encode(l->tokenizer, text, count, MODEL_TOKENS_PLAIN, ids) ? MODEL_CONTROL_TEXT : 0;
}

int model_language_continue(model_language *l, const char *text, size_t count, const model_request *request) {
  model_token_list ids = {0};
  int ended = model_language_tokens(l, text, count, &ids);
  if (!ended) ended = model_language_answer(l, &ids, request);
  free(ids.ids);
  return ended;
}
