"""Ops x dtypes: sessions compute what the reference does, with kernels alone wherever an op has kernels for some dtype.

Integers are exact. f16 and bf16 are computed in f32 by both and rounded once, so that they may differ by a last place.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ingot.ops
from differential import check_emitted, native
from ingot.cli.ops import matrix
from ingot.errors import ShapeError
from ingot.ir.dtype import DTYPES, NARROW, DType, boolean, f32, i16, i64, u8
from ingot.ir.graph import OPS, Graph, Op, Sample, TensorType
from ingot.lower.legalize import LEGALIZATIONS, legalize_node
from ingot.ops.define import draw
from ingot.run.interpret import interpret
from ingot.run.library import load
from ingot.session.inference import InferenceSession

assert ingot.ops
FLOATS = [DTYPES[name] for name in ("f64", "f16", "bf16")]
WHOLE = [DTYPES[name] for name in ("i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool")]
# Last places of a result, relative to max(1, |x|).
PLACE = {"f64": 1e-11, "f16": 2e-3, "bf16": 1.6e-2}
# What language models are made of: their loader makes f32, and bf16, i8 and u8 in caches.
LANGUAGE = {
    "append_keys", "append_values", "append_keys_int4", "append_keys_int8", "append_values_int4", "append_values_int8",
    "cached_attention", "causal_conv", "expert_matmul", "linear_attention", "linear_attention_of_rows",
    "linear_recurrence", "selective_scan", "wkv",
}  # fmt: skip
TRAINING = {
    "dropout",
    "attention_dropout",
    "attention_dropout_gradient",
}  # graphs of f32, which the reference computes in f64 too
NATIVE = {row["op"] for row in matrix() if row["kernels"] or row["without one"] != "reference"} - LANGUAGE - TRAINING


def cases() -> list[Any]:
    """The first sample of floats of an op with all other dtypes of floats, of integers with all of integers."""
    found = []
    for op in OPS.values():
        if op.name not in NATIVE or op.any_type:
            continue
        for kind, dtypes in ((f32, FLOATS), (i64, WHOLE)):
            chosen = [s for s in op.samples if s.operands and main_dtype(s) is kind and "[0" not in s.operands]
            taken = dtypes
            found += [pytest.param(op, sample, taken, id=f"{op.name}-{kind}") for sample in chosen[:1]]
    return found


def main_dtype(sample: Sample) -> DType:
    """Of the operand that an op computes with, the first but for conditions."""
    words = [part for part in sample.operands.split() if ":bool" not in part] or sample.operands.split()
    found = re.match(r"\w+:(\w+)", words[0])
    return DTYPES[found[1]] if found else f32


def build(op: Op, sample: Sample, dtypes: Sequence[DType]) -> tuple[Graph, dict[str, np.ndarray]]:
    """A graph with a node for each dtype that the op takes, with the sample's operands in that dtype."""
    graph, feeds = Graph(op.name), {}
    for dtype in dtypes:
        names: list[str | None] = []
        for i, array in enumerate(draw(sample.operands, np.random.default_rng(7), op.domain)):
            is_index = op.operand_names[min(i, len(op.operand_names) - 1)] in ("indices", "chosen")
            if array is not None and array.dtype == main_dtype(sample).numpy and not is_index:
                array = array.astype(dtype.numpy) if dtype is not boolean else array > 0
            names.append(None if array is None else f"{dtype}.{i}")
            if array is not None:
                feeds[f"{dtype}.{i}"] = array
                graph.add_input(f"{dtype}.{i}", TensorType(DTYPES[_name(array)], array.shape))
        try:
            node = graph.add(op.name, names, **sample.attributes)
        except (ShapeError, AssertionError):
            continue
        for i, name in enumerate(node.outputs):
            graph.set_output(f"{dtype} {i}", name)
    return graph, feeds


def _name(array: np.ndarray) -> str:
    return next(name for name, dtype in DTYPES.items() if dtype.numpy == array.dtype)


@pytest.mark.parametrize(("op", "sample", "dtypes"), cases())
def test_every_dtype_that_an_op_takes_has_kernels(op: Op, sample: Sample, dtypes: Sequence[DType]) -> None:
    graph, feeds = build(op, sample, dtypes)
    results = InferenceSession(graph, strict=True, threads=1).run(None, feeds)
    for got, (name, wanted) in zip(results, interpret(graph, feeds).items(), strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        if wanted.dtype.kind in "iub":
            np.testing.assert_array_equal(got, wanted, err_msg=name)
            continue
        got, wanted = got.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
        same = (got == wanted) | np.isnan(wanted)
        got[same] = wanted[same] = 0
        error = np.abs(got - wanted) / np.maximum(1, np.abs(wanted))
        assert error.max(initial=0) <= PLACE.get(name.split()[0], op.tolerance[f32]), (name, error.max())


# -- casts ------------------------------------------------------------------------------------------------------

NUMBERS = [dtype for dtype in DTYPES.values() if dtype.kind != "s"]
SPECIAL = np.array(
    [0, -0.0, np.inf, -np.inf, np.nan, 0.5, 1.5, 2.5, -0.5, -1.5, 7.9, -8.9, 126.5, 127.5, 255.5, 256, -128.9, 32767.6,
     65504, 65519.9, 65520, 2.0**31 - 1, -(2.0**31) - 1, 2.0**32, 2.0**53 + 2, 2.0**63, -(2.0**63), 2.0**64, 1e300, 448,
     464, 464.1, 480, 57344, 61439, 61440, 2.0**-9, 2.0**-10, 2.0**-10 * 1.01, 2.0**-14, 2.0**-16, 2.0**-17, 2.0**-24,
     2.0**-25, 2.0**-25 * 1.01, 2.0**-127, 2.0**-133, 2.0**-134, 2.0**-149, 5e-324, 1 + 2.0**-11,
     1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8, 1 + 2.0**-8 + 2.0**-50, 1 + 3 * 2.0**-8, 3.4e38, 3.5e38]
)  # fmt: skip


def numbers_of(dtype: DType) -> np.ndarray:
    """All elements of a type of 16 bits or less; special and random ones of a wider."""
    if dtype is boolean:
        return np.array([False, True])
    if dtype.bits <= 16:
        width = dtype.held.bits
        return np.arange(2**dtype.bits, dtype=f"u{width // 8}").view(dtype.numpy)
    rng = np.random.default_rng(3)
    if dtype.limits is not None:
        low, high = dtype.limits
        around = [x + d for x in (0, 2**7, 2**8, 2**15, 2**24, 2**31, 2**53, 2**62, low, high) for d in range(-2, 3)]
        return np.concatenate(
            [np.array([x for x in around if low <= x <= high], dtype.numpy), rng.integers(low, high, 300, dtype.numpy)]
        )
    with np.errstate(over="ignore"):
        scales = np.ldexp(rng.uniform(-2, 2, 600), rng.integers(-150, 130, 600))
        return np.concatenate([SPECIAL, -SPECIAL, scales]).astype(dtype.numpy)


@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_casts_to_every_dtype(source: DType) -> None:
    """To the bit of the reference, NaN apart, on the least and the best instruction set."""
    graph, feeds = Graph("casts"), {"x": numbers_of(source)}
    graph.add_input("x", TensorType(source, feeds["x"].shape))
    for target in NUMBERS:
        for saturate in (True, False) if target.kind == "n" else (True,):
            for mode in ("up", "down", "nearest") if target.name == "f8e8m0" else ("up",):
                made = graph.add("cast", ["x"], dtype=target, saturate=saturate, round_mode=mode)
                graph.set_output(f"{target}.{saturate}.{mode}", made.output)
    expected = interpret(graph, feeds)
    for isa in (load().isas()[0], load().isas()[-1]):
        for name, got in native(graph, feeds, isa=isa).items():
            wanted = expected[name]
            bits = [np.asarray(each).view(f"u{each.itemsize}") for each in (got, wanted)]
            different = (bits[0] != bits[1]) & ~(_is_nan(got) & _is_nan(wanted))
            assert not different.any(), (
                isa,
                name,
                feeds["x"][different][:5],
                got[different][:5],
                wanted[different][:5],
            )


def _is_nan(array: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        wide = array.astype(np.float64)
        return wide != wide


@pytest.mark.parametrize("strides", [(1, 1), (3, 1), (1, 2), (-1, 1), (0, 1)])
def test_casts_of_any_strides(strides: tuple[int, int]) -> None:
    """Through views: what is cast may be a slice, and so may its place in a concat."""
    step, copies = strides
    x = np.arange(-200, 200, dtype=np.int16)
    graph, feeds = Graph("strides"), {"x": x}
    graph.add_input("x", TensorType(i16, x.shape))
    seen = "x"
    if step == 0:
        seen = graph.add("slice", ["x"], starts=(5,), stops=(6,), steps=(1,)).output
        seen = graph.add("expand", [seen], shape=(400,)).output
    elif step != 1:
        ends = {"starts": (0,), "stops": (400,)} if step > 0 else {"starts": (399,), "stops": (-1,)}
        seen = graph.add("slice", ["x"], **ends, steps=(step,)).output
    made = graph.add("cast", [seen], dtype=u8).output
    length = graph.type(made).dims[0]
    column = graph.add("reshape", [made], shape=(length, 1)).output
    graph.set_output("y", graph.add("concat", [column] * copies, axis=1).output)
    np.testing.assert_array_equal(native(graph, feeds, threads=2)["y"], interpret(graph, feeds)["y"])


# -- restatements -----------------------------------------------------------------------------------------------

RESTATED = [
    pytest.param(op, sample, id=f"{op.name}-{i}")
    for op in OPS.values()
    if op.name in LEGALIZATIONS
    for i, sample in enumerate(op.samples)
]


@pytest.mark.parametrize(("op", "sample"), RESTATED)
def test_a_legalization_computes_the_same(op: Op, sample: Sample) -> None:
    graph, feeds = build(op, sample, [main_dtype(sample)])
    expected = interpret(graph, feeds, float64=True)
    types = {name: graph.type(value) for name, value in graph.outputs.items()}
    if not legalize_node(graph, next(graph.nodes)):
        return
    graph.validate()
    assert {name: graph.type(value) for name, value in graph.outputs.items()} == types
    for name, result in interpret(graph, feeds).items():
        error = np.abs(result - expected[name]) / np.maximum(1, np.abs(expected[name]))
        assert error.max(initial=0) <= op.tolerance[f32], name


def test_every_legalization_has_an_op_and_a_text() -> None:
    for name in (name for name in LEGALIZATIONS if OPS[name].samples):
        graphs = [build(OPS[name], sample, [main_dtype(sample)])[0] for sample in OPS[name].samples]
        assert any(legalize_node(graph, next(graph.nodes)) for graph in graphs), name


# -- as C -------------------------------------------------------------------------------------------------------


def test_emitted_c_has_the_bits_of_other_dtypes() -> None:
    """Casts of all dtypes in one model, and what is computed between."""
    graph = Graph("dtypes")
    rng = np.random.default_rng(2)
    feeds = {
        "x": rng.uniform(-9, 9, (5, 37)).astype(np.float32),
        "n": rng.integers(-128, 128, (5, 37), np.int8),
        "i": rng.integers(0, 5, (3, 37)),
    }
    for name, array in feeds.items():
        graph.add_input(name, TensorType(DTYPES[_name(array)], array.shape))
    for dtype in (*FLOATS, *WHOLE, *NARROW):
        graph.set_output(f"c.{dtype}", cast := graph.add("cast", ["x"], dtype=dtype).output)
        graph.set_output(f"f.{dtype}", graph.add("cast", [cast], dtype=f32).output)
        if dtype.kind == "f":
            wide = graph.add("exp", [graph.add("mul", [cast, cast]).output]).output
            graph.set_output(f"s.{dtype}", graph.add("reduce_sum", [wide], axes=(1,), keepdims=False).output)
    graph.set_output("a", graph.add("add", ["n", "n"]).output)
    graph.set_output("t", graph.add("cumsum", ["n"], axis=0).output)
    graph.set_output("p", graph.add("matmul", ["n", "n"], transpose_b=True).output)
    flipped = graph.add("slice", ["x"], starts=(0, 0), stops=(3, 37), steps=(1, 1)).output
    for reduction in ("none", "add"):
        made = graph.add("scatter_elements", ["x", "i", flipped], axis=0, reduction=reduction).output
        graph.set_output(f"w.{reduction}", made)
    check_emitted(graph, feeds, native(graph, feeds), "-O0")
