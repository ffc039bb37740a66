"""All causal language models that transformers builds from a config: which of them load, and whether they are exact.

python tests/zoo/languages.py [--write] [--rest] [--gguf] [--cases] [TYPE...]

Each type is made tiny with random weights, saved, loaded by Ingot and compared: the f32 logits of every position with
those of transformers' eager attention. A type is exact if no logit differs by more than TOLERANCE of the largest. A
GGUF file, a C program and a WebGPU site are then written.

The rows of the given types (default: all) are printed; with --write, each is also put into tests/zoo/languages.md,
which keeps its other rows, so that a run that was ended is continued with --rest. With --gguf only this column of the
page is examined again, for types that load. With --cases the error of each case that the tests have of a type is
printed instead, with the first position at which it is too large, or the complete error.
"""

from __future__ import annotations

import argparse
import builtins
import multiprocessing
import re
import subprocess
import sys
import tempfile
import textwrap
import warnings
from dataclasses import astuple, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

sys.path.insert(0, str(Path(__file__).parents[1] / "kit"))

import ingot
from gguf_conversions import write_converted
from gguf_converted_cases import CONVERTED_CASES
from gguf_families import FAMILIES
from gguf_models import stored_as, write_gguf
from hf_models import CASES, Case, expected_logits, save_model
from ingot.emit.language.model import emit_language_model
from ingot.emit.web.language import emit_text
from ingot.load.hf.refused import REFUSED
from ingot.load.hf.template_file import template_names
from small_tokenizers import document, write_folder

PAGE = Path(__file__).with_suffix(".md")
LENGTH, CONTEXT = 24, 64
TOLERANCE = 2e-6  # of the largest logit
VOCABULARY = 512  # tokens of the tokenizer that emitted programs have
SECONDS = 1800.0  # for one type
_FAILURES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError,
    StrictDataclassError, TypeError, ValueError,
)  # fmt: skip
HEAD = """# Causal language models of transformers

`python tests/zoo/languages.py --write` writes this page. It builds a tiny random model of each type that transformers
{version} can build as a causal language model, saves it, loads it, and compares the f32 logits of {length} positions
with those of transformers.

- exact: no logit differs by more than {tolerance} of the largest one; otherwise the column has the largest difference,
  as a share of the largest logit.
- GGUF: a file of the model has the logits of the folder, with the same tolerance. Empty: no architecture of GGUF files
  is read as this type.
- C: `ingot emit-c` writes the program of the model, and a C compiler accepts it. The tests marked slow in
  tests/emit/test_c_language.py run these programs.
- WebGPU: `ingot emit-web` writes the site of the model.

{count} of {total} types are examined: {loads} load, {exact} are exact, {gguf} are read from GGUF files, {c} are emitted
as C, and {webgpu} are emitted for WebGPU.

| type | loads | exact | GGUF | C | WebGPU | why not |
|---|---|---|---|---|---|---|
"""
_TITLES = {"gguf": "GGUF: ", "c": "C: ", "webgpu": "WebGPU: "}
_CELL_END = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True)
class Row:
    """What became of a type: "yes", nothing, or how much logits differ; and the reasons."""

    type: str
    loads: str = ""
    exact: str = ""
    gguf: str = ""
    c: str = ""
    webgpu: str = ""
    why: str = ""

    def __str__(self) -> str:
        return f"| {' | '.join(astuple(self))} |"


def read_rows() -> dict[str, Row]:
    """The rows that the page has."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    cells = ([cell.strip() for cell in _CELL_END.split(line)[1:-1]] for line in lines if line.startswith("| "))
    return {first: Row(first, *others) for first, *others in cells if first != "type"}


def write_rows(rows: dict[str, Row]) -> None:
    """The page of some rows."""
    names = ("loads", "exact", "gguf", "c", "webgpu")
    counts = {name: sum(getattr(row, name) == "yes" for row in rows.values()) for name in names}
    counts |= {"count": len(rows), "total": len(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)}
    head = HEAD.format(version=transformers.__version__, length=LENGTH, tolerance=TOLERANCE, **counts)
    PAGE.write_text(head + "".join(f"{rows[type]}\n" for type in sorted(rows)))


def case_of(type: str) -> Case:
    """The first case of the tests of a type, or its sizes alone."""
    first = {case.type: case for case in reversed(CASES)}
    return first.get(type) or Case(type, type)


def examined(type: str) -> Row:
    """Makes, saves, loads and compares a model."""
    model_type = CONFIG_MAPPING[type].model_type
    if model_type not in template_names():
        return Row(type, why=REFUSED.get(model_type, "no template"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        case = case_of(type)
        try:
            model = save_model(replace(case, config={**case.config, "vocab_size": VOCABULARY}), folder)
            ids = np.random.default_rng(0).integers(3, 99, LENGTH).astype(np.int32)
            expected = expected_logits(model, ids)
        except _FAILURES as error:
            return Row(type, why=f"transformers: {builtins.type(error).__name__}: {_line(error)}")
        row, reasons = Row(type), []
        for column, examine in (
            ("exact", lambda: _exact(folder, case, ids, expected)),
            ("gguf", lambda: _gguf(type, folder)),
            ("c", lambda: _c(folder)),
            ("webgpu", lambda: _webgpu(folder)),
        ):
            try:
                row = replace(row, **{column: examine()})
            except ingot.IngotError as error:
                reasons.append(f"{_TITLES.get(column, '')}{_line(error, name)}")
                if column == "exact":
                    break
            else:
                row = replace(row, loads="yes")
        return replace(row, why="; ".join(reasons))


def examined_file(row: Row) -> Row:
    """A row of the page with another result of its GGUF file."""
    reasons = [reason for reason in row.why.split("; ") if reason and not reason.startswith(_TITLES["gguf"])]
    with tempfile.TemporaryDirectory() as name:
        try:
            return replace(row, gguf=_gguf(row.type, Path(name)), why="; ".join(reasons))
        except ingot.IngotError as error:
            return replace(row, gguf="", why="; ".join([f"{_TITLES['gguf']}{_line(error, name)}", *reasons]))


def examine_case(case: Case) -> str:
    """The error of a case: its largest, as a share of the largest logit, and where it is first too large."""
    with tempfile.TemporaryDirectory() as name:
        model = save_model(case, Path(name))
        ids = np.random.default_rng(0).integers(3, 99, CONTEXT).astype(np.int32)
        expected = expected_logits(model, ids)
        try:
            found = _logits(Path(name), case, ids)
        except ingot.IngotError as error:
            return f"{case.name}: {error}"
    rows = np.abs(found - expected).max(axis=1) / np.abs(expected).max()
    wrong = np.flatnonzero(rows > TOLERANCE)
    return f"{case.name}: {rows.max():.1e}" + (f", too large first at position {wrong[0]}" if wrong.size else ", exact")


def _logits(folder: Path, case: Case, ids: np.ndarray) -> np.ndarray:
    return ingot.LLM(folder, precision="f32", context=case.context, threads=1).logits(ids.tolist())


def _exact(folder: Path, case: Case, ids: np.ndarray, expected: np.ndarray) -> str:
    found = _logits(folder, case, ids)
    error = _difference(found, expected)
    return "yes" if error <= TOLERANCE else f"{error:.1e}"


def _gguf(type: str, folder: Path) -> str:
    model_type = CONFIG_MAPPING[type].model_type
    converted = next((case for case in CONVERTED_CASES if case.type == model_type), None)
    family = next((family for family in FAMILIES if family[0].type == model_type), None)
    own, file = folder / "gguf", folder / "model.gguf"
    if converted is not None:
        save_model(converted, own)
        write_converted(own, file)
    elif family is not None:
        case, keys, tensors = family
        save_model(case, own)
        write_gguf(own, file, stored_as("f32"), keys=keys, tensors=tensors)
    else:
        return ""
    ids = list(range(3, 20))
    expected, found = (ingot.LLM(path, precision="f32", threads=1).logits(ids) for path in (own, file))
    error = _difference(found, expected)
    return "yes" if error <= TOLERANCE else f"{error:.1e}"


def _c(folder: Path) -> str:
    write_folder(folder, document("byte_level"))
    emit_language_model(folder, folder / "c", precision="f32", context=CONTEXT, threads=2)
    done = subprocess.run(["cc", "-std=c11", "-fsyntax-only", "model.c"], cwd=folder / "c", capture_output=True)
    return "yes" if done.returncode == 0 else "does not compile"


def _webgpu(folder: Path) -> str:
    write_folder(folder, document("byte_level"))
    emit_text("model", folder, folder / "site", context=CONTEXT, precision="f32", page="text")
    return "yes"


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _line(error: Exception, folder: str = "") -> str:
    """The start of an error's text, as a part of a cell."""
    text = " ".join(str(error).split()).replace(f"{folder}/", "").replace("|", "\\|")
    return textwrap.shorten(text.removeprefix("emit: "), 120, placeholder=" ...")


def _examine(type: str, known: Row | None, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sender.send(examined(type) if known is None else examined_file(known))


def row_of(type: str, known: Row | None) -> Row:
    """The row of a type, by a process of its own that may fail. known: a row of which only the file is examined."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_examine, args=(type, known, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(SECONDS) else Row(type, why=f"no result after {SECONDS:.0f} s")
    except EOFError:
        return Row(type, why="the process failed")
    finally:
        process.kill()
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--write", action="store_true", help=f"put the rows into {PAGE.name}")
    parser.add_argument("--rest", action="store_true", help="leave out the types that the page has")
    parser.add_argument("--gguf", action="store_true", help="examine only the GGUF files of types that load")
    parser.add_argument("--cases", action="store_true", help="print the error of each case of the tests")
    options = parser.parse_args()
    if options.cases:
        warnings.simplefilter("ignore")
        for case in CASES:
            if not options.types or case.type in options.types:
                print(examine_case(case), flush=True)
        return
    rows = read_rows()
    types = options.types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    for type in types:
        if options.rest and type in rows:
            continue
        if options.gguf and (type not in rows or not rows[type].loads):
            continue
        rows[type] = row_of(type, rows[type] if options.gguf else None)
        print(rows[type], flush=True)
        if options.write:
            write_rows(rows)


if __name__ == "__main__":
    main()
