"""Every row of the table of gradients against central differences in float64, and against torch.autograd.

The cases are the ops' samples: an op with a row brings its tests. Where an op has a kink, the samples stay off it.
"""

import numpy as np
import pytest
import torch

import ingot.ops  # noqa: F401
import special_oracles
from ingot.errors import UnsupportedError
from ingot.gradients import FLAT, MISSING, differentiate
from ingot.ir.dtype import f32
from ingot.ir.graph import OPS, Graph, TensorType
from ingot.ir.text import dump, parse
from ingot.passes import optimize
from ingot.run.interpret import interpret
from op_cases import build, one_node, run
from torch_oracles import ORACLE

STEP = 1e-5
FLOW = [name for name, op in OPS.items() if name not in FLAT and name not in MISSING]
PLAIN = {"lstm": {("sigmoid", "tanh", "tanh")}, "gru": {("sigmoid", "tanh")}, "rnn": {("tanh",), ("relu",)}}
TRAINED_ATTRIBUTES = {
    "scatter_elements": lambda sample: sample.attributes["reduction"] in ("none", "add"),
    "roi_align": lambda sample: sample.attributes["ratio"] > 0,
} | {
    name: lambda sample, plain=plain: (
        sample.attributes["activations"] in plain
        and len(sample.operands.split()) <= 4
        and " n:" not in sample.operands
        and not {"clip", "input_forget"} & set(sample.attributes)
        and "1200" not in sample.operands
    )
    for name, plain in PLAIN.items()
}


def is_trained(op, sample):
    """Whether a sample has a float operand through which something flows, and a float result that is all finite."""
    if not TRAINED_ATTRIBUTES.get(op.name, lambda sample: True)(sample):
        return False
    try:
        graph, feeds = one_node(op, sample)
    except ValueError:
        return False
    results = interpret(graph, feeds, float64=True)
    floats = [results[name] for name in graph.outputs if graph.type(graph.outputs[name]).dtype.kind == "f"]
    is_fed = any(graph.type(name).dtype is f32 for name in graph.inputs)
    return is_fed and bool(floats) and all(np.isfinite(each).all() for each in floats)


CASES = [
    pytest.param(OPS[name], sample, id=f"{name}-{i}")
    for name in FLOW
    for i, sample in enumerate(OPS[name].samples)
    if is_trained(OPS[name], sample)
]
FIRST = list({case.values[0].name: case for case in reversed(CASES)}.values())


def with_loss(op, sample, seed=3):
    """A graph of one node and a loss: the sum of its float results times numbers of their own; its feeds; the inputs
    that are floats.
    """
    graph, feeds = one_node(op, sample)
    rng = np.random.default_rng(seed)
    terms = []
    for external, value in list(graph.outputs.items()):
        graph.remove_output(external)
        type = graph.type(value)
        if type.dtype.kind != "f":
            continue
        weights = graph.add_constant(f"weights_{external}", rng.uniform(0.5, 1.5, type.dims).astype(type.dtype.numpy))
        product = graph.add("mul", [value, weights]).output
        term = graph.add("reduce_sum", [product], axes=tuple(range(type.rank)), keepdims=False).output
        terms.append(graph.add("cast", [term], dtype=f32).output)
    loss = terms[0]
    for term in terms[1:]:
        loss = graph.add("add", [loss, term]).output
    graph.set_output("loss", loss)
    return graph, feeds, [name for name in graph.inputs if graph.type(name).dtype is f32]


def with_gradients(op, sample):
    """As `with_loss`, with outputs `d x0` and so on."""
    graph, feeds, floats = with_loss(op, sample)
    found = differentiate(graph, graph.outputs["loss"], floats)
    for name, value in found.items():
        graph.set_output(f"d {name}", value)
    graph.validate()
    return graph, feeds, found


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_gradients_are_those_of_finite_differences(op, sample):
    graph, feeds, floats = with_loss(op, sample)
    trained, _, found = with_gradients(op, sample)
    wide = {name: array.astype(np.float64) if name in floats else array for name, array in feeds.items()}
    results = interpret(trained, wide, float64=True)
    rng = np.random.default_rng(5)
    for name in floats:
        if name not in found:
            gradient = np.zeros(feeds[name].shape)
        else:
            assert trained.type(found[name]) == trained.type(name)
            gradient = results[f"d {name}"]
        direction = rng.uniform(-1, 1, gradient.shape)
        ends = [
            interpret(graph, wide | {name: np.asarray(wide[name] + side * STEP * direction)}, float64=True)["loss"]
            for side in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / (2 * STEP)
        scale = np.sum(np.abs(gradient * direction)) + 1e-3 * np.abs(ends[0]) + 1
        assert abs(slope - np.sum(gradient * direction)) <= 2e-6 * scale, name


# torch sorts for topk, whole; trains no statistics; and gives NaN where NaN was replaced. Its own gradients end there.
# It has no spectra of nothing.
NOT_IN_TORCH = {"topk", "batch_norm", *(name for name in OPS if name.endswith("_gradient"))}
SPECTRA = {"fft", "rfft", "irfft"}
IN_TORCH = [
    case
    for case in CASES
    if case.values[0].name in ORACLE.keys() - NOT_IN_TORCH
    and not case.values[1].attributes.get("zero_nan")
    and not (case.values[0].name in SPECTRA and "[0," in case.values[1].operands)
]


@pytest.mark.parametrize(("op", "sample"), IN_TORCH)
def test_gradients_are_those_of_torch(op, sample):
    trained, feeds, _ = with_gradients(op, sample)
    graph, _, floats = with_loss(op, sample)
    tensors = {
        name: torch.from_numpy(a.astype(np.float64) if name in floats else a).requires_grad_(name in floats)
        for name, a in feeds.items()
    }
    node = next(iter(one_node(op, sample)[0].nodes))
    made = ORACLE[op.name](*(None if o is None else tensors[o] for o in node.operands), **sample.attributes)
    made = made if isinstance(made, (tuple, list)) else (made,)
    loss = torch.zeros((), dtype=torch.float64)
    for i, each in enumerate(made):
        if each.dtype.is_floating_point:
            loss = loss + (each * torch.from_numpy(graph.values[f"weights_y{i}"].data.astype(np.float64))).sum()
    if loss.requires_grad:
        loss.backward()
    results = interpret(trained, feeds, float64=True)
    for name in floats:
        wanted = tensors[name].grad
        wanted = np.zeros(feeds[name].shape) if wanted is None else wanted.numpy()
        got = results.get(f"d {name}", np.zeros_like(wanted))
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6 * max(1, np.abs(wanted).max(initial=0)))


@pytest.mark.parametrize(("op", "sample"), FIRST)
def test_gradients_are_a_program_like_any_other(op, sample):
    """Text, passes, lowering, planner, verifier and kernels take them; f32 is within what its sums cost."""
    graph, feeds, _ = with_gradients(op, sample)
    assert dump(parse(dump(graph))) == dump(graph)
    expected = interpret(graph, feeds, float64=True)
    optimize(graph)
    program = build(graph)
    assert {line.split()[0] for line in program.fallback} <= special_oracles.ORACLE.keys()  # no kernel computes these
    for name, result in zip(graph.outputs, run(program, feeds), strict=True):
        wanted = expected[name]
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=2e-5 * max(1, np.abs(wanted).max(initial=0)))


def test_second_use_adds_and_unwanted_gradients_are_not_computed():
    graph = parse(
        """
        graph two
        input x: f32[3, 4]
        input w: f32[4, 4]
        h = matmul(x, w): f32[3, 4]
        t = tanh(h): f32[3, 4]
        y = matmul(t, w): f32[3, 4]
        loss = reduce_sum(y, axes=[0, 1], keepdims=false): f32[]
        """
    )
    found = differentiate(graph, "loss", ["w"])
    assert list(found) == ["w"]
    made = [node.op.name for node in graph.nodes][4:]
    assert made.count("matmul") == 3, "no gradient of x"
    assert graph.producer(found["w"]).op.name == "add"
    assert differentiate(graph, "loss", []) == {}
    assert [node.op.name for node in graph.nodes][4:] == made


def test_second_derivatives_are_those_of_torch():
    """Of the square of all gradients, which depends on every weight again."""
    graph = parse(
        """
        graph twice
        input x: f32[5, 4]
        input w: f32[4, 6]
        input v: f32[6, 3]
        h = matmul(x, w): f32[5, 6]
        t = tanh(h): f32[5, 6]
        s = matmul(t, v): f32[5, 3]
        p = softmax(s, axis=1): f32[5, 3]
        q = mul(p, p): f32[5, 3]
        loss = reduce_mean(q, axes=[0, 1], keepdims=false): f32[]
        """
    )
    squares = []
    for gradient in differentiate(graph, "loss", ["w", "v"]).values():
        square = graph.add("mul", [gradient, gradient]).output
        squares.append(graph.add("reduce_sum", [square], axes=(0, 1), keepdims=False).output)
    total = graph.add("add", squares, "total").output
    for name, gradient in differentiate(graph, total, ["w", "v"]).items():
        graph.set_output(name, gradient)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(graph.type(name).dims) for name in ("x", "w", "v")}
    x, *weights = (torch.from_numpy(feeds[name]).requires_grad_(name != "x") for name in ("x", "w", "v"))
    loss = (torch.tanh(x @ weights[0]) @ weights[1]).softmax(1).square().mean()
    first = torch.autograd.grad(loss, weights, create_graph=True)
    expected = torch.autograd.grad(sum(each.square().sum() for each in first), weights)
    found = interpret(graph, feeds, float64=True)
    for name, wanted in zip(("w", "v"), expected, strict=True):
        np.testing.assert_allclose(found[name], wanted.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("order", "op"), [([2, 0, 3, 1], "gather"), ([2, 0, 3, 3], "scatter_elements")])
def test_what_is_in_an_order_is_gathered_back(order: list[int], op: str):
    """Where nothing is read twice, nothing is to be added up."""
    graph = parse(
        f"""
        graph ordered
        input x: f32[3, 4]
        constant order: i32[4] = {order}
        h = gather(x, order, axis=1): f32[3, 4]
        q = mul(h, h): f32[3, 4]
        loss = reduce_sum(q, axes=[0, 1], keepdims=false): f32[]
        """
    )
    gradient = differentiate(graph, "loss", ["x"])["x"]
    assert graph.producer(gradient).op.name == op
    graph.set_output("dx", gradient)
    x = np.random.default_rng(0).standard_normal((3, 4))
    wanted = 2 * x * np.bincount(order, minlength=4)
    np.testing.assert_allclose(interpret(graph, {"x": x}, float64=True)["dx"], wanted, rtol=1e-12)


def test_all_ops_without_a_gradient_are_named_at_once():
    graph = Graph("stuck")
    x = graph.add_input("x", TensorType(f32, (2, 3, 3)))
    det = graph.add("det", [x], "volume").output
    product = graph.add("cumprod", [det], "so_far", axis=0).output
    loss = graph.add("reduce_sum", [product], "loss", axes=(0,), keepdims=False).output
    nodes = len(graph)
    with pytest.raises(
        UnsupportedError, match=r"got det 'volume', no op computes the cofactors .*; cumprod 'so_far', a quotient"
    ):
        differentiate(graph, loss, ["x"])
    assert len(graph) == nodes
