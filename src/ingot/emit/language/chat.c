/* chat.c: emitted by Ingot: a chat program. `make` builds it, `./chat --help` explains it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(__wasi__)
#include <signal.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

#include "model_chat.h"
#include "model_command.h"

static const char commands[] =
    "/reset              forget the conversation\n"
    "/system [TEXT]      set the system message and start a new conversation; without TEXT, show it\n"
    "/set [NAME VALUE]   set a sampling option, as in /set temperature 0.5; without NAME, show all\n"
    "/exit               leave, as Ctrl-D does\n"
    "/help, /?           show this text\n"
    "Lines between \"\"\" and \"\"\" are one message, and so are lines that end in \\.\n"
    "Ctrl-C stops the answer, or discards the line; a second Ctrl-C during an answer leaves.\n";

/* The conversation so far: the system message, if any, then the messages of user and model, alternating. */
typedef struct {
  model_byte_list system, *messages;
  size_t count, room;
  int has_system;
} conversation;

static void set_text(model_byte_list *list, const char *text, size_t count) {
  list->count = 0;
  model_append_bytes(list, text, count);
}

static void forget(conversation *c) {
  while (c->count) free(c->messages[--c->count].bytes);
}

static model_byte_list *new_text(conversation *c) {
  if (c->count == c->room) {
    c->room = 2 * c->room + 16;
    c->messages = realloc(c->messages, c->room * sizeof *c->messages);
    if (!c->messages) model_fail("chat", "out of memory", "", 75);
  }
  c->messages[c->count] = (model_byte_list){0};
  model_append_bytes(&c->messages[c->count], "", 0);
  return &c->messages[c->count++];
}

#if !defined(__wasi__)
static void drop_line(int number) {
  (void)number;
  model_interrupted = 1;
}
#endif

/* Lets Ctrl-C end the reading of a line, if the system supports that. */
static void await_line(void) {
  model_interrupted = 0;
#if defined(__unix__) || defined(__APPLE__)
  const struct sigaction action = {.sa_handler = drop_line};
  sigaction(SIGINT, &action, NULL);
#elif !defined(__wasi__)
  signal(SIGINT, drop_line);
#endif
}

static model_message message_of(const model_byte_list *list) {
  return (model_message){list->bytes, list->count};
}

/* Encodes a conversation. Returns 0, or an error. */
static int encode(const model_language *l, const conversation *c, model_token_list *ids) {
  const model_message system = message_of(&c->system);
  model_message *messages = malloc(c->count * sizeof *messages);
  if (!messages) model_fail("chat", "out of memory", "", 75);
  for (size_t i = 0; i < c->count; i++) messages[i] = message_of(&c->messages[i]);
  const int error = model_chat_tokens(l, c->has_system ? &system : NULL, messages, c->count, ids);
  free(messages);
  return error;
}

/* Prints the answer to a message, and adds both to the conversation unless the message is rejected. */
static void answer(model_language *l, const model_options *o, conversation *c, const model_byte_list *message) {
  model_token_list ids = {0};
  model_byte_list reply = {0};
  model_append_bytes(&reply, "", 0);
  model_append_bytes(new_text(c), message->bytes, message->count);
  model_interrupted = 0;
  model_watch_interrupts();
  int ended = -1;
  if (encode(l, c, &ids)) fprintf(stderr, "message: becomes a control token\n");
  else ended = model_print_answer(l, o, &ids, &reply);
  await_line();
  if (ended < 0 || (ended == MODEL_ENDED_INTERRUPT && !reply.count)) {
    free(c->messages[--c->count].bytes);
    if (ended < 0) fprintf(stderr, "/reset starts a new conversation\n");
    else printf("stopped\n");
  } else {
    model_append_bytes(new_text(c), reply.bytes, reply.count);
    if (!o->shows_ids && (!reply.count || reply.bytes[reply.count - 1] != '\n')) printf("\n");
    if (model_language_count(l) >= MODEL_CONTEXT)
      fprintf(stderr, "the context of %d tokens is full; /reset starts a new one\n", MODEL_CONTEXT);
  }
  fflush(stdout);
  free(ids.ids);
  free(reply.bytes);
}

static int is_terminal(void) {
#if defined(__unix__) || defined(__APPLE__)
  return isatty(0);
#else
  return 0;
#endif
}

/* Reads a line without its end; 0 at the end of input, -1 when Ctrl-C discarded it. */
static int read_line(model_byte_list *line, const char *prompt) {
  int c;
  line->count = 0;
  model_append_bytes(line, "", 0);
  if (is_terminal()) printf("%s", prompt), fflush(stdout);
  while ((c = getchar()) != EOF && c != '\n' && !model_interrupted) {
    const char byte = (char)c;
    model_append_bytes(line, &byte, 1);
  }
  if (model_interrupted) {
    clearerr(stdin);
    await_line();
    printf("\nPress Ctrl-D to leave\n");
    fflush(stdout);
    return -1;
  }
  return c != EOF || line->count;
}

static int ends_in(const model_byte_list *line, const char *text) {
  const size_t size = strlen(text);
  return line->count >= size && memcmp(line->bytes + line->count - size, text, size) == 0;
}

/* Reads a message: a line, or several between quotes or joined by a backslash; 0 at the end of input. */
static int read_message(model_byte_list *message) {
  static const char quotes[] = "\"\"\"";
  model_byte_list line = {0};
  size_t lines = 0;
  int is_quoted = 0, is_open = 1;
  message->count = 0;
  model_append_bytes(message, "", 0);
  for (int read; is_open && (read = read_line(&line, lines ? "  " : "> "));) {
    size_t begin = 0;
    if (read < 0) {
      message->count = lines = 0, is_quoted = 0;
      continue;
    }
    if (!lines && line.count >= 3 && memcmp(line.bytes, quotes, 3) == 0) begin = 3, is_quoted = 1;
    line.count -= begin;
    memmove(line.bytes, line.bytes + begin, line.count);
    const char *mark = is_quoted ? quotes : "\\";
    is_open = is_quoted != ends_in(&line, mark);
    if (ends_in(&line, mark)) line.count -= strlen(mark);
    if (lines++) model_append_bytes(message, "\n", 1);
    model_append_bytes(message, line.bytes, line.count);
  }
  free(line.bytes);
  return lines > 0;
}

/* Runs /set: with a name and a value, or without arguments. */
static void set(model_options *o, const char *text, size_t count) {
  char words[2][64] = {"", ""};
  for (int i = 0; i < 2; i++) {
    size_t length = 0;
    while (length < count && (text[length] != ' ' || i)) length++;
    snprintf(words[i], sizeof words[i], "%.*s", (int)length, text);
    text += length, count -= length;
    model_chat_trim(&text, &count);
  }
  if (!*words[0]) {
    model_show_numbers(o);
    return;
  }
  const int done = model_set_number(o, words[0], words[1]);
  if (done > 0) printf("%s is %s\n", words[0], words[1]);
  if (!done) printf("set: unknown option, got %s; ./chat --help lists them\n", words[0]);
}

/* Runs the command of a line; 0 if the line has none, -1 to quit. */
static int obeyed(conversation *c, model_options *o, model_byte_list *message) {
  const char *text = message->bytes;
  size_t count = message->count;
  model_chat_trim(&text, &count);
  if (!count) return 1;
  if (text[0] != '/' || memchr(text, '\n', count)) return 0;
  size_t word = 1;
  while (word < count && text[word] >= 'a' && text[word] <= 'z') word++;
  if (word + (word == 1 && count == 2 && text[1] == '?') < count && text[word] != ' ') return 0;
  const char *rest = text + word;
  size_t left = count - word;
  model_chat_trim(&rest, &left);
  const int is_alone = left == 0;
  if (word == 5 && memcmp(text, "/exit", 5) == 0 && is_alone) return -1;
  if (word == 6 && memcmp(text, "/reset", 6) == 0) {
    forget(c);
    printf("started a new conversation\n");
  } else if (word == 4 && memcmp(text, "/set", 4) == 0) {
    set(o, rest, left);
  } else if (word == 7 && memcmp(text, "/system", 7) == 0) {
    if (left && !model_chat_takes_system()) {
      printf("the model takes no system message\n");
    } else if (left) {
      set_text(&c->system, rest, left);
      c->has_system = 1;
      forget(c);
      printf("started a new conversation\n");
    } else {
      printf("%s\n", c->has_system ? c->system.bytes : "no system message");
    }
  } else if ((word == 5 && memcmp(text, "/help", 5) == 0 && is_alone) || (count == 2 && text[1] == '?')) {
    printf("%s", commands);
  } else if (word > 1 && is_alone) {
    printf("%.*s: no such command; /help lists them\n", (int)word, text);
  } else {
    return 0;
  }
  fflush(stdout);
  return 1;
}

int main(int argc, char **argv) {
  model_options o = model_default_options();
  conversation c = {0};
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      printf("usage: %s [--system TEXT] [OPTION ...]\n\nA conversation.\n\n", argv[0]);
      printf("%s\n%s", model_options_help, commands);
      return 0;
    }
    const char *system = model_value_of("--system", argc, argv, &i);
    if (system) {
      if (!model_chat_takes_system()) model_fail("--system", "the model takes no system message", "", 2);
      set_text(&c.system, system, strlen(system));
      model_expect_utf8("--system", c.system.bytes, c.system.count);
      c.has_system = 1;
    } else if (!model_take_option(&o, argc, argv, &i)) {
      model_fail(argv[i], "unknown option, or no value; see --help", "", 2);
    }
  }
  model_language *l = model_open(&o, argv[0]);
  if (is_terminal()) printf("context %d. /help for help, Ctrl-D to leave.\n", MODEL_CONTEXT);
  model_byte_list message = {0};
  await_line();
  while (read_message(&message)) {
    if (!model_is_utf8(message.bytes, message.count)) {
      fprintf(stderr, "message: not UTF-8\n");
      continue;
    }
    const int done = obeyed(&c, &o, &message);
    if (done < 0) break;
    if (!done) answer(l, &o, &c, &message);
  }
  forget(&c);
  free(c.messages);
  free(c.system.bytes);
  free(message.bytes);
  model_language_close(l);
  return 0;
}
