/* model_chat.h: emitted by Ingot: conversations to tokens, in the form of the chat template of the folder. */
#ifndef MODEL_CHAT_H
#define MODEL_CHAT_H

#include "model_language.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What somebody said: a text, UTF-8, of so many bytes. */
typedef struct {
  const char *text;
  size_t count;
} model_message;

/* Whether a conversation can begin with a system message. */
int model_chat_takes_system(void);

/* Appends the tokens of a conversation up to where the model speaks, for model_language_answer. system: NULL for none.
 * said: what the user and the model said in turns, the user first and last. Returns 0, or what is wrong with it. */
int model_chat_tokens(const model_language *l, const model_message *system, const model_message *said, size_t count,
                      model_token_list *ids);

/* Cuts white space at both ends of a text off. */
void model_chat_trim(const char **text, size_t *count);

#ifdef __cplusplus
}
#endif

#endif
