/* normal.h: emitted by Ingot: Unicode's normalisation form C, by tables. */
#ifndef NORMAL_H
#define NORMAL_H

#include "tokenizer.h"

/* Rows of numbers, in order. decompositions: (character, first, second or 0). compositions: (first, second, character).
 * classes: (the first character of a run, its combining class), from 0 on. counts of rows. */
typedef struct {
  const int32_t *decompositions, *compositions, *classes;
  size_t decomposition_count, composition_count, class_count;
} normal_tables;

/* Appends a text, UTF-8, in normalisation form C. */
void append_normal(const normal_tables *tables, const char *text, size_t count, byte_list *out);

#endif
