"""Ops of com.microsoft, of random shapes and options; attention with a cache where rows or runs differ in length."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from ingot.errors import LoadError, UnsupportedError
from ingot.load.onnx import load_onnx
from ingot.run.interpret import interpret
from ingot.session.inference import InferenceSession
from onnx_models import Case, case, one_node, run_oracle
from onnx_random_contrib_cases import FAMILIES

ROOM = "q[2,1,32] k[2,1,16] v[2,1,16] a[2,1,7,16] b[2,1,7,16] @s @t"


@pytest.mark.parametrize("family", FAMILIES)
def test_random_shapes_and_options(family: Callable[[random.Random], Case], rng: np.random.Generator) -> None:
    for seed in range(12):
        tried = family(random.Random(seed))
        proto, feeds = one_node(tried, rng)
        content = proto.SerializeToString()
        expected = run_oracle("ort", proto, feeds)
        for results in (
            interpret(load_onnx(content), feeds).values(),
            InferenceSession(content, threads=1, strict=True).run(None, feeds),
        ):
            for got, wanted in zip(results, expected, strict=True):
                assert got.dtype == wanted.dtype, (seed, tried)
                np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5, err_msg=f"{seed} {tried}")


def test_a_cache_with_room_whose_rows_differ_in_length(rng: np.random.Generator) -> None:
    """What is new goes behind each row's own; behind that the cache stays as it is, where ONNX Runtime has no value."""
    lengths = np.array([5, 3], np.int32)
    proto, feeds = one_node(
        case("GroupQueryAttention", ROOM, 3, domain="com.microsoft", num_heads=2, kv_num_heads=1, s=lengths - 1,
             t=np.array(lengths.max())), rng,
    )  # fmt: skip
    results = list(interpret(load_onnx(proto.SerializeToString()), feeds).values())
    expected = run_oracle("ort", proto, feeds)
    np.testing.assert_allclose(results[0], expected[0], rtol=2e-5, atol=2e-6)
    for given, got, wanted in zip((feeds["a3"], feeds["b4"]), results[1:], expected[1:], strict=True):
        for row, length in enumerate(lengths):
            np.testing.assert_array_equal(got[row, :, :length], wanted[row, :, :length])
            np.testing.assert_array_equal(got[row, :, length:], given[row, :, length:])


def test_lengths_that_only_a_run_knows(rng: np.random.Generator) -> None:
    """One load serves the prompt and each step after it; lengths are inputs."""
    sizes = "q[1,2,32] k[1,2,16] v[1,2,16] a[1,1,3,16] b[1,1,3,16] @s @t"
    proto, _ = one_node(
        case("GroupQueryAttention", sizes, 3, domain="com.microsoft", num_heads=2, kv_num_heads=1,
             s=np.array([0], np.int32), t=np.array(0, np.int32)), rng,
    )  # fmt: skip
    for tensor in proto.graph.initializer:
        proto.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    del proto.graph.initializer[:]
    for info in proto.graph.input[:3]:
        info.type.tensor_type.shape.dim[1].dim_param = "rows"
    for info in proto.graph.input[3:5]:
        info.type.tensor_type.shape.dim[2].dim_param = "past"
    session = InferenceSession(proto.SerializeToString())
    for rows, past in ((4, 0), (1, 4), (1, 5)):
        shapes = [(1, rows, 32), *[(1, rows, 16)] * 2, *[(1, 1, past, 16)] * 2]
        names = [info.name for info in proto.graph.input]
        feeds = {name: rng.standard_normal(s).astype(np.float32) for name, s in zip(names, shapes, strict=False)}
        feeds |= {"s": np.array([rows + past - 1], np.int32), "t": np.array(rows + past, np.int32)}
        for got, wanted in zip(session.run(None, feeds), run_oracle("ort", proto, feeds), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", ["codes", "floats", "none"])
def test_columns_that_name_their_blocks(zeros: str, bits: int, rng: np.random.Generator) -> None:
    """By the definition: ONNX Runtime takes 8 for zero points that are codes, and other bits as if they were 4."""
    rows, columns, block, blocks, per = 5, 40, 16, 3, 8 // bits
    packed = rng.integers(0, 256, (rows, blocks, block // per), np.uint8)
    scales = rng.uniform(0.01, 0.1, (rows, blocks)).astype(np.float32)
    constants = {"b": packed, "s": scales, "g": rng.integers(0, blocks, columns, np.int32)}

    points = np.full((rows, blocks), 2.0 ** (bits - 1))
    if zeros == "codes":
        constants["z"] = rng.integers(0, 256, (rows, -(-blocks // per)), np.uint8)
        points = split(constants["z"], bits)[:, :blocks]
    elif zeros == "floats":
        points = constants["z"] = rng.uniform(0, 2**bits, (rows, blocks)).astype(np.float32)
    attributes = {"N": rows, "K": columns, "bits": bits, "block_size": block}
    operands = f"x[3,{columns}] @b @s {'none' if zeros == 'none' else '@z'} @g"
    proto, feeds = one_node(case("MatMulNBits", operands, domain="com.microsoft", **attributes, **constants), rng)
    matrix = (split(packed, bits)[:, :columns] - points[:, constants["g"]]) * scales[:, constants["g"]]
    (got,) = InferenceSession(proto.SerializeToString(), threads=1).run(None, feeds)
    (x,) = feeds.values()
    np.testing.assert_allclose(got, x.astype(float) @ matrix.T, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("has_zeros", [False, True])
@pytest.mark.parametrize("is_ordered", [False, True])
def test_columns_that_name_full_blocks_stay_quantized(
    is_ordered: bool, has_zeros: bool, bits: int, rng: np.random.Generator
) -> None:
    """Rows are put into the order of their blocks, unless they are in it."""
    rows, columns, block = 96, 192, 32
    blocks, per = columns // block, 8 // bits
    packed = rng.integers(0, 256, (rows, blocks, block // per), np.uint8)
    scales = rng.uniform(0.01, 0.1, (rows, blocks)).astype(np.float16).astype(np.float32)
    block_of = (np.arange(columns) // block).astype(np.int32)
    constants = {"b": packed, "s": scales, "g": rng.permutation(block_of) if is_ordered else block_of}
    points = np.full((rows, blocks), 2 ** (bits - 1))
    if has_zeros:
        constants["z"] = rng.integers(0, 256, (rows, blocks // per), np.uint8)
        points = split(constants["z"], bits)
    attributes = {"N": rows, "K": columns, "bits": bits, "block_size": block}
    operands = f"x[3,{columns}] @b @s {'@z' if has_zeros else 'none'} @g"
    proto, feeds = one_node(case("MatMulNBits", operands, domain="com.microsoft", **attributes, **constants), rng)
    matrix = (split(packed, bits) - points[:, constants["g"]]) * scales[:, constants["g"]].astype(float)
    expected = next(iter(feeds.values())).astype(float) @ matrix.T
    family = f"int{bits}{'_zp' * has_zeros}"
    for precision, kernel, tolerance in (("f32", f"gemm_f32_{family}", 2e-6), ("int8", f"gemm_{family}", 0.02)):
        session = InferenceSession(proto.SerializeToString(), threads=1, precision=precision)
        assert np.abs(session.run(None, feeds)[0] - expected).max() <= tolerance * np.abs(expected).max()
        explained = str(session.explain())
        assert f"{kernel}_packed" in explained and ("gather_i32" in explained) == is_ordered


@pytest.mark.parametrize("kind", [0, 1])
def test_a_matrix_of_four_bit_floats_that_is_not_transposed(kind: int, rng: np.random.Generator) -> None:
    """By the definition: ONNX Runtime multiplies by the transposed matrix, and reads behind it."""
    rows, columns, block = 8, 24, 64
    operands = f"x[3,{{}}] b:u8<256[{rows * columns // 2}] s>0.1<1[{rows * columns // block}]"
    attributes = {"N": rows, "K": columns, "block_size": block, "quant_type": kind}
    proto, feeds = one_node(case("MatMulBnb4", operands.format(columns), domain="com.microsoft", **attributes), rng)
    unit = {**feeds, "x0": np.eye(columns, dtype=np.float32)}
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    (matrix,) = run_oracle("ort", proto, unit)
    transposed = case("MatMulBnb4", operands.format(rows), domain="com.microsoft", transB=0, **attributes)
    proto, fed = one_node(transposed, rng)
    (got,) = InferenceSession(proto.SerializeToString(), threads=1).run(None, {**feeds, "x0": fed["x0"]})
    np.testing.assert_allclose(got, fed["x0"] @ matrix.T, rtol=2e-5, atol=2e-5)


LAYERS = "x[10,8] r[10,4] a[4,16,8] none b[4,8,16]"


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "message"),
    [
        ("MoE", LAYERS, {"use_sparse_mixer": 1}, "attribute 'use_sparse_mixer' is not supported"),
        ("MoE", f"{LAYERS} none c[4,16,8]", {}, "a third layer of the experts is not supported"),
        ("MoE", LAYERS, {"activation_type": "swiglu"}, "swiglu of columns that do not alternate is not supported"),
        ("CausalConvWithState", "x[2,6,4,5] w[6,1,3,3]", {"ndim": 2}, "a convolution of several dims"),
        ("CausalConvWithState", "x[2,6,5] w[6,1,4]", {"state_window": 2}, "a window of states is not supported"),
        ("LinearAttention", "q[2,5,16] k[2,5,16] v[2,5,12]", {"q_num_heads": 2, "kv_num_heads": 2, "state_window": 2},
         "a window of states is not supported"),
    ],
)  # fmt: skip
def test_forms_of_layers_that_are_refused(
    op: str, operands: str, attributes: dict[str, Any], message: str, rng: np.random.Generator
) -> None:
    proto, _ = one_node(case(op, operands, domain="com.microsoft", **attributes), rng)
    with pytest.raises(UnsupportedError, match=message):
        load_onnx(proto.SerializeToString())


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "message"),
    [
        ("GatedRMSNorm", "x[2,5,20] s[8] g[2,5,20]", {}, "8 parts of f32"),
        ("BranchwiseRMSNorm", "x[8]", {}, "expected rank 2 or more"),
        ("BranchwiseRMSNorm", "x[2,8]", {"num_branches": 3}, "3 parts of f32"),
        (
            "MRotaryEmbedding",
            "x[2,4,5,12] p:i64<9[3,2,5] c[9,6] d[9,6]",
            {"mrope_section": [3, 3]},
            "6 in all",
        ),
        ("UnfoldTensor", "x[3,4]", {"size": 5}, "windows of 5 with step 1 do not fit"),
        ("CropAndResize", "x[2,3,4] r[3,4] b:i32<2[3] @s", {"s": np.array([2, 3], np.int32)}, "rank 4"),
        ("MatMulBnb4", "x[2,8] b:u8<256[32] s[4]", {"N": 8, "K": 8, "block_size": 16, "quant_type": 2}, "quant_type 2"),
        ("Unique", "x[2,3]", {}, "expected rank 1"),
        ("CausalConvWithState", "x[2,6] w[6,1,4]", {}, "dilation 1"),
    ],
)
def test_malformed_layers(
    op: str, operands: str, attributes: dict[str, Any], message: str, rng: np.random.Generator
) -> None:
    proto, _ = one_node(case(op, operands, domain="com.microsoft", **attributes), rng)
    with pytest.raises(LoadError, match=message):
        load_onnx(proto.SerializeToString())


def test_a_word_that_the_body_of_an_op_does_not_expect(rng: np.random.Generator) -> None:
    operands = "x[2,6,5] w[6,1,4] b[6] p[2,6,3]"
    proto, _ = one_node(case("CausalConvWithState", operands, 2, opset=27, activation="reflect"), rng)
    with pytest.raises(LoadError, match="the body in ONNX's schema does not define 'bias'"):
        load_onnx(proto.SerializeToString())


def split(packed: np.ndarray, bits: int) -> np.ndarray:
    """The numbers in the bytes of each row."""
    places = np.arange(0, 8, bits, dtype=np.uint8)
    return (packed.reshape(len(packed), -1, 1) >> places & (2**bits - 1)).reshape(len(packed), -1).astype(float)


@pytest.mark.parametrize("seed", range(16))
def test_a_recurrent_layer_of_quantized_weights(seed: int, rng: np.random.Generator) -> None:
    """As ONNX Runtime's LSTM of the same weights as floats. Its layer of codes rounds what they are multiplied with."""
    chance = random.Random(seed)
    steps, batch, inputs, hidden = (chance.randint(1, high) for high in (6, 4, 9, 8))
    direction = chance.choice(("forward", "reverse", "bidirectional"))
    directions, gates = 1 + (direction == "bidirectional"), 4 * hidden
    attributes: dict = {"hidden_size": hidden, "direction": direction, "input_forget": chance.randint(0, 1)}
    if chance.random() < 0.3:
        attributes |= {"clip": 0.4}
    if chance.random() < 0.3:
        attributes |= {"activations": ["HardSigmoid", "Tanh", "Relu"] * directions}
    dtype = chance.choice((np.int8, np.uint8))
    per_gate = chance.random() < 0.5
    constants, floats = {}, {}
    for name, rows in (("w", inputs), ("r", hidden)):
        codes = rng.integers(*((-127, 128) if dtype is np.int8 else (0, 256)), (directions, rows, gates)).astype(dtype)
        shape = (directions, gates) if per_gate else (directions,)
        scale = rng.uniform(0.001, 0.005, shape).astype(np.float32)
        zero = np.full(shape, 0 if dtype is np.int8 else 128, dtype)
        constants |= {name: codes, f"{name}s": scale, f"{name}z": zero}
        apart = (directions, 1, -1)
        floats[name] = ((codes - zero.reshape(apart).astype(np.float32)) * scale.reshape(apart)).transpose(0, 2, 1)
    lengths = {"n": rng.integers(1, steps + 1, batch).astype(np.int32)} if chance.random() < 0.4 else {}
    parts = [f"b[{directions},{2 * gates}]", "@n" if lengths else "none", f"h[{directions},{batch},{hidden}]",
             f"c[{directions},{batch},{hidden}]", f"p[{directions},{3 * hidden}]"]  # fmt: skip
    rest = " ".join(part if part[0] == "@" or chance.random() < 0.5 else "none" for part in parts)
    x = f"x[{steps},{batch},{inputs}]"
    state = rng.bit_generator.state
    proto, feeds = one_node(
        case("DynamicQuantizeLSTM", f"{x} @w @r {rest} @ws @wz @rs @rz", 3, domain="com.microsoft", **attributes,
             **constants, **lengths), rng,
    )  # fmt: skip
    rng.bit_generator.state = state
    plain, _ = one_node(case("LSTM", f"{x} @w @r {rest}", 3, **attributes, **floats, **lengths), rng)
    content = proto.SerializeToString()
    exact, rounded = run_oracle("ort", plain, feeds), run_oracle("ort", proto, feeds)
    for results in (
        interpret(load_onnx(content), feeds).values(),
        InferenceSession(content, threads=1, strict=True).run(None, feeds),
    ):
        for got, wanted, near in zip(results, exact, rounded, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)
            np.testing.assert_allclose(got, near, atol=0.05)
