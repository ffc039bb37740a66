/* normalise.c: the text on stdin in normalisation form C by normal.c, by tables in a file: three counts, then rows. */
#include <stdio.h>
#include <stdlib.h>

#include "model_normal.h"

static int32_t *rows_of(FILE *file, int32_t count, size_t width) {
  int32_t *rows = malloc(((size_t)count * width + 1) * sizeof *rows);
  if (!rows || fread(rows, sizeof *rows * width, (size_t)count, file) != (size_t)count) exit(2);
  return rows;
}

int main(int argc, char **argv) {
  FILE *file = fopen(argv[argc - 1], "rb");
  int32_t counts[3];
  if (!file || fread(counts, sizeof counts, 1, file) != 1) return 1;
  int32_t *const apart = rows_of(file, counts[0], 3), *const together = rows_of(file, counts[1], 3);
  int32_t *const classes = rows_of(file, counts[2], 2);
  fclose(file);
  const model_normal_tables tables = {apart, together, classes, (size_t)counts[0], (size_t)counts[1], (size_t)counts[2]};
  model_byte_list text = {0}, normal = {0};
  char part[4096];
  for (size_t count; (count = fread(part, 1, sizeof part, stdin));) model_append_bytes(&text, part, count);
  model_append_normal(&tables, text.bytes, text.count, &normal);
  fwrite(normal.bytes, 1, normal.count, stdout);
  free(apart);
  free(together);
  free(classes);
  free(text.bytes);
  free(normal.bytes);
  return 0;
}
