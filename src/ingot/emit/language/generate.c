/* generate.c: emitted by Ingot: continues a text. `make` builds it, `./generate --help` explains it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model_command.h"

static void help(const char *program) {
  printf("usage: %s [OPTION ...] PROMPT\n       %s [OPTION ...] --check FOLDER\n\n", program, program);
  printf("Continues PROMPT; a PROMPT of - is read from stdin. --check: FOLDER/prompt.txt is the prompt, and\n"
         "FOLDER/tokens.txt has the tokens that must follow, the most probable ones.\n\n%s",
         model_options_help);
}

/* Appends the content of a file. what: its name in messages. */
static void read_all(FILE *file, const char *what, model_byte_list *text) {
  char part[4096];
  for (size_t count; (count = fread(part, 1, sizeof part, file));) model_append_bytes(text, part, count);
  if (ferror(file)) model_fail(what, "cannot be read", "", 74);
  model_append_bytes(text, "", 0);
}

/* Appends a file of a folder. */
static void read_file(const char *folder, const char *name, model_byte_list *text) {
  model_byte_list path = {0};
  model_append_bytes(&path, folder, strlen(folder));
  model_append_bytes(&path, "/", 1);
  model_append_bytes(&path, name, strlen(name));
  FILE *file = fopen(path.bytes, "rb");
  if (!file) model_fail(path.bytes, "cannot be opened", "", 66);
  read_all(file, path.bytes, text);
  fclose(file);
  free(path.bytes);
}

static void take_token(void *given, int32_t token) {
  model_append_id(given, token);
}

/* Whether the model's continuation of a prompt is that of a file. */
static int is_expected(model_language *l, const char *folder) {
  model_byte_list prompt = {0}, text = {0};
  model_token_list wanted = {0}, got = {0};
  model_request request;
  read_file(folder, "prompt.txt", &prompt);
  read_file(folder, "tokens.txt", &text);
  char *at = text.bytes, *end;
  for (long id; id = strtol(at, &end, 10), end != at; at = end) model_append_id(&wanted, (int32_t)id);
  model_request_begin(&request);
  request.sampling.temperature = 0;
  request.max_tokens = (int64_t)wanted.count;
  request.take_token = take_token, request.given = &got;
  const int ended = model_language_continue(l, prompt.bytes, prompt.count, &request);
  if (ended < 0) model_fail("--check", model_language_error(ended), "", 65);
  size_t same = 0;
  while (same < got.count && same < wanted.count && got.ids[same] == wanted.ids[same]) same++;
  const int is_same = same == wanted.count && same == got.count;
  if (is_same) printf("%zu tokens: those of %s/tokens.txt\n", same, folder);
  else printf("%zu of %zu tokens, then others than in %s/tokens.txt\n", same, wanted.count, folder);
  free(prompt.bytes);
  free(text.bytes);
  free(wanted.ids);
  free(got.ids);
  return is_same;
}

/* Prints the continuation of a prompt; returns the exit code. */
static int go_on(model_language *l, const model_options *o, const model_byte_list *text) {
  model_token_list ids = {0};
  const int error = model_language_tokens(l, text->bytes, text->count, &ids);
  if (error) model_fail("PROMPT", "becomes a control token, whatever it is cut into", "", 65);
  const int ended = model_print_answer(l, o, &ids, NULL);
  if (ended >= 0 && !o->shows_ids) printf("\n");
  free(ids.ids);
  return ended < 0 ? 65 : ended == MODEL_ENDED_INTERRUPT ? 130 : 0;
}

int main(int argc, char **argv) {
  model_options o = model_default_options();
  const char *prompt = NULL, *folder = NULL, *value;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      help(argv[0]);
      return 0;
    }
    if (model_take_option(&o, argc, argv, &i)) continue;
    if ((value = model_value_of("--check", argc, argv, &i))) {
      folder = value;
      continue;
    }
    if (prompt || (argv[i][0] == '-' && argv[i][1]))
      model_fail(argv[i], prompt ? "a second prompt" : "unknown option, or no value", "; see --help", 2);
    prompt = argv[i];
  }
  if (prompt && folder) model_fail("--check", "takes no prompt", "", 2);
  if (!prompt && !folder) model_fail("PROMPT", "none", "; see --help", 2);
  model_byte_list text = {0};
  if (prompt && strcmp(prompt, "-") == 0) read_all(stdin, "stdin", &text);
  else if (prompt) model_append_bytes(&text, prompt, strlen(prompt));
  if (prompt) model_expect_utf8("PROMPT", text.bytes, text.count);

  model_watch_interrupts();
  model_language *l = model_open(&o, argv[0]);
  const int code = prompt ? go_on(l, &o, &text) : !is_expected(l, folder);
  model_flush_output();
  free(text.bytes);
  model_language_close(l);
  return code;
}
