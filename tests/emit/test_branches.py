"""Emitted C of models whose runs choose between branches: both ways, within each other, between other steps."""

import itertools
import subprocess
from pathlib import Path

import numpy as np
import pytest

import ingot
from emitted_together import by
from ingot.emit.c import emit
from ingot.errors import UnsupportedError
from ingot.ir import text
from ingot.ir.dtype import u4
from ingot.run.store import WeightStore
from op_cases import same_bits

# Plain C with the one instruction that its sums want.
FLAGS = "-O1 -mfma -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"

CHOOSES = """graph chooses
input x: f32[40, 64]
input also: bool[]
input narrow: u4[3]
weight w: f32[64, 64]
constant zero: f32[] = [0.0]
h = matmul(x, w, transpose_a=false, transpose_b=false, scale=1.0): f32[40, 64]
total = reduce_sum(h, axes=[0, 1], keepdims=false): f32[]
above = greater(total, zero): bool[]
y = if(above, h, w, also, h, then_branch={THEN}, else_branch={ELSE}): f32[40, 64]
z = tanh(y): f32[40, 64]
output z = z
output y = y
output above = above
output again = y
output handed = narrow
"""
NAMES = "z y above again handed".split()
THEN = (
    "graph then; input a: f32[40, 64]; input v: f32[64, 64]; input also: bool[];"
    " m = matmul(a, v, transpose_a=false, transpose_b=false, scale=1.0): f32[40, 64];"
    " b = if(also, m, m, then_branch={NEG}, else_branch={EXP}): f32[40, 64]; output b = b"
)
ELSE = "graph else; input a: f32[40, 64]; c = neg(a): f32[40, 64]; d = add(c, a): f32[40, 64]; output d = d"
ONE = "graph one; input e: f32[40, 64]; f = {op}(e): f32[40, 64]; output f = f"


def source() -> str:
    then = THEN.replace("{NEG}", "{" + ONE.format(op="neg") + "}").replace("{EXP}", "{" + ONE.format(op="exp") + "}")
    return CHOOSES.replace("{THEN}", "{" + then + "}").replace("{ELSE}", "{" + ELSE + "}")


@pytest.mark.parametrize("threads", [1, 3])
def test_both_ways_have_native_bits(tmp_path: Path, threads: int) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 64)).astype(np.float32)
    session = ingot.InferenceSession(text.parse(source(), {"w": weight}), threads=1, strict=True)
    assert session.program.single is None
    emit(session.graph, session.weights, tmp_path, threads=threads)
    model = tmp_path / "model.c"
    model.write_text(by(model.read_text(), "portable"))
    made = subprocess.run(["make", f"CFLAGS={FLAGS}"], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    narrow, ways = np.array([1, 15, 7], np.uint8).astype(u4.numpy), set()
    narrow.tofile(tmp_path / "narrow.raw")
    for seed, also in itertools.product(range(4), (False, True)):
        x = np.random.default_rng(seed).standard_normal((40, 64)).astype(np.float32)
        np.save(tmp_path / "x.npy", x)
        np.save(tmp_path / "also.npy", np.array(also))
        words = ["./model", "x=x.npy", "also=also.npy", "narrow=narrow.raw", *(f"{name}={name}.raw" for name in NAMES)]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        expected = dict(zip(NAMES, session.run(None, {"x": x, "also": np.array(also), "narrow": narrow}), strict=True))
        for name, array in expected.items():
            assert same_bits(np.fromfile(tmp_path / f"{name}.raw", array.dtype).reshape(array.shape), array), name
        ways.add((bool(expected["above"]), also))
    assert len(ways) == 4


def test_a_branch_without_kernels_is_named(tmp_path: Path) -> None:
    steps = (
        "r = reshape(a, shape=[40, 8, 8]): f32[40, 8, 8]; p = pairwise_coupling(r): f32[40, 8];"
        " s = reshape(p, shape=[40, 8, 1]): f32[40, 8, 1]; t = add(r, s): f32[40, 8, 8];"
        " c = reshape(t, shape=[40, 64]): f32[40, 64];"
    )
    choosing = source().replace("c = neg(a): f32[40, 64];", steps)
    with pytest.raises(UnsupportedError, match="no kernel, got pairwise_coupling 'p'"):
        emit(text.parse(choosing, {"w": np.ones((64, 64), np.float32)}), WeightStore(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
