/* emx.c: runs C of emx-onnx-cgen on the board of tests/kit/cortex_m; vector.h has what it is given and what it
 * must make of that. Weights that it has in a file are read by semihosting, before the clock starts. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "vector.h"

enum { HEAD = 8 }; /* bytes before a block, which hold its size */

void model(const input, output);
__attribute__((weak)) _Bool model_load(const char *path);
void initialise_monitor_handles(void);

void *__real_malloc(size_t bytes);
void __real_free(void *block);

unsigned long allocated; /* the most bytes that were at once */
static size_t in_use;

void *__wrap_malloc(size_t bytes) {
  char *const block = __real_malloc(HEAD + bytes);
  if (!block) return block;
  *(size_t *)block = bytes;
  in_use += bytes;
  if (in_use > allocated) allocated = in_use;
  return block + HEAD;
}

void __wrap_free(void *block) {
  if (!block) return;
  char *const whole = (char *)block - HEAD;
  in_use -= *(size_t *)whole;
  __real_free(whole);
}

void prepare(void) {
  initialise_monitor_handles();
  if (model_load && !model_load("model.bin")) abort();
}

long MODEL_check(void) {
  static const input given = GIVEN;
  static const float expected[] = EXPECTED;
  static output computed;
  long different = 0;
  model(given, computed);
  for (size_t i = 0; i < sizeof computed / sizeof(float); i++)
    different += !(fabsf(((const float *)computed)[i] - expected[i]) <= TOLERANCE);
  return different;
}
