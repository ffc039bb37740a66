"""All causal language models that transformers builds from a config: which of them load, and whether they are exact.

python tests/zoo/languages.py [--write] [TYPE...]

Each type is made tiny with random weights, saved, loaded by Ingot and compared: the f32 logits of every position with
those of transformers' eager attention. A type is exact if no logit differs by more than TOLERANCE of the largest.
Without --write, the table of the given types (default: all) is printed; with it, tests/zoo/languages.md is written.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

sys.path.insert(0, str(Path(__file__).parents[1] / "kit"))

import ingot
from hf_models import CASES, Case, expected_logits, save_model
from ingot.load.hf.template_file import template_names

PAGE = Path(__file__).with_suffix(".md")
LENGTH = 24
TOLERANCE = 2e-6  # of the largest logit
SECONDS = 240.0  # for one type
_FAILURES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError,
    StrictDataclassError, TypeError, ValueError,
)  # fmt: skip
HEAD = """# Causal language models of transformers

`python tests/zoo/languages.py --write` writes this page. It builds a tiny random model of each type that transformers
{version} can build as a causal language model, saves it, loads it, and compares the f32 logits of {length} positions
with those of transformers. "exact": no logit differs by more than {tolerance} of the largest one; otherwise the column
has the largest difference, as a share of the largest logit.

{loaded} of {count} types load, {exact} are exact.

| type | loads | exact | why not |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Result:
    """What became of a type. error: the largest difference of a logit, as a share of the largest logit."""

    type: str
    loads: bool = False
    error: float | None = None
    why: str = ""

    @property
    def is_exact(self) -> bool:
        return self.error is not None and self.error <= TOLERANCE

    def row(self) -> str:
        exact = "" if self.error is None else "yes" if self.is_exact else f"{self.error:.1e}"
        return f"| {self.type} | {'yes' if self.loads else ''} | {exact} | {self.why} |\n"


def case_of(type: str) -> Case:
    """The first case of the tests of a type, or its sizes alone."""
    first = {case.type: case for case in reversed(CASES)}
    return first.get(type) or Case(type, type)


def examined(type: str) -> Result:
    """Makes, saves, loads and compares a model."""
    with tempfile.TemporaryDirectory() as folder:
        case = case_of(type)
        if CONFIG_MAPPING[type].model_type not in template_names():
            return Result(type, why="no template")
        try:
            model = save_model(case, Path(folder))
            ids = np.random.default_rng(0).integers(3, 99, LENGTH).astype(np.int32)
            expected = expected_logits(model, ids)
        except _FAILURES as error:
            return Result(type, why=f"transformers: {_line(error)}")
        try:
            llm = ingot.LLM(folder, precision="f32", context=case.context, threads=1)
            found = llm.logits(ids.tolist())
        except ingot.IngotError as error:
            return Result(type, why=_line(error, folder))
        return Result(type, True, float(np.abs(found - expected).max() / np.abs(expected).max()))


def _line(error: Exception, folder: str = "") -> str:
    """The start of an error's text, as one cell of a table."""
    text = " ".join(str(error).split()).replace(f"{folder}/", "").replace("|", "\\|")
    return f"{type(error).__name__}: {text[:160]}"


def _examine(type: str, sender: Connection) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sender.send(examined(type))


def result_of(type: str) -> Result:
    """The result of a type, in a process of its own that may fail."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_examine, args=(type, sender))
    process.start()
    sender.close()
    try:
        return receiver.recv() if receiver.poll(SECONDS) else Result(type, why=f"no result after {SECONDS:.0f} s")
    except EOFError:
        return Result(type, why="the process failed")
    finally:
        process.kill()
        process.join()


def main() -> None:
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    if options.write and options.types:
        parser.error("--write examines all types")
    types = options.types or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    results = []
    for type in types:
        results.append(result_of(type))
        print(results[-1].row(), end="", flush=True)
    loaded, exact = sum(each.loads for each in results), sum(each.is_exact for each in results)
    print(f"{loaded} of {len(results)} types load, {exact} are exact")
    if options.write:
        head = HEAD.format(
            version=transformers.__version__, length=LENGTH, tolerance=TOLERANCE, loaded=loaded, exact=exact,
            count=len(results),
        )  # fmt: skip
        PAGE.write_text(head + "".join(each.row() for each in results))


if __name__ == "__main__":
    main()
