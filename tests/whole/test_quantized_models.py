"""Models of ONNX Runtime's quantizer: compared with ONNX Runtime, on every instruction set; the chosen kernels."""

import itertools
import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime import quantization

from ingot.emit.c import emit
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from ingot.load.onnx import load_onnx
from ingot.passes import optimize
from ingot.run.interpret import interpret
from ingot.run.store import WeightStore
from ingot.session.inference import InferenceSession
from kernel_calls import ISAS
from onnx_models import model, run_oracle, value_info
from op_cases import build, run, same_bits
from quantized_models import LAYERS, F, Layer, float_model, last_step, quantized

pytestmark = pytest.mark.native

# Zero points are 0 where activations are signed, as is usual.
OPTIONS = [
    {"qdq": qdq, "signed": signed, "per_channel": per_channel, "symmetric": signed}
    for qdq, signed, per_channel in itertools.product((True, False), repeat=3)
]
PRODUCTS = ("MatMul", "Gemm", "Conv")
MEANS = ("AveragePool", "GlobalAveragePool")  # whose order of summing decides what is half a step


def _name(value: object) -> str:
    return " ".join(k if v else f"no {k}" for k, v in value.items()) if isinstance(value, dict) else str(value)


# Each layer in both formats; products in all forms.
CASES = [(layer, options) for layer in LAYERS for options in OPTIONS if layer.op in PRODUCTS or options["per_channel"]]


@pytest.mark.parametrize(("layer", "options"), CASES, ids=_name)
def test_within_a_step(layer: Layer, options: dict[str, bool], tmp_path, rng) -> None:
    """Within one step of the result's scale, on kernels of integers alone, with the same bits everywhere."""
    proto, feeds = quantized(layer, tmp_path, rng, **options)
    graph = load_onnx(proto.SerializeToString())
    optimize(graph)
    expected = run_oracle("ort", proto, feeds)[0]
    results = [run(build(graph, isa=isa, threads=threads), feeds)[0] for isa in ISAS for threads in (1, 2)]
    assert all(same_bits(results[0], other) for other in results[1:])
    assert np.abs(results[0] - expected).max() <= 1.01 * last_step(proto)
    apart = np.abs(results[0] - interpret(graph, feeds)["y"])
    assert apart.max() <= (1.01 * last_step(proto) if layer.then in MEANS else 0)
    assert graph.ops.isdisjoint(("matmul", "conv"))


def kernels_of(session: InferenceSession) -> list[str]:
    """The kernels of a session's steps, without the nodes of the file that each comes from."""
    ends = [line.split(" -> ")[1] for line in str(session.explain()).splitlines() if " -> " in line]
    return [end.split(" (from ")[0] for end in ends]


def test_the_text_of_explain(tmp_path, rng) -> None:
    """A convolution with its bias and activation is one step, from bytes to bytes."""
    layer = next(layer for layer in LAYERS if layer.op == "Conv" and layer.then == "Relu")
    proto, feeds = quantized(layer, tmp_path, rng, qdq=True, signed=False, per_channel=True, symmetric=False)
    session = InferenceSession(proto.SerializeToString(), strict=True)
    session.run(None, feeds)
    assert kernels_of(session) == ["quantize_u8", "integer_packed", "dequantize_u8"]


@pytest.mark.parametrize("weights", [quantization.QuantType.QInt8, quantization.QuantType.QUInt8], ids=str)
@pytest.mark.parametrize("per_channel", [False, True])
def test_dynamic(weights, per_channel: bool, tmp_path, rng) -> None:
    """Rows are rounded as they come; products have their scale, bias and activation in one step."""
    layer = Layer("MatMul", (2, 9, 40), [(40, 33)])
    proto, feeds = float_model(layer, rng)
    bias = numpy_helper.from_array(rng.standard_normal(33).astype(F), "bias")
    proto.graph.initializer.append(bias)
    proto.graph.node[0].output[0] = "product"
    proto.graph.node.extend(
        [helper.make_node("Add", ["product", "bias"], ["sum"]), helper.make_node("Relu", ["sum"], ["y"])]
    )
    source, target = tmp_path / "float.onnx", tmp_path / "quantized.onnx"
    onnx.save(proto, source)
    quantization.quantize_dynamic(source, target, weight_type=weights, per_channel=per_channel)
    expected = run_oracle("ort", onnx.load(target), feeds)[0]
    session = InferenceSession(target, strict=True)
    np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=2e-6, atol=2e-6)
    assert [k for k in kernels_of(session) if k != "view"] == ["dynamic_quantize_f32", "mul_f32", "integer_packed"]


@pytest.mark.parametrize(
    ("level", "width", "precision", "kernel", "tolerance"),
    [
        (0, 256, "f32", "gemm_f32_int4_zp_f32", 1e-5),
        (0, 288, "f32", "gemm_f32_int4_zp_f32", 1e-5),  # whose zero points are no whole bytes
        (4, 256, "f32", "gemm_f32_int4_zp_f32", 0.02),  # which allows ONNX Runtime to round rows to int8
        (0, 256, "int4w", "gemm_i24_int4_zp", 1e-3),
        (0, 288, "int8", "gemm_int4_zp", 0.03),
    ],
)
def test_language_model_products(level: int, width: int, precision: str, kernel: str, tolerance: float, rng) -> None:
    """Attention with a cache between products of 4 bits, as exporters of language models write a layer; those that read
    the same rows are one.
    """
    heads, block = 4, 32
    names, nodes, constants = ["q", "k", "v", "o"], [], []
    for name in names:
        packed = rng.integers(0, 256, (width, width // block, block // 2), np.uint8)
        scales = rng.uniform(0.01, 0.02, width * width // block).astype(F)
        zeros = rng.integers(0, 256, (width, -(-width // block // 2)), np.uint8)
        constants += [
            numpy_helper.from_array(a, f"{name}.{b}") for a, b in ((packed, "b"), (scales, "s"), (zeros, "z"))
        ]
        nodes.append(
            helper.make_node(
                "MatMulNBits", ["mixed" if name == "o" else "x", f"{name}.b", f"{name}.s", f"{name}.z"],
                ["y" if name == "o" else name],
                domain="com.microsoft", N=width, K=width, bits=4, block_size=block, accuracy_level=level,
            )
        )  # fmt: skip
    for name, value in (("lengths", np.array([4], np.int32)), ("total", np.array(5, np.int32))):
        constants.append(numpy_helper.from_array(value, name))
    cache = [numpy_helper.from_array(np.zeros((1, heads, 0, width // heads), F), name) for name in ("pk", "pv")]
    attention = helper.make_node(
        "GroupQueryAttention", ["q", "k", "v", "pk", "pv", "lengths", "total"], ["mixed", "nk", "nv"],
        domain="com.microsoft", num_heads=heads, kv_num_heads=heads,
    )  # fmt: skip
    nodes.insert(3, attention)
    feeds = {"x": rng.standard_normal((1, 5, width)).astype(F)}
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "layer", [value_info("x", feeds["x"])], outputs, constants + cache)
    proto = model(graph)
    expected = run_oracle("ort", proto, feeds)[0]
    session = InferenceSession(proto.SerializeToString(), precision=precision)
    assert np.abs(session.run(None, feeds)[0] - expected).max() <= tolerance * np.abs(expected).max()
    assert str(session.explain()).count(f"{kernel}_packed") == 2


Feeds = dict[str, np.ndarray]


def product_of_quant(
    rng: np.random.Generator, n: int, k: int, bits: int, block: int, has_zeros: bool
) -> tuple[onnx.ModelProto, Feeds]:
    """A MatMulNBits of a file's usual kind: scales are f32."""
    operands = {
        "b": rng.integers(0, 256, (n, k // block, block * bits // 8), np.uint8),
        "s": rng.uniform(0.01, 0.02, n * k // block).astype(F),
        **({"z": rng.integers(0, 256, n * (k // block * bits // 8), np.uint8)} if has_zeros else {}),
    }
    product = helper.make_node(
        "MatMulNBits", ["x", *operands], ["y"], domain="com.microsoft", N=n, K=k, bits=bits, block_size=block
    )
    feeds = {"x": rng.standard_normal((2, 7, k)).astype(F)}
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    constants = [numpy_helper.from_array(array, name) for name, array in operands.items()]
    return model(helper.make_graph([product], "layer", [value_info("x", feeds["x"])], outputs, constants)), feeds


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("block", [32, 64, 128, 256])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_with_scales_of_f32_stay_quantized(bits: int, block: int, has_zeros: bool, tmp_path, rng) -> None:
    """Without a precision, in a session, a saved program and emitted C, with the bits of the floats they stand for."""
    n, k = 256, 512
    proto, feeds = product_of_quant(rng, n, k, bits, block, has_zeros)
    session = InferenceSession(proto.SerializeToString(), strict=True)
    (result,) = session.run(None, feeds)
    span = 128 if block >= 128 else 32
    kernel = f"gemm_f32_int{bits}{'_128' * (span == 128)}{'_zp' * has_zeros}_f32_packed"
    assert kernel in str(session.explain())
    held = n * k * bits // 8 + n * k // span * (4 + has_zeros)
    assert held <= session.weight_bytes <= held + 64

    stored = load_onnx(proto.SerializeToString())
    (decoder,) = (node for node in stored.nodes if node.op.name == "dequantize")
    stored.set_output("w", decoder.output)
    wide = Graph("wide")
    x, w = wide.add_input("x", TensorType(f32, feeds["x"].shape)), wide.add_weight("w", interpret(stored, feeds)["w"])
    wide.set_output("y", wide.add("matmul", [x, w], transpose_b=True).output)
    assert result.tobytes() == InferenceSession(wide).run(None, feeds)[0].tobytes()
    expected = run_oracle("ort", proto, feeds)[0]
    assert np.abs(result - expected).max() <= 1e-5 * np.abs(expected).max()

    session.save(tmp_path / "program")
    loaded = InferenceSession(tmp_path / "program", strict=True)
    assert loaded.run(None, feeds)[0].tobytes() == result.tobytes() and loaded.weight_bytes == session.weight_bytes
    emit(session.graph, WeightStore(), tmp_path / "c")
    assert kernel.removesuffix("_packed") in (tmp_path / "c" / "model.c").read_text()
    rows = json.loads((tmp_path / "c" / "layout.json").read_text())["tensors"]
    assert [row["bytes"] for row in rows if row["kind"] == "weight"] == [held]


@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize(
    ("precision", "kernel", "tolerance"),
    [("int8", "gemm_int4", 0.02), ("int4", "gemm_int4", 0.02), ("int4w", "gemm_i24_int4", 5e-4)],
)
def test_a_precision_keeps_quantized_matrices(precision: str, kernel: str, tolerance: float, has_zeros, rng):
    """Scales become f16, as panels have them; codes of 4 bits and their zero points are not rounded again."""
    proto, feeds = product_of_quant(rng, 256, 512, 4, 32, has_zeros)  # not so small that it would be folded
    expected = run_oracle("ort", proto, feeds)[0]
    session = InferenceSession(proto.SerializeToString(), precision=precision)
    assert np.abs(session.run(None, feeds)[0] - expected).max() <= tolerance * np.abs(expected).max()
    explained = str(session.explain())
    assert f"{kernel}{'_zp' * has_zeros}_packed" in explained
    assert f": weight in {'u4' if has_zeros else 'i4'}" in explained


@pytest.mark.parametrize("precision", ["int8", "int4", "int4w"])
def test_scales_that_f16_lacks_the_range_for_stay(precision: str, rng) -> None:
    """And so do the quantized values, with rows of f32: nothing of the matrix is rounded."""
    proto, feeds = product_of_quant(rng, 256, 512, 4, 32, True)
    (scales,) = (each for each in proto.graph.initializer if each.name == "s")
    array = numpy_helper.to_array(scales).copy()
    array[:32] = 2.0**-20
    scales.CopyFrom(numpy_helper.from_array(array, "s"))
    expected = run_oracle("ort", proto, feeds)[0]
    session = InferenceSession(proto.SerializeToString(), precision=precision)
    assert np.abs(session.run(None, feeds)[0] - expected).max() <= 1e-5 * np.abs(expected).max()
    assert "gemm_f32_int4_zp_f32_packed" in str(session.explain())
