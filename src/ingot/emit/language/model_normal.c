/* model_normal.c: emitted by Ingot: Unicode normalisation form C (Unicode Standard Annex 15): characters are
 * decomposed, their marks sorted, and the result composed. Hangul is computed (The Unicode Standard, 3.12). */
#include "model_normal.h"

#include <stdlib.h>

enum {
  S_BASE = 0xac00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7, L_COUNT = 19, V_COUNT = 21, T_COUNT = 28,
  N_COUNT = V_COUNT * T_COUNT, S_COUNT = L_COUNT * N_COUNT
};

static int32_t class_of(const model_normal_tables *tables, int32_t code) {
  size_t low = 0, count = tables->class_count;
  while (count > 1) {
    const size_t half = count / 2;
    if (tables->classes[2 * (low + half)] <= code) low += half;
    count -= half;
  }
  return tables->classes[2 * low + 1];
}

/* Appends the decomposition of a character. */
static void decompose(const model_normal_tables *tables, int32_t code, model_token_list *out) {
  const int32_t syllable = code - S_BASE;
  if (syllable >= 0 && syllable < S_COUNT) {
    model_append_id(out, L_BASE + syllable / N_COUNT);
    model_append_id(out, V_BASE + syllable % N_COUNT / T_COUNT);
    if (syllable % T_COUNT) model_append_id(out, T_BASE + syllable % T_COUNT);
    return;
  }
  size_t low = 0, high = tables->decomposition_count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const int32_t *row = tables->decompositions + 3 * middle;
    if (row[0] == code) {
      decompose(tables, row[1], out);
      if (row[2]) decompose(tables, row[2], out);
      return;
    }
    if (row[0] < code) low = middle + 1;
    else high = middle;
  }
  model_append_id(out, code);
}

/* The composition of two characters, -1 for none. */
static int32_t composed(const model_normal_tables *tables, int32_t first, int32_t second) {
  if (first >= L_BASE && first < L_BASE + L_COUNT && second >= V_BASE && second < V_BASE + V_COUNT)
    return S_BASE + (first - L_BASE) * N_COUNT + (second - V_BASE) * T_COUNT;
  if (first >= S_BASE && first < S_BASE + S_COUNT && (first - S_BASE) % T_COUNT == 0 && second > T_BASE &&
      second < T_BASE + T_COUNT)
    return first + second - T_BASE;
  size_t low = 0, high = tables->composition_count;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const int32_t *row = tables->compositions + 3 * middle;
    if (row[0] == first && row[1] == second) return row[2];
    if (row[0] < first || (row[0] == first && row[1] < second)) low = middle + 1;
    else high = middle;
  }
  return -1;
}

/* Sorts the marks after each character by their classes; marks of one class keep their order. */
static void reorder(int32_t *points, int32_t *classes, size_t count) {
  for (size_t i = 1; i < count; i++) {
    const int32_t code = points[i], class = classes[i];
    size_t at = i;
    for (; class && at && classes[at - 1] > class; at--) points[at] = points[at - 1], classes[at] = classes[at - 1];
    points[at] = code, classes[at] = class;
  }
}

/* Composes characters in place; returns how many are left. A mark is blocked from its character by a mark between them
 * whose class is not lower. */
static size_t compose(const model_normal_tables *tables, int32_t *points, const int32_t *classes, size_t count) {
  size_t length = 0, starter = SIZE_MAX;
  int32_t last = 0;
  for (size_t i = 0; i < count; i++) {
    const int is_free = starter != SIZE_MAX && (length == starter + 1 || last < classes[i]);
    const int32_t whole = is_free ? composed(tables, points[starter], points[i]) : -1;
    if (whole >= 0) {
      points[starter] = whole;
      continue;
    }
    if (!classes[i]) starter = length;
    last = classes[i];
    points[length++] = points[i];
  }
  return length;
}

static void append_character(model_byte_list *out, uint32_t code) {
  char bytes[4];
  const size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  static const uint32_t lead[5] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (size_t i = length; i-- > 1; code >>= 6) bytes[i] = (char)(0x80 | (code & 0x3f));
  bytes[0] = (char)(lead[length] | code);
  model_append_bytes(out, bytes, length);
}

void model_append_normal(const model_normal_tables *tables, const char *text, size_t count, model_byte_list *out) {
  model_token_list points = {0}, classes = {0};
  size_t plain = 0;
  while (plain < count && (unsigned char)text[plain] < 0x80) plain++;
  if (plain == count) {
    model_append_bytes(out, text, count);
    return;
  }
  uint32_t code;
  for (size_t at = 0, length; (length = model_utf8_next(text + at, count - at, &code)); at += length)
    decompose(tables, (int32_t)code, &points);
  for (size_t i = 0; i < points.count; i++) model_append_id(&classes, class_of(tables, points.ids[i]));
  reorder(points.ids, classes.ids, points.count);
  const size_t length = compose(tables, points.ids, classes.ids, points.count);
  for (size_t i = 0; i < length; i++) append_character(out, (uint32_t)points.ids[i]);
  free(points.ids);
  free(classes.ids);
}
