/* model_language.h: emitted by Ingot: a language model that goes on with texts. It prints nothing. */
#ifndef MODEL_LANGUAGE_H
#define MODEL_LANGUAGE_H

#include "model.h"
#include "model_tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A model, and the text whose keys and values it holds. Several may be open; each serves one caller at a time. */
typedef struct model_language model_language;

/* What ended an answer. */
enum { MODEL_ENDED_STOP, MODEL_ENDED_LENGTH, MODEL_ENDED_INTERRUPT };

/* What has gone wrong. */
enum {
  MODEL_NO_MEMORY = -1,
  MODEL_NO_WEIGHTS = -2,
  MODEL_OTHER_WEIGHTS = -3,
  MODEL_NO_TOKENIZER = -4,
  MODEL_OTHER_TOKENIZER = -5,
  MODEL_NO_TEXT = -6,
  MODEL_CONTROL_TEXT = -7,
  MODEL_OTHER_LENGTH = -8,
  MODEL_OTHER_TOKEN = -9,
  MODEL_NO_NUMBERS = -10,
  MODEL_STRAYED = -11
};

/* That in words. */
const char *model_language_error(int code);

/* How an answer is drawn, and who gets it. max_tokens: -1 for what the context holds. stops: texts that end it and are
 * no part of it. interrupt: NULL, or what ends it once it is not 0, within a layer. take_text: NULL, or gets its text
 * as it becomes certain, whole characters at a time and no 0 behind them. take_token: NULL, or gets each token, but for
 * one that ends the answer. given: what both are called with. */
typedef struct {
  model_sampling sampling;
  int64_t max_tokens;
  const char *const *stops;
  size_t stop_count;
  const volatile int *interrupt;
  void (*take_text)(void *given, const char *text, size_t count);
  void (*take_token)(void *given, int32_t token);
  void *given;
} model_request;

/* What the model's folder said of drawing, seed 0, and nobody who gets the answer. */
void model_request_begin(model_request *request);

/* Reads weights.bin and tokenizer.bin of a folder, "" for the working directory. threads: the most that a run uses.
 * Returns NULL where that fails; *error: 0, or how. */
model_language *model_language_open(const char *folder, int threads, int *error);
void model_language_close(model_language *l);

/* Goes on with a text, UTF-8. Returns what ended the answer, or what has gone wrong. What the text shares with the one
 * before, the prompt and its answer, is not computed again. */
int model_language_continue(model_language *l, const char *text, size_t count, const model_request *request);

/* The same for tokens. */
int model_language_answer(model_language *l, const model_token_list *prompt, const model_request *request);

/* Appends the tokens of a prompt: those before every text, then its own. Returns 0, or what is wrong with it. */
int model_language_tokens(const model_language *l, const char *text, size_t count, model_token_list *ids);

const model_tokenizer *model_language_tokenizer(const model_language *l);

/* How many tokens it holds; MODEL_CONTEXT: no more fit. */
int64_t model_language_count(const model_language *l);

#ifdef __cplusplus
}
#endif

#endif
