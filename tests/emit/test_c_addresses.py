"""Emitted C with integer inputs out of range: the program reports an error and ends with 65."""

import subprocess
from pathlib import Path

import numpy as np

import ingot.ops
from emitted_together import by
from ingot.emit.c import Vector, emit
from ingot.ir.graph import OPS
from ingot.run.interpret import interpret
from ingot.run.store import WeightStore
from op_cases import in_one_graph

assert ingot.ops
NAMES = (
    "checked_index", "gather", "gather_elements", "scatter_elements", "cross_entropy", "repeated_ngrams", "rnn",
    "append_values",
)  # fmt: skip


def sampled(name: str):  # type: ignore[no-untyped-def]
    """The first sample of an op that gives every operand that addresses something."""
    op = OPS[name]
    for sample in op.samples:
        given = sample.operands.split()
        if all(op.operand_names.index(index) < len(given) for index in op.indices):
            return op, sample
    raise AssertionError(name)


def test_emitted_c_refuses_indices_out_of_range(tmp_path: Path) -> None:
    cases = dict(enumerate(map(sampled, NAMES)))
    graph, feeds = in_one_graph(cases)
    emit(graph, WeightStore(), tmp_path / "c", vector=Vector(feeds, interpret(graph, feeds)))
    source = tmp_path / "c" / "model.c"
    source.write_text(by(source.read_text(), "portable"))
    made = subprocess.run(["make", "-C", tmp_path / "c", "CFLAGS=-O0 -mfma"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr

    def run(fed: dict[str, np.ndarray]) -> tuple[int, str]:
        for name, array in fed.items():
            np.save(tmp_path / f"{name}.npy", array)
        words = ["{}={}".format(name.replace(".", "_"), tmp_path / f"{name}.npy") for name in fed]
        done = subprocess.run([tmp_path / "c" / "model", *words], cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stderr

    assert run(feeds) == (0, "")
    for number, (op, sample) in cases.items():
        operands = [feeds.get(f"x{number}.{i}") for i in range(len(sample.operands.split()))]
        for name, index in op.indices.items():
            place = op.operand_names.index(name)
            allowed = index.range(*operands, **op.attributes | sample.attributes)
            for bad in (allowed.start - 1, allowed.stop):
                wrong = feeds[f"x{number}.{place}"].copy()
                wrong[...] = bad
                code, said = run(feeds | {f"x{number}.{place}": wrong})
                assert code == 65 and "an index in the inputs is outside of its table" in said, (op.name, name, bad)
