/* generate.c: emitted by Ingot: continues a text. `make` builds it, `./generate --help` explains it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "language.h"

static void help(const char *program) {
  printf("usage: %s [OPTION ...] PROMPT\n\nContinues PROMPT; a PROMPT of - is read from stdin.\n\n%s", program,
         options_help);
}

static void read_input(byte_list *text) {
  char part[4096];
  for (size_t count; (count = fread(part, 1, sizeof part, stdin));) append_bytes(text, part, count);
  if (ferror(stdin)) fail("stdin", "cannot be read", "", 74);
}

int main(int argc, char **argv) {
  options o = default_options();
  const char *prompt = NULL;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      help(argv[0]);
      return 0;
    }
    if (take_option(&o, argc, argv, &i)) continue;
    if (prompt || (argv[i][0] == '-' && argv[i][1]))
      fail(argv[i], prompt ? "a second prompt" : "no such option, or nothing behind it", "; --help says more", 2);
    prompt = argv[i];
  }
  if (!prompt) fail("PROMPT", "none", "; --help says more", 2);
  byte_list text = {0};
  if (strcmp(prompt, "-") == 0) read_input(&text);
  else append_bytes(&text, prompt, strlen(prompt));
  expect_utf8("PROMPT", text.bytes, text.count);

  watch_interrupts();
  language l = language_open(&o, argv[0]);
  token_list ids = {0};
  size_t count;
  const int32_t *prefix = tokenizer_prefix(l.tokenizer, &count);
  for (size_t i = 0; i < count; i++) append_id(&ids, prefix[i]);
  if (tokenizer_encode(l.tokenizer, text.bytes, text.count, TOKENS_PLAIN, &ids))
    fail("PROMPT", "becomes a control token, whatever it is cut into", "", 65);
  const int ended = language_answer(&l, &o, &ids, NULL);
  if (ended >= 0 && !o.shows_ids) printf("\n");
  flush_output();
  free(text.bytes);
  free(ids.ids);
  language_close(&l);
  return ended < 0 ? 65 : ended == ENDED_INTERRUPT ? 130 : 0;
}
