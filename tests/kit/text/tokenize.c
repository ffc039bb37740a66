/* tokenize.c: texts to tokens by tokenizer.c: frames of int32 form, int32 bytes and text come in, lines of ids go out. */
#include <stdio.h>
#include <stdlib.h>

#include "model_tokenizer.h"

int main(int argc, char **argv) {
  int is_found;
  model_tokenizer *t = model_tokenizer_open(argv[argc - 1], &is_found);
  if (!t) return 1;
  model_token_list ids = {0};
  int32_t head[2];
  while (fread(head, sizeof *head, 2, stdin) == 2) {
    const size_t count = (size_t)head[1];
    char *text = malloc(count + 1);
    if (!text || fread(text, 1, count, stdin) != count) return 2;
    ids.count = 0;
    if (model_tokenizer_encode(t, text, count, head[0], &ids)) printf("refused");
    else
      for (size_t i = 0; i < ids.count; i++) printf("%d ", (int)ids.ids[i]);
    printf("\n");
    free(text);
  }
  free(ids.ids);
  model_tokenizer_close(t);
  return 0;
}
