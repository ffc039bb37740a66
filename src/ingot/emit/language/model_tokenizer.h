/* model_tokenizer.h: emitted by Ingot: text to tokens and back, by the tables of tokenizer.bin. */
#ifndef MODEL_TOKENIZER_H
#define MODEL_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct model_tokenizer model_tokenizer;

/* Growing lists; initially zeros, finally freed by the caller. */
typedef struct {
  int32_t *ids;
  size_t count, room;
} model_token_list;

typedef struct {
  char *bytes;
  size_t count, room;
} model_byte_list;

/* Kinds of pieces: no text, text, or one byte of a character. */
enum { MODEL_PIECE_HIDDEN, MODEL_PIECE_TEXT, MODEL_PIECE_BYTE };

/* Which added tokens are matched in a text: those that are not special; all, as in a chat template. */
enum { MODEL_TOKENS_PLAIN, MODEL_TOKENS_MARKED };

/* Which added tokens a message may not spell: special ones; also those that the chat template contains. */
enum { MODEL_SPELLED_SPECIAL, MODEL_SPELLED_KNOWN };

/* NULL if the file is damaged or of another kind; *is_found: whether it could be opened. */
model_tokenizer *model_tokenizer_open(const char *path, int *is_found);
void model_tokenizer_close(model_tokenizer *t);

/* Appends the tokens of a text, UTF-8, of at most INT32_MAX / 4 bytes. Returns 0, or 1 if plain text necessarily
 * contains a control token. */
int model_tokenizer_encode(const model_tokenizer *t, const char *text, size_t count, int tokens, model_token_list *out);

/* Appends a text with a break in each added token that it spells, which keeps it text where added tokens are matched.
 * Returns 0, or 1 if such a token is a single character. */
int model_tokenizer_break(const model_tokenizer *t, const char *text, size_t count, int spelled, model_byte_list *out);

/* The text that a token adds, and its kind. *count: its bytes. */
const char *model_tokenizer_piece(const model_tokenizer *t, int32_t id, size_t *count, int *kind);

/* Whether a text loses the space at the start of its first piece. */
int model_tokenizer_strips(const model_tokenizer *t);

/* Whether a character's bytes are separate pieces, so that text after them ends the character. */
int model_tokenizer_separates(const model_tokenizer *t);

/* The tokens before a text. */
const int32_t *model_tokenizer_prefix(const model_tokenizer *t, size_t *count);

/* Appends; ends the program when out of memory. */
void model_append_id(model_token_list *list, int32_t id);
void model_append_bytes(model_byte_list *list, const char *bytes, size_t count);

/* The bytes of the character at the start of a text, 0 if it is invalid; *code: its code point. */
size_t model_utf8_next(const char *text, size_t count, uint32_t *code);

int model_is_utf8(const char *text, size_t count);

/* Whether a character is white space. */
int model_is_white(uint32_t code);

#ifdef __cplusplus
}
#endif

#endif
