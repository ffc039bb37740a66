/* model_normal.h: emitted by Ingot: Unicode normalisation form C, by tables. */
#ifndef MODEL_NORMAL_H
#define MODEL_NORMAL_H

#include "model_tokenizer.h"

/* Sorted rows of numbers. decompositions: (character, first, second or 0). compositions: (first, second, character).
 * classes: (the first character of a run, its combining class), from 0 on. counts of rows. */
typedef struct {
  const int32_t *decompositions, *compositions, *classes;
  size_t decomposition_count, composition_count, class_count;
} model_normal_tables;

/* Appends a text, UTF-8, in normalisation form C. */
void model_append_normal(const model_normal_tables *tables, const char *text, size_t count, model_byte_list *out);

#endif
