/* model_chat.h: emitted by Ingot: conversations to tokens, in the format of the folder's chat template. */
#ifndef MODEL_CHAT_H
#define MODEL_CHAT_H

#include "model_language.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A message: a text, UTF-8, of so many bytes. */
typedef struct {
  const char *text;
  size_t count;
} model_message;

/* Whether a conversation can begin with a system message. */
int model_chat_takes_system(void);

/* Appends the tokens of a conversation up to the model's next message, for model_language_answer. system: NULL for
 * none. messages: of user and model, alternating; the first and the last are the user's. Returns 0, or an
 * error. */
int model_chat_tokens(const model_language *l, const model_message *system, const model_message *messages, size_t count,
                      model_token_list *ids);

/* Strips white space at both ends of a text. */
void model_chat_trim(const char **text, size_t *count);

#ifdef __cplusplus
}
#endif

#endif
