"""Models that `quantize_model` calibrates: compared with floats and ONNX Runtime's quantizer; the chosen kernels."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime import quantization

from ingot.errors import InputError, OutputError
from ingot.load.onnx import load_onnx
from ingot.passes import optimize
from ingot.quantize import quantize_model
from ingot.session.inference import InferenceSession
from kernel_calls import ISAS
from onnx_models import model, run_oracle, value_info
from op_cases import build, run, same_bits
from quantized_models import Arrays, F, Samples

pytestmark = pytest.mark.native

SHAPE = (2, 3, 20, 18)
KERNELS = {"quantize_u8", "integer_packed", "integer_depthwise", "max_pool_u8", "dequantize_u8", "view"}


def _conv(name: str, x: str, y: str, *, stride: int = 1, groups: int = 1, kernel: int = 3) -> onnx.NodeProto:
    return helper.make_node(
        "Conv", [x, f"{name}.w", f"{name}.b"], [y], name, kernel_shape=[kernel] * 2, pads=[kernel // 2] * 4,
        strides=[stride] * 2, group=groups,
    )  # fmt: skip


def network(rng: np.random.Generator) -> onnx.ModelProto:
    """A residual network: a first convolution, a pool, one for each channel, and two sums of branches."""
    shapes = {"a": (32, 3, 3, 3), "b": (48, 32, 1, 1), "c": (48, 1, 3, 3), "d": (32, 48, 1, 1), "e": (40, 32, 1, 1)}
    shapes |= {"f": (40, 32, 3, 3)}
    weights = [numpy_helper.from_array((rng.standard_normal(s) / np.sqrt(np.prod(s[1:]))).astype(F), f"{n}.w")
               for n, s in shapes.items()]  # fmt: skip
    weights += [numpy_helper.from_array((rng.standard_normal(s[0]) / 4).astype(F), f"{n}.b") for n, s in shapes.items()]
    weights += [numpy_helper.from_array(np.array(bound, F), f"bound{bound}") for bound in (0, 6)]
    nodes = [
        _conv("a", "x", "a", stride=2), helper.make_node("Relu", ["a"], ["ar"]),
        helper.make_node("MaxPool", ["ar"], ["p"], kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1]),
        _conv("b", "p", "b", kernel=1), helper.make_node("Clip", ["b", "bound0", "bound6"], ["bc"]),
        _conv("c", "bc", "c", groups=48), helper.make_node("Clip", ["c", "bound0", "bound6"], ["cc"]),
        _conv("d", "cc", "d", kernel=1), helper.make_node("Add", ["d", "p"], ["s"]),
        _conv("e", "s", "e", stride=2, kernel=1), _conv("f", "s", "f", stride=2),
        helper.make_node("Add", ["e", "f"], ["t"]), helper.make_node("Relu", ["t"], ["y"]),
    ]  # fmt: skip
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    return model(helper.make_graph(nodes, "network", [value_info("x", np.zeros(SHAPE, F))], outputs, weights), 17)


@pytest.fixture
def rng() -> np.random.Generator:
    """Always the same: what is compared are two roundings, of which either may be the nearer by chance."""
    return np.random.default_rng(7)


def feeds(rng: np.random.Generator, count: int) -> list[Arrays]:
    return [{"x": rng.standard_normal(SHAPE).astype(F)} for _ in range(count)]


def kernels(session: InferenceSession) -> list[str]:
    return [line.split(" -> ")[1].split()[0] for line in str(session.explain()).splitlines() if " -> " in line]


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """The root of the mean square of a difference, relative."""
    return float(np.sqrt(np.square(a - b, dtype=np.float64).mean() / np.square(b, dtype=np.float64).mean()))


def shift(a: np.ndarray, b: np.ndarray) -> float:
    """The same of the means of channels, which many samples of a random difference leave near 0."""
    return distance(a.mean((0, 2, 3)), b.mean((0, 2, 3)))


@pytest.fixture
def quantized(tmp_path: Path, rng: np.random.Generator) -> tuple[Path, Path, list[Arrays]]:
    """The model in floats, as ours, and what both were calibrated with."""
    source, target, samples = tmp_path / "float.onnx", tmp_path / "integer.onnx", feeds(rng, 8)
    onnx.save(network(rng), source)
    made = quantize_model(source, target, samples)
    assert (made.coded, made.kept) == (6, 0)
    return source, target, samples


def test_calibrated_models_multiply_integers(quantized, rng) -> None:
    """As near to floats as another quantizer's model on the same samples, and the same numbers in another engine."""
    source, target, samples = quantized
    theirs = target.with_name("theirs.onnx")
    quantization.quantize_static(source, theirs, Samples(samples), per_channel=True)
    (fresh,) = feeds(rng, 1)
    exact = run_oracle("ort", onnx.load(source), fresh)[0]
    session = InferenceSession(target, strict=True, threads=2)
    (y,) = session.run(None, fresh)
    found = kernels(session)
    assert {*found} <= KERNELS and found.count("integer_packed") == 5 and found.count("integer_depthwise") == 1
    other = run_oracle("ort", onnx.load(theirs), fresh)[0]
    assert distance(y, exact) < min(0.02, distance(other, exact))
    assert shift(y, exact) < 0.5 * shift(other, exact)
    assert distance(y, run_oracle("ort", onnx.load(target), fresh)[0]) < 0.01
    graph = load_onnx(str(target))
    optimize(graph)
    results = [run(build(graph, isa=isa, threads=threads), fresh)[0] for isa in ISAS for threads in (1, 2)]
    assert all(same_bits(y, each) for each in results)


def test_scales_of_channels(quantized) -> None:
    """What a filter of a channel each reads has a scale for each, where nothing is negative; all others have one."""
    _, target, _ = quantized
    graph = onnx.load(target).graph
    arrays = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    sizes = [arrays[node.input[1]].size for node in graph.node if node.op_type == "QuantizeLinear"]
    assert sorted(sizes) == [1, 1, 1, 1, 48]


def test_what_cannot_be_calibrated(quantized, tmp_path) -> None:
    source, target, samples = quantized
    with pytest.raises(OutputError, match="exists"):
        quantize_model(source, target, samples)
    with pytest.raises(InputError, match="samples: got none"):
        quantize_model(source, tmp_path / "other.onnx", [])
    with pytest.raises(InputError, match="expected finite numbers"):
        quantize_model(source, tmp_path / "other.onnx", [{"x": np.full(SHAPE, np.inf, F)}])
    with pytest.raises(InputError, match="nothing to quantize, got 0 products with constant float weights"):
        quantize_model(target, tmp_path / "other.onnx", samples)
    assert not (tmp_path / "other.onnx").exists()


class AsNncf:
    """A model as NNCF writes ONNX: i8 filters with a scale each, biases of floats, u8 activations with one or for each
    channel one.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def rounded(self, x: str, scale: float | np.ndarray, zero: int) -> str:
        scales = np.array(scale, F)
        steps = [self.constant(f"{x}.s", scales), self.constant(f"{x}.z", np.full(scales.shape, zero, np.uint8))]
        self.nodes.append(helper.make_node("QuantizeLinear", [x, *steps], [f"{x}.q"], axis=1))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{x}.q", *steps], [f"{x}.d"], axis=1))
        return f"{x}.d"

    def conv(self, name: str, x: str, shape: tuple[int, ...], stride: int = 1, groups: int = 1) -> str:
        codes = self.constant(f"{name}.c", self.rng.integers(-127, 128, shape).astype(np.int8))
        scale = self.constant(f"{name}.ws", self.rng.uniform(0.001, 0.004, shape[0]).astype(F))
        zeros = self.constant(f"{name}.wz", np.zeros(shape[0], np.int8))
        self.nodes.append(helper.make_node("DequantizeLinear", [codes, scale, zeros], [f"{name}.w"], axis=0))
        self.constant(f"{name}.b", self.rng.standard_normal(shape[0]).astype(F))
        self.nodes.append(_conv(name, x, name, stride=stride, groups=groups, kernel=shape[2]))
        return name

    def then(self, op: str, y: str, *operands: str) -> str:
        self.nodes.append(helper.make_node(op, operands, [y]))
        return y

    def check(self, x: str, scale: float, expected: list[str]) -> None:
        """That a result is within a step of ONNX Runtime's, on kernels of integers alone."""
        self.then("Identity", "y", self.rounded(x, scale, 0))
        outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
        inputs = [value_info("x", np.zeros(SHAPE, F))]
        proto = model(helper.make_graph(self.nodes, "n", inputs, outputs, self.constants), 17)
        (fed,) = feeds(self.rng, 1)
        session = InferenceSession(proto.SerializeToString(), strict=True)
        (y,) = session.run(None, fed)
        steps = np.abs(y - run_oracle("ort", proto, fed)[0]) / scale
        assert steps.max() < 2.01 and (steps > 0.01).mean() < 0.01  # a step of one layer may become another
        assert kernels(session) == ["quantize_u8", *expected, "dequantize_u8"]


def test_float_biases_of_quantized_weights(rng) -> None:
    """Sums of quantized branches are the end of a product's step."""
    made = AsNncf(rng)
    a = made.conv("a", made.rounded("x", 0.03, 128), (24, 3, 3, 3), stride=2)
    a = made.rounded(made.then("Relu", "ar", a), 0.02, 0)
    b = made.rounded(made.conv("b", a, (24, 1, 5, 5), groups=24), 0.05, 110)
    c = made.rounded(made.conv("c", b, (24, 24, 1, 1)), 0.04, 120)
    y = made.then("Relu", "sr", made.then("Add", "s", c, a))
    made.check(y, 0.04, ["integer_packed", "integer_depthwise", "integer_packed"])


@pytest.mark.parametrize("bound", [6, 1])
def test_a_scale_for_each_channel(bound: int, rng) -> None:
    """With filters of a channel each; if quantized bounds differ from the float bounds, the float ones apply first."""
    made = AsNncf(rng)
    bounds = [made.constant(f"b{value}", np.array(value, F)) for value in (0, bound)]
    a = made.conv("a", made.rounded("x", 0.03, 128), (300, 3, 1, 1))
    a = made.rounded(made.then("Clip", "ac", a, *bounds), rng.uniform(0.005, 0.02, 300), 0)
    b = made.conv("b", a, (300, 1, 3, 3), groups=300)
    before = ["integer_packed"] if bound == 6 else ["integer_packed", "quantize_u8"]
    made.check(made.then("Relu", "br", b), 0.04, [*before, "integer_depthwise"])
