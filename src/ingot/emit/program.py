"""Emit main.c, a command-line program that runs an emitted model on files, and its build."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from ingot.emit.interface import Interface, Port, Size, dims, wrapped
from ingot.emit.platform import Platform
from ingot.emit.program_sizes import size_texts
from ingot.emit.project import Project, library_headers, library_sources
from ingot.ir.dtype import DTYPES

VECTOR = "test"  # the folder of the test vector: inputs and expected outputs

# The bits of infinity; larger bits are NaN.
INFINITIES = {"f64": "0x7ff0000000000000", "f32": "0x7f800000", "f16": "0x7c00", "bf16": "0x7f80"}
_SHORT = 60  # letters that fit behind what is declared, in one line
_KINDS = {"f64": "d", "f32": "f"} | {dtype.name: dtype.kind for dtype in DTYPES.values() if dtype.kind in "iu"}


def project(face: Interface, has_vector: bool) -> Project:
    """Return the build of a program around a model; with a test vector `make check` runs it."""
    headers, weights = library_headers(face), face.file("weights.bin")
    check = f"--weights {{folder}}/{weights} --check {{folder}}/{face.file(VECTOR)}" if has_vector else ""
    programs = {face.prefix: [face.file("main.c")]}
    return Project(face, library_sources(face), headers, headers[:2], programs, [weights], check)


def main(face: Interface, platform: Platform) -> str:
    """Return main.c for the only entry."""
    (entry,) = face.entries
    values = {
        "PREFIX": face.prefix,
        "MACRO": face.macro,
        "@MAIN@": face.file("main.c"),
        "@WEIGHTS@": face.file("weights.bin"),
        **size_texts(entry),
        "@INPUTS@": str(len(entry.inputs)),
        "@PORTS@": str(len(entry.ports)),
        "@ROWS@": "\n".join(_row(port, platform) for port in entry.ports),
        "@IN@": _filled(entry.inputs, 0, entry.sizes),
        "@OUT@": _filled(entry.outputs, len(entry.inputs)),
        "@CONST@": face.const(entry),
    }
    return re.sub("|".join(values), lambda mark: values[mark[0]], _PROGRAM.replace("@SHARED@", SHARED))


def _filled(ports: Sequence[Port], first: int, sizes: Sequence[Size] = ()) -> str:
    """Return the initialiser of the struct of inputs, with sizes, or of outputs."""
    rows = [f".{port.identifier} = ports[{first + i}].data" for i, port in enumerate(ports)]
    rows += [f".{size.identifier} = sizes[{i}].value" for i, size in enumerate(sizes)]
    text = ", ".join(rows or [".none = NULL"])
    return f"{{{text}}}" if len(text) < _SHORT else f"{{\n{wrapped(rows, ', ', ' ' * 6)}\n  }}"


def _row(port: Port, platform: Platform) -> str:
    """Return a port's line in the table of main.c."""
    tensor = port.tensor
    shape = tuple(int(dim) for dim in tensor.shape)  # the largest; a run sets the actual one
    descr = np.lib.format.dtype_to_descr(platform.dtype(tensor.dtype.numpy))
    kind = _KINDS.get(tensor.dtype.name, " ")
    words = [f'"{word}"' for word in (port.identifier, dims(tensor), descr, shape)]
    words += [f"'{kind}'", str(tensor.nbytes // tensor.dtype.itemsize), str(tensor.dtype.itemsize)]
    words += [INFINITIES.get(tensor.dtype.name, "0"), "NULL", "NULL"]
    return "  {" + wrapped(words, ", ", "   ").lstrip() + "},"


# C that all programs share, after their includes.
SHARED = r"""#if defined(_WIN32)
#include <malloc.h>
#define aligned_alloc(alignment, bytes) _aligned_malloc(bytes, alignment)
#define free(memory) _aligned_free(memory)
#endif

/* Ends the program with a message and an exit code. */
static void fail(const char *what, const char *why, const char *more, int code) {
  fprintf(stderr, "%s: %s%s\n", what, why, more);
  exit(code);
}

static void *allocate(size_t bytes) {
  void *memory = aligned_alloc(64, bytes / 64 * 64 + 64);
  if (!memory) fail("PREFIX", "out of memory", "", 75);
  return memory;
}

/* Ends the program if its output could not be written. */
static void expect_printed(void) {
  if (fflush(stdout) || ferror(stdout)) fail("stdout", "cannot be written whole", "", 74);
}

static int is_npy(const char *path) {
  const size_t length = strlen(path);
  return length >= 4 && strcmp(path + length - 4, ".npy") == 0;
}

/* Truncates the header of an .npy file after its dict. */
static void cut_behind(char *text) {
  char *end = strrchr(text, '}');
  if (end) end[1] = 0;
  text[strcspn(text, "\n")] = 0;
}

/* Concatenates the first `length` bytes of a folder, a name and an extension; the caller frees the result. */
static char *joined(const char *folder, size_t length, const char *name, const char *ending) {
  char *path = allocate(length + strlen(name) + strlen(ending) + 1);
  memcpy(path, folder, length);
  path[length] = 0;
  return strcat(strcat(path, name), ending);
}

/* The value of the option argv[*i], if it has this name: the text after =, or the next word, to which *i then moves.
 * NULL for another option, or without a value. */
static const char *value_of(const char *name, int argc, char **argv, int *i) {
  const size_t length = strlen(name);
  const char *word = argv[*i];
  if (strncmp(word, name, length) != 0) return NULL;
  if (word[length] == '=') return word + length + 1;
  return word[length] || *i + 1 >= argc ? NULL : argv[++*i];
}

/* The number of an option, from 1 to `most`. */
static long number(const char *option, const char *word, long most) {
  char *end;
  const long value = strtol(word, &end, 10);
  if (end == word || *end || value < 1 || value > most) {
    fprintf(stderr, "%s: out of range, got %s, expected 1 to %ld\n", option, word, most);
    exit(2);
  }
  return value;
}

"""

_PROGRAM = r"""/* @MAIN@: emitted by Ingot: the model as a program. `make` builds it, `./PREFIX --help` explains it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "PREFIX.h"
#include "PREFIX_check.h"

/* An input or output. descr and shape: of the header of an .npy file. kind: 'f' float, 'd' double, 'i' and 'u'
 * integers, ' ' not printed. infinity: its bits; larger bits are NaN; 0 for types without NaN. path: of its
 * file, NULL for none. */
typedef struct {
  const char *name, *type, *descr, *shape;
  char kind;
  size_t count, size;
  uint64_t infinity;
  const char *path;
  void *data;
} port;

enum { INPUTS = @INPUTS@, PORTS = @PORTS@, SHOWN = 10, HEADER = 4096 };

static port ports[PORTS] = {
@ROWS@
};

@SIZES@static void help(const char *program) {
  printf("usage: %s [--weights FILE] [--threads N] NAME=FILE ...\n"
         "       %s [--weights FILE] [--threads N] --check FOLDER\n"
         "\n"
         "Runs the model once. A FILE whose name ends in .npy is a numpy file; any other has only the elements, row\n"
         "by row. --weights: @WEIGHTS@, if it is not next to the program. --threads: the most that a run uses, at\n"
         "most %d. --check: FOLDER/NAME.npy has each input, and the expected value of each output.\n",
         program, program, MACRO_THREADS);
  for (const port *p = ports; p < ports + PORTS; p++) {
    if (p == ports && INPUTS > 0) printf("\ninputs, all of them required:\n");
    if (p == ports + INPUTS) printf("\noutputs; the first elements of one without a file are printed:\n");
    printf("  %s  %s, @MOST@%zu bytes\n", p->name, p->type, p->count * p->size);
  }
@HELP@}

@SHARED@/* Opens a file to read. more: further text of the error message. */
static FILE *opened(const char *path, const char *more) {
  FILE *file = fopen(path, "rb");
  if (!file) fail(path, "cannot be opened", more, 66);
  return file;
}

/* Reads the text of the header of an .npy file. */
static void read_text(FILE *file, const char *path, char text[HEADER]) {
  unsigned char start[12] = {0};
  size_t length = 0;
  if (fread(start, 1, 10, file) == 10 && memcmp(start, "\x93NUMPY", 6) == 0) {
    length = start[8] + 256u * start[9];
    if (start[6] > 1 && (fread(start + 10, 1, 2, file) != 2 || start[10] || start[11])) length = 0;
  }
  if (length == 0 || length >= HEADER || fread(text, 1, length, file) != length)
    fail(path, "not an .npy file", "", 65);
  text[length] = 0;
}

/* Reads the header of an .npy file, which must have the elements of a port in row-major order. */
static void read_header(FILE *file, const port *p, const char *path) {
  char text[HEADER], descr[64], shape[1024];
  read_text(file, path, text);
  snprintf(descr, sizeof descr, "'descr': '%s'", p->descr);
  snprintf(shape, sizeof shape, "'shape': %s", p->shape);
  if (!strstr(text, descr) || !strstr(text, shape) || !strstr(text, "'fortran_order': False")) {
    cut_behind(text);
    fprintf(stderr, "%s: of another shape or type, got %s, expected %s\n", path, text, p->type);
    exit(65);
  }
}

/* Reads a file of so many bytes into `to`; p: its port, whose .npy file has a header, or NULL. */
static void read_file(const char *path, void *to, size_t bytes, const port *p) {
  FILE *file = opened(path, p ? "" : "; --weights gives its path");
  if (p && is_npy(path)) read_header(file, p, path);
  const size_t got = fread(to, 1, bytes, file);
  if (got != bytes || fgetc(file) != EOF) {
    fprintf(stderr, "%s: of another size, got %s than %zu bytes%s%s\n", path, got < bytes ? "fewer" : "more", bytes,
            p ? ", expected " : "", p ? p->type : "");
    exit(65);
  }
  fclose(file);
}

static void write_file(const port *p) {
  FILE *file = fopen(p->path, "wb");
  if (!file) fail(p->path, "cannot be written", "", 73);
  int is_whole = 1;
  if (is_npy(p->path)) {
    char text[2048];
    const int used = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", p->descr,
                              p->shape);
    const unsigned length = ((unsigned)used + 10 + 64) / 64 * 64 - 10; /* the elements begin at a multiple of 64 */
    const unsigned char start[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0,
                                     (unsigned char)(length % 256), (unsigned char)(length / 256)};
    is_whole = fwrite(start, 1, 10, file) == 10;
    is_whole &= fprintf(file, "%-*s\n", (int)length - 1, text) == (int)length;
  }
  is_whole &= fwrite(p->data, p->size, p->count, file) == p->count;
  if (fclose(file) || !is_whole) fail(p->path, "cannot be written whole", "", 74);
}

/* The bits of an element. */
static uint64_t element(const port *p, const void *data, size_t i) {
  uint8_t byte = 0;
  uint16_t two = 0;
  uint32_t four = 0;
  uint64_t eight = 0;
  void *to = p->size == 1 ? (void *)&byte : p->size == 2 ? (void *)&two : p->size == 4 ? (void *)&four : &eight;
  memcpy(to, (const char *)data + i * p->size, p->size);
  return byte | two | four | eight;
}

static void show_element(const port *p, uint64_t bits) {
  const uint64_t sign = (uint64_t)1 << (8 * p->size - 1);
  if (p->kind == 'f') {
    const uint32_t low = (uint32_t)bits;
    float number;
    memcpy(&number, &low, sizeof number);
    printf(" %.7g", (double)number);
  } else if (p->kind == 'd') {
    double number;
    memcpy(&number, &bits, sizeof number);
    printf(" %.15g", number);
  } else if (p->kind == 'i' && bits & sign) {
    printf(" -%llu", (unsigned long long)(2 * sign - bits));
  } else {
    printf(" %llu", (unsigned long long)bits);
  }
}

static void show(const port *p) {
  printf("%s %s:", p->name, p->type);
  for (size_t i = 0; i < p->count && i < SHOWN && p->kind != ' '; i++) show_element(p, element(p, p->data, i));
  printf("%s\n", p->kind != ' ' && p->count > SHOWN ? " ..." : "");
}

/* Whether an element is NaN. */
static int is_nan(const port *p, uint64_t bits) {
  const uint64_t sign = (uint64_t)1 << (8 * p->size - 1);
  return p->infinity && (bits & (sign - 1)) > p->infinity;
}

/* How many elements of an output differ in a bit from those of a file; two NaN count as equal. */
static size_t differences(const port *p, const char *path) {
  void *expected = allocate(p->count * p->size);
  size_t count = 0;
  read_file(path, expected, p->count * p->size, p);
  for (size_t i = 0; i < p->count; i++) {
    const uint64_t got = element(p, p->data, i), wanted = element(p, expected, i);
    count += got != wanted && !(is_nan(p, got) && is_nan(p, wanted));
  }
  free(expected);
  printf("%s %s: ", p->name, p->type);
  if (count) printf("%zu of %zu elements differ from %s\n", count, p->count, path);
  else printf("the bits of %s\n", path);
  return count;
}

@LEARNED@static port *port_named(const char *name, size_t length) {
  for (port *p = ports; p < ports + PORTS; p++)
    if (strlen(p->name) == length && strncmp(p->name, name, length) == 0) return p;
  return NULL;
}

/* Parses the command line: the files of ports and of the weights, threads. Returns the folder of --check, or NULL. */
static const char *understood(int argc, char **argv, const char **weights, int *threads) {
  const char *folder = NULL, *value;
  int named = 0;
  for (int i = 1; i < argc; i++) {
    const char *sign = strchr(argv[i], '=');
    port *p = sign ? port_named(argv[i], (size_t)(sign - argv[i])) : NULL;
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      help(argv[0]);
      exit(0);
    }
    if ((value = value_of("--weights", argc, argv, &i))) *weights = value;
    else if ((value = value_of("--check", argc, argv, &i))) folder = value;
    else if ((value = value_of("--threads", argc, argv, &i)))
      *threads = (int)number("--threads", value, MACRO_THREADS);@ASSIGNED@
    else if (!p) fail(argv[i], "neither an option nor the NAME=FILE of an input or output; see --help", "", 2);
    else if (p->path) fail(argv[i], "given twice", "", 2);
    else p->path = sign + 1, named++;
  }
  if (folder && named) fail("--check", "cannot be combined with files", "", 2);
  for (const port *p = ports; p < ports + INPUTS && !folder; p++)
    if (!p->path) fail(p->name, "no file for this input; see --help, expected ", p->type, 2);
  return folder;
}

/* Writes, prints or compares an output. Returns whether it is as expected. */
static int given_out(const port *p, const char *expected) {
  if (expected) return differences(p, expected) == 0;
  if (p->path) write_file(p), printf("%s %s: %s\n", p->name, p->type, p->path);
  else show(p);
  return 1;
}

int main(int argc, char **argv) {
  const char *named = NULL;
  int threads = MACRO_THREADS;
  const char *folder = understood(argc, argv, &named, &threads);
  const char *slash = strrchr(argv[0], '/');
  char *default_path = joined(argv[0], slash ? (size_t)(slash - argv[0]) + 1 : 0, "@WEIGHTS@", "");
  void *weights = allocate(MACRO_WEIGHTS_BYTES), *memory = allocate(MACRO_STATE_BYTES);
  read_file(named ? named : default_path, weights, MACRO_WEIGHTS_BYTES, NULL);
  if (!PREFIX_weights_fit(weights, MACRO_WEIGHTS_BYTES))
    fail(named ? named : default_path, "not the weights of this model, or damaged", "", 65);
  char *arrays[PORTS]; /* the files of --check, "" without it */
  for (int i = 0; i < PORTS; i++) {
    port *p = &ports[i];
    char *path = folder ? joined(folder, strlen(folder), "/", p->name) : joined("", 0, "", "");
    arrays[i] = joined(path, strlen(path), folder ? ".npy" : "", "");
    free(path);
    p->data = allocate(p->count * p->size);
    if (folder && i < INPUTS) p->path = arrays[i];
  }
@MEASURED@  for (const port *p = ports; p < ports + INPUTS; p++) read_file(p->path, p->data, p->count * p->size, p);
  const PREFIX_inputs inputs = @IN@;
  @CONST@PREFIX_outputs outputs = @OUT@;
  const int result = PREFIX_run(PREFIX_init(memory, weights, threads), &inputs, &outputs);
  if (result > 0) fail("PREFIX", "an index in the inputs is outside of its table", "", 65);
  if (result < 0) { /* only in a checked run */
    fprintf(stderr, "PREFIX: step %d wrote outside of its results\n", -1 - result);
    return 70;
  }
@SHAPED@  int is_expected = 1;
  for (int i = INPUTS; i < PORTS; i++) is_expected &= given_out(&ports[i], folder ? arrays[i] : NULL);
  expect_printed();
  for (int i = 0; i < PORTS; i++) free(arrays[i]), free(ports[i].data);
  free(default_path);
  free(weights);
  free(memory);
  return is_expected ? 0 : 1;
}
"""
