"""Parts of main.c for a model with run-time sizes, which its command line or its input files give."""

from __future__ import annotations

from ingot.emit.interface import Entry, is_sized, wrapped
from ingot.emit.sizes import c_text, functions
from ingot.ir.dim import Atom, Expr, dim_of


def size_texts(entry: Entry) -> dict[str, str]:
    """Return the pieces by their marks in the program; all are empty without run-time sizes."""
    names = "@SIZES@ @MOST@ @HELP@ @LEARNED@ @ASSIGNED@ @MEASURED@ @SHAPED@".split()
    if not entry.sizes:
        return dict.fromkeys(names, "")
    rows = [f'{{"{s.identifier}", {s.least}, {s.most}, -1}}' for s in entry.sizes]
    shapes = "".join(
        f"  shape_port(&ports[{i}], (const int64_t[]){{{_dims(entry, i)}}}, {len(port.tensor.shape)});\n"
        for i, port in enumerate(entry.inputs)
        if is_sized(port.tensor)
    )
    axes = _sized_axes(entry)
    learned = _LEARNED
    for mark, text in {
        "@FUNCTIONS@": functions(shapes) and functions(shapes) + "\n",
        "@COUNT@": str(max(1, len(axes))),
        "@AXES@": wrapped(axes or ["{-1, 0, 0, 1, 0}"], ", ", "  "),
        "@SHAPES@": shapes,
    }.items():
        learned = learned.replace(mark, text)
    shaped = "".join(
        f"  shape_port(&ports[{len(entry.inputs) + i}], outputs.{port.dims}, {len(port.tensor.shape)});\n"
        for i, port in enumerate(entry.outputs)
        if port.dims
    )
    texts = (
        _SIZES.replace("@COUNT@", str(len(rows))).replace("@SIZES@", wrapped(rows, ", ", "  ")),
        "at most ", _HELP, learned, "\n    else if (took_size(argv[i], sign)) continue;", "  measure();\n", shaped,
    )  # fmt: skip
    return dict(zip(names, texts, strict=True))


def _dims(entry: Entry, index: int) -> str:
    """Return the dims of an input in a run."""
    symbols = {size.symbol: f"sizes[{i}].value" for i, size in enumerate(entry.sizes)}
    return ", ".join(c_text(dim_of(dim), symbols) for dim in entry.inputs[index].tensor.shape)


def _sized_axes(entry: Entry) -> list[str]:
    """Return a row for each axis of an input that is a * size + b."""
    order = {size.symbol: i for i, size in enumerate(entry.sizes)}
    rows = []
    for i, port in enumerate(entry.inputs):
        for axis, dim in enumerate(map(dim_of, port.tensor.shape)):
            terms = dict(dim.terms) if isinstance(dim, Expr) else {}
            offset = terms.pop((), 0)
            match [*terms.items()]:
                case [((Atom(name, ()),), factor)]:
                    rows.append(f"{{{i}, {axis}, {order[name]}, {factor}, {offset}}}")
    return rows


_SIZES = r"""/* A run-time size: its name, its range, and its value, -1 until it is known. */
typedef struct {
  const char *name;
  int64_t least, most, value;
} size;

enum { SIZES = @COUNT@ };

static size sizes[SIZES] = {
@SIZES@
};

"""

_HELP = r"""  printf("\nsizes, given as NAME=N or by the shapes of .npy files:\n");
  for (const size *s = sizes; s < sizes + SIZES; s++)
    printf("  %s  %lld to %lld\n", s->name, (long long)s->least, (long long)s->most);
"""

_LEARNED = r"""@FUNCTIONS@/* Axes of inputs that determine a size: the axis is size * factor + offset. */
static const struct { int port, axis, size; int64_t factor, offset; } axes[@COUNT@] = {
@AXES@
};

/* Parses NAME=N, where NAME is a size. Returns whether it is one. */
static int took_size(const char *word, const char *sign) {
  for (size *s = sizes; s < sizes + SIZES && sign; s++) {
    if (strlen(s->name) != (size_t)(sign - word) || strncmp(s->name, word, strlen(s->name)) != 0) continue;
    char *end;
    s->value = strtoll(sign + 1, &end, 10);
    if (end == sign + 1 || *end) fail(word, "no number", "", 2);
    return 1;
  }
  return 0;
}

/* Derives sizes that the command line does not give from the shape of an .npy file. */
static void learn(const port *p) {
  char text[HEADER];
  FILE *file = opened(p->path, "");
  read_text(file, p->path, text);
  fclose(file);
  const char *at = strstr(text, "'shape': (");
  at = at ? at + strlen("'shape': (") : "";
  for (int axis = 0; *at && *at != ')'; axis++) {
    char *end;
    const int64_t dim = strtoll(at, &end, 10);
    if (end == at) return;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++)
      if (axes[i].port == p - ports && axes[i].axis == axis && sizes[axes[i].size].value < 0)
        sizes[axes[i].size].value = (dim - axes[i].offset) / axes[i].factor;
    at = end + strspn(end, ", ");
  }
}

/* Sets the dims of a port in this run. */
static void shape_port(port *p, const int64_t *dims, int rank) {
  static char shapes[PORTS][256], types[PORTS][256];
  char list[200] = "";
  p->count = 1;
  for (int i = 0; i < rank; i++) {
    const size_t used = strlen(list);
    p->count *= (size_t)dims[i];
    snprintf(list + used, sizeof list - used, i ? ", %lld" : "%lld", (long long)dims[i]);
  }
  snprintf(shapes[p - ports], sizeof shapes[0], "(%s%s)", list, rank == 1 ? "," : "");
  snprintf(types[p - ports], sizeof types[0], "%.*s[%s]", (int)strcspn(p->type, "["), p->type, list);
  p->shape = shapes[p - ports];
  p->type = types[p - ports];
}

/* Determines the sizes of this run, and the shapes of its inputs. */
static void measure(void) {
  for (const port *p = ports; p < ports + INPUTS; p++)
    if (is_npy(p->path)) learn(p);
  for (const size *s = sizes; s < sizes + SIZES; s++) {
    if (s->value < 0) fail(s->name, "has no value; see --help, expected NAME=N", "", 2);
    if (s->value < s->least || s->value > s->most) {
      fprintf(stderr, "%s: out of range, got %lld, expected %lld to %lld\n", s->name, (long long)s->value,
              (long long)s->least, (long long)s->most);
      exit(65);
    }
  }
@SHAPES@}

"""
