/* ngrams.c: the tokens that would repeat an n-gram of a row. */
#include <string.h>

#include "kernel.h"

void K(repeated_ngrams)(const void *p, int32_t task, int32_t num_tasks) {
  const repeated_ngrams_args *args = p;
  const int64_t end = task_begin(args->rows, task + 1, num_tasks), prefix = args->size - 1;
  for (int64_t row = task_begin(args->rows, task, num_tasks); row < end; row++) {
    const int64_t *tokens = args->tokens + row * args->stride, *last = tokens + args->length - prefix;
    uint8_t *out = args->out + row * args->vocab;
    memset(out, 0, (size_t)args->vocab);
    for (int64_t i = 0; i + prefix < args->length; i++) {
      if (memcmp(tokens + i, last, (size_t)prefix * sizeof(int64_t)) != 0) continue;
      const int64_t token = tokens[i + prefix];
      if (token >= 0 && token < args->vocab)
        out[token] = 1;
      else
        report_fault(args->fault, 2, args->step, token, args->vocab);
    }
  }
}
