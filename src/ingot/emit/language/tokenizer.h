/* tokenizer.h: emitted by Ingot: text to tokens and back, by the tables of tokenizer.bin. */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tokenizer tokenizer;

/* Lists that grow; zeros at first, to be given to free at last. */
typedef struct {
  int32_t *ids;
  size_t count, room;
} token_list;

typedef struct {
  char *bytes;
  size_t count, room;
} byte_list;

/* What a piece is: nothing to read, text, or one byte of a character. */
enum { PIECE_HIDDEN, PIECE_TEXT, PIECE_BYTE };

/* Which texts of added tokens are taken for them: those that are not special; all, as a chat template writes them. */
enum { TOKENS_PLAIN, TOKENS_MARKED };

/* Which added tokens a message may not spell: special ones; those too that the chat template knows. */
enum { SPELLED_SPECIAL, SPELLED_KNOWN };

/* NULL where the file cannot be read whole, or is none of this kind. */
tokenizer *tokenizer_open(const char *path);
void tokenizer_close(tokenizer *t);

/* Appends the tokens of a text, UTF-8, of at most INT32_MAX / 4 bytes. Returns 0, or 1 where plain text becomes a
 * control token whatever it is cut into. */
int tokenizer_encode(const tokenizer *t, const char *text, size_t count, int tokens, token_list *out);

/* Appends a text with a break in each added token that it spells, which keeps it text where tokens are marked. Returns
 * 0, or 1 where such a token is one character. */
int tokenizer_break(const tokenizer *t, const char *text, size_t count, int spelled, byte_list *out);

/* What a token adds to a text, and what that is. *count: its bytes. */
const char *tokenizer_piece(const tokenizer *t, int32_t id, size_t *count, int *kind);

/* Whether a text loses the space that its first piece begins with. */
int tokenizer_strips(const tokenizer *t);

/* Whether a character's bytes are pieces of their own, so that text behind them ends it. */
int tokenizer_separates(const tokenizer *t);

/* The tokens before a text. */
const int32_t *tokenizer_prefix(const tokenizer *t, size_t *count);

/* Appends; ends the program where there is no memory. */
void append_id(token_list *list, int32_t id);
void append_bytes(byte_list *list, const char *bytes, size_t count);

/* The bytes of the character that a text begins with, 0 where it is none; *code: its code point. */
size_t utf8_next(const char *text, size_t count, uint32_t *code);

/* Whether a character is white space. */
int is_white(uint32_t code);

#ifdef __cplusplus
}
#endif

#endif
