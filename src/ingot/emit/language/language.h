/* language.h: emitted by Ingot: a language model that reads and writes text. */
#ifndef LANGUAGE_H
#define LANGUAGE_H

#include "model.h"
#include "tokenizer.h"

enum { MOST_STOPS = 16, NUMBERS = 9, NUMBER_LETTERS = 32 };

/* How an answer is drawn. max_tokens: -1 for what the context holds. stops: texts that end it and are no part of it.
 * is_seeded: whether `sampling.seed` was given. shows_ids: the tokens are printed, not their text. threads: the most
 * that a run uses. given: the numbers that were given, as texts, "" for none. folder: of the files weights.bin and
 * tokenizer.bin, NULL for where the program lies. */
typedef struct {
  model_sampling sampling;
  int64_t max_tokens;
  const char *stops[MOST_STOPS];
  int stop_count, is_seeded, shows_ids, threads;
  char given[NUMBERS][NUMBER_LETTERS];
  const char *folder;
} options;

/* A model and the text whose keys and values it holds: tokens[count]. positions, owners, blocks: as a run takes them,
 * of all that there can be. */
typedef struct {
  tokenizer *tokenizer;
  void *weights, *memory, *sampler;
  model_state *state;
  float *logits;
  int32_t *tokens, *positions, *owners, *blocks;
  int64_t count;
} language;

/* What ended an answer. */
enum { ENDED_STOP, ENDED_LENGTH, ENDED_INTERRUPT };

/* What Ctrl-C sets; the run under way ends at its next layer. */
extern volatile int interrupted;

/* Has Ctrl-C set it from now on, once: a second one ends the program. */
void watch_interrupts(void);

/* Ends the program with a message and an exit code. */
_Noreturn void fail(const char *what, const char *why, const char *more, int code);

/* Passes on what was printed; ends the program where it does not arrive. */
void flush_output(void);

/* The options that the model's folder gave. */
options default_options(void);

/* Sets how tokens are drawn. name: as in temperature or top_p. Returns 1; 0 where there is no such number, and -1 where
 * it cannot be that: a message has then been printed. */
int set_number(options *o, const char *name, const char *text);

/* Prints a line for each number that was given. */
void show_numbers(const options *o);

/* Takes the option argv[*i] and what follows it, and moves *i behind; 0 where it is none of these. */
int take_option(options *o, int argc, char **argv, int *i);

/* The lines of --help on those options. */
extern const char options_help[];

/* Opens the files; ends the program where they are missing or wrong. program: argv[0]. */
language language_open(const options *o, const char *program);
void language_close(language *l);

/* Ends the program unless a text is UTF-8. */
void expect_utf8(const char *what, const char *text, size_t count);

/* Prints the answer to a prompt as it comes. answer: NULL, or where its text is appended. Returns what ended it, or -1
 * where the prompt has no tokens, or more than there are positions: a message has then been printed. */
int language_answer(language *l, const options *o, const token_list *prompt, byte_list *answer);

#endif
