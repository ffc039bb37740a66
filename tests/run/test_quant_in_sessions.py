"""Sessions with a quantizing precision: bounds of the error from float64, matrices that stay f32, the same bits."""

import itertools

import numpy as np
import pytest
import torch

import ingot
from ingot.compile import Mode, compile_mode
from ingot.ir.dtype import DType, f32, i4, i8
from ingot.ir.graph import Graph, TensorType
from ingot.lower import Target
from ingot.passes import optimize
from ingot.passes.precision import PRECISIONS
from ingot.run.arena import Arena
from ingot.run.interpret import interpret
from ingot.run.program import Program
from ingot.run.store import WeightStore
from kernel_calls import ISAS

pytestmark = pytest.mark.native

GROUP = 32  # of int4; a row of int8 has one scale
SLACK = 1.01  # f16 scales, and sums of floats


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def product(m: int, k: int, n: int, transposed: bool) -> tuple[Graph, np.ndarray, np.ndarray]:
    """rows times a matrix, which a norm follows: no classifier."""
    graph, w, x = Graph("product"), random(k, n, seed=1), random(m, k, seed=2) * 2
    graph.add_input("x", TensorType(f32, (m, k)))
    weight = graph.add_weight("w", np.ascontiguousarray(w.T) if transposed else w)
    y = graph.add("matmul", ["x", weight], transpose_b=transposed).output
    graph.set_output("y", graph.add("concat", [y, y], axis=0).output)
    return graph, x, w


def spread(values: np.ndarray, size: int, k: int) -> np.ndarray:
    """A number of each group of the last axis, for each element."""
    return np.repeat(values, size, -1)[..., :k]


def groups_of(x: np.ndarray, size: int) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, -x.shape[1] % size)))
    return padded.reshape(len(x), -1, size)


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("sizes", [(1, 64, 64), (5, 96, 70), (40, 320, 128)])
def test_products_are_as_near_as_steps(sizes: tuple[int, int, int], transposed: bool, precision: str) -> None:
    """Each element of a matrix moves by half a step, and so does each of a row."""
    graph, x, w = product(*sizes, transposed)
    k = sizes[1]
    (y,) = ingot.InferenceSession(graph, precision=precision, threads=2).run(None, {"x": x})
    size = k if precision == "int8" else GROUP
    most = abs(groups_of(w.T.astype(float), size)).max(2)
    # The code 8 of 4 bits that is missing is a whole step away.
    off_w = spread(most / 127 / 2 if precision == "int8" else most / 8, size, k).T
    off_x = spread(abs(groups_of(x.astype(float), 256)).max(2) / 127 / 2, 256, k)
    bound = abs(x) @ off_w + off_x @ (abs(w) + off_w)
    error = abs(y[: len(x)] - x.astype(float) @ w)
    assert (error <= SLACK * bound).all()
    assert error.max() > 0.01 * bound.max()


@pytest.mark.parametrize("precision", ["int8", "int4"])
@pytest.mark.parametrize("made", ["slice", "reshape", "gather"])
def test_matrices_computed_from_others(made: str, precision: str) -> None:
    """Codes are those of what a graph makes of a weight that has other rows, as slices of one for three products do."""
    results, (m, k, n) = [], (3, 64, 96)
    w, x = random(2 * n, k, seed=1), random(m, k, seed=2)
    for is_made in (True, False):
        graph = Graph("product")
        graph.add_input("x", TensorType(f32, (m, k)))
        if not is_made:
            weight = graph.add_weight("w", w[n:].copy())
        elif made == "slice":
            whole = graph.add_weight("whole", w)
            weight = graph.add("slice", [whole], starts=(n, 0), stops=(2 * n, k), steps=(1, 1)).output
        elif made == "reshape":
            weight = graph.add("reshape", [graph.add_weight("flat", w[n:].ravel())], shape=(n, k)).output
        else:
            last = graph.add_weight("last", np.arange(n, 2 * n))
            weight = graph.add("gather", [graph.add_weight("whole", w), last], axis=0).output
        y = graph.add("matmul", ["x", weight], transpose_b=True).output
        graph.set_output("y", graph.add("concat", [y, y], axis=0).output)
        session = ingot.InferenceSession(graph, precision=precision, threads=1, passes=())  # which would fold it
        assert "gemm_int" in str(session.explain())
        results.append(session.run(None, {"x": x})[0])
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("channels", [3, 16, 36])
def test_convolutions_are_as_near_as_steps(channels: int, kernel: int, groups: int) -> None:
    """Steps are those of an image's range in 255, and of an output channel's filter in 127."""
    channels *= groups
    x, w = abs(random(2, channels, 9, 8, seed=1)), random(40 * groups, channels // groups, kernel, kernel, seed=2)
    x[1] -= 1
    graph = Graph("image")
    graph.add_input("x", TensorType(f32, x.shape))
    attributes = {"strides": (1, 1), "dilations": (1, 1), "groups": groups, "pads": (kernel // 2,) * 4}
    y = graph.add("conv", ["x", graph.add_weight("w", w)], **attributes).output
    graph.set_output("y", graph.add("relu", [y]).output)
    session = ingot.InferenceSession(graph, precision="int8", threads=2)
    (y,) = session.run(None, {"x": x})
    (reference,) = ingot.InferenceSession(graph, precision="int8", executor="interpret").run(None, {"x": x})

    def conv(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = (torch.from_numpy(np.asarray(v, np.float64)) for v in (a, b))
        return torch.nn.functional.conv2d(a, b, padding=kernel // 2, groups=groups).numpy()

    axes = (1, 2, 3)
    off_x = (np.maximum(x.max(axes), 0) - np.minimum(x.min(axes), 0)).reshape(2, 1, 1, 1) / 255 / 2
    off_w = np.broadcast_to(abs(w).max(axes, keepdims=True) / 127 / 2, w.shape)
    by_rows = conv(np.broadcast_to(off_x, x.shape), abs(w) + off_w)
    exact, kept = np.maximum(conv(x, w), 0), "integer_packed" not in str(session.explain())
    assert kept == (channels * kernel**2 // groups < 16 or (channels // groups % 4 > 0 and groups > 1))
    # The zero point is rounded, too: an element may be a whole step away from its code.
    bound = 1e-5 * conv(abs(x), abs(w)) if kept else SLACK * (conv(abs(x), off_w) + 2 * by_rows)
    assert (abs(y - exact) <= bound).all()
    assert (abs(y - reference) <= (bound if kept else SLACK * 2 * by_rows)).all()


def network() -> Graph:
    """Convolutions of all kinds, then products, attention-like reshapes and a classifier."""
    graph = Graph("network")
    x = graph.add_input("x", TensorType(f32, (3, 3, 18, 17)))
    for i, (channels, out, kernel, stride, groups) in enumerate(
        [(3, 32, 3, 2, 1), (32, 32, 3, 1, 32), (32, 64, 1, 1, 1), (64, 64, 3, 1, 2), (64, 96, 1, 2, 1)]
    ):
        weight = graph.add_weight(f"w{i}", random(out, channels // groups, kernel, kernel, seed=i) / np.float32(8))
        attributes = {"strides": (stride,) * 2, "dilations": (1, 1), "groups": groups, "pads": (kernel // 2,) * 4}
        y = graph.add("conv", [x, weight, graph.add_weight(f"b{i}", random(out, seed=9))], **attributes).output
        x = graph.add("clip", [y], minimum=0.0, maximum=6.0).output
    rows = graph.add("permute", [graph.add("reshape", [x], shape=(3, 96, 25)).output], axes=(0, 2, 1)).output
    rows = graph.add("matmul", [rows, graph.add_weight("up", random(96, 128, seed=6))]).output
    rows = graph.add("matmul", [graph.add("gelu", [rows], approximate="erf").output, graph.add_weight(
        "down", random(96, 128, seed=7))], transpose_b=True).output  # fmt: skip
    pooled = graph.add("reduce_mean", [rows], axes=(1,), keepdims=False).output
    classes = graph.add("matmul", [pooled, graph.add_weight("head", random(96, 100, seed=8))]).output
    classes = graph.add("add", [classes, graph.add_weight("bias", random(100, seed=9))]).output
    graph.set_output("y", graph.add("softmax", [classes], axis=1).output)
    graph.set_output("z", rows)
    return graph


def coded(graph: Graph) -> dict[str, DType]:
    """Return the quantized weights of a graph, with their dtypes."""
    found = {}
    for node in graph.nodes:
        if node.op.name in ("quantize", "quantize_groups"):
            source = node.operands[0]
            while graph.producer(source) is not None:
                source = graph.producer(source).operands[0]
            found[source] = node.dtype
    return found


def test_what_stays() -> None:
    """A classifier, depthwise filters, small matrices, one with transposed rows; filters have 8 bits."""
    whole = network()
    optimize(whole)
    for precision, dtype in (("int8", i8), ("int4", i4)):
        graph = Mode(precision=PRECISIONS[precision]).graph(whole)
        assert coded(graph) == {"w0": i8, "w2": i8, "w3": i8, "w4": i8, "up": dtype, "down": dtype}
    for k, n in ((32, 64), (64, 32), (72, 64)):
        assert not coded(Mode(precision=PRECISIONS["int8"]).graph(product(2, k, n, True)[0]))
    columns = Graph("columns")
    columns.add_input("x", TensorType(f32, (128, 5)))
    y = columns.add("matmul", ["x", columns.add_weight("w", random(128, 96, seed=3))], transpose_a=True).output
    columns.set_output("y", columns.add("concat", [y, y], axis=0).output)
    assert not coded(Mode(precision=PRECISIONS["int8"]).graph(columns))


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_bits(precision: str) -> None:
    """A network has the same on every instruction set and any number of threads, an image the same in any batch."""
    graph, x, results = network(), abs(random(3, 3, 18, 17, seed=4)), set()
    optimize(graph)
    for isa, threads in itertools.product(ISAS, (1, 3)):
        target = Target(isa, threads, rounded=(i8,), run_nanoseconds=0, task_nanoseconds=1)
        compiled = compile_mode(graph, target, Mode(precision=PRECISIONS[precision]))
        results.add(b"".join(y.tobytes() for y in Program(compiled, WeightStore(1), Arena()).run([x])))
    assert len(results) == 1
    exact = interpret(network(), {"x": x}, float64=True)["z"]
    (z,) = ingot.InferenceSession(network(), precision=precision).run(["z"], {"x": x})
    assert abs(z - exact).max() < (0.04 if precision == "int8" else 0.3) * abs(exact).max()


def test_explained() -> None:
    """What is kept in few bits is named, with its dtype, there and in the layout."""
    session = ingot.InferenceSession(network(), precision="int8", threads=1)
    rounded = session.explain().rounded
    assert {dtype for _, kind, dtype in rounded if kind == "activation"} == {"i8", "u8"}
    assert sum(kind == "weight" for _, kind, _ in rounded) == 6
    rows = session.plan.layout()["tensors"]
    named = {(row["name"], row["dtype"]) for row in rows if row["kind"] in ("weight", "activation")}
    assert {(name, dtype) for name, _, dtype in rounded} <= named
