/* model_command.h: emitted by Ingot: options and output that the programs around a language model share. */
#ifndef MODEL_COMMAND_H
#define MODEL_COMMAND_H

#include "model_language.h"

enum { MODEL_MOST_STOPS = 16, MODEL_NUMBERS = 9, MODEL_NUMBER_LETTERS = 32 };

/* Options of the command line. stops: the texts of `request`. is_seeded: whether a seed was given. shows_ids: print
 * tokens instead of text. threads: the most that a run uses. given: the numbers that were given, as texts, "" for none.
 * folder: of weights.bin and tokenizer.bin, NULL for the folder of the program. */
typedef struct {
  model_request request;
  const char *stops[MODEL_MOST_STOPS];
  int is_seeded, shows_ids, threads;
  char given[MODEL_NUMBERS][MODEL_NUMBER_LETTERS];
  const char *folder;
} model_options;

/* Set by Ctrl-C; the current run ends at its next layer. */
extern volatile int model_interrupted;

/* Lets the next Ctrl-C set it; a second one ends the program. */
void model_watch_interrupts(void);

/* Ends the program with a message and an exit code. */
_Noreturn void model_fail(const char *what, const char *why, const char *more, int code);

/* Flushes the output; ends the program if that fails. */
void model_flush_output(void);

/* The default options of the model's folder. */
model_options model_default_options(void);

/* Sets a sampling option. name: such as temperature or top_p. Returns 1; 0 for an unknown name, -1 and a message for an
 * invalid value. */
int model_set_number(model_options *o, const char *name, const char *text);

/* Prints a line for each number that was given. */
void model_show_numbers(const model_options *o);

/* The value of the option argv[*i], if it has this name: the text after =, or the next word, to which *i then moves.
 * NULL for another option, or without a value. */
const char *model_value_of(const char *name, int argc, char **argv, int *i);

/* Parses the option argv[*i] and its value, to which *i moves; 0 if it is none of these. */
int model_take_option(model_options *o, int argc, char **argv, int *i);

/* The lines of --help for those options. */
extern const char model_options_help[];

/* Opens the files; ends the program if they are missing or invalid. program: argv[0]. */
model_language *model_open(const model_options *o, const char *program);

/* Ends the program unless a text is UTF-8. */
void model_expect_utf8(const char *what, const char *text, size_t count);

/* Prints the answer to a prompt as it is drawn. answer: NULL, or receives its text. Returns the reason for its end, or
 * an error, after a message. */
int model_print_answer(
    model_language *l, const model_options *o, const model_token_list *prompt, model_byte_list *answer);

#endif
