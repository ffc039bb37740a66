/* chat.c: emitted by Ingot: a conversation. `make` builds it, `./chat --help` explains it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(__wasi__)
#include <signal.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

#include "language.h"

#include "facts.h"

static const char commands[] =
    "/reset              forget the conversation\n"
    "/system [TEXT]      what the model is told before the conversation, which starts anew; without TEXT, show it\n"
    "/set [NAME VALUE]   how tokens are chosen, as in /set temperature 0.5; without NAME, show it\n"
    "/exit               leave; so does Ctrl-D\n"
    "/help, /?           this text\n"
    "Lines between \"\"\" and \"\"\" are one message, and so are lines that end in \\.\n"
    "Ctrl-C stops the answer, or drops the line that is being typed; a second one during an answer leaves.\n";

/* Texts around a system message, NULL where the model takes none. */
static const char *const before_system = CHAT_BEFORE_SYSTEM, *const after_system = CHAT_AFTER_SYSTEM;

/* What was said so far: the system message, if there is one, then what the user and the model said in turns. */
typedef struct {
  byte_list system, *said;
  size_t count, room;
  int has_system;
} conversation;

static void set_text(byte_list *list, const char *text, size_t count) {
  list->count = 0;
  append_bytes(list, text, count);
}

static void forget(conversation *c) {
  while (c->count) free(c->said[--c->count].bytes);
}

static byte_list *new_text(conversation *c) {
  if (c->count == c->room) {
    c->room = 2 * c->room + 16;
    c->said = realloc(c->said, c->room * sizeof *c->said);
    if (!c->said) fail("chat", "no memory", "", 75);
  }
  c->said[c->count] = (byte_list){0};
  append_bytes(&c->said[c->count], "", 0);
  return &c->said[c->count++];
}

/* White space as Python has it. */
static int is_blank(uint32_t code) {
  return is_white(code) || (code >= 0x1c && code <= 0x1f);
}

/* Cuts white space at both ends of a text off. */
static void trim(const char **text, size_t *count) {
  uint32_t code;
  for (size_t length; (length = utf8_next(*text, *count, &code)) && is_blank(code); *count -= length) *text += length;
  for (size_t at = *count; at; *count = at) {
    do at--;
    while (at && ((unsigned char)(*text)[at] & 0xc0) == 0x80);
    if (!utf8_next(*text + at, *count - at, &code) || !is_blank(code)) return;
  }
}

/* Cuts off all up to the end of the last thought. */
static void drop_thoughts(const char **text, size_t *count) {
  static const char end[] = "</think>";
  const size_t size = sizeof end - 1;
  for (size_t at = *count; at >= size; at--) {
    if (memcmp(*text + at - size, end, size) != 0) continue;
    *text += at, *count -= at;
    while (CHAT_DROPS_THOUGHTS > 1 && *count && **text == '\n') ++*text, --*count;
    return;
  }
}

/* Appends what was said as the template would; nothing in it becomes a control token. Returns 0, or 1 if it must. */
static int append_said(const tokenizer *t, const byte_list *said, int is_model, int trims, byte_list *out) {
  byte_list broken = {0};
  append_bytes(&broken, "", 0);
  const int kept = is_model ? SPELLED_SPECIAL : SPELLED_KNOWN;
  const int failed = tokenizer_break(t, said->bytes, said->count, kept, &broken);
  const char *text = broken.bytes;
  size_t count = broken.count;
  if (is_model && CHAT_DROPS_THOUGHTS) drop_thoughts(&text, &count);
  if (trims) trim(&text, &count);
  append_bytes(out, text, count);
  free(broken.bytes);
  return failed;
}

static void append_text(byte_list *out, const char *text) {
  append_bytes(out, text, strlen(text));
}

/* The tokens of a conversation. Returns 0, or 1 where a message becomes a control token. */
static int encode_conversation(const tokenizer *t, const conversation *c, token_list *ids) {
  byte_list text = {0};
  int failed = 0;
  if (c->has_system && before_system && after_system) {
    append_text(&text, before_system);
    failed |= append_said(t, &c->system, 0, CHAT_TRIMS_SYSTEM, &text);
    append_text(&text, after_system);
  } else {
    append_text(&text, CHAT_FIRST);
  }
  for (size_t i = 0; i < c->count; i++) {
    const int is_model = i % 2 == 1;
    failed |= append_said(t, &c->said[i], is_model, is_model ? CHAT_TRIMS_MODEL : CHAT_TRIMS_USER, &text);
    append_text(&text, i + 1 == c->count ? CHAT_LAST : is_model ? CHAT_TO_USER : CHAT_TO_MODEL);
  }
  failed |= tokenizer_encode(t, text.bytes, text.count, TOKENS_MARKED, ids);
  free(text.bytes);
  return failed;
}

#if !defined(__wasi__)
static void drop_line(int number) {
  (void)number;
  interrupted = 1;
}
#endif

/* Has Ctrl-C end the reading of a line, where the system can. */
static void await_line(void) {
  interrupted = 0;
#if defined(__unix__) || defined(__APPLE__)
  const struct sigaction action = {.sa_handler = drop_line};
  sigaction(SIGINT, &action, NULL);
#elif !defined(__wasi__)
  signal(SIGINT, drop_line);
#endif
}

/* Prints the answer to a message, and keeps both; a message that the model cannot take is not kept. */
static void answer(language *l, const options *o, conversation *c, const byte_list *message) {
  token_list ids = {0};
  byte_list said = {0};
  append_bytes(&said, "", 0);
  append_bytes(new_text(c), message->bytes, message->count);
  interrupted = 0;
  watch_interrupts();
  int ended = -1;
  if (encode_conversation(l->tokenizer, c, &ids)) fprintf(stderr, "message: becomes a control token\n");
  else ended = language_answer(l, o, &ids, &said);
  await_line();
  if (ended < 0 || (ended == ENDED_INTERRUPT && !said.count)) {
    free(c->said[--c->count].bytes);
    if (ended < 0) fprintf(stderr, "/reset starts anew\n");
    else printf("stopped\n");
  } else {
    append_bytes(new_text(c), said.bytes, said.count);
    if (!o->shows_ids && (!said.count || said.bytes[said.count - 1] != '\n')) printf("\n");
    if (l->count >= MODEL_CONTEXT)
      fprintf(stderr, "the context of %d tokens is full; /reset starts anew\n", MODEL_CONTEXT);
  }
  fflush(stdout);
  free(ids.ids);
  free(said.bytes);
}

static int is_terminal(void) {
#if defined(__unix__) || defined(__APPLE__)
  return isatty(0);
#else
  return 0;
#endif
}

/* Reads a line without its end; 0 where none comes, -1 where Ctrl-C dropped it. */
static int read_line(byte_list *line, const char *prompt) {
  int c;
  line->count = 0;
  append_bytes(line, "", 0);
  if (is_terminal()) printf("%s", prompt), fflush(stdout);
  while ((c = getchar()) != EOF && c != '\n' && !interrupted) {
    const char byte = (char)c;
    append_bytes(line, &byte, 1);
  }
  if (interrupted) {
    clearerr(stdin);
    await_line();
    printf("\nCtrl-D leaves\n");
    fflush(stdout);
    return -1;
  }
  return c != EOF || line->count;
}

static int ends_in(const byte_list *line, const char *text) {
  const size_t size = strlen(text);
  return line->count >= size && memcmp(line->bytes + line->count - size, text, size) == 0;
}

/* Reads a message: a line, or several between quotes or joined by a backslash; 0 where no more come. */
static int read_message(byte_list *message) {
  static const char quotes[] = "\"\"\"";
  byte_list line = {0};
  size_t lines = 0;
  int is_quoted = 0, is_open = 1;
  message->count = 0;
  append_bytes(message, "", 0);
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
    if (lines++) append_bytes(message, "\n", 1);
    append_bytes(message, line.bytes, line.count);
  }
  free(line.bytes);
  return lines > 0;
}

/* Does what /set says: a name and a value, or nothing. */
static void set(options *o, const char *text, size_t count) {
  char words[2][64] = {"", ""};
  for (int i = 0; i < 2; i++) {
    size_t length = 0;
    while (length < count && (text[length] != ' ' || i)) length++;
    snprintf(words[i], sizeof words[i], "%.*s", (int)length, text);
    text += length, count -= length;
    trim(&text, &count);
  }
  if (!*words[0]) {
    show_numbers(o);
    return;
  }
  const int done = set_number(o, words[0], words[1]);
  if (done > 0) printf("%s is %s\n", words[0], words[1]);
  if (!done) printf("set: unknown option, got %s; ./chat --help lists them\n", words[0]);
}

/* Does what a line with a command says; 0 where it has none, -1 where it says to leave. */
static int obeyed(conversation *c, options *o, byte_list *message) {
  const char *text = message->bytes;
  size_t count = message->count;
  trim(&text, &count);
  if (!count) return 1;
  if (text[0] != '/' || memchr(text, '\n', count)) return 0;
  size_t word = 1;
  while (word < count && text[word] >= 'a' && text[word] <= 'z') word++;
  if (word + (word == 1 && count == 2 && text[1] == '?') < count && text[word] != ' ') return 0;
  const char *rest = text + word;
  size_t left = count - word;
  trim(&rest, &left);
  const int is_alone = left == 0;
  if (word == 5 && memcmp(text, "/exit", 5) == 0 && is_alone) return -1;
  if (word == 6 && memcmp(text, "/reset", 6) == 0) {
    forget(c);
    printf("the conversation starts anew\n");
  } else if (word == 4 && memcmp(text, "/set", 4) == 0) {
    set(o, rest, left);
  } else if (word == 7 && memcmp(text, "/system", 7) == 0) {
    if (left && !before_system) {
      printf("the model takes no system message\n");
    } else if (left) {
      set_text(&c->system, rest, left);
      c->has_system = 1;
      forget(c);
      printf("the conversation starts anew\n");
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

static int is_utf8(const byte_list *text) {
  uint32_t code;
  for (size_t at = 0, length; at < text->count; at += length)
    if (!(length = utf8_next(text->bytes + at, text->count - at, &code))) return 0;
  return 1;
}

int main(int argc, char **argv) {
  options o = default_options();
  conversation c = {0};
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      printf("usage: %s [--system TEXT] [OPTION ...]\n\nA conversation.\n\n%s\n%s", argv[0], options_help, commands);
      return 0;
    }
    if (strcmp(argv[i], "--system") == 0 && i + 1 < argc) {
      if (!before_system) fail("--system", "the model takes no system message", "", 2);
      set_text(&c.system, argv[i + 1], strlen(argv[i + 1]));
      expect_utf8("--system", c.system.bytes, c.system.count);
      c.has_system = 1;
      i++;
    } else if (!take_option(&o, argc, argv, &i)) {
      fail(argv[i], "no such option, or nothing behind it; --help says more", "", 2);
    }
  }
  language l = language_open(&o, argv[0]);
  if (is_terminal()) printf("context %d. /help for help, Ctrl-D to leave.\n", MODEL_CONTEXT);
  byte_list message = {0};
  await_line();
  while (read_message(&message)) {
    if (!is_utf8(&message)) {
      fprintf(stderr, "message: not UTF-8\n");
      continue;
    }
    const int done = obeyed(&c, &o, &message);
    if (done < 0) break;
    if (!done) answer(&l, &o, &c, &message);
  }
  forget(&c);
  free(c.said);
  free(c.system.bytes);
  free(message.bytes);
  language_close(&l);
  return 0;
}
