"""Precision as an option of sessions: what is rounded, against float64, what programs keep of it, who refuses it."""

import itertools

import numpy as np
import pytest
from ml_dtypes import bfloat16

import ingot
from ingot.compile import Mode, compile_mode
from ingot.errors import InputError, UnsupportedError
from ingot.ir.dtype import bf16, f32, i8
from ingot.ir.graph import Graph, TensorType
from ingot.lower import Target
from ingot.passes import optimize
from ingot.passes.precision import PRECISIONS
from ingot.run.arena import Arena
from ingot.run.interpret import interpret
from ingot.run.library import load
from ingot.run.program import Program
from ingot.run.store import WeightStore
from kernel_calls import DOT_ISAS, LIBRARY, SPLIT_ISAS
from rounded_graphs import MODELS, encoder, image, linear, picture, random, stretch, weight

pytestmark = pytest.mark.native

ROUNDED = [name for name, precision in PRECISIONS.items() if precision.weights is bf16]
DOTS = [(None, False), *LIBRARY.dots(LIBRARY.isa())]
RUNNABLE = [name for name in ROUNDED if (PRECISIONS[name].rows, PRECISIONS[name].split_sums) in DOTS]
QUANTIZED = [name for name, precision in PRECISIONS.items() if precision.rows is i8]
TOLERANCE = 2**-6  # of the largest output: roundings of 2^-9 in each of some layers


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


@pytest.mark.parametrize("precision", RUNNABLE + QUANTIZED)
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


@pytest.mark.parametrize("precision", RUNNABLE + QUANTIZED)
def test_a_saved_program_keeps_it(tmp_path, precision: str) -> None:
    session, x = ingot.InferenceSession(linear(), precision=precision, dims={"rows": 5}), random(5, 64, seed=4)
    session.save(tmp_path / "program")
    loaded = ingot.InferenceSession(tmp_path / "program")
    assert loaded.precision is session.precision is PRECISIONS[precision]
    assert loaded.run(None, {"x": x})[0].tobytes() == session.run(None, {"x": x})[0].tobytes()
    with pytest.raises(InputError, match=f"not what was saved, got f32, expected {precision}"):
        ingot.InferenceSession(tmp_path / "program", precision="f32")


def test_without_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session refuses, and lists the supported ones."""
    monkeypatch.setenv("INGOT_ISA", "scalar")
    assert not load().dots(load().isa())
    for precision, lacking in {"bf16": "dot products", "bf16amx": "tiles"}.items():
        with pytest.raises(UnsupportedError, match=f"no {lacking} of bf16 here, got '{precision}', expected bf16w"):
            ingot.InferenceSession(linear(), precision=precision)
    x = random(3, 64, seed=5)
    assert ingot.InferenceSession(linear(), precision="bf16w").run(None, {"x": x})[0].shape == (3, 64)


@pytest.mark.parametrize("precision", ["bf16", "bf16amx"])
@pytest.mark.parametrize("name", MODELS)
def test_dot_products_have_one_definition(name: str, precision: str) -> None:
    """A model has the same bits on every instruction set and any number of threads, with fused programs or without."""
    make, shape = MODELS[name]
    graph, results = make(), set()
    optimize(graph)
    sizes = dict(zip(graph.symbols, shape, strict=False))
    apart = PRECISIONS[precision].split_sums
    for isa, threads, fuses in itertools.product(SPLIT_ISAS if apart else DOT_ISAS, (1, 3), (True, False)):
        options = {"threads": threads, "run_nanoseconds": 0, "task_nanoseconds": 1, "fuses": fuses}
        target = Target(isa, rounded=(bf16,), split_sums=apart, **options)
        compiled = compile_mode(graph, target, Mode(sizes=sizes, precision=PRECISIONS[precision]))
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
    attention = "attention_bf16_tiles" if PRECISIONS[precision].split_sums else "attention_bf16"
    assert kernels == ["fused_f32", "gemm_bf16_packed", attention, "gemm_bf16_packed"] * 1 + [
        "fused_f32", "gemm_bf16_packed", "gemm_bf16_packed"
    ]  # fmt: skip
    tensors = native.lowered.tensors.values()
    assert {t.kind for t in tensors if t.dtype is bf16} == {"weight", "activation"}
    assert sum(t.dtype is f32 and t.kind == "activation" for t in tensors) == 1  # the sum of the residual
    explained = session.explain()
    assert [*explained.rounded] == [(t.name, t.kind, "bf16") for t in tensors if t.dtype is bf16]
    assert "up: weight in bf16" in str(explained).replace(".bf16.f32", "").replace(".bf16", "")
    rows = session.plan.layout()["tensors"]
    assert {row["name"] for row in rows if row["dtype"] == "bf16"} == {name for name, _, _ in explained.rounded}


@pytest.mark.parametrize("precision", ["f32", *RUNNABLE])
def test_halved_lines_go_into_dot_products(precision: str) -> None:
    """Where images are rounded; floats take fewer products instead."""
    graph = Graph("lines")
    x = graph.add_input("x", TensorType(f32, (1, 256, 1, 33)))
    options = {"strides": (1, 2), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
    graph.set_output("y", graph.add("conv", [x, weight(graph, "w", 256, 256, 1, 3)], **options).output)
    session = ingot.InferenceSession(graph, precision=precision, threads=1)
    made = {step.kernel for step in session.program.native[0].lowered.steps if step.kernel.startswith("conv2d")}
    way = "tiles" if PRECISIONS[precision].split_sums else "packed"
    assert made == {f"conv2d_bf16_{way}" if PRECISIONS[precision].rows else "conv2d_f32_lines"}


@pytest.mark.parametrize("precision", [name for name in RUNNABLE if PRECISIONS[name].rows])
def test_images_stay_rounded(precision: str) -> None:
    """Pools, concats, transposed convolutions and filters for each channel read and make bf16, too."""
    session = ingot.InferenceSession(stretch(), precision=precision, threads=1)
    (native,) = session.program.native
    ways = ["tiles"] * 4 if PRECISIONS[precision].split_sums else ["packed", "winograd", "winograd", "packed"]
    a, b, c, d = (f"conv2d_bf16_{way}" for way in ways)
    assert [step.kernel for step in native.lowered.steps if not step.kernel.startswith("copy_b2")] == [
        "cast_f32_bf16", a, "max_pool_bf16", b, "gemm_bf16_packed", c, "conv2d_bf16_depthwise", d, "copy_b4",
    ]  # fmt: skip
    tensors = native.lowered.tensors.values()
    assert sum(t.dtype is f32 and t.kind == "activation" for t in tensors) == 1  # the output, with its channels last
