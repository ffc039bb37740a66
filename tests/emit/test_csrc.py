"""csrc/ keeps to the forms that docs/emit-c.md lists: emit cuts these files by them, without a parser of C."""

import re
from collections import Counter
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from ingot.emit.kernels import defined_names, definitions, opened
from ingot.support.abi import instruction_sets

CSRC = Path(str(files("ingot") / "csrc"))
FILES = sorted(f.relative_to(CSRC).as_posix() for f in CSRC.rglob("*") if f.suffix in (".c", ".h", ".inc"))

# What is defined once per instruction set, and read into the same text under a condition or whole.
PER_SET = ("simd/", "gemm/gemm_micro_", "gemm/gemm_tile", "quant/gemm_micro_", "quant/gemm_tile", "quant/registers_")

COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')
# A definition without the content of its brackets: a function, a declaration, or a call of a macro.
SKELETON = re.compile(
    r"(?:[\w *]*__attribute__\(\) )?[\w *]+(?:\(\) ?)+\{\}"  # void K()() {}
    r"|[\w *]+(?:\(\) ?)+;"  # int f();
    r"|typedef [\w *]+(?:\{\})?[\w *]*(?:\(\))*;"  # typedef struct {} name; typedef void (*name)();
    r"|[\w *,]+(?:\{\} \w+)?(?:\[\])*(?: = [^;{}]*(?:\{\})?)?;"  # static const type name[] = {};
    r"|enum \{\};"
    r"|\w+\(\);?"
)
ROW = re.compile(r"(?:\[INGOT_\w+\] =|case INGOT_\w+:)")


def bare(code: str) -> str:
    """Code without comments and the contents of literals, and with lines that `\\` continues joined."""
    return LITERAL.sub("0", COMMENT.sub("", code)).replace("\\\n", " ")


def skeleton(code: str) -> str:
    """Code without its directives and without the content of its brackets, on one line."""
    text, depth = "", 0
    for letter in re.sub(r"^ *#.*", "", bare(code), flags=re.MULTILINE):
        depth -= letter in ")]}"
        text += letter if depth == 0 else ""
        depth += letter in "([{"
    return " ".join(text.split()) if depth == 0 else f"open: {code.splitlines()[0]}"


def violations(name: str, text: str, macros: dict[str, str]) -> Iterator[str]:
    """How the text of a file below its head breaks the forms. macros: as `defined_names` takes them."""
    try:
        pieces = list(definitions(text))
    except AssertionError as error:
        yield f"lost: {error}"
        return
    kept = [line for piece in pieces for line in "".join(piece).splitlines()]
    if [line for line in kept if line.strip()] != [line for line in text.splitlines() if line.strip()]:
        yield "lost: the definitions one after the other are not the text"
    for comment, code in pieces:
        where = code.splitlines()[0]
        if code.startswith("#if"):
            directives = re.findall(r"^ *#(if|endif)", code, re.MULTILINE)
            if directives != ["if", "endif"]:
                yield f"nested conditional: {where}"
        elif code.startswith("#"):
            if not re.match(r"#(define|undef|include) ", code):
                yield f"half a conditional: {where}"
            elif "\n" in bare(code).strip():
                yield f"lines after a directive: {where}"
        elif not SKELETON.fullmatch(skeleton(code)):
            yield f"not one definition: {skeleton(code)[:100]}"
        elif "\n" in code and code.endswith("}") and not code.endswith("\n}"):
            yield f"no closing brace in column 0: {where}"
        if code.startswith(("#undef", "#include")) and comment:
            yield f"comment above what is left out: {where}"
        yield from (
            f"not a path from csrc/: {path}"
            for path in re.findall(r'^#include "(.*)"', code, re.MULTILINE)
            if not (CSRC / path).is_file()
        )
        yield from (f"row over several lines: {line.strip()}" for line in code.splitlines() if not is_row(line))
        if not is_named(name, code, macros):
            yield f"no name: {where}"


def is_row(line: str) -> bool:
    """Whether a line that begins with a constant's row or case is all of it, or does not begin so."""
    text = bare(line).strip()
    found = ROW.findall(text)
    if not found:
        return True
    whole = all(text.count(a) == text.count(b) for a, b in ("()", "{}")) and text.endswith((",", ";"))
    return whole and len(found) == 1 and ROW.match(text) is not None


def is_named(file: str, code: str, macros: dict[str, str]) -> bool:
    """Whether emit finds a definition by a name, or needs none: what is left out, and includes under a condition."""
    if file == "abi.h" and code.startswith("enum {"):
        return True  # each constant is one
    if code.startswith(("#undef", "#include")) or re.fullmatch(r"(#(if|el|endif).*\n?|#include .*\n?)+", code):
        return True
    try:
        names, _ = defined_names(code, macros)
    except AssertionError:
        return False
    return bool(names)


def macros_of(texts: list[str]) -> dict[str, str]:
    """Macros with parameters, by name."""
    codes = (code for text in texts for _, code in definitions(text))
    return {found[1]: code for code in codes if (found := re.match(r"#define (\w+)\(", code))}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_of_the_known_forms(name: str) -> None:
    macros = macros_of([opened(other)[1] for other in FILES if other.endswith(".h")] + [opened(name)[1]])
    assert list(violations(name, opened(name)[1], macros)) == []


def test_a_name_is_defined_in_one_file() -> None:
    """Emitted C holds all files in one, without their #undef lines; K(name) and a plain name are the same there."""
    shared = [f for f in FILES if not f.startswith(PER_SET) and (f.endswith(".h") or "K(" in (CSRC / f).read_text())]
    texts = {name: opened(name)[1] for name in shared}
    macros = macros_of([*texts.values()])
    found: Counter[str] = Counter()
    for text in texts.values():
        for code in {code for _, code in definitions(text)}:
            is_prototype = code.startswith("void K(") and code.endswith(";")
            if not is_prototype and not code.startswith(("#include", "#undef", "enum {")):
                found.update(defined_names(code, macros)[0])
    assert [name for name, count in found.items() if count > 1] == []


GOOD = """\
#include "kernel.h"

#define MAKE(name, x) \\
  void K(name##_f32)(const void *p) { \\
    use(p, x); \\
  }
MAKE(neg, 1)
MAKE(abs, (2, 3))

/* Rows of a table. */
static const row rows[] = {
  [INGOT_ONE] = K(neg_f32),
  [INGOT_TWO] = {K(abs_f32), 1},
};

#if defined(ISA_avx512)
#define WIDTH 16
#else
#define WIDTH 8
#endif

/* A type. */
typedef struct {
  int32_t a;

  int32_t b[2];
} pair;

/* A function. */
static inline pair first(
    int32_t a) {
  switch (a) {
    case INGOT_ONE: return (pair){.a = '{'};
    default: return (pair){0};
  }
}

enum {
  INGOT_ONE,
  INGOT_TWO,
};

#undef WIDTH
"""

PLANTED = {
    "a path from its own folder": ('#include "kernel.h"', '#include "index.h"', "not a path from csrc/"),
    "a comment apart": ("/* Rows of a table. */", "/* Rows of a table. */\n", "lost"),
    "two comments": ("/* A type. */", "/* A. */\n/* A type. */", "lost"),
    "a line comment": ("/* A type. */", "// A type.", "lost"),
    "a body in column 0": ("  switch (a) {", "switch (a) {", "not one definition"),
    "a label in column 0": ("    default:", "default:", "not one definition"),
    "a brace in column 0": ("int32_t a) {", "int32_t a)\n{", "not one definition"),
    "a closing brace indented": ("  }\n}\n\nenum", "  }\n  }\n\nenum", "no closing brace"),
    "a directive in a body": ("  switch (a) {", "#define B 1\n  switch (a) {", "not one definition"),
    "a conditional in a body": ("  switch (a) {", "#if B\n#endif\n  switch (a) {", "not one definition"),
    "a nested conditional": ("#define WIDTH 16", "#if B\n#define WIDTH 16\n#endif", "nested conditional"),
    "two definitions on a line": (
        "typedef struct {",
        "int x(void) { return 1; } typedef struct {",
        "not one definition",
    ),
    "two calls on a line": ("MAKE(neg, 1)\n", "MAKE(neg, 1) ", "not one definition"),
    "an indented definition": ("MAKE(abs, (2, 3))", "  MAKE(abs, (2, 3))", "not one definition"),
    "an indented function": ("}\n\nenum {", "}\n\n  int f(void) { return 1; }\n\nenum {", "not one definition"),
    "a type on its own line": ("static inline pair first(", "static inline pair\nfirst(", "not one definition"),
    "a row over two lines": ("[INGOT_TWO] = {K(abs_f32), 1}", "[INGOT_TWO] = {K(abs_f32),\n    1}", "row over several"),
    "two rows on a line": ("neg_f32),\n  [INGOT_TWO]", "neg_f32), [INGOT_TWO]", "row over several"),
    "a case over two lines": ("case INGOT_ONE: return", "case INGOT_ONE:\n      return", "row over several"),
    "a name that is not first": ("MAKE(name, x)", "MAKE(x, name)", "no name"),
    "a kernel that is not K": ("K(name##_f32)(", "name##_f32(", "no name"),
    "an unknown macro": ("MAKE(neg, 1)", "OTHER", "not one definition"),
    "a pointer to nothing": ("#undef WIDTH", "/* Gone. */\n#undef WIDTH", "comment above what is left out"),
}


def test_the_known_forms_pass() -> None:
    assert list(violations("abi.h", GOOD, macros_of([GOOD]))) == []


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_found(name: str) -> None:
    old, new, expected = PLANTED[name]
    assert GOOD.count(old) == 1
    text = GOOD.replace(old, new)
    macros = macros_of([GOOD]) if expected == "lost" else macros_of([text])
    assert any(found.startswith(expected) for found in violations("abi.h", text, macros)), name


def test_every_set_has_the_whole_vocabulary() -> None:
    """A set that this machine does not compile lacks nothing that kernels may use, neither vectors nor a tile."""
    function = re.compile(r"^static inline (?:const )?\w+ \*?(vi?m?_\w+)\(", re.MULTILINE)
    sets = instruction_sets()
    names = {}
    for file in (CSRC / "simd").glob("*.h"):
        text = re.sub(r'^#include "(simd/\w+\.h)"$', lambda m: (CSRC / m[1]).read_text(), file.read_text(), flags=re.M)
        names[file.stem] = {*function.findall(text)}
    own = {name for name, each in sets.items() if each.kind not in ("AGAIN", "WITHIN")}
    assert len(names["scalar"]) > 40 and own <= names.keys() <= sets.keys()
    assert all((CSRC / "gemm" / f"gemm_micro_{name}.c").is_file() for name in own)
    assert {name: found ^ names["scalar"] for name, found in names.items()} == {name: set() for name in names}
