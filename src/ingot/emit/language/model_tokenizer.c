/* model_tokenizer.c: emitted by Ingot: byte-pair encoding (Sennrich et al., "Neural Machine Translation of Rare Words
 * with Subword Units", 2016) over bytes or characters. A text is split at added tokens, the rest is split into words,
 * and in a word the adjacent pair with the lowest rank is merged until no pair is left. */
#include "model_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_normal.h"

/* The sections of tokenizer.bin, in order. */
enum {
  SETTINGS, PIECE_STARTS, PIECE_BYTES, PIECE_KINDS, SYMBOLS, BYTE_IDS, MERGES, WORD_STARTS, WORD_BYTES, WORD_IDS,
  ADDED_STARTS, ADDED_BYTES, ADDED, STAGES, RUNS, TRANSITIONS, PREFIX_IDS, DECOMPOSITIONS,
  COMPOSITIONS, CLASSES, SECTIONS
};

/* The numbers of section SETTINGS. */
enum {
  OVER_BYTES, BYTE_FALLBACK, IGNORE_MERGES, UNKNOWN, FUSE_UNKNOWN, PREPEND, REPLACE, METASPACE, SPLIT_SPACES,
  PREFIX_SPACE, STRIP, COMPOSE, VOCAB, STAGE_COUNT
};

/* Bits of added tokens. NORMAL: matched in text whose spaces are replaced. LEFT, RIGHT: includes the white space
 * there. */
enum { SPECIAL = 1, NORMAL = 2, KNOWN = 4, LEFT = 8, RIGHT = 16, CONTROL = 32 };

enum { HEAD_BYTES = 24, MOST_STAGES = 16, NO_SYMBOL = -1 };

static const char SPACE[] = "\xe2\x96\x81"; /* represents a space in a word */
static const char BREAK[] = "\xef\xb7\x90"; /* a noncharacter; between two characters it prevents a match */

typedef struct {
  const int32_t *runs, *transitions;
  int32_t width, run_count;
  int32_t ascii[128]; /* classes */
} stage;

struct model_tokenizer {
  char *content;
  const int32_t *numbers[SECTIONS];
  const char *bytes[SECTIONS];
  size_t counts[SECTIONS]; /* bytes of each section */
  const int32_t *settings;
  stage stages[MOST_STAGES];
  model_normal_tables normal;
  uint8_t begins[256]; /* whether some added token begins with a byte */
};

/* A symbol of a word. next, previous: the indices of its neighbours, NO_SYMBOL for none; id: NO_SYMBOL once it was
 * merged. */
typedef struct {
  int32_t id, previous, next;
} symbol;

/* Two neighbours that may be merged. */
typedef struct {
  int32_t rank, left, result;
} joint;

/* The state of encoding one text. mark: whether a break is a token without an id. */
typedef struct {
  const model_tokenizer *t;
  model_token_list *out;
  int tokens, mark;
  symbol *symbols;
  joint *joints;
  size_t symbol_count, symbol_room, joint_count, joint_room;
  model_byte_list normal;
} encoding;

/* Grows an array by at least one item. */
static void *grown(void *items, size_t count, size_t *room, size_t size) {
  if (count < *room) return items;
  *room = 2 * *room + 64;
  items = realloc(items, *room * size);
  if (!items) {
    fprintf(stderr, "out of memory\n");
    exit(75);
  }
  return items;
}

void model_append_id(model_token_list *list, int32_t id) {
  list->ids = grown(list->ids, list->count, &list->room, sizeof *list->ids);
  list->ids[list->count++] = id;
}

void model_append_bytes(model_byte_list *list, const char *bytes, size_t count) {
  while (list->room < list->count + count + 1) list->bytes = grown(list->bytes, list->room, &list->room, 1);
  if (count) memcpy(list->bytes + list->count, bytes, count);
  list->count += count;
  list->bytes[list->count] = 0;
}

size_t model_utf8_next(const char *text, size_t count, uint32_t *code) {
  const unsigned char *s = (const unsigned char *)text;
  static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
  if (!count) return 0;
  const size_t length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
  if (!length || length > count) return 0;
  uint32_t found = length == 1 ? s[0] : s[0] & (0x7fu >> length);
  for (size_t i = 1; i < length; i++) {
    if ((s[i] & 0xc0) != 0x80) return 0;
    found = found << 6 | (s[i] & 0x3f);
  }
  if (found < least[length] || found > 0x10ffff || (found >= 0xd800 && found < 0xe000)) return 0;
  *code = found;
  return length;
}

int model_is_utf8(const char *text, size_t count) {
  uint32_t code;
  for (size_t at = 0, length; at < count; at += length)
    if (!(length = model_utf8_next(text + at, count - at, &code))) return 0;
  return 1;
}

int model_is_white(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* -- the file ------------------------------------------------------------------------------------------------------ */

/* FNV-1a over words of 8 bytes. */
static uint64_t hash_of(const char *content, size_t bytes) {
  uint64_t total = 0xcbf29ce484222325u;
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word = 0;
    memcpy(&word, content + i, bytes - i < 8 ? bytes - i : 8);
    total = (total ^ word) * 0x100000001b3u;
  }
  return total;
}

static char *content_of(const char *path, size_t *bytes, int *is_found) {
  FILE *file = fopen(path, "rb");
  *is_found = file != NULL;
  char head[HEAD_BYTES], *content = NULL;
  int64_t size = 0;
  if (file && fread(head, 1, HEAD_BYTES, file) == HEAD_BYTES && memcmp(head, "INGOTTOK", 8) == 0)
    memcpy(&size, head + 16, 8);
  if (size > HEAD_BYTES && size < INT32_MAX) content = malloc((size_t)size);
  if (content) {
    memcpy(content, head, HEAD_BYTES);
    *bytes = (size_t)size;
    uint64_t hash;
    memcpy(&hash, head + 8, 8);
    if (fread(content + HEAD_BYTES, 1, *bytes - HEAD_BYTES, file) != *bytes - HEAD_BYTES || fgetc(file) != EOF ||
        hash_of(content + 16, *bytes - 16) != hash) {
      free(content);
      content = NULL;
    }
  }
  if (file) fclose(file);
  return content;
}

/* The class of a character. */
static int32_t class_of(const int32_t *runs, int32_t count, int32_t code) {
  int32_t low = 0;
  while (count > 1) {
    const int32_t half = count / 2;
    if (runs[2 * (low + half)] <= code) low += half;
    count -= half;
  }
  return runs[2 * low + 1];
}

model_tokenizer *model_tokenizer_open(const char *path, int *is_found) {
  size_t bytes;
  char *content = content_of(path, &bytes, is_found);
  model_tokenizer *t = content ? calloc(1, sizeof *t) : NULL;
  if (!t) {
    free(content);
    return NULL;
  }
  t->content = content;
  for (int i = 0; i < SECTIONS; i++) {
    int32_t range[2];
    memcpy(range, content + HEAD_BYTES + 8 * i, 8);
    t->bytes[i] = content + range[0];
    t->numbers[i] = (const int32_t *)(const void *)t->bytes[i];
    t->counts[i] = (size_t)range[1];
  }
  t->settings = t->numbers[SETTINGS];
  for (int32_t i = 0; i < t->settings[STAGE_COUNT] && i < MOST_STAGES; i++) {
    const int32_t *row = t->numbers[STAGES] + 4 * i;
    stage *s = &t->stages[i];
    s->width = row[0], s->runs = t->numbers[RUNS] + 2 * row[1], s->run_count = row[2];
    s->transitions = t->numbers[TRANSITIONS] + row[3];
    for (int32_t code = 0; code < 128; code++) s->ascii[code] = class_of(s->runs, s->run_count, code);
  }
  t->normal = (model_normal_tables){
      t->numbers[DECOMPOSITIONS], t->numbers[COMPOSITIONS], t->numbers[CLASSES],
      t->counts[DECOMPOSITIONS] / 12, t->counts[COMPOSITIONS] / 12, t->counts[CLASSES] / 8,
  };
  const int32_t *starts = t->numbers[ADDED_STARTS];
  for (size_t i = 0; i < t->counts[ADDED] / 8; i++) t->begins[(uint8_t)t->bytes[ADDED_BYTES][starts[i]]] = 1;
  return t;
}

void model_tokenizer_close(model_tokenizer *t) {
  if (t) free(t->content);
  free(t);
}

/* -- a word -------------------------------------------------------------------------------------------------------- */

/* The row of a pair's merge, NULL for none. */
static const int32_t *merge_of(const model_tokenizer *t, int32_t left, int32_t right) {
  const int32_t *rows = t->numbers[MERGES];
  size_t low = 0, high = t->counts[MERGES] / 16;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const int32_t *row = rows + 4 * middle;
    if (row[0] == left && row[1] == right) return row;
    if (row[0] < left || (row[0] == left && row[1] < right)) low = middle + 1;
    else high = middle;
  }
  return NULL;
}

static int is_before(const joint *a, const joint *b) {
  return a->rank != b->rank ? a->rank < b->rank : a->left < b->left;
}

/* Adds the pair of the symbol at an index and the next one to the heap, whose top is merged first. */
static void note_joint(encoding *e, int32_t left) {
  if (left == NO_SYMBOL || e->symbols[left].next == NO_SYMBOL) return;
  const int32_t *row = merge_of(e->t, e->symbols[left].id, e->symbols[e->symbols[left].next].id);
  if (!row) return;
  e->joints = grown(e->joints, e->joint_count, &e->joint_room, sizeof *e->joints);
  const joint fresh = {row[2], left, row[3]};
  size_t at = e->joint_count++;
  for (; at && is_before(&fresh, &e->joints[(at - 1) / 2]); at = (at - 1) / 2) e->joints[at] = e->joints[(at - 1) / 2];
  e->joints[at] = fresh;
}

static joint first_joint(encoding *e) {
  const joint first = e->joints[0], last = e->joints[--e->joint_count];
  size_t at = 0;
  for (size_t child = 1; child < e->joint_count; child = 2 * at + 1) {
    if (child + 1 < e->joint_count && is_before(&e->joints[child + 1], &e->joints[child])) child++;
    if (!is_before(&e->joints[child], &last)) break;
    e->joints[at] = e->joints[child];
    at = child;
  }
  if (e->joint_count) e->joints[at] = last;
  return first;
}

static void add_symbol(encoding *e, int32_t id) {
  e->symbols = grown(e->symbols, e->symbol_count, &e->symbol_room, sizeof *e->symbols);
  e->symbols[e->symbol_count] = (symbol){id, (int32_t)e->symbol_count - 1, (int32_t)e->symbol_count + 1};
  e->symbol_count++;
}

/* Merges neighbours and appends the remaining tokens. */
static void join(encoding *e) {
  if (e->symbol_count) e->symbols[e->symbol_count - 1].next = NO_SYMBOL;
  for (size_t i = 0; i + 1 < e->symbol_count; i++) note_joint(e, (int32_t)i);
  while (e->joint_count) {
    const joint top = first_joint(e);
    symbol *left = &e->symbols[top.left];
    if (left->id == NO_SYMBOL || left->next == NO_SYMBOL) continue;
    symbol *right = &e->symbols[left->next];
    const int32_t *row = merge_of(e->t, left->id, right->id);
    if (!row || row[3] != top.result) continue;
    left->id = top.result;
    right->id = NO_SYMBOL;
    left->next = right->next;
    if (left->next != NO_SYMBOL) e->symbols[left->next].previous = top.left;
    note_joint(e, left->previous);
    note_joint(e, top.left);
  }
  for (size_t i = 0; i < e->symbol_count; i++)
    if (e->symbols[i].id != NO_SYMBOL) model_append_id(e->out, e->symbols[i].id);
  e->symbol_count = 0;
}

static int32_t symbol_id(const model_tokenizer *t, int32_t code) {
  const int32_t *pairs = t->numbers[SYMBOLS];
  size_t low = 0, high = t->counts[SYMBOLS] / 8;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (pairs[2 * middle] == code) return pairs[2 * middle + 1];
    if (pairs[2 * middle] < code) low = middle + 1;
    else high = middle;
  }
  return NO_SYMBOL;
}

/* The id of a whole word, or NO_SYMBOL. */
static int32_t word_id(const model_tokenizer *t, const char *word, size_t count) {
  const int32_t *starts = t->numbers[WORD_STARTS];
  size_t low = 0, high = t->counts[WORD_IDS] / 4;
  while (low < high) {
    const size_t middle = (low + high) / 2, length = (size_t)(starts[middle + 1] - starts[middle]);
    const int order = memcmp(t->bytes[WORD_BYTES] + starts[middle], word, length < count ? length : count);
    if (order == 0 && length == count) return t->numbers[WORD_IDS][middle];
    if (order < 0 || (order == 0 && length < count)) low = middle + 1;
    else high = middle;
  }
  return NO_SYMBOL;
}

static void encode_word(encoding *e, const char *word, size_t count) {
  const model_tokenizer *t = e->t;
  const int32_t *bytes = t->numbers[BYTE_IDS], whole = word_id(t, word, count);
  int unknown = 0; /* of these, how many are waiting to become one */
  if (whole != NO_SYMBOL) {
    model_append_id(e->out, whole);
    return;
  }
  for (size_t i = 0, length; i < count; i += length) {
    uint32_t code = (uint8_t)word[i];
    length = t->settings[OVER_BYTES] ? 1 : model_utf8_next(word + i, count - i, &code);
    const int32_t id = symbol_id(t, (int32_t)code);
    int has_bytes = id == NO_SYMBOL && t->settings[BYTE_FALLBACK];
    for (size_t j = 0; j < length && has_bytes; j++) has_bytes = bytes[(uint8_t)word[i + j]] >= 0;
    if (has_bytes) {
      for (size_t j = 0; j < length; j++) add_symbol(e, bytes[(uint8_t)word[i + j]]);
    } else if (id == NO_SYMBOL && t->settings[UNKNOWN] >= 0) {
      if (unknown && !t->settings[FUSE_UNKNOWN]) add_symbol(e, t->settings[UNKNOWN]);
      unknown = 1;
    } else if (id != NO_SYMBOL) {
      if (unknown) add_symbol(e, t->settings[UNKNOWN]);
      unknown = 0;
      add_symbol(e, id);
    }
  }
  if (unknown) add_symbol(e, t->settings[UNKNOWN]);
  join(e);
}

/* -- words --------------------------------------------------------------------------------------------------------- */

/* The bytes that a stage's expression matches at the start of a text, 0 for no match. */
static size_t matched(const stage *s, const char *text, size_t count) {
  size_t at = 0, end = 0;
  for (int32_t state = 1;;) {
    uint32_t code = (uint8_t)text[at < count ? at : 0];
    size_t length = at < count;
    int32_t class = s->width - 1;
    if (length && code < 128) class = s->ascii[code];
    if (length && code >= 128) {
      length = model_utf8_next(text + at, count - at, &code);
      class = class_of(s->runs, s->run_count, (int32_t)code);
    }
    const int32_t next = s->transitions[state * s->width + class];
    if (next & 1) end = at;
    state = next >> 1;
    if (!state || !length) return end;
    at += length;
  }
}

/* Splits a text by the expressions from one on, and encodes the words. */
static void encode_stage(encoding *e, int32_t number, const char *text, size_t count) {
  if (number == e->t->settings[STAGE_COUNT]) {
    if (count) encode_word(e, text, count);
    return;
  }
  const stage *s = &e->t->stages[number];
  size_t begin = 0, at = 0;
  while (at < count) {
    const size_t length = matched(s, text + at, count - at);
    uint32_t code;
    if (!length) {
      at += model_utf8_next(text + at, count - at, &code);
      continue;
    }
    if (begin < at) encode_stage(e, number + 1, text + begin, at - begin);
    encode_stage(e, number + 1, text + at, length);
    begin = at += length;
  }
  if (begin < count) encode_stage(e, number + 1, text + begin, count - begin);
}

static void replace_spaces(model_byte_list *out, const char *text, size_t count) {
  for (size_t i = 0; i < count; i++) model_append_bytes(out, text[i] == ' ' ? SPACE : text + i, text[i] == ' ' ? 3 : 1);
}

/* Encodes text without added tokens. is_first: whether it is the start of the whole text. */
static void encode_text(encoding *e, const char *text, size_t count, int is_first) {
  const int32_t *settings = e->t->settings, metaspace = settings[METASPACE];
  model_byte_list word = {0};
  if (metaspace) {
    const int begins = count >= 3 && memcmp(text, SPACE, 3) == 0;
    const int is_wanted = metaspace == 1 || (metaspace == 2 && is_first);
    if (!begins && text[0] != ' ' && is_wanted) model_append_bytes(&word, SPACE, 3);
    replace_spaces(&word, text, count);
  } else if (settings[PREFIX_SPACE] && text[0] != ' ') {
    model_append_bytes(&word, " ", 1);
    model_append_bytes(&word, text, count);
  }
  if (word.count) text = word.bytes, count = word.count;
  if (settings[SPLIT_SPACES]) {
    size_t begin = 0;
    for (size_t i = 1; i + 3 <= count; i++) {
      if (memcmp(text + i, SPACE, 3) != 0) continue;
      encode_word(e, text + begin, i - begin);
      begin = i;
    }
    encode_word(e, text + begin, count - begin);
  } else {
    encode_stage(e, 0, text, count);
  }
  free(word.bytes);
}

/* -- added tokens -------------------------------------------------------------------------------------------------- */

/* The longest added token at the start of a text, -1 for none; it has a bit of `wanted`, if that is not 0, and none of
 * `unwanted`. */
static int32_t added_at(const model_tokenizer *t, const char *text, size_t count, int wanted, int unwanted) {
  const int32_t *starts = t->numbers[ADDED_STARTS];
  int32_t best = -1, most = 0;
  if (!t->begins[(uint8_t)text[0]]) return -1;
  for (int32_t i = 0; i < (int32_t)(t->counts[ADDED] / 8); i++) {
    const int32_t length = starts[i + 1] - starts[i], bits = t->numbers[ADDED][2 * i + 1];
    if (length <= most || (size_t)length > count || (bits & unwanted) || (wanted && !(bits & wanted))) continue;
    if (memcmp(t->bytes[ADDED_BYTES] + starts[i], text, (size_t)length) == 0) best = i, most = length;
  }
  return best;
}

static size_t added_bytes(const model_tokenizer *t, int32_t which) {
  return (size_t)(t->numbers[ADDED_STARTS][which + 1] - t->numbers[ADDED_STARTS][which]);
}

/* The length of the white space at the end of a text, or at its start. */
static size_t white_before(const char *text, size_t count) {
  size_t at = count, begin = count;
  while (at) {
    uint32_t code = 0;
    do at--;
    while (at && ((uint8_t)text[at] & 0xc0) == 0x80);
    if (!model_utf8_next(text + at, count - at, &code) || !model_is_white(code)) break;
    begin = at;
  }
  return begin;
}

static size_t white_after(const char *text, size_t count) {
  size_t at = 0;
  uint32_t code;
  for (size_t length; (length = model_utf8_next(text + at, count - at, &code)) && model_is_white(code);) at += length;
  return at;
}

static void encode_between(encoding *e, const char *text, size_t count, int is_normal, int is_first);

/* Splits a text at added tokens: those matched in normalised text, or those matched before. */
static void encode_around(encoding *e, const char *text, size_t count, int is_normal, int is_first) {
  const model_tokenizer *t = e->t;
  size_t begin = 0, at = 0;
  while (at < count) {
    const int is_break = e->mark && !is_normal && count - at >= 3 && memcmp(text + at, BREAK, 3) == 0;
    const int wanted = is_normal ? NORMAL : 0, unwanted = is_normal ? 0 : NORMAL;
    const int32_t which = is_break ? -1 : added_at(t, text + at, count - at, wanted, unwanted);
    if (!is_break && which < 0) {
      at++;
      continue;
    }
    const int32_t bits = is_break ? 0 : t->numbers[ADDED][2 * which + 1];
    const size_t length = is_break ? 3 : added_bytes(t, which);
    if (bits & SPECIAL && e->tokens == MODEL_TOKENS_PLAIN) {
      at += length;
      continue;
    }
    size_t end = at;
    if (bits & LEFT) end = begin + white_before(text + begin, at - begin);
    if (begin < end) encode_between(e, text + begin, end - begin, is_normal, is_first && begin == 0);
    if (!is_break) model_append_id(e->out, t->numbers[ADDED][2 * which]);
    at += length;
    if (bits & RIGHT) at += white_after(text + at, count - at);
    begin = at;
  }
  if (begin < count) encode_between(e, text + begin, count - begin, is_normal, is_first && begin == 0);
}

static void encode_between(encoding *e, const char *text, size_t count, int is_normal, int is_first) {
  const int32_t *settings = e->t->settings;
  if (is_normal) {
    encode_text(e, text, count, is_first);
    return;
  }
  model_byte_list composed = {0};
  if (settings[COMPOSE]) {
    model_append_normal(&e->t->normal, text, count, &composed);
    text = composed.bytes, count = composed.count;
  }
  if (settings[REPLACE]) {
    e->normal.count = 0;
    if (settings[PREPEND]) model_append_bytes(&e->normal, SPACE, 3);
    replace_spaces(&e->normal, text, count);
    text = e->normal.bytes, count = e->normal.count;
  }
  encode_around(e, text, count, 1, is_first);
  free(composed.bytes);
}

static void encode(const model_tokenizer *t, const char *text, size_t count, int tokens, int mark,
                   model_token_list *out) {
  encoding e = {.t = t, .out = out, .tokens = tokens, .mark = mark};
  encode_around(&e, text, count, 0, 1);
  free(e.symbols);
  free(e.joints);
  free(e.normal.bytes);
}

static int has_control(const model_tokenizer *t, const int32_t *ids, size_t count) {
  for (size_t i = 0; i < t->counts[ADDED] / 8; i++)
    for (size_t j = 0; j < count && t->numbers[ADDED][2 * i + 1] & CONTROL; j++)
      if (ids[j] == t->numbers[ADDED][2 * i]) return 1;
  return 0;
}

int model_tokenizer_encode(const model_tokenizer *t, const char *text, size_t count, int tokens,
                           model_token_list *out) {
  const size_t before = out->count;
  encode(t, text, count, tokens, tokens == MODEL_TOKENS_MARKED, out);
  if (tokens == MODEL_TOKENS_MARKED || !has_control(t, out->ids + before, out->count - before)) return 0;
  model_byte_list broken = {0};
  out->count = before;
  const int failed = model_tokenizer_break(t, text, count, MODEL_SPELLED_SPECIAL, &broken);
  if (!failed) encode(t, broken.bytes, broken.count, MODEL_TOKENS_PLAIN, 1, out);
  free(broken.bytes);
  return failed || has_control(t, out->ids + before, out->count - before);
}

/* Appends a text with a break in each token that it spells; *cuts: how many. */
static int break_once(const model_tokenizer *t, const model_byte_list *text, int wanted, model_byte_list *out,
                      size_t *cuts) {
  for (size_t at = 0; at < text->count;) {
    const char *here = text->bytes + at;
    uint32_t code;
    const size_t first = model_utf8_next(here, text->count - at, &code);
    const int32_t which = added_at(t, here, text->count - at, wanted, 0);
    const size_t length = which < 0 ? first : added_bytes(t, which);
    if (which >= 0 && length == first) return 1;
    model_append_bytes(out, here, first);
    if (which >= 0) model_append_bytes(out, BREAK, 3), ++*cuts;
    model_append_bytes(out, here + first, length - first);
    at += length;
  }
  return 0;
}

int model_tokenizer_break(const model_tokenizer *t, const char *text, size_t count, int spelled, model_byte_list *out) {
  model_byte_list now = {0}, next = {0};
  const int wanted = spelled == MODEL_SPELLED_KNOWN ? SPECIAL | KNOWN : SPECIAL;
  for (size_t i = 0; i < count; i++) {
    if (count - i >= 3 && memcmp(text + i, BREAK, 3) == 0) i += 2;
    else model_append_bytes(&now, text + i, 1);
  }
  int failed = 0;
  for (size_t cuts = 1; cuts && !failed && now.count;) {
    cuts = 0, next.count = 0;
    failed = break_once(t, &now, wanted, &next, &cuts);
    const model_byte_list done = next;
    next = now, now = done;
  }
  model_append_bytes(out, now.bytes, now.count);
  free(now.bytes);
  free(next.bytes);
  return failed;
}

/* -- back to text -------------------------------------------------------------------------------------------------- */

const char *model_tokenizer_piece(const model_tokenizer *t, int32_t id, size_t *count, int *kind) {
  const int32_t *starts = t->numbers[PIECE_STARTS];
  *count = 0, *kind = MODEL_PIECE_HIDDEN;
  if (id < 0 || id >= t->settings[VOCAB]) return "";
  *kind = t->bytes[PIECE_KINDS][id];
  *count = (size_t)(starts[id + 1] - starts[id]);
  return t->bytes[PIECE_BYTES] + starts[id];
}

int model_tokenizer_strips(const model_tokenizer *t) {
  return t->settings[STRIP];
}

int model_tokenizer_separates(const model_tokenizer *t) {
  return !t->settings[OVER_BYTES];
}

const int32_t *model_tokenizer_prefix(const model_tokenizer *t, size_t *count) {
  *count = t->counts[PREFIX_IDS] / 4;
  return t->numbers[PREFIX_IDS];
}
