"""Precision as an option of sessions: what is rounded, against float64, what programs keep of it, who refuses it."""

import itertools

import numpy as np
import pytest
from ml_dtypes import bfloat16

import ingot
from ingot.compile import Mode, compile_mode
from ingot.dim import symbol
from ingot.dtype import bf16, f32, i8
from ingot.errors import InputError, UnsupportedError
from ingot.ir import Graph, TensorType
from ingot.lower import Target
from ingot.passes import optimize
from ingot.precision import PRECISIONS
from ingot.run.arena import Arena
from ingot.run.interpret import interpret
from ingot.run.library import load
from ingot.run.program import Program
from ingot.run.store import WeightStore
from kernel_calls import DOT_ISAS, LIBRARY

pytestmark = pytest.mark.native

ROUNDED = [name for name, precision in PRECISIONS.items() if precision.weights is bf16]
RUNNABLE = [name for name in ROUNDED if PRECISIONS[name].rows is None or LIBRARY.dots(LIBRARY.isa())]
CODED = [name for name, precision in PRECISIONS.items() if precision.rows is i8]
TOLERANCE = 2**-6  # of the largest output: roundings of 2^-9 in each of some layers


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def weight(graph: Graph, name: str, *shape: int) -> str:
    return graph.add_weight(name, random(*shape, seed=len(graph.values)) / np.float32(np.sqrt(np.prod(shape[1:]))))


def linear(width: int = 64) -> Graph:
    """Two layers with a residual between them, for any number of rows."""
    graph = Graph("linear")
    x = graph.add_input("x", TensorType(f32, (symbol("rows"), width)))
    up = graph.add("matmul", [x, weight(graph, "up", 96, width)], "h", transpose_b=True)
    h = graph.add("relu", [graph.add("add", [up.output, weight(graph, "bias", 96)]).output])
    down = graph.add("matmul", [h.output, weight(graph, "down", width, 96)], "d", transpose_b=True)
    graph.set_output("y", graph.add("add", [down.output, x]).output)
    return graph


def image() -> Graph:
    """A pointwise convolution between two of 3 x 3, the first of three channels."""
    graph = Graph("image")
    x = graph.add_input("x", TensorType(f32, (1, 3, 12, 12)))
    plain = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}
    for name, (out, channels, size) in {"a": (32, 3, 3), "b": (48, 32, 1), "c": (16, 48, 3)}.items():
        pads = (size // 2,) * 4
        x = graph.add("conv", [x, weight(graph, name, out, channels, size, size)], pads=pads, **plain).output
        x = graph.add("relu", [x]).output
    graph.set_output("y", x)
    return graph


def stretch() -> Graph:
    """Down by a pool, up by a transposed convolution, side by side into one of 3 x 3, and a filter for each channel."""
    graph = Graph("stretch")
    x = graph.add_input("x", TensorType(f32, (2, 6, 12, 10)))
    plain = {"strides": (1, 1), "dilations": (1, 1), "groups": 1}

    def conv(value: str, name: str, out: int, channels: int, **attributes: object) -> str:
        filter = weight(graph, name, out, channels, 3, 3)
        made = graph.add("conv", [value, filter], pads=(1, 1, 1, 1), **(plain | attributes)).output
        return graph.add("relu", [made]).output

    beside = conv(x, "a", 32, 6)
    halves = {"kernel": (2, 2), "strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1)}
    deep = conv(graph.add("max_pool", [beside], **halves).output, "b", 64, 32)
    wide = {"strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1, "output_padding": (0, 0)}
    up = graph.add(
        "conv_transpose", [deep, weight(graph, "up", 64, 32, 2, 2), weight(graph, "bias", 32)], **wide
    ).output
    both = conv(graph.add("concat", [beside, up], axis=1).output, "c", 48, 64)
    graph.set_output("y", conv(conv(both, "each", 48, 1, groups=48), "d", 6, 48))
    return graph


def picture() -> Graph:
    """Two convolutions of three channels, of which one has long windows, and their sum's pixels in a product."""
    graph, plain = Graph("picture"), {"dilations": (1, 1), "groups": 1}
    x = graph.add_input("x", TensorType(f32, (2, 3, 20, 17)))
    long, short = weight(graph, "long", 24, 3, 7, 7), weight(graph, "short", 24, 3, 2, 2)
    a = graph.add("conv", [x, long], pads=(3, 3, 3, 3), strides=(2, 2), **plain).output
    b = graph.add("conv", [x, short], pads=(0, 0, 0, 1), strides=(2, 2), **plain).output
    both, last = graph.add("add", [a, b]).output, weight(graph, "last", 16, 24, 1, 1)
    graph.set_output("y", graph.add("conv", [both, last], pads=(0,) * 4, strides=(1, 1), **plain).output)
    return graph


def encoder() -> Graph:
    """A block whose attention reads slices of one product: pre-norm, with a residual and a gelu."""
    graph = Graph("encoder")
    x = graph.add_input("x", TensorType(f32, (2, 21, 32)))

    def norm(value: str) -> str:
        return graph.add("layer_norm", [value, None, None], eps=1e-5).output

    def product(value: str, name: str, columns: int, width: int) -> str:
        product = graph.add("matmul", [value, weight(graph, name, columns, width)], transpose_b=True).output
        return graph.add("add", [product, weight(graph, f"{name}.bias", columns)]).output

    together, heads = product(norm(x), "qkv", 96, 32), []
    for i in range(3):
        stops = (2, 21, 32 * i + 32)
        part = graph.add("slice", [together], starts=(0, 0, 32 * i), stops=stops, steps=(1, 1, 1)).output
        split = graph.add("reshape", [part], shape=(2, 21, 4, 8)).output
        heads.append(graph.add("permute", [split], axes=(0, 2, 1, 3)).output)
    mixed = graph.add("permute", [graph.add("attention", heads, scale=0.35).output], axes=(0, 2, 1, 3)).output
    x = graph.add("add", [x, product(graph.add("reshape", [mixed], shape=(2, 21, 32)).output, "out", 32, 32)]).output
    up = graph.add("gelu", [product(norm(x), "up", 64, 32)], approximate="erf").output
    graph.set_output("y", graph.add("add", [x, product(up, "down", 32, 64)]).output)
    return graph


def recurrent(op: str, activations: tuple[str, ...], hidden: int, **options: object) -> Graph:
    """A layer of four steps and three sequences, one of which ends early, whose input is what its gates are given."""
    graph, gates, zeros = Graph(op), {"lstm": 4, "gru": 3, "rnn": 1}[op], (0.0,) * len(activations)
    x = graph.add_input("x", TensorType(f32, (4, 3, gates * hidden)))
    bias = [weight(graph, "bias", gates * hidden)] if op == "gru" else []
    states = [weight(graph, name, 3, hidden) for name in ("h", "c")[: 2 if op == "lstm" else 1]]
    lengths = graph.add_constant("lengths", np.array([4, 0, 3]))
    operands = [x, weight(graph, "r", gates * hidden, hidden), *bias, *states, *([None] if op == "lstm" else [])]
    made = graph.add(op, [*operands, lengths], alphas=zeros, betas=zeros, activations=activations, **options)
    last = graph.add("reshape", [made.outputs[1]], shape=(1, 3, hidden))
    graph.set_output("y", graph.add("concat", [made.outputs[0], last.output], axis=0).output)
    return graph


MODELS = {
    "lstm": (lambda: recurrent("lstm", ("sigmoid", "tanh", "tanh"), 70), (4, 3, 280)),
    "lstm, odd": (lambda: recurrent("lstm", ("sigmoid", "tanh", "tanh"), 33, reverse=True), (4, 3, 132)),
    "lstm, clipped": (lambda: recurrent("lstm", ("sigmoid", "tanh", "relu"), 34, clip=0.5), (4, 3, 136)),
    "gru": (lambda: recurrent("gru", ("sigmoid", "tanh"), 70), (4, 3, 210)),
    "gru, reset late": (lambda: recurrent("gru", ("sigmoid", "tanh"), 34, linear_before_reset=True), (4, 3, 102)),
    "rnn": (lambda: recurrent("rnn", ("tanh",), 70, reverse=True), (4, 3, 70)),
    "linear": (linear, (5, 64)),
    "linear, odd": (lambda: linear(33), (40, 33)),
    "image": (image, (1, 3, 12, 12)),
    "stretch": (stretch, (2, 6, 12, 10)),
    "picture": (picture, (2, 3, 20, 17)),
    "encoder": (encoder, (2, 21, 32)),
}


@pytest.mark.parametrize("precision", RUNNABLE)
@pytest.mark.parametrize("name", MODELS)
def test_near_float64(name: str, precision: str) -> None:
    make, shape = MODELS[name]
    x = random(*shape, seed=9)
    exact = interpret(make(), {"x": x}, float64=True)["y"]
    (native,) = ingot.InferenceSession(make(), precision=precision, threads=2).run(None, {"x": x})
    (reference,) = ingot.InferenceSession(make(), precision=precision, executor="interpret").run(None, {"x": x})
    scale = abs(exact).max()
    assert 1e-5 * scale < abs(native - exact).max() < TOLERANCE * scale
    assert abs(native - reference).max() < TOLERANCE / 2 * scale  # near ties are rounded one way or the other
    (plain,) = ingot.InferenceSession(make(), precision="f32").run(None, {"x": x})
    assert plain.tobytes() == ingot.InferenceSession(make()).run(None, {"x": x})[0].tobytes()


@pytest.mark.parametrize("precision", RUNNABLE + CODED)
def test_bits_of_threads_and_batch(precision: str) -> None:
    sessions = [ingot.InferenceSession(linear(), precision=precision, threads=threads) for threads in (1, 2, 3)]
    x = random(70, 64, seed=3)
    whole = {session.run(None, {"x": x})[0].tobytes() for session in sessions}
    assert len(whole) == 1
    if PRECISIONS[precision].rows:
        alone = np.concatenate([sessions[1].run(None, {"x": x[i : i + 1]})[0] for i in range(len(x))])
        assert whole == {alone.tobytes()}


def test_what_is_rounded() -> None:
    """Of the operands of products alone, those with an even number of elements a row; the graph itself stays."""
    whole = image()
    graph = Mode(precision=PRECISIONS["bf16"]).graph(whole)
    rounded = {node.operands[0] for node in graph.nodes if node.op.name == "cast" and node.dtype is bf16}
    convs = [node for node in whole.nodes if node.op.name == "conv"]
    assert rounded == {operand for node in convs[1:] for operand in node.operands[:2]}
    assert not any(node.op.name == "cast" for node in whole.nodes)
    x, w = random(4, 64, seed=1).astype(bfloat16), random(64, 32, seed=2)
    product = Graph("product")
    product.add_input("x", TensorType(f32, (4, 64)))
    product.set_output("y", product.add("matmul", ["x", product.add_weight("w", w)]).output)
    expected = x.astype(float) @ w.astype(bfloat16).astype(float)
    for precision in RUNNABLE:
        (y,) = ingot.InferenceSession(product, precision=precision).run(None, {"x": x.astype(np.float32)})
        assert abs(y - expected).max() < 1e-5


@pytest.mark.parametrize("precision", RUNNABLE)
def test_pictures_are_rounded_for_long_windows(precision: str) -> None:
    """Their planes are read where they lie; weights alone are not worth it."""
    session = ingot.InferenceSession(picture(), precision=precision, threads=1)
    kernels = [step.kernel for step in session.program.native[0].lowered.steps]
    long = "conv2d_bf16_planes" if PRECISIONS[precision].rows else "conv2d_f32_planes"
    assert sorted(kernel for kernel in kernels if kernel.startswith("conv2d")) == sorted([long, "conv2d_f32_planes"])


@pytest.mark.parametrize("precision", RUNNABLE + CODED)
def test_a_saved_program_keeps_it(tmp_path, precision: str) -> None:
    session, x = ingot.InferenceSession(linear(), precision=precision, dims={"rows": 5}), random(5, 64, seed=4)
    session.save(tmp_path / "program")
    loaded = ingot.InferenceSession(tmp_path / "program")
    assert loaded.precision is session.precision is PRECISIONS[precision]
    assert loaded.run(None, {"x": x})[0].tobytes() == session.run(None, {"x": x})[0].tobytes()
    with pytest.raises(InputError, match=f"not what was saved, got f32, expected {precision}"):
        ingot.InferenceSession(tmp_path / "program", precision="f32")


def test_without_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session refuses, and says what runs."""
    monkeypatch.setenv("INGOT_ISA", "scalar")
    assert not load().dots(load().isa())
    with pytest.raises(UnsupportedError, match="no dot products of bf16 here, got 'bf16', expected bf16w"):
        ingot.InferenceSession(linear(), precision="bf16")
    x = random(3, 64, seed=5)
    assert ingot.InferenceSession(linear(), precision="bf16w").run(None, {"x": x})[0].shape == (3, 64)


@pytest.mark.parametrize("name", MODELS)
def test_dot_products_have_one_definition(name: str) -> None:
    """A model has the same bits on every instruction set and any number of threads, with strip programs or without."""
    make, shape = MODELS[name]
    graph, results = make(), set()
    optimize(graph)
    sizes = dict(zip(graph.symbols, shape, strict=False))
    for isa, threads, strips in itertools.product(DOT_ISAS, (1, 3), (True, False)):
        options = {"threads": threads, "run_nanoseconds": 0, "part_nanoseconds": 1, "strips": strips}
        target = Target(isa, rounded=(bf16,), **options)
        compiled = compile_mode(graph, target, Mode(sizes=sizes, precision=PRECISIONS["bf16"]))
        (y,) = Program(compiled, WeightStore(1), Arena()).run([random(*shape, seed=9)])
        results.add(y.tobytes())
    assert len(results) == 1


def test_recurrent_layers_multiply_rounded_states() -> None:
    """Where those are pairs of numbers; names stay, and what is not multiplied is not rounded."""
    for name, rounded in {"lstm": True, "lstm, odd": False, "gru": True, "rnn": True}.items():
        whole = MODELS[name][0]()
        graph = Mode(precision=PRECISIONS["bf16"]).graph(whole)
        (before,), (node,) = ([n for n in g.nodes if n.op.name in ("lstm", "gru", "rnn")] for g in (whole, graph))
        assert (node.rounded, before.rounded) == (rounded, False) and node.outputs == before.outputs
        assert [a for a, b in zip(node.operands, before.operands, strict=True) if a != b] == [node.operands[1]]
        weights_alone = Mode(precision=PRECISIONS["bf16w"]).graph(whole)
        assert not any(node.attributes.get("rounded") for node in weights_alone.nodes)
        if "bf16" in RUNNABLE:
            session = ingot.InferenceSession(whole, precision="bf16", strict=True)
            kernels = [step.kernel for step in session.program.native[0].lowered.steps]
            assert f"{node.op.name}_{'bf16' if rounded else 'f32_bf16'}_packed" in kernels


@pytest.mark.parametrize("precision", [name for name in RUNNABLE if PRECISIONS[name].rows])
def test_nothing_is_cast_between_products(precision: str) -> None:
    """Norms, products and attention write bf16 themselves, and what is only read so is nowhere else."""
    session = ingot.InferenceSession(encoder(), precision=precision, threads=1)
    (native,) = session.program.native
    kernels = [step.kernel for step in native.lowered.steps]
    assert kernels == ["strip_f32", "gemm_bf16_packed", "attention_bf16", "gemm_bf16_packed"] * 1 + [
        "strip_f32", "gemm_bf16_packed", "gemm_bf16_packed"
    ]  # fmt: skip
    tensors = native.lowered.tensors.values()
    assert {t.kind for t in tensors if t.dtype is bf16} == {"weight", "activation"}
    assert sum(t.dtype is f32 and t.kind == "activation" for t in tensors) == 1  # the sum of the residual
    explained = session.explain()
    assert [*explained.rounded] == [(t.name, t.kind, "bf16") for t in tensors if t.dtype is bf16]
    assert "up: weight in bf16" in str(explained).replace(".bf16.f32", "").replace(".bf16", "")
    rows = session.plan.layout()["tensors"]
    assert {row["name"] for row in rows if row["dtype"] == "bf16"} == {name for name, _, _ in explained.rounded}


@pytest.mark.parametrize("precision", [name for name in RUNNABLE if PRECISIONS[name].rows])
def test_images_stay_rounded(precision: str) -> None:
    """Pools, concats, transposed convolutions and filters for each channel read and make bf16, too."""
    session = ingot.InferenceSession(stretch(), precision=precision, threads=1)
    (native,) = session.program.native
    assert [step.kernel for step in native.lowered.steps if not step.kernel.startswith("copy_b2")] == [
        "cast_f32_bf16", "conv2d_bf16_packed", "max_pool_bf16", "conv2d_bf16_winograd", "gemm_bf16_packed",
        "conv2d_bf16_winograd", "conv2d_bf16_depthwise", "conv2d_bf16_packed", "copy_b4",
    ]  # fmt: skip
    tensors = native.lowered.tensors.values()
    assert sum(t.dtype is f32 and t.kind == "activation" for t in tensors) == 1  # the output, with its channels last
