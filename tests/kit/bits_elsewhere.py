"""`python bits_elsewhere.py write FILE`, then, on another kind of machine, `python bits_elsewhere.py compare FILE`.

Every sample of every op, with operands as inputs and, where kernels of their own take them, as weights, and what the
shipped language model says: on each of the other's instruction sets the native results are the first machine's to the
bit.
"""

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import ingot
import ingot.ops
from ingot.cli.demo_language import FOLDER
from ingot.run.library import load
from ingot.run.native import NativeProgram
from op_cases import CASES, STATIC_CASES, build, case_id, one_node, run, same_bits

assert ingot.ops  # the import registers every op


def results(isa: str) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The name of each case, and its outputs."""
    cases = [*((op, sample, ()) for op, sample in CASES), *STATIC_CASES]
    for number, (op, sample, static) in enumerate(cases):
        graph, feeds = one_node(op, sample, static)
        program = build(graph, isa=isa, threads=2)
        if isinstance(program.single, NativeProgram):
            yield f"{number} {case_id((op, sample))}", run(program, feeds)


def language_model(isa: str) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Logits of a prompt, and those that lead to each of a few tokens after it, in every precision that rounds no
    product: of bf16, what is rounded depends on the CPU's instructions."""
    os.environ["INGOT_ISA"] = isa
    ids = list(range(100, 140))
    for precision in ("f32", "int8", "int4"):
        logits = [(llm := ingot.LLM(FOLDER, precision=precision, threads=2)).logits(ids)]
        for token in np.argmax(logits[0][-4:], axis=1):
            ids = [*ids, int(token)]
            logits.append(llm.logits(ids)[-1])
        yield precision, logits


def everything(isa: str) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Both."""
    yield from results(isa)
    yield from language_model(isa)


def write(path: Path) -> None:
    """The results of this machine's best set."""
    path.write_bytes(pickle.dumps(dict(everything(load().best_isa))))


def compare(path: Path) -> list[str]:
    """What differs here from the results that a file has, by set and case."""
    expected = pickle.loads(path.read_bytes())
    different = []
    for isa in load().isas():
        for name, outputs in everything(isa):
            if not all(same_bits(a, b) for a, b in zip(outputs, expected[name], strict=True)):
                different.append(f"{isa}: {name}")
    return different


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        found = compare(Path(sys.argv[2]))
        print("\n".join(found) or "equal")
        sys.exit(bool(found))
