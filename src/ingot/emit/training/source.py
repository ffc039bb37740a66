"""Emit main.c of a trainer: a program that reads files of rows, fits the model to them and writes a checkpoint."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ingot.emit.interface import Companion, Interface, Port, dims, wrapped
from ingot.emit.platform import Platform
from ingot.emit.program import SHARED, VECTOR

_PIECE = 400  # bytes of a string in C


@dataclass(frozen=True, slots=True)
class Fitting:
    """The facts of a trainer for the program.

    rate: the input with the learning rate; given: its default. step: the state that counts steps. header: the JSON
    header of a checkpoint, a safetensors file; the states follow it, and at its end the digest. parts: the parts into
    which a step divides its rows (gradient accumulation); each adds to `sums`, states by name with their bytes, and may
    read its number from the input `part`.
    """

    rate: str
    given: float
    step: str
    header: bytes
    digest: bytes
    parts: int
    part: str
    sums: Mapping[str, int]


def state_memory(prefix: str, nbytes: int) -> Companion:
    """Return the function that gives a caller the memory of parameters and moments."""
    name = f"{prefix}_kept"
    header = f"""
/* The memory that lives from step to step, {nbytes} bytes: parameters, optimiser state, and the number of steps.
 * layout.json has the offset of each. */
void *{name}({prefix}_state *state);
"""
    return Companion(
        functions=f"\nvoid *{name}({prefix}_state *state) {{ return state->kept; }}\n", header=header, names=(name,)
    )


def training_program(face: Interface, fitting: Fitting, platform: Platform) -> str:
    """Return main.c. The first entry reads rows; with gradient accumulation, the second updates the parameters."""
    entry, ports = face.entries[0], _files(face, fitting)
    (loss,) = entry.outputs
    rows = [_row(port, platform) for port in ports]
    rate = next(i for i, port in enumerate(ports) if port.tensor.name == fitting.rate)
    operands = [f"inputs[{ports.index(port)}].data" if port in ports else "&number" for port in entry.inputs]
    given = [f".{port.identifier} = {memory}" for port, memory in zip(entry.inputs, operands, strict=True)]
    offsets = face.state_offsets
    *states, (_, _, digest_bytes) = _offsets(fitting.header)
    assert digest_bytes == len(fitting.digest), "the tensor with the smallest elements is the last"
    stored = [f"{{{offsets[name]}, {nbytes}}}" for _, name, nbytes in states]
    values = {
        "PREFIX": face.prefix,
        "MACRO": face.macro,
        "@MAIN@": face.file("main.c"),
        "@WEIGHTS@": face.file("weights.bin"),
        "@INPUTS@": str(len(rows)),
        "@ROWS@": "\n".join(rows),
        "@RATE@": str(rate),
        "@GIVEN@": repr(float(fitting.given)),
        "@STEP@": str(offsets[fitting.step]),
        "@HEADER@": "\n".join(f"    {piece}," for piece in _pieces(fitting.header)),
        "@HEADER_BYTES@": str(len(fitting.header)),
        "@STORED@": wrapped(stored, ", ", "  "),
        "@DIGEST@": wrapped(map(str, fitting.digest), ", ", "  "),
        "@DIGEST_BYTES@": str(digest_bytes),
        "@IN@": wrapped(given, ", ", "      "),
        "@LOSS@": loss.identifier,
        "@PARTS@": str(fitting.parts),
        "@TRAIN@": entry.name,
        "@NUMBER@": "\n  double number = 0; /* of a part */" if "&number" in operands else "",
        "@NUMBERED@": "\n      number = (double)part;" if "&number" in operands else "",
        **_in_parts(face, fitting, rate),
    }
    return re.sub("|".join(values), lambda mark: values[mark[0]], _PROGRAM.replace("@SHARED@", SHARED))


def _files(face: Interface, fitting: Fitting) -> list[Port]:
    """Return the inputs that files of rows fill, and the learning rate."""
    entries = face.entries[: 1 if fitting.parts == 1 else 2]
    return [port for entry in entries for port in entry.inputs if port.tensor.name != fitting.part]


def _in_parts(face: Interface, fitting: Fitting, rate: int) -> dict[str, str]:
    """Return the C for gradient accumulation over the parts of a step; empty for one part."""
    if fitting.parts == 1:
        return dict.fromkeys(("@SUMS@", "@BEGIN@", "@UPDATE@", "@UPDATED@"), "")
    update, offsets = face.entries[1], face.state_offsets
    (count,) = update.outputs
    (given,) = update.inputs
    rows = wrapped((f"{{{offsets[name]}, {nbytes}}}" for name, nbytes in fitting.sums.items()), ", ", "  ")
    call = f"{face.function(update)}(state, &by, &after)"
    return {
        "@SUMS@": f"\n/* Where the parts of a step add up gradients. */\nstatic const struct {{ size_t at, bytes; }} "
        f"sums[] = {{\n{rows}\n}};\n",
        "@BEGIN@": "\n    for (size_t s = 0; s < sizeof sums / sizeof *sums; s++) "
        "memset(persistent + sums[s].at, 0, sums[s].bytes);",
        "@UPDATE@": f"\n  double steps_after = 0;\n  const {face.inputs(update)} by = "
        f"{{.{given.identifier} = inputs[RATE].data}};\n  const {face.outputs(update)} after = "
        f"{{.{count.identifier} = &steps_after}};",
        "@UPDATED@": f'\n    if ({call}) fail("{face.prefix}", "wrote outside of its results", "", 70);',
    }


def training_vector(
    face: Interface, fitting: Fitting, inputs: Sequence[np.ndarray], losses: np.ndarray
) -> dict[str, bytes]:
    """Return the files of `--check`: rows of each input of a step, in order, and the expected losses."""
    files = {}
    for port, array in zip((*_files(face, fitting), *face.entries[0].outputs), (*inputs, losses), strict=True):
        file = io.BytesIO()
        np.save(file, np.asarray(array, order="C"), allow_pickle=False)
        files[f"{face.file(VECTOR)}/{port.identifier}.npy"] = file.getvalue()
    return files


def _offsets(header: bytes) -> list[tuple[int, str, int]]:
    """Return the offset after the header, the name and the bytes of each tensor of a checkpoint, in order."""
    rows = ((*row["data_offsets"], name) for name, row in json.loads(header).items())
    return sorted((begin, name, end - begin) for begin, end, name in rows)


def _row(port: Port, platform: Platform) -> str:
    """Return an input's line in the table of main.c: the rows of a step. An input without axes is one row."""
    tensor = port.tensor
    rows, *inner = map(int, tensor.shape or (1,))
    descr = np.lib.format.dtype_to_descr(platform.dtype(tensor.dtype.numpy))
    rest = "".join(f", {dim}" for dim in inner) or ","
    nbytes = tensor.nbytes // max(rows, 1)
    words = [f'"{word}"' for word in (port.identifier, dims(tensor), descr, f"{rest})")]
    return "  {" + ", ".join([*words, str(rows), str(nbytes), "NULL", "0", "NULL"]) + "},"


def _pieces(content: bytes) -> Iterator[str]:
    """Yield bytes as C strings, short enough for every compiler. Bytes other than plain text are octal escapes."""
    plain = {byte for byte in range(32, 127) if chr(byte) not in '"\\?'}
    for row in re.findall(rb".*?\},|.+", content, re.DOTALL):
        for at in range(0, len(row), _PIECE):
            text = "".join(chr(b) if b in plain else f"\\{b:03o}" for b in row[at : at + _PIECE])
            yield f'"{text}"'


_PROGRAM = r"""/* @MAIN@: emitted by Ingot: fits a model to files of rows. `./PREFIX --help` prints the usage. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "PREFIX.h"
#include "PREFIX_check.h"

/* An input that is read from a file of rows. descr: its dtype, as in an .npy file; inner: the rest of its shape after
 * the number of rows. batch: the rows of a step; size: bytes of a row. rows: those of the file, `count` of them; data:
 * those of a step. */
typedef struct {
  const char *name, *type, *descr, *inner;
  size_t batch, size;
  char *rows;
  size_t count;
  void *data;
} input;

enum { INPUTS = @INPUTS@, RATE = @RATE@, PARTS = @PARTS@, LINES = 20, HEADER = 4096, DIGEST = @DIGEST_BYTES@ };

static input inputs[INPUTS] = {
@ROWS@
};

/* A checkpoint, a safetensors file: its header in pieces, then the states at these offsets, then a digest that
 * identifies the model. `Trainer.load` reads it, and --from reads files of `Trainer.save`. */
static const uint64_t header_bytes = @HEADER_BYTES@;
static const char *const header[] = {
@HEADER@
};
static const struct { size_t at, bytes; } states[] = {
@STORED@
};
static const unsigned char digest[DIGEST] = {
@DIGEST@
};
enum { PIECES = sizeof header / sizeof *header, STATES = sizeof states / sizeof *states };
@SUMS@
static void help(const char *program) {
  printf("usage: %s [--weights FILE] [--threads N] [--steps N] [--rate R] [--from FILE] [--save FILE] NAME=FILE ...\n"
         "       %s [--weights FILE] [--threads N] --check FOLDER\n"
         "\n"
         "Fits the model to rows: each step reads the next rows, and after the last row the first again. A FILE whose\n"
         "name ends in .npy is a numpy file; any other has only the elements, row by row. --steps: how many, by\n"
         "default 100. --rate: the learning rate, by default %g; %s=FILE has one for each step. --save: the file of\n"
         "the checkpoint. --from: a checkpoint to continue, by default the emitted states. --weights: @WEIGHTS@,\n"
         "if it is not next to the program. --threads: the most that a step uses, at most %d. --check:\n"
         "FOLDER/NAME.npy has each input and the losses.\n"
         "\ninputs:\n",
         program, program, @GIVEN@, inputs[RATE].name, MACRO_THREADS);
  for (const input *p = inputs; p < inputs + INPUTS; p++)
    printf("  %s  %s in a step, %zu bytes a row\n", p->name, p->type, p->size);
}

@SHARED@/* Reads all bytes of a file. more: further text of the error message. */
static char *content_of(const char *path, const char *more, size_t *bytes) {
  FILE *file = fopen(path, "rb");
  if (!file) fail(path, "cannot be opened", more, 66);
  const int moved = fseek(file, 0, SEEK_END);
  const long end = ftell(file);
  if (moved || end < 0) fail(path, "cannot be read", "", 74);
  rewind(file);
  char *content = allocate((size_t)end);
  *bytes = fread(content, 1, (size_t)end, file);
  if (*bytes != (size_t)end) fail(path, "cannot be read", "", 74);
  fclose(file);
  return content;
}

/* The offset of the elements in an .npy file, whose header must match a port's rows. */
static size_t behind_header(const input *p, const char *path, const char *content, size_t bytes) {
  const unsigned char *start = (const unsigned char *)content;
  const int has_header = bytes >= 10 && memcmp(content, "\x93NUMPY\1", 7) == 0;
  const size_t length = has_header ? start[8] + 256u * start[9] : 0;
  char text[HEADER], descr[64];
  if (length == 0 || length >= HEADER || length > bytes - 10) fail(path, "not an .npy file", "", 65);
  memcpy(text, content + 10, length);
  text[length] = 0;
  snprintf(descr, sizeof descr, "'descr': '%s'", p->descr);
  const char *shape = strstr(text, "'shape': (");
  char *inner = NULL;
  if (shape) strtoull(shape + 10, &inner, 10);
  const int fits = inner && strncmp(inner, p->inner, strlen(p->inner)) == 0;
  if (!fits || !strstr(text, descr) || !strstr(text, "'fortran_order': False")) {
    cut_behind(text);
    fprintf(stderr, "%s: of another shape or type, got %s, expected rows of %s\n", path, text, p->type);
    exit(65);
  }
  return 10 + length;
}

/* Reads the rows of an input. */
static void read_rows(input *p, const char *path) {
  size_t bytes = 0;
  char *content = content_of(path, "", &bytes);
  const size_t begin = is_npy(path) ? behind_header(p, path, content, bytes) : 0;
  p->rows = content;
  p->count = (bytes - begin) / p->size;
  if (p->count < p->batch || p->count * p->size != bytes - begin) {
    fprintf(stderr, "%s: of another size, got %zu bytes, expected rows of %zu, at least %zu of them\n", path,
            bytes - begin, p->size, p->batch);
    exit(65);
  }
  memmove(content, content + begin, bytes - begin); /* which aligns them */
}

/* Copies the rows of a step, or of a part of one. */
static void take_rows(const input *p, uint64_t step) {
  for (size_t i = 0; i < p->batch && p->rows; i++)
    memcpy((char *)p->data + i * p->size, p->rows + (step * p->batch + i) % p->count * p->size, p->size);
}

/* Whether the next bytes of a file are these. */
static int comes(FILE *file, const void *expected, size_t bytes) {
  for (size_t i = 0; i < bytes; i++)
    if (fgetc(file) != ((const unsigned char *)expected)[i]) return 0;
  return 1;
}

/* The length of the header, as stored in a file. */
static void length_bytes(unsigned char to[8]) {
  for (int i = 0; i < 8; i++) to[i] = (unsigned char)(header_bytes >> 8 * i);
}

static void load(const char *path, char *persistent) {
  FILE *file = fopen(path, "rb");
  unsigned char length[8];
  length_bytes(length);
  if (!file) fail(path, "cannot be opened", "", 66);
  int fits = comes(file, length, 8);
  for (size_t i = 0; i < PIECES && fits; i++) fits = comes(file, header[i], strlen(header[i]));
  for (size_t i = 0; i < STATES && fits; i++)
    fits = fread(persistent + states[i].at, 1, states[i].bytes, file) == states[i].bytes;
  if (!fits || !comes(file, digest, DIGEST) || fgetc(file) != EOF)
    fail(path, "not a checkpoint of this model, or damaged", "", 65);
  fclose(file);
}

/* Writes a checkpoint atomically. */
static void save(const char *path, const char *persistent) {
  char *part = joined(path, strlen(path), ".part", "");
  FILE *file = fopen(part, "wb");
  unsigned char length[8];
  length_bytes(length);
  if (!file) fail(part, "cannot be written", "", 73);
  int is_whole = fwrite(length, 1, 8, file) == 8;
  for (size_t i = 0; i < PIECES; i++) is_whole &= fputs(header[i], file) >= 0;
  for (size_t i = 0; i < STATES; i++)
    is_whole &= fwrite(persistent + states[i].at, 1, states[i].bytes, file) == states[i].bytes;
  is_whole &= fwrite(digest, 1, DIGEST, file) == DIGEST;
  if (fclose(file) || !is_whole) fail(part, "cannot be written whole", "", 74);
#if defined(_WIN32)
  remove(path);
#endif
  if (rename(part, path)) fail(path, "cannot be written", "", 73);
  free(part);
}

/* Parses the command line. */
typedef struct {
  const char *weights, *from, *save, *folder;
  double rate;
  long steps, threads;
} options;

static options understood(int argc, char **argv) {
  options o = {.rate = @GIVEN@, .steps = 100, .threads = MACRO_THREADS};
  int named = 0;
  for (int i = 1; i < argc; i++) {
    const char *word = argv[i], *value;
    const size_t length = strcspn(word, "=");
    input *p = inputs;
    while (p < inputs + INPUTS && (strlen(p->name) != length || strncmp(p->name, word, length) != 0)) p++;
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
      help(argv[0]);
      exit(0);
    }
    char *end = NULL;
    if (word[length] && p < inputs + INPUTS && !p->rows) read_rows(p, word + length + 1), named++;
    else if ((value = value_of("--weights", argc, argv, &i))) o.weights = value;
    else if ((value = value_of("--from", argc, argv, &i))) o.from = value;
    else if ((value = value_of("--save", argc, argv, &i))) o.save = value;
    else if ((value = value_of("--check", argc, argv, &i))) o.folder = value;
    else if ((value = value_of("--threads", argc, argv, &i))) o.threads = number("--threads", value, MACRO_THREADS);
    else if ((value = value_of("--steps", argc, argv, &i))) o.steps = number("--steps", value, INT32_MAX);
    else if ((value = value_of("--rate", argc, argv, &i))) {
      o.rate = strtod(value, &end);
      if (end == value || *end || !(o.rate >= 0) || isinf(o.rate)) fail("--rate", "not a rate, got ", value, 2);
    } else fail(word, "neither an option nor the NAME=FILE of an input; see --help", "", 2);
  }
  if (o.folder && named) fail("--check", "cannot be combined with files", "", 2);
  return o;
}

/* Checks that all inputs have rows, and as many as one another. */
static void expect_rows(void) {
  const input *first = NULL;
  for (const input *p = inputs; p < inputs + INPUTS; p++) {
    if (p == inputs + RATE) continue;
    if (!p->rows) fail(p->name, "no file for this input; see --help, expected rows of ", p->type, 2);
    if (!first) first = p;
    if (p->count * first->batch != first->count * p->batch)
      fail(p->name, "of another number of rows than ", first->name, 65);
  }
}

int main(int argc, char **argv) {
  options o = understood(argc, argv);
  const char *slash = strrchr(argv[0], '/');
  char *default_path = joined(argv[0], slash ? (size_t)(slash - argv[0]) + 1 : 0, "@WEIGHTS@", "");
  const char *named = o.weights ? o.weights : default_path;
  size_t bytes = 0;
  char *weights = content_of(named, "; --weights gives its path", &bytes);
  if (!PREFIX_weights_fit(weights, bytes)) fail(named, "not the weights of this model, or damaged", "", 65);
  input expected = {"@LOSS@", "f32[]", "<f4", ",)", 1, 4, NULL, 0, NULL};
  for (int i = 0; o.folder && i <= INPUTS; i++) {
    input *p = i < INPUTS ? &inputs[i] : &expected;
    char *folder = joined(o.folder, strlen(o.folder), "/", p->name), *path = joined(folder, strlen(folder), ".npy", "");
    read_rows(p, path);
    free(folder), free(path);
  }
  expect_rows();
  for (input *p = inputs; p < inputs + INPUTS; p++) p->data = allocate(p->batch * p->size);
  memcpy(inputs[RATE].data, &o.rate, sizeof o.rate);

  void *memory = allocate(MACRO_STATE_BYTES);
  PREFIX_state *state = PREFIX_init(memory, weights, (int)o.threads);
  char *persistent = PREFIX_kept(state);
  if (o.from) load(o.from, persistent);
  float loss = 0;@NUMBER@
  const PREFIX_@TRAIN@_inputs in = {
@IN@
  };
  const PREFIX_@TRAIN@_outputs out = {.@LOSS@ = &loss};@UPDATE@
  const long steps = o.folder ? (long)expected.count : o.steps, interval = steps < LINES ? 1 : steps / LINES;
  long differing = 0;
  for (long i = 0; i < steps; i++) {
    double done, mean = 0;
    memcpy(&done, persistent + @STEP@, sizeof done);
    const uint64_t at = o.folder ? (uint64_t)i : (uint64_t)done;@BEGIN@
    for (uint64_t part = 0; part < PARTS; part++) {
      for (const input *p = inputs; p < inputs + INPUTS; p++)
        take_rows(p, p == inputs + RATE ? at : at * PARTS + part);@NUMBERED@
      const int result = PREFIX_@TRAIN@(state, &in, &out);
      if (result > 0) fail("PREFIX", "an index in the inputs is outside of its table", "", 65);
      if (result < 0) fail("PREFIX", "wrote outside of its results", "", 70); /* only in a checked run */
      if (!isfinite(loss)) {
        fprintf(stderr, "PREFIX: the loss of step %.0f is %g, expected a number\n", done + 1, (double)loss);
        return 65;
      }
      mean += (double)loss / PARTS;
    }
    loss = (float)mean;@UPDATED@
    if (o.folder) differing += memcmp(&loss, expected.rows + (size_t)i * sizeof loss, sizeof loss) != 0;
    else if ((i + 1) % interval == 0 || i + 1 == steps) printf("step %.0f: loss %.6g\n", done + 1, (double)loss);
  }
  if (o.folder && differing) printf("%ld of %ld losses differ from %s\n", differing, steps, o.folder);
  else if (o.folder) printf("%ld losses: the bits of %s\n", steps, o.folder);
  if (o.save) save(o.save, persistent);
  expect_printed();
  for (input *p = inputs; p < inputs + INPUTS; p++) free(p->rows), free(p->data);
  free(expected.rows), free(default_path), free(weights), free(memory);
  return differing > 0;
}
"""
