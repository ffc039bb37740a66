"""The rules of the house that a machine can hold: import direction, sizes, names, dead files."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from attacks.hostile_configs import write_llama
from ingot.support import abi

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "ingot"
MAX_FILE_LINES = 600
FORMAT_NAMES = {("src/ingot/session/trace.py", "www.speedscope.app")}  # by which a tool knows its file format
MAX_FUNCTION_LINES = 70

# A room imports its own line and the lines above it.
ROOMS = (
    ("support", "errors"),
    ("ir",),
    ("ops",),
    ("gradients",),
    ("load",),
    ("passes",),
    ("lower",),
    ("plan",),
    ("compile",),
    ("run",),
    ("session",),
    ("llm", "integrations"),
    ("emit",),
    ("ort",),
    ("training",),
    ("inspect",),
    ("quantize",),
    ("contracts",),
    ("serve",),
    ("ray",),
    ("cli",),
    ("__main__",),
)
STRANGERS = {("run", "emit"), ("emit", "run")}
SHARED_BY_STRANGERS = {"ingot.run", "ingot.run.store"}  # the bytes of weights
FILLS = ("ir", "ops")  # the table of ops, which has them declare themselves when it is first asked for one
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}

# Modules that may load these at import time; everyone else does so inside a function.
HEAVY = {
    "torch", "onnx", "onnx_ir", "transformers", "safetensors", "jinja2", "rich", "sympy", "starlette", "uvicorn",
    "msgspec", "prometheus_client",
}  # fmt: skip
MAY_BE_HEAVY = ("load/aten/", "load/onnx/", "emit/onnx/", "integrations/", "serve/")

BANNED = {
    "manager": "say what it owns: pool, cache, table",
    "helper": "name the verb",
    "helpers": "name the verb",
    "util": "name the subject",
    "utils": "name the subject",
    "common": "name the subject",
    "misc": "name the subject",
    "wrapper": "name what it adds",
    "handler": "rule",
    "processor": "name the verb",
    "provider": "executor",
    "runtime": "executor",
    "legacy": "delete it",
    "v2": "delete the first one",
    "smart": "say what it does",
    "enhanced": "say what it does",
    "unified": "say what it does",
}

BANNED_FOR_VALUES = {
    word: BANNED[word] for word in ("manager", "helper", "helpers", "util", "utils", "misc", "wrapper")
}
BANNED_FOR_CLASSES = BANNED | {"base": "name the concept, or pass a function", "ir": "say graph"}

# Names that are ONNX Runtime's, and the modules that its clients import by name.
FOREIGN_FOLDER, FOREIGN_WORDS = "src/ingot/ort/", {"provider"}
FOREIGN_MODULES = ("ingot.ort.capi.onnxruntime_pybind11_state", "ingot.ort.capi._pybind_state")

# Private words of the past -> the field's term; see docs/glossary.md.
OLD_WORDS = {
    r"\b(?:INGOT_)?CODES_|\bcodes_\w|\bCodedTensors\b": "quant: quantized weights",
    r"\b(?:INGOT_)?STRIP_|\bstrip_(?!accents|left|right)\w|\bstrip (?:program|group|step)s?\b": "fused program",
    r"\b(?:INGOT_)?APART_|\bapart_\w": "split: separate accumulators",
    r"_turned\b": "transposed",
    r"\brecipes?\b|\bRecipe\b": "packed weight",
    r"\brestat(?:es?|ed|ements?)\b": "legalize",
    r"\bportions?\b": "chunk",
    r"\bwoven\b": "interleaved",
    r"\bfours\b": "quads",
    r"\bpen\b": "builder",
    r"\blasting\b": "state-invariant",
    r"\bforet(?:ells?|old)\b": "predict",
    r"\b(?:GraphEach|OneGraph|StripGroup|LookedAt)\b": "GraphPerShape, SingleGraph, FusedGroup, InspectedModel",
    r"\bingot fit\b": "ingot memory",
}
# Vague words -> the field's term. "in place", "decimal places" and the last place of a float are exact terms.
VAGUE_WORDS = {
    r"(?i)(?<!in )(?<!in-)(?<!decimal )(?<!last )\bplaces?\b": "offset, address, slot, position, index or block",
    r"(?i)\bbeside\b": "compared with, in addition to, or in the same folder",
    r"(?i)\b(?:told|said|says)\b": "specifies, prints or reports",
    r"(?i)\b(?:lies?|stands?)\b": "is stored at, is between, or is built from",
    r"(?i)\bmade\b": "built, created, computed or lowered to",
    r"(?i)\b(?:in|by|take|takes) turns\b|\bturned\b": "alternating, converted or transposed",
}
HISTORY = {"docs/decisions.md", "docs/glossary.md", "CHANGELOG.md"}  # where old words may be

# What may catch everything, because a package raises bare exceptions or a user's function any: (file, function).
ALLOWED_BROAD = {("src/ingot/llm/tokenizer.py", "_guarded"), ("src/ingot/errors.py", "guarded")}

# A test that cannot run everywhere: (file, function). .ci/run installs what it takes.
ALLOWED_SKIPS = {
    ("test_emit.py", "test_emitted_c_is_tried_with_clang"),
    ("conftest.py", "browser"),
    ("adapters.py", "adapter"),
}


def python_files(*folders: str) -> list[Path]:
    return sorted(f for folder in folders for f in (ROOT / folder).rglob("*.py") if "__pycache__" not in f.parts)


def c_files() -> list[Path]:
    folders = (SRC / "csrc", SRC / "emit", ROOT / "benchmarks")
    return sorted(f for folder in folders for f in folder.rglob("*") if f.suffix in (".c", ".h", ".inc"))


PYTHON = python_files("src", "tests", "benchmarks", "examples")


@cache
def tree_of(path: Path) -> ast.Module:
    """Parse a file. A worker that runs none of these tests parses nothing."""
    return ast.parse(path.read_text())


def short(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module_name(path: Path) -> str:
    folder = ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in python_files("src")}
BENCHMARKS = {module_name(path): path for path in python_files("benchmarks")}


def imported_modules(path: Path, tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The modules of ingot and of the benchmarks that a file imports or names in a string, with the line."""
    known = MODULES.keys() | BENCHMARKS.keys()
    own = module_name(path).split(".")
    package = own if path.name == "__init__.py" else own[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*start, *([node.module] if node.module else [])])
            yield source, node.lineno
            for alias in node.names:
                if f"{source}.{alias.name}" in known:
                    yield f"{source}.{alias.name}", node.lineno
        elif isinstance(node, ast.Constant) and node.value in known:
            yield node.value, node.lineno


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def test_imports_point_upward():
    wrong = []
    for module, path in MODULES.items():
        if module == "ingot":
            continue
        assert room_of(module) in LEVEL, f"{short(path)}: a room that the list does not know"
        for target, line in imported_modules(path, tree_of(path)):
            here, there = room_of(module), room_of(target)
            if target not in MODULES or not there:
                continue
            if (LEVEL[there] > LEVEL[here] and (here, there) != FILLS) or (
                (here, there) in STRANGERS and target not in SHARED_BY_STRANGERS
            ):
                wrong.append(f"{short(path)}:{line}: {here} imports {there}")
    assert not wrong, "\n".join(wrong)


def test_lowering_knows_no_device():
    """What C declares, and what `lower/cpu/` chooses, comes to the rest of the room in a backend record.

    Nor is a struct or a kernel of C named there.
    """
    others = [path for path in MODULES.values() if path.parent == SRC / "lower" and path.name != "__init__.py"]
    assert len(others) > 9
    wrong = [
        f"{short(path)}:{line}: {module}"
        for path in others
        for module, line in imported_modules(path, tree_of(path))
        if module == "ingot.support.abi" or module.startswith("ingot.lower.cpu")
    ]
    assert not wrong, "\n".join(wrong)
    declared = {*abi.structs(), *abi.kernels()}
    named = {short(path): declared.intersection(re.findall(r"\w+", path.read_text())) for path in others}
    assert {path: names for path, names in named.items() if names} == {}


def circles(imports: dict[str, set[str]]) -> list[str]:
    """Modules that import each other, directly or not, and modules between two circles.

    They are what is left when all have gone that import nothing left or are imported by nothing left.
    """
    left = set(imports)
    while ends := {m for m in left if not imports[m] & left or not any(m in imports[other] for other in left)}:
        left -= ends
    return sorted(left)


def imports_among(modules: dict[str, Path]) -> dict[str, set[str]]:
    """The others of some modules that each imports. A package's `__init__` only names what is in it."""
    files = {module for module, path in modules.items() if path.name != "__init__.py"}
    return {
        module: {target for target, _ in imported_modules(path, tree_of(path))} & files - {module}
        for module, path in modules.items()
    }


@pytest.mark.parametrize("modules", [MODULES, BENCHMARKS], ids=["ingot", "benchmarks"])
def test_no_file_imports_itself_in_a_circle(modules):
    """Imports inside functions and for types alone are counted: a circle is a package with the wrong boundary."""
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c"]
    imports = imports_among(modules)
    assert any(imports.values())
    assert circles(imports) == []


def test_no_question_of_the_benchmarks_needs_itself_in_a_circle():
    imports = {short(path.parent): set() for path in BENCHMARKS.values()}
    for module, targets in imports_among(BENCHMARKS).items():
        folder = short(BENCHMARKS[module].parent)
        imports[folder] |= {short(BENCHMARKS[target].parent) for target in targets} - {folder}
    assert circles(imports) == []


def test_every_file_of_the_benchmarks_is_run_by_a_question():
    imports, seen = imports_among(BENCHMARKS), set()
    waiting = [module for module in BENCHMARKS if module.endswith(".__main__")]
    while waiting:
        seen.add(module := waiting.pop())
        waiting += imports[module] - seen
    assert {module for module, path in BENCHMARKS.items() if path.name != "__init__.py"} - seen == set()


def test_every_question_of_the_benchmarks_is_listed():
    """The page of the benchmarks has the first line of each question and its command; each folder has a question."""
    page = (ROOT / "benchmarks" / "README.md").read_text()
    folders = {path.parent for path in BENCHMARKS.values()} - {ROOT / "benchmarks", ROOT / "benchmarks" / "harness"}
    for folder in folders:
        assert folder / "__main__.py" in BENCHMARKS.values(), f"{short(folder)}: no question"
        words = ast.get_docstring(tree_of(folder / "__init__.py"))
        assert words and words.splitlines()[0] in page, f"{short(folder)}: its question is not in benchmarks/README.md"
        assert f"`{folder.name}" in page, f"{short(folder)}: its command is not in benchmarks/README.md"
        for result in folder.glob("*.md"):
            assert f"({folder.name}/{result.name})" in page, f"{short(result)} is not in benchmarks/README.md"


def test_heavy_imports_are_late():
    wrong = []
    for path in MODULES.values():
        if short(path).removeprefix("src/ingot/").startswith(MAY_BE_HEAVY):
            continue
        for node in tree_of(path).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong += [f"{short(path)}:{node.lineno}: {n}" for n in names if n.split(".")[0] in HEAVY]
    assert not wrong, "imported at module level, expected inside a function:\n" + "\n".join(wrong)


HEAVIEST = ("torch", "transformers", "onnx", "onnx_ir", "tokenizers", "llguidance", "jinja2")


def loaded_by(code: str) -> list[str]:
    """Which of the heaviest modules a program has loaded at its end."""
    code = f"import sys, ingot\n{code}\nprint(*(m for m in {HEAVIEST} if m in sys.modules))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_import_is_light():
    assert loaded_by("") == []


def test_a_language_model_is_light(tmp_path: Path):
    folder = str(write_llama(tmp_path / "llama"))
    assert loaded_by(f"list(ingot.LLM({folder!r}).generate_tokens([1, 2], max_tokens=3))") == []
    shipped = str(SRC / "models" / "tiny-lm")
    assert loaded_by(f"ingot.LLM({shipped!r}).generate('def', max_tokens=3)") == ["tokenizers"]


def test_files_are_short():
    lengths = {short(f): len(f.read_text().splitlines()) for f in [*PYTHON, *c_files()]}
    long = {f: n for f, n in lengths.items() if n > MAX_FILE_LINES}
    assert not long, f"over {MAX_FILE_LINES} lines: {long}"


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """(first line, number of lines) of what looks like a function: a line ending in `{` at depth 0, to `}` alone."""
    start, head = 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if start == 0 and re.match(r"[A-Za-z_]", line) and not line.startswith(("typedef", "extern")):
            head = line
        if start == 0 and line.endswith("{") and not line.startswith((" ", "\t", "#")) and "(" in head:
            start = number
        elif start and line.startswith("}"):
            yield head, number - start + 1
            start, head = 0, ""


def test_lines_of_c_are_short():
    """As ruff has it for Python; emitted C quotes these files."""
    files = [*c_files(), *sorted((SRC / "csrc").glob("*.def"))]
    assert [
        f"{short(f)}:{i}" for f in files for i, line in enumerate(f.read_text().splitlines(), 1) if len(line) > 120
    ] == []


def test_functions_are_short():
    long = []
    for path in PYTHON:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = node.end_lineno - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    long.append(f"{short(path)}:{node.lineno}: {node.name} has {length} lines")
    for path in c_files():
        functions = c_functions(path.read_text())
        long += [f"{short(path)}: {head} has {n} lines" for head, n in functions if n > MAX_FUNCTION_LINES]
    assert not long, f"over {MAX_FUNCTION_LINES} lines:\n" + "\n".join(long)


def words(name: str) -> set[str]:
    """The lower-case words of an identifier or a file name."""
    return {w.lower() for w in re.findall(r"v\d+|[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def defined_names(tree: ast.AST) -> Iterator[tuple[str, int, dict[str, str]]]:
    """(name, line, the words banned there)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, node.lineno, BANNED_FOR_CLASSES
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, BANNED
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno, BANNED_FOR_VALUES
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno, BANNED_FOR_VALUES


def test_numbers_of_c_are_read():
    """No number is typed here with the remark that C has it too: abi.py reads it."""
    pattern = re.compile(r"\d.* #.*(?:abi\.h|INGOT_[A-Z]+_)")
    lines = [(f, i, line) for f in python_files("src") for i, line in enumerate(f.read_text().splitlines(), 1)]
    assert [f"{short(f)}:{i}: {line.strip()}" for f, i, line in lines if pattern.search(line)] == []


def test_banned_names():
    wrong = []
    for path in [*PYTHON, *c_files()]:
        named = [(path.stem, 0, BANNED | {"base": "name the concept"})]
        if path.suffix == ".py":
            named += defined_names(tree_of(path))
        else:
            named += [(h.partition("(")[0], 0, BANNED) for h, _ in c_functions(path.read_text())]
        for name, line, banned in named:
            foreign = FOREIGN_WORDS if short(path).startswith(FOREIGN_FOLDER) else set()
            for word in words(name) & set(banned) - foreign:
                wrong.append(f"{short(path)}:{line}: {name!r} holds {word!r}; {banned[word]}")
    assert not wrong, "\n".join(wrong)


def test_old_words_are_gone():
    texts = [*python_files("src", "benchmarks", "examples"), *c_files(), *ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]
    texts += [f for pattern in ("*.def", "*.wgsl", "*.yaml", "*.jinja") for f in SRC.rglob(pattern)]
    wrong = []
    for path in texts:
        if short(path) in HISTORY:
            continue
        patterns = OLD_WORDS | VAGUE_WORDS
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for pattern, term in patterns.items():
                if found := re.search(pattern, line):
                    wrong.append(f"{short(path)}:{number}: {found[0]!r}; the term is: {term}")
    assert not wrong, "\n".join(wrong)


def test_no_broad_except():
    wrong = []
    for path in PYTHON:
        tree, allowed = tree_of(path), {name for file, name in ALLOWED_BROAD if file == short(path)}
        known = [f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name in allowed]
        excused = {id(node) for function in known for node in ast.walk(function)}
        for node in ast.walk(tree):
            if not isinstance(node, ast.ExceptHandler) or id(node) in excused:
                continue
            caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)} if node.type else {""}
            if caught & {"", "Exception", "BaseException"}:
                wrong.append(f"{short(path)}:{node.lineno}")
    assert not wrong, "name the errors that can happen here: " + ", ".join(wrong)


def test_no_skips():
    found = set()
    for path in python_files("tests"):
        for function in ast.walk(tree_of(path)):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in [*ast.walk(function), *(n for d in function.decorator_list for n in ast.walk(d))]:
                if isinstance(node, ast.Attribute) and node.attr in ("skip", "skipif", "xfail", "importorskip"):
                    found.add((path.name, function.name))
    assert found == ALLOWED_SKIPS


def test_names_of_test_files_differ():
    """pytest imports test files by their names alone, and refuses a second one of a name."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_module_is_reachable():
    entry_points = re.findall(r'"(ingot[\w.]*):\w+"', (ROOT / "pyproject.toml").read_text())
    waiting, seen = (
        ["ingot", "ingot.__main__", "ingot.integrations.onnx_backend", "ingot.ray", *FOREIGN_MODULES, *entry_points],
        set(),
    )
    while waiting:
        module = waiting.pop()
        if module in MODULES and module not in seen:
            seen.add(module)
            waiting.append(module.rpartition(".")[0])
            waiting += [target for target, _ in imported_modules(MODULES[module], tree_of(MODULES[module]))]
    assert set(MODULES) - seen == set()


def test_every_header_is_included():
    """kernel.h includes simd/<set>.h by the name of the set."""
    sources = {f: f.read_text() for f in [*c_files(), *python_files("src")]}
    headers = [f for f in sources if f.suffix in (".h", ".inc")]
    unused = {h for h in headers if not any(h.name in text for f, text in sources.items() if f != h)}
    assert unused <= {SRC / "csrc" / "simd" / f"{name}.h" for name in abi.instruction_sets()}


def test_no_addresses():
    """No file names an address of another machine: indexes and hubs are the user's configuration."""
    texts = [*PYTHON, *c_files(), *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")]
    texts += [ROOT / name for name in ("Makefile", "pyproject.toml", "CMakeLists.txt", ".ci/run")]
    pattern = re.compile(r"[a-z]+:/{2}(?!127\.0\.0\.1\b|HOST\b)[\w.]+|-index-ur[l]|--find-link[s]")
    found = [(f, m.group()) for f in texts for m in pattern.finditer(f.read_text())]
    wrong = [
        f"{short(f)}: {address}" for f, address in found if (short(f), address.partition("//")[2]) not in FORMAT_NAMES
    ]
    assert not wrong, "\n".join(wrong)


def test_contributing_lists_the_tests_of_every_folder():
    """Every package and folder of data has a row, and every row names tests that are there."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if re.match(r"\|.*\| `tests/", line)]
    places = [place for _, where, *_ in rows for place in re.findall(r"`([^`]+)`", where)]
    tests = [pattern for _, _, which, _ in rows for pattern in re.findall(r"`(tests/[^`]+)`", which)]
    folders = {short(path) + "/" for path in SRC.iterdir() if path.is_dir() and any(path.glob("*.*"))}
    assert folders - {"src/ingot/load/", "src/ingot/__pycache__/"} <= set(places)
    assert [place for place in [*places, *tests] if not any(ROOT.glob(place.rstrip("/")))] == []


@pytest.mark.parametrize(
    "target",
    [
        "demo",
        "quick",
        "test",
        "test-all",
        "wheel",
        "bench",
        "asan",
        "tsan",
        "soak",
        "soak-serve",
        "lint",
        "test-aarch64",
    ],
)
def test_make_has(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
