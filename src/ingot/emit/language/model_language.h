/* model_language.h: emitted by Ingot: a language model that continues texts. It prints nothing. */
#ifndef MODEL_LANGUAGE_H
#define MODEL_LANGUAGE_H

#include "model.h"
#include "model_tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A model, and the text whose keys and values are cached. Several may be open; each serves one caller at a time. */
typedef struct model_language model_language;

/* The reason why an answer ended. */
enum { MODEL_ENDED_STOP, MODEL_ENDED_LENGTH, MODEL_ENDED_INTERRUPT };

/* Errors. */
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

/* The message of an error. */
const char *model_language_error(int code);

/* Options of an answer, and its receivers. max_tokens: -1 for the rest of the context. stops: texts that end it and are
 * no part of it. interrupt: NULL, or ends the answer within a layer once it is not 0. take_text: NULL, or receives the
 * text as it becomes certain, in whole characters and without a terminating 0. take_token: NULL, or receives each token
 * except one that ends the answer. given: the argument of both. */
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

/* The defaults of the model's folder, seed 0, and no receivers. */
void model_request_begin(model_request *request);

/* Reads weights.bin and tokenizer.bin of a folder, "" for the working directory. threads: the most that a run uses.
 * Returns NULL after an error; *error: 0, or the error. */
model_language *model_language_open(const char *folder, int threads, int *error);
void model_language_close(model_language *l);

/* Continues a text, UTF-8. Returns the reason why the answer ended, or an error. The beginning that the text shares
 * with the last prompt and its answer is not computed again. */
int model_language_continue(model_language *l, const char *text, size_t count, const model_request *request);

/* The same for tokens. */
int model_language_answer(model_language *l, const model_token_list *prompt, const model_request *request);

/* Appends the tokens of a prompt: the prefix of every text, then its own. Returns 0, or an error. */
int model_language_tokens(const model_language *l, const char *text, size_t count, model_token_list *ids);

const model_tokenizer *model_language_tokenizer(const model_language *l);

/* The number of cached tokens, at most MODEL_CONTEXT. */
int64_t model_language_count(const model_language *l);

#ifdef __cplusplus
}
#endif

#endif
