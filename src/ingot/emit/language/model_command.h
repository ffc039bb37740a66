/* model_command.h: emitted by Ingot: what programs around a language model have alike: options, and what they print. */
#ifndef MODEL_COMMAND_H
#define MODEL_COMMAND_H

#include "model_language.h"

enum { MODEL_MOST_STOPS = 16, MODEL_NUMBERS = 9, MODEL_NUMBER_LETTERS = 32 };

/* What the command line says of answers. stops: what `request` points to. is_seeded: whether its seed was given.
 * shows_ids: the tokens are printed, not their text. threads: the most that a run uses. given: the numbers that were
 * given, as texts, "" for none. folder: of the files weights.bin and tokenizer.bin, NULL for where the program lies. */
typedef struct {
  model_request request;
  const char *stops[MODEL_MOST_STOPS];
  int is_seeded, shows_ids, threads;
  char given[MODEL_NUMBERS][MODEL_NUMBER_LETTERS];
  const char *folder;
} model_options;

/* What Ctrl-C sets; the run under way ends at its next layer. */
extern volatile int model_interrupted;

/* Has Ctrl-C set it from now on, once: a second one ends the program. */
void model_watch_interrupts(void);

/* Ends the program with a message and an exit code. */
_Noreturn void model_fail(const char *what, const char *why, const char *more, int code);

/* Passes on what was printed; ends the program where it does not arrive. */
void model_flush_output(void);

/* The options that the model's folder gave. */
model_options model_default_options(void);

/* Sets how tokens are drawn. name: as in temperature or top_p. Returns 1; 0 where there is no such number, and -1 where
 * it cannot be that: a message has then been printed. */
int model_set_number(model_options *o, const char *name, const char *text);

/* Prints a line for each number that was given. */
void model_show_numbers(const model_options *o);

/* What is given to the option argv[*i] of a name: what is behind its =, or the next word, which *i is then moved to.
 * NULL where it is another option, or nothing is given. */
const char *model_value_of(const char *name, int argc, char **argv, int *i);

/* Takes the option argv[*i] and its value, which *i is moved to; 0 where it is none of these. */
int model_take_option(model_options *o, int argc, char **argv, int *i);

/* The lines of --help on those options. */
extern const char model_options_help[];

/* Opens the files; ends the program where they are missing or wrong. program: argv[0]. */
model_language *model_open(const model_options *o, const char *program);

/* Ends the program unless a text is UTF-8. */
void model_expect_utf8(const char *what, const char *text, size_t count);

/* Prints the answer to a prompt as it comes. answer: NULL, or where its text is appended. Returns what ended it, or
 * what is wrong with the prompt: a message has then been printed. */
int model_print_answer(
    model_language *l, const model_options *o, const model_token_list *prompt, model_byte_list *answer);

#endif
