/* model_chat.c: emitted by Ingot: conversations to tokens, in the format of the folder's chat template. */
#include "model_chat.h"

#include <stdlib.h>
#include <string.h>

#include "model_facts.h"

/* Texts around a system message, NULL if the model has none. */
static const char *const before_system = MODEL_CHAT_BEFORE_SYSTEM, *const after_system = MODEL_CHAT_AFTER_SYSTEM;

int model_chat_takes_system(void) {
  return before_system && after_system;
}

/* White space as Python defines it. */
static int is_blank(uint32_t code) {
  return model_is_white(code) || (code >= 0x1c && code <= 0x1f);
}

void model_chat_trim(const char **text, size_t *count) {
  uint32_t code;
  for (size_t size; (size = model_utf8_next(*text, *count, &code)) && is_blank(code); *count -= size) *text += size;
  for (size_t at = *count; at; *count = at) {
    do at--;
    while (at && ((unsigned char)(*text)[at] & 0xc0) == 0x80);
    if (!model_utf8_next(*text + at, *count - at, &code) || !is_blank(code)) return;
  }
}

/* Removes everything up to the end of the last thought. */
static void drop_thoughts(const char **text, size_t *count) {
  static const char end[] = "</think>";
  const size_t size = sizeof end - 1;
  for (size_t at = *count; at >= size; at--) {
    if (memcmp(*text + at - size, end, size) != 0) continue;
    *text += at, *count -= at;
    while (MODEL_CHAT_DROPS_THOUGHTS > 1 && *count && **text == '\n') ++*text, --*count;
    return;
  }
}

/* Appends a message as the template does; nothing in it becomes a control token. Returns 0, or an error. */
static int append_message(
    const model_tokenizer *t, const model_message *message, int is_model, int trims, model_byte_list *out) {
  model_byte_list broken = {0};
  if (!model_is_utf8(message->text, message->count)) return MODEL_NO_TEXT;
  model_append_bytes(&broken, "", 0);
  const int spelled = is_model ? MODEL_SPELLED_SPECIAL : MODEL_SPELLED_KNOWN;
  const int failed = model_tokenizer_break(t, message->text, message->count, spelled, &broken);
  const char *text = broken.bytes;
  size_t count = broken.count;
  if (is_model && MODEL_CHAT_DROPS_THOUGHTS) drop_thoughts(&text, &count);
  if (trims) model_chat_trim(&text, &count);
  model_append_bytes(out, text, count);
  free(broken.bytes);
  return failed ? MODEL_CONTROL_TEXT : 0;
}

static void append_text(model_byte_list *out, const char *text) {
  model_append_bytes(out, text, strlen(text));
}

int model_chat_tokens(const model_language *l, const model_message *system, const model_message *messages, size_t count,
                      model_token_list *ids) {
  const model_tokenizer *t = model_language_tokenizer(l);
  model_byte_list text = {0};
  int error = 0;
  if (system && before_system && after_system) {
    append_text(&text, before_system);
    error = append_message(t, system, 0, MODEL_CHAT_TRIMS_SYSTEM, &text);
    append_text(&text, after_system);
  } else {
    append_text(&text, MODEL_CHAT_FIRST);
  }
  for (size_t i = 0; i < count && !error; i++) {
    const int is_model = i % 2 == 1;
    error = append_message(t, &messages[i], is_model, is_model ? MODEL_CHAT_TRIMS_MODEL : MODEL_CHAT_TRIMS_USER, &text);
    append_text(&text, i + 1 == count ? MODEL_CHAT_LAST : is_model ? MODEL_CHAT_TO_USER : MODEL_CHAT_TO_MODEL);
  }
  if (!error && model_tokenizer_encode(t, text.bytes, text.count, MODEL_TOKENS_MARKED, ids)) error = MODEL_CONTROL_TEXT;
  free(text.bytes);
  return error;
}
