/* model_command.c: emitted by Ingot: the command line and the output of the programs around a language model. */
#include "model_command.h"

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

volatile int model_interrupted;

const char model_options_help[] =
    "  --max-tokens N            longest answer; by default the rest of the context\n"
    "  --temperature X           0: the most probable token\n"
    "  --top-k K                 only the K most probable tokens; 0: all\n"
    "  --top-p X                 only the most probable tokens with this total probability\n"
    "  --min-p X                 only tokens with this fraction of the best probability\n"
    "  --repetition-penalty X    above 1: earlier tokens become less probable\n"
    "  --presence-penalty X      subtracted from the logits of tokens in the answer\n"
    "  --frequency-penalty X     the same, times the number of their occurrences\n"
    "  --seed N                  the same seed gives the same answer\n"
    "  --stop TEXT               ends the answer, and is no part of it; may be given several times\n"
    "  --ids                     print tokens, not text\n"
    "  --threads N               the most that a run uses; by default one for each CPU\n"
    "  --folder PATH             of weights.bin and tokenizer.bin, if they are not next to the program\n";

_Noreturn void model_fail(const char *what, const char *why, const char *more, int code) {
  fprintf(stderr, "%s: %s%s\n", what, why, more);
  exit(code);
}

#if defined(__wasi__)
void model_watch_interrupts(void) {} /* there are no signals */
#else
static void interrupt(int number) {
  model_interrupted = 1;
  signal(number, SIG_DFL);
}

void model_watch_interrupts(void) { signal(SIGINT, interrupt); }
#endif

void model_flush_output(void) {
  if (fflush(stdout) || ferror(stdout)) model_fail("stdout", "cannot be written whole", "", 74);
}

model_options model_default_options(void) {
  model_options o = {.threads = MODEL_THREADS};
  model_request_begin(&o.request);
  return o;
}

/* -- the command line ---------------------------------------------------------------------------------------------- */

/* The sampling options, and the range of each. */
static const struct {
  const char *name;
  double least, most;
  int is_whole;
} numbers[MODEL_NUMBERS] = {
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

/* Parses a number; 0 and a message if it is out of range. */
static int read_number(const char *name, const char *text, double least, double most, int is_whole, double *value) {
  char *end = NULL;
  *value = strtod(text, &end);
  if (end != text && !*end && *value >= least && *value <= most && (!is_whole || *value == floor(*value))) return 1;
  fprintf(stderr, "%s: got %s, expected %s, %.10g to %.10g\n", name, *text ? text : "nothing",
          is_whole ? "an integer" : "a number", least, most);
  return 0;
}

/* A seed of 64 bits; a negative number counts back from 2^64. */
static int read_seed(const char *text, uint64_t *seed) {
  char *end = NULL;
  errno = 0;
  *seed = *text == '-' ? (uint64_t)strtoll(text, &end, 10) : strtoull(text, &end, 10);
  if (end != text && !*end && !errno) return 1;
  fprintf(stderr, "seed: no 64-bit number, got %s\n", *text ? text : "nothing");
  return 0;
}

static void keep_number(model_options *o, int which, double value) {
  model_sampling *s = &o->request.sampling;
  float *const targets[MODEL_NUMBERS] = {
      NULL, &s->temperature, NULL, &s->top_p, &s->min_p, &s->repetition_penalty, &s->presence_penalty,
      &s->frequency_penalty, NULL,
  };
  if (which == 0) o->request.max_tokens = (int64_t)value;
  else if (which == 2) s->top_k = (int64_t)value;
  else *targets[which] = (float)value;
  s->top_p = fmaxf(s->top_p, 0x1p-126f);
}

int model_set_number(model_options *o, const char *name, const char *text) {
  int which = 0;
  double value;
  while (which < MODEL_NUMBERS && strcmp(name, numbers[which].name) != 0) which++;
  if (which == MODEL_NUMBERS) return 0;
  if (which == MODEL_NUMBERS - 1) {
    if (!read_seed(text, &o->request.sampling.seed)) return -1;
    o->is_seeded = 1;
  } else {
    if (!read_number(name, text, numbers[which].least, numbers[which].most, numbers[which].is_whole, &value)) return -1;
    keep_number(o, which, value);
  }
  snprintf(o->given[which], MODEL_NUMBER_LETTERS, "%s", text);
  return 1;
}

void model_show_numbers(const model_options *o) {
  int count = 0;
  for (int i = 0; i < MODEL_NUMBERS; i++)
    if (*o->given[i]) printf("%s %s\n", numbers[i].name, o->given[i]), count++;
  if (!count) printf("the defaults of the model folder\n");
}

const char *model_value_of(const char *name, int argc, char **argv, int *i) {
  const size_t length = strlen(name);
  const char *word = argv[*i];
  if (strncmp(word, name, length) != 0) return NULL;
  if (word[length] == '=') return word + length + 1;
  return word[length] || *i + 1 >= argc ? NULL : argv[++*i];
}

/* Parses the number of option argv[*i], whose name has - for _. */
static int take_number(model_options *o, int argc, char **argv, int *i) {
  for (int which = 0; which < MODEL_NUMBERS; which++) {
    char option[MODEL_NUMBER_LETTERS];
    snprintf(option, sizeof option, "--%s", numbers[which].name);
    for (char *c = option + 2; *c; c++) *c = (char)(*c == '_' ? '-' : *c);
    const char *value = model_value_of(option, argc, argv, i);
    if (!value && strcmp(argv[*i], option) == 0) value = ""; /* an empty value, which is rejected as no number */
    if (!value) continue;
    if (model_set_number(o, numbers[which].name, value) < 0) exit(2);
    return 1;
  }
  return 0;
}

int model_take_option(model_options *o, int argc, char **argv, int *i) {
  const char *value;
  double threads;
  if (strcmp(argv[*i], "--ids") == 0) {
    o->shows_ids = 1;
  } else if ((value = model_value_of("--threads", argc, argv, i))) {
    if (!read_number("threads", value, 1, MODEL_THREADS, 1, &threads)) exit(2);
    o->threads = (int)threads;
  } else if ((value = model_value_of("--folder", argc, argv, i))) {
    if (!*value) model_fail("--folder", "nothing behind it", "", 2);
    o->folder = value;
  } else if ((value = model_value_of("--stop", argc, argv, i))) {
    if (!*value) model_fail("--stop", "nothing behind it", "", 2);
    if (o->request.stop_count == MODEL_MOST_STOPS) model_fail("stop", "given too often", "", 2);
    model_expect_utf8("stop", value, strlen(value));
    o->stops[o->request.stop_count++] = value;
  } else {
    return take_number(o, argc, argv, i);
  }
  return 1;
}

void model_expect_utf8(const char *what, const char *text, size_t count) {
  if (!model_is_utf8(text, count)) model_fail(what, "not UTF-8", "", 65);
}

/* -- the model ----------------------------------------------------------------------------------------------------- */

/* Ends the program after an error. folder: of the files, with / at its end, or "". */
static _Noreturn void end_by(int error, const char *folder) {
  const int is_missing = error == MODEL_NO_WEIGHTS || error == MODEL_NO_TOKENIZER;
  const char *more = is_missing ? "; --folder gives its path" : "";
  fprintf(stderr, "%s%s%s\n", folder, model_language_error(error), more);
  exit(is_missing ? 66 : error == MODEL_NO_MEMORY ? 75 : error == MODEL_STRAYED ? 70 : 65);
}

model_language *model_open(const model_options *o, const char *program) {
  const char *given = o->folder ? o->folder : program, *slash = strrchr(given, '/');
  model_byte_list folder = {0};
  model_append_bytes(&folder, given, o->folder ? strlen(given) : slash ? (size_t)(slash - given) + 1 : 0);
  if (o->folder && folder.bytes[folder.count - 1] != '/') model_append_bytes(&folder, "/", 1);
  int error;
  model_language *l = model_language_open(folder.bytes, o->threads, &error);
  if (!l) end_by(error, error == MODEL_NO_MEMORY ? "" : folder.bytes);
  free(folder.bytes);
  return l;
}

/* The receiver of an answer. */
typedef struct {
  const model_options *o;
  model_byte_list *answer;
  int is_terminal;
} printer;

/* On a terminal, control characters in a text are not printed. */
static void print_text(int is_terminal, const char *text, size_t count) {
  uint32_t code;
  for (size_t at = 0, length; at < count; at += length) {
    length = model_utf8_next(text + at, count - at, &code);
    const int drives = (code < 32 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0) ||
                       (code >= 0x200b && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
                       (code >= 0x2060 && code <= 0x206f) || code == 0xfeff;
    if (is_terminal && drives) printf(code < 256 ? "\\x%02x" : "\\u%04x", (unsigned)code);
    else fwrite(text + at, 1, length, stdout);
  }
}

static void take_text(void *given, const char *text, size_t count) {
  const printer *p = given;
  if (p->answer) model_append_bytes(p->answer, text, count);
  if (p->o->shows_ids) return;
  print_text(p->is_terminal, text, count);
  model_flush_output();
}

static void take_token(void *given, int32_t token) {
  const printer *p = given;
  if (!p->o->shows_ids) return;
  printf("%d\n", (int)token);
  model_flush_output();
}

static uint64_t random_seed(void) {
#if defined(__wasi__) /* which has no such file, and no clock of a process */
  uint64_t seed = (uint64_t)time(NULL);
  if (getentropy(&seed, sizeof seed)) model_fail("seed", "none to be had", "; --seed gives one", 75);
  return seed;
#else
  uint64_t found = (uint64_t)time(NULL) * 0x9e3779b97f4a7c15u ^ (uint64_t)clock();
  FILE *file = fopen("/dev/urandom", "rb");
  if (file && fread(&found, sizeof found, 1, file) != 1) found ^= (uintptr_t)&found;
  if (file) fclose(file);
  return found;
#endif
}

int model_print_answer(
    model_language *l, const model_options *o, const model_token_list *prompt, model_byte_list *answer) {
  printer p = {.o = o, .answer = answer};
  model_request request = o->request;
  request.stops = o->stops;
  request.interrupt = &model_interrupted;
  request.take_text = take_text, request.take_token = take_token, request.given = &p;
  if (!o->is_seeded) request.sampling.seed = random_seed();
#if defined(__unix__) || defined(__APPLE__)
  p.is_terminal = isatty(1);
#endif
  const int ended = model_language_answer(l, prompt, &request);
  model_flush_output();
  if (ended == MODEL_OTHER_LENGTH)
    fprintf(stderr, "prompt: got %zu tokens, expected 1 to %d\n", prompt->count, MODEL_CONTEXT);
  else if (ended == MODEL_OTHER_TOKEN)
    fprintf(stderr, "%s, expected 0 to %d\n", model_language_error(ended), MODEL_VOCAB - 1);
  else if (ended < 0) end_by(ended, "");
  return ended;
}
