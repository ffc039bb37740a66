"""Warnings of a report: each kind is stated for a model that has it, and for no other."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import ingot
from ingot.inspect.model import InspectedModel
from ingot.inspect.plans import measured_steps
from ingot.inspect.report.warnings import warnings_document
from ingot.ir.dtype import f32
from inspect_models import DIGITS, TINY_LM, write_large, written_onnx

CASES = {
    "unused": (
        "g (float[4] x) => (float[4] y) <float[2, 2] spare = {1.0, 2.0, 3.0, 4.0}> { y = Relu(x) }",
        [("Weights that nothing needs", "spare", "no node reads it", 16)],
    ),
    "a cast that rounds": (
        "g (float[4] x) => (float[4] y) { h = Cast<to = 10>(x)\n f = Cast<to = 1>(h)\n y = Relu(f) }",
        [("Casts back and forth", "f", "x: f32 to f16 to f32", 0)],
    ),
    "a cast that keeps every value": (
        "g (float16[4] x) => (float16[4] y) { h = Cast<to = 1>(x)\n f = Cast<to = 10>(h)\n y = Relu(f) }",
        [],
    ),
    "no kernel": (
        "g (string[3] x) => (string[3] y) { y = StringConcat(x, x) }",
        [("Nodes on the reference", "y", "string_concat 'y'", 0)],
    ),
    "a matrix that is no weight": (
        "g (float[3, 1000] x, float[1000, 64] w) => (float[3, 64] y) { y = MatMul(x, w) }",
        [("General kernels", "y", "matmul_f32; not gemm_f32_packed: the right operand is not constant", 0)],
    ),
    "a copy": (
        "g (float[5, 3] x) => (float[3, 5] y) { y = Transpose(x) }",
        [("Copies", "y", "copy_b4", 120)],
    ),
    "nothing": ("g (float[4] x) => (float[4] y) { y = Relu(x) }", []),
}


def rows_of(model: InspectedModel, *given) -> list[tuple]:
    kinds = warnings_document(model, *(given or (None, None)))
    return [(kind["title"], *row) for kind in kinds for row in kind["rows"]]


@pytest.mark.parametrize("case", CASES)
def test_a_warning_names_what_the_model_has(tmp_path: Path, case: str) -> None:
    graph, expected = CASES[case]
    assert rows_of(InspectedModel(str(written_onnx(tmp_path / "model.onnx", graph)))) == expected


def test_weights_of_nodes_that_no_output_needs(tmp_path: Path) -> None:
    path = written_onnx(
        tmp_path / "model.onnx", "g (float[99, 9] x) => (float[99, 9] y) { d = Mul(x, w)\n y = Relu(x) }"
    )
    proto = onnx.load(path)
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((99, 9), np.float32), "w"))
    onnx.save(proto, path)
    expected = ("Weights that nothing needs", "w", "only nodes that no output needs read it: d", 99 * 9 * 4)
    assert rows_of(InspectedModel(str(path))) == [expected]


def test_open_dims_name_the_nodes_whose_kernel_they_decide() -> None:
    title = "Kernels that depend on an open dim"
    found = {row[1]: row[2] for row in rows_of(InspectedModel(str(DIGITS), assumed=1)) if row[0] == title}
    kernels = [
        {
            choice.node: choice.candidates[-1][0]
            for choice in InspectedModel(str(DIGITS), dims={"batch": n}).explain(None).choices
        }
        for n in (1, 64)
    ]
    assert found == {
        node: f"{kernel}; with 64: {kernels[1][node]}"
        for node, kernel in kernels[0].items()
        if kernels[1][node] != kernel
    }  # fmt: skip
    assert found and title not in {row[0] for row in rows_of(InspectedModel(str(DIGITS), dims={"batch": 1}))}


def test_weights_that_stay_wide_are_those_of_the_plan() -> None:
    title = "Weights of products in f32"
    model = InspectedModel(str(DIGITS), dims={"batch": 1}, precision="int8")
    found = {row[1] for row in rows_of(model) if row[0] == title}
    (segment,) = model.compiled.segments
    packed = [t for t in segment.lowered.tensors.values() if t.packed_weight and t.packed_weight.layout == "panels"]
    assert found == {tensor.name for tensor in packed if tensor.dtype is f32} and len(found) < len(packed)
    assert title not in {row[0] for row in rows_of(InspectedModel(str(DIGITS), dims={"batch": 1}))}
    assert title not in {row[0] for row in rows_of(InspectedModel(TINY_LM))}


def test_missing_data_is_counted_and_listed_in_part(tmp_path: Path) -> None:
    model = InspectedModel(str(write_large(tmp_path / "large.onnx", 300)), assumed=1)
    (missing,) = (kind for kind in warnings_document(model, None, None) if kind["title"] == "Missing data")
    assert missing["count"] == 300 and len(missing["rows"]) == 200 and "weights.bin" in missing["rows"][0][1]


def test_runs_add_warnings(tmp_path: Path) -> None:
    model = InspectedModel(str(DIGITS), dims={"batch": 1}, threads=2)
    measured, _ = measured_steps(str(DIGITS), {"batch": 1}, None, 2, 3)
    alone = {row[1] for row in rows_of(model, measured, None) if row[0] == "Steps of one task"}
    total = sum(row["nanoseconds"] for row in measured)
    assert alone == {row["node"] for row in measured if row["parts"] == 1 and row["nanoseconds"] >= total / 10}
    values = tmp_path / "values.npz"
    np.savez(values, gelu_1=np.zeros((1, 32, 8, 8), np.float32))
    comparison = ingot.compare(DIGITS, b=values)
    (row,) = (row for row in rows_of(model, None, comparison) if row[0].startswith("Values that differ"))
    assert row[1] == "gelu_1" and row[2].startswith("graph: ")
