/* language.c: emitted by Ingot: prompts to answers. */
#include "language.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if !defined(__wasi__)
#include <signal.h>
#endif
#if defined(__unix__) || defined(__APPLE__) || defined(__wasi__)
#include <unistd.h>
#endif

#include "facts.h"
#include "model_check.h"

volatile int interrupted;

const char options_help[] =
    "  --max-tokens N            longest answer; else what the context holds\n"
    "  --temperature X           0 takes the most probable token\n"
    "  --top-k K                 only the K most probable tokens; 0: all\n"
    "  --top-p X                 only the fewest tokens with so much probability together\n"
    "  --min-p X                 only tokens with so much of the best one's probability\n"
    "  --repetition-penalty X    above 1: tokens that were seen become less probable\n"
    "  --presence-penalty X      taken from the logit of a token that the answer has\n"
    "  --frequency-penalty X     and that, for each time that it has it\n"
    "  --seed N                  the same one gives the same answer\n"
    "  --stop TEXT               ends the answer, and is no part of it; may be given several times\n"
    "  --ids                     print tokens, not text\n"
    "  --threads N               the most that a run uses; else one for each CPU\n"
    "  --folder PATH             of weights.bin and tokenizer.bin, if they do not lie beside the program\n";

_Noreturn void fail(const char *what, const char *why, const char *more, int code) {
  fprintf(stderr, "%s: %s%s\n", what, why, more);
  exit(code);
}

#if defined(__wasi__)
void watch_interrupts(void) {} /* there are no signals */
#else
static void interrupt(int number) {
  interrupted = 1;
  signal(number, SIG_DFL);
}

void watch_interrupts(void) { signal(SIGINT, interrupt); }
#endif

void flush_output(void) {
  if (fflush(stdout) || ferror(stdout)) fail("stdout", "cannot be written whole", "", 74);
}

options default_options(void) {
  return (options){.sampling = DEFAULT_SAMPLING, .max_tokens = -1, .threads = MODEL_THREADS};
}

/* -- the command line ---------------------------------------------------------------------------------------------- */

/* How tokens are drawn, and the range of each. */
static const struct {
  const char *name;
  double least, most;
  int is_whole;
} numbers[NUMBERS] = {
    {"max_tokens", 0, 1e15, 1},
    {"temperature", 0, 1000, 0},
    {"top_k", 0, INT32_MAX, 1},
    {"top_p", 0x1p-1074, 1, 0},
    {"min_p", 0, 1, 0},
    {"repetition_penalty", 0.001, 1000, 0},
    {"presence_penalty", -2, 2, 0},
    {"frequency_penalty", -2, 2, 0},
    {"seed", 0, 0, 1},
};

/* Reads a number; 0 where it is none of its range: a message has then been printed. */
static int read_number(const char *name, const char *text, double least, double most, int is_whole, double *value) {
  char *end = NULL;
  *value = strtod(text, &end);
  if (end != text && !*end && *value >= least && *value <= most && (!is_whole || *value == floor(*value))) return 1;
  fprintf(stderr, "%s: got %s, expected %s, %.10g to %.10g\n", name, *text ? text : "nothing",
          is_whole ? "an integer" : "a number", least, most);
  return 0;
}

/* A seed of 64 bits, which a negative number counts back from 2^64. */
static int read_seed(const char *text, uint64_t *seed) {
  char *end = NULL;
  errno = 0;
  *seed = *text == '-' ? (uint64_t)strtoll(text, &end, 10) : strtoull(text, &end, 10);
  if (end != text && !*end && !errno) return 1;
  fprintf(stderr, "seed: no 64-bit number, got %s\n", *text ? text : "nothing");
  return 0;
}

static void keep_number(options *o, int which, double value) {
  model_sampling *s = &o->sampling;
  float *const places[NUMBERS] = {
      NULL, &s->temperature, NULL, &s->top_p, &s->min_p, &s->repetition_penalty, &s->presence_penalty,
      &s->frequency_penalty, NULL,
  };
  if (which == 0) o->max_tokens = (int64_t)value;
  else if (which == 2) s->top_k = (int64_t)value;
  else *places[which] = (float)value;
  s->top_p = fmaxf(s->top_p, 0x1p-126f);
}

int set_number(options *o, const char *name, const char *text) {
  int which = 0;
  double value;
  while (which < NUMBERS && strcmp(name, numbers[which].name) != 0) which++;
  if (which == NUMBERS) return 0;
  if (which == NUMBERS - 1) {
    if (!read_seed(text, &o->sampling.seed)) return -1;
    o->is_seeded = 1;
  } else {
    if (!read_number(name, text, numbers[which].least, numbers[which].most, numbers[which].is_whole, &value)) return -1;
    keep_number(o, which, value);
  }
  snprintf(o->given[which], NUMBER_LETTERS, "%s", text);
  return 1;
}

void show_numbers(const options *o) {
  int count = 0;
  for (int i = 0; i < NUMBERS; i++)
    if (*o->given[i]) printf("%s %s\n", numbers[i].name, o->given[i]), count++;
  if (!count) printf("as the model's folder says\n");
}

int take_option(options *o, int argc, char **argv, int *i) {
  const char *option = argv[*i], *value = *i + 1 < argc ? argv[*i + 1] : "";
  char name[NUMBER_LETTERS];
  double threads;
  if (strcmp(option, "--ids") == 0) {
    o->shows_ids = 1;
    return 1;
  }
  if (strncmp(option, "--", 2) != 0) return 0;
  snprintf(name, sizeof name, "%s", option + 2);
  for (char *c = name; *c; c++) *c = (char)(*c == '-' ? '_' : *c);
  const int taken = set_number(o, name, value);
  if (taken < 0) exit(2);
  if (!taken && strcmp(name, "threads") == 0) {
    if (!read_number("threads", value, 1, MODEL_THREADS, 1, &threads)) exit(2);
    o->threads = (int)threads;
  } else if (!taken && strcmp(name, "folder") == 0 && *value) {
    o->folder = value;
  } else if (!taken && strcmp(name, "stop") == 0 && *value) {
    if (o->stop_count == MOST_STOPS) fail("stop", "given too often", "", 2);
    expect_utf8("stop", value, strlen(value));
    o->stops[o->stop_count++] = value;
  } else if (!taken) {
    return 0;
  }
  ++*i;
  return 1;
}

void expect_utf8(const char *what, const char *text, size_t count) {
  uint32_t code;
  for (size_t at = 0, length; at < count; at += length)
    if (!(length = utf8_next(text + at, count - at, &code))) fail(what, "not UTF-8", "", 65);
}

/* -- files and memory ---------------------------------------------------------------------------------------------- */

static void *allocate(size_t bytes) {
  void *memory = aligned_alloc(64, bytes / 64 * 64 + 64);
  if (!memory) fail("model", "no memory", "", 75);
  return memory;
}

static char *beside(const options *o, const char *program, const char *name) {
  const char *slash = o->folder ? NULL : strrchr(program, '/'), *folder = o->folder ? o->folder : program;
  const size_t length = o->folder ? strlen(folder) : slash ? (size_t)(slash - program) : 0;
  char *path = allocate(length + strlen(name) + 2);
  sprintf(path, "%.*s%s%s", (int)length, folder, o->folder || slash ? "/" : "", name);
  return path;
}

static void *read_weights(const char *path) {
  void *weights = allocate(MODEL_WEIGHTS_BYTES);
  FILE *file = fopen(path, "rb");
  if (!file) fail(path, "cannot be opened", "; --folder says where it lies", 66);
  if (fread(weights, 1, MODEL_WEIGHTS_BYTES, file) != MODEL_WEIGHTS_BYTES || fgetc(file) != EOF)
    fail(path, "of another size than this model's weights", "", 65);
  fclose(file);
  if (!model_weights_fit(weights, MODEL_WEIGHTS_BYTES))
    fail(path, "not the weights of this model, or damaged", "", 65);
  return weights;
}

/* The numbers 0, step, 2 * step and so on. */
static int32_t *numbered(int32_t count, int32_t step) {
  int32_t *row = allocate(sizeof(int32_t) * (size_t)count);
  for (int32_t i = 0; i < count; i++) row[i] = step * i;
  return row;
}

language language_open(const options *o, const char *program) {
  language l = {0};
  char *path = beside(o, program, "weights.bin");
  l.weights = read_weights(path);
  free(path);
  path = beside(o, program, "tokenizer.bin");
  l.tokenizer = tokenizer_open(path);
  if (!l.tokenizer) fail(path, "missing, damaged, or no tokenizer", "", 65);
  free(path);
  l.memory = allocate(MODEL_STATE_BYTES);
  l.state = model_init(l.memory, l.weights, o->threads);
  model_watch(l.state, &interrupted);
  l.sampler = allocate(MODEL_SAMPLER_BYTES);
  l.logits = allocate(sizeof(float) * MODEL_VOCAB);
  l.tokens = numbered(MODEL_CONTEXT + 1, 0);
  l.positions = numbered(MODEL_CONTEXT, 1);
  l.owners = numbered(MODEL_PREFILL_ROWS, 0);
  l.blocks = numbered(MODEL_BLOCKS, 1);
  return l;
}

void language_close(language *l) {
  void *const all[] = {l->weights, l->memory, l->sampler, l->logits, l->tokens, l->positions, l->owners, l->blocks};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
  tokenizer_close(l->tokenizer);
}

/* -- text as it comes ---------------------------------------------------------------------------------------------- */

/* What of an answer's text is not certain yet. bytes: of a character that is not whole. held: what may begin a text
 * that ends the answer. */
typedef struct {
  const options *o;
  byte_list bytes, held, *answer;
  int has_begun, is_stopped, is_terminal;
} text_stream;

/* On a terminal, nothing in a text can drive that. */
static void print_text(const text_stream *s, const char *text, size_t count) {
  uint32_t code;
  for (size_t at = 0, length; at < count; at += length) {
    length = utf8_next(text + at, count - at, &code);
    const int drives = (code < 32 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0) ||
                       (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
                       (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
    if (s->is_terminal && drives) printf(code < 256 ? "\\x%02x" : "\\u%04x", (unsigned)code);
    else fwrite(text + at, 1, length, stdout);
  }
}

static void pass_text(text_stream *s, const char *text, size_t count) {
  if (s->answer) append_bytes(s->answer, text, count);
  if (!s->o->shows_ids) print_text(s, text, count);
}

/* Passes on what is in no stop text and cannot become part of one. */
static void search(text_stream *s, const char *fresh, size_t count) {
  append_bytes(&s->held, fresh, count);
  const char *text = s->held.bytes;
  const size_t length = s->held.count;
  size_t end = SIZE_MAX, keep = length;
  for (int i = 0; i < s->o->stop_count; i++) {
    const size_t size = strlen(s->o->stops[i]);
    for (size_t at = 0; at + size <= length && at + size <= end; at++) {
      if (memcmp(text + at, s->o->stops[i], size) != 0) continue;
      if (at + size < end || at < keep) keep = at;
      end = at + size, s->is_stopped = 1;
      break;
    }
  }
  for (int i = 0; i < s->o->stop_count && !s->is_stopped; i++) {
    const size_t size = strlen(s->o->stops[i]);
    for (size_t at = length < size ? 0 : length - size + 1; at < keep; at++)
      if (memcmp(text + at, s->o->stops[i], length - at) == 0) keep = at;
  }
  pass_text(s, text, keep);
  memmove(s->held.bytes, text + keep, length - keep);
  s->held.count = s->is_stopped ? 0 : length - keep;
}

/* The bytes at the start of a text that are no character together; *is_begun: whether more bytes may make them one. */
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

/* Passes on whole characters, U+FFFD for bytes that become none; is_last: what is left of one is none. */
static void pass_characters(text_stream *s, int is_last) {
  byte_list whole = {0};
  size_t at = 0;
  while (at < s->bytes.count && !s->is_stopped) {
    uint32_t code;
    int is_begun = 0;
    const char *here = s->bytes.bytes + at;
    const size_t left = s->bytes.count - at, length = utf8_next(here, left, &code);
    const size_t broken = length ? 0 : broken_bytes(here, left, &is_begun);
    if (is_begun && !is_last) break;
    append_bytes(&whole, length ? here : "\xef\xbf\xbd", length ? length : 3);
    at += length + broken;
  }
  if (s->bytes.count) memmove(s->bytes.bytes, s->bytes.bytes + at, s->bytes.count - at);
  s->bytes.count -= at;
  if (whole.count) search(s, whole.bytes, whole.count);
  free(whole.bytes);
}

static void push_token(text_stream *s, const tokenizer *t, int32_t token) {
  size_t count;
  int kind;
  const char *piece = tokenizer_piece(t, token, &count, &kind);
  if (s->o->shows_ids) printf("%d\n", (int)token);
  if (kind == PIECE_HIDDEN) return;
  if (tokenizer_separates(t) && kind == PIECE_TEXT) pass_characters(s, 1);
  if (!s->has_begun && kind == PIECE_TEXT && tokenizer_strips(t) && count && piece[0] == ' ') piece++, count--;
  s->has_begun = 1;
  append_bytes(&s->bytes, piece, count);
  pass_characters(s, 0);
}

static void finish_text(text_stream *s) {
  if (!s->is_stopped) pass_characters(s, 1);
  if (!s->is_stopped && s->held.count) pass_text(s, s->held.bytes, s->held.count);
  free(s->bytes.bytes);
  free(s->held.bytes);
}

/* -- tokens -------------------------------------------------------------------------------------------------------- */

static uint64_t random_seed(void) {
#if defined(__wasi__) /* which has no such file, and no clock of a process */
  uint64_t seed = (uint64_t)time(NULL);
  if (getentropy(&seed, sizeof seed)) fail("seed", "none to be had", "; --seed gives one", 75);
  return seed;
#else
  uint64_t found = (uint64_t)time(NULL) * 0x9e3779b97f4a7c15u ^ (uint64_t)clock();
  FILE *file = fopen("/dev/urandom", "rb");
  if (file && fread(&found, sizeof found, 1, file) != 1) found ^= (uintptr_t)&found;
  if (file) fclose(file);
  return found;
#endif
}

/* How many of the tokens that the state holds a prompt goes on from; never all of the prompt. */
static int64_t known_tokens(const language *l, const token_list *prompt) {
  const int64_t length = (int64_t)prompt->count;
  int64_t shared = 0;
  while (shared < length && shared < l->count && l->tokens[shared] == prompt->ids[shared]) shared++;
  if (shared < (l->count < length ? l->count : length) / 2) return 0;
  return shared < length ? shared : length - 1;
}

/* What the model did. A checked run alone tells a step that wrote where it may not. */
static int sound(int code) {
  if (code < 0) fail("model", "a step wrote outside of its results", "", 70);
  return code;
}

/* Computes a prompt: logits of what comes next. Returns what the model did. */
static int read_prompt(language *l, const token_list *prompt) {
  const model_prefill_outputs outputs = {.logits = l->logits};
  l->count = known_tokens(l, prompt);
  while (l->count < (int64_t)prompt->count) {
    const int64_t left = (int64_t)prompt->count - l->count;
    const int32_t rows = left < MODEL_PREFILL_ROWS ? (int32_t)left : MODEL_PREFILL_ROWS, take = rows - 1;
    const model_prefill_inputs inputs = {
        .ids = prompt->ids + l->count, .positions = l->positions + l->count, .owners = l->owners,
        .blocks = l->blocks, .take = &take, .rows = rows,
    };
    const int code = sound(model_prefill(l->state, &inputs, &outputs));
    if (code) return code;
    for (int32_t i = 0; i < rows; i++, l->count++) l->tokens[l->count] = prompt->ids[l->count];
  }
  return 0;
}

/* Computes a token that was drawn. Returns what the model did. */
static int read_token(language *l, int32_t token) {
  static const int32_t first = 0;
  const model_decode_inputs inputs = {
      .ids = &token, .positions = l->positions + l->count, .owners = l->owners, .blocks = l->blocks, .take = &first,
  };
  const int code = sound(model_decode(l->state, &inputs, &(model_decode_outputs){.logits = l->logits}));
  if (!code) l->tokens[l->count++] = token;
  return code;
}

static int is_end(int32_t token) {
  static const int32_t ends[] = END_TOKENS;
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
    if (token == ends[i]) return 1;
  return 0;
}

static int draw_tokens(language *l, int64_t most, text_stream *s) {
  for (int64_t drawn = 1;; drawn++) {
    const int32_t token = model_sample(l->sampler, l->logits);
    if (token < 0) fail("model", "the logits are no numbers", "", 65);
    if (is_end(token)) return ENDED_STOP;
    push_token(s, l->tokenizer, token);
    flush_output();
    if (s->is_stopped) return ENDED_STOP;
    if (drawn >= most) return ENDED_LENGTH;
    if (interrupted || read_token(l, token)) return ENDED_INTERRUPT;
  }
}

int language_answer(language *l, const options *o, const token_list *prompt, byte_list *answer) {
  const int64_t room = MODEL_CONTEXT + 1 - (int64_t)prompt->count;
  const int64_t most = o->max_tokens < 0 || o->max_tokens > room ? room : o->max_tokens;
  if (!prompt->count || room < 1) {
    fprintf(stderr, "prompt: got %zu tokens, expected 1 to %d\n", prompt->count, MODEL_CONTEXT);
    return -1;
  }
  model_sampling sampling = o->sampling;
  if (!o->is_seeded) sampling.seed = random_seed();
  model_sampler(l->sampler, &sampling);
  for (size_t i = 0; i < prompt->count; i++) model_seen(l->sampler, prompt->ids[i]);
  if (!most) return ENDED_LENGTH;
  const int code = read_prompt(l, prompt);
  if (code == 1) {
    fprintf(stderr, "prompt: has a token that the model has not, expected 0 to %d\n", MODEL_VOCAB - 1);
    return -1;
  }
  if (code) return ENDED_INTERRUPT;
  text_stream stream = {.o = o, .answer = answer};
#if defined(__unix__) || defined(__APPLE__)
  stream.is_terminal = isatty(1);
#endif
  const int ended = draw_tokens(l, most, &stream);
  finish_text(&stream);
  flush_output();
  return ended;
}
