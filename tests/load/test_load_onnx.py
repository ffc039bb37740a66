"""Every ONNX rule against ONNX Runtime or ONNX's reference; symbolic dims, old opsets, functions, exported modules."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import parser

import models
from built_by_rules import REWRITE, ops_of_onnx
from ingot.errors import InputError, UnsupportedError
from ingot.ir.dim import symbol
from ingot.ir.text import dump, parse
from ingot.load.built_ops import read_table
from ingot.load.hub import SHIPPED
from ingot.load.onnx import load_onnx
from ingot.load.onnx.registry import RULES, foreign_name
from ingot.run.interpret import interpret
from onnx_cases import INTEGERS, INTEGERS_BY_REFERENCE, NODES, SYMBOLIC
from onnx_export import export_onnx
from onnx_math_cases import MULTINOMIAL, RANDOM
from onnx_models import Case, model, one_node, run_oracle, text_model, value_info

F = np.float32


@pytest.mark.parametrize("case", NODES, ids=str)
def test_rule(case: Case, rng: np.random.Generator) -> None:
    proto, feeds = one_node(case, rng)
    expected = run_oracle(case.oracle, proto, feeds)
    graph = load_onnx(proto.SerializeToString())
    graph.validate()
    assert not any(node.op.name == "dims" for node in graph.nodes)
    results = list(interpret(graph, feeds).values())
    for got, wanted in zip(results, expected, strict=True):
        wanted = wanted.astype(object) if wanted.dtype.kind in "SUT" else wanted
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        if got.dtype == object:
            assert got.tolist() == wanted.tolist()
        else:
            np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", RANDOM, ids=str)
def test_random_numbers_have_the_moments_asked_for(case: Case, rng: np.random.Generator) -> None:
    """Within 6 standard deviations of them; the same in every run, other ones from another seed or name."""
    proto, feeds = one_node(case, rng)
    (drawn,) = run_all(proto, feeds)
    np.testing.assert_array_equal(drawn, *run_all(proto, feeds))
    mean, deviation = MOMENTS[case.op](case.attributes, feeds)
    drawn = drawn.astype(np.float64)
    assert abs(drawn.mean() - mean) < 6 * deviation / drawn.size**0.5
    assert abs(drawn.std() - deviation) < 0.02 * deviation
    (attribute,) = [a for a in proto.graph.node[0].attribute if a.name == "seed"] or [None]
    if attribute is None:
        proto.graph.node[0].output[0] = proto.graph.output[0].name = "another"
    else:
        attribute.f += 1
    assert not np.array_equal(drawn, *run_all(proto, feeds))


def run_all(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    graph = load_onnx(proto.SerializeToString())
    results = interpret(graph, feeds)
    return [results[name] for name in graph.outputs]


# Mean and standard deviation, of a node's attributes and feeds.
MOMENTS = {
    "RandomNormal": lambda a, _: (a.get("mean", 0.0), a.get("scale", 1.0)),
    "RandomNormalLike": lambda a, _: (a.get("mean", 0.0), a.get("scale", 1.0)),
    "RandomUniform": lambda a, _: ((a["low"] + a["high"]) / 2, (a["high"] - a["low"]) / 12**0.5),
    "Bernoulli": lambda _, feeds: (p := next(iter(feeds.values())).flat[0], (p * (1 - p)) ** 0.5),
}


def test_multinomial_draws_by_the_probabilities() -> None:
    wanted = np.exp(MULTINOMIAL.constants["p"])
    (drawn,) = run_all(*one_node(MULTINOMIAL, np.random.default_rng(0)))
    found = np.stack([np.bincount(row, minlength=3) / 9000 for row in drawn])
    assert drawn.shape == (2, 9000) and drawn.dtype == np.int64
    assert np.abs(found - wanted).max() < 6 * 0.5 / 9000**0.5 and found[1, 2] == 0


@pytest.mark.parametrize("name", [*INTEGERS, *INTEGERS_BY_REFERENCE])
def test_known_integers(name: str) -> None:
    """Computed while the model is loaded, with the values that the oracle computes."""
    content = text_model(f"g () => (y) {{ {(INTEGERS | INTEGERS_BY_REFERENCE)[name]} }}")
    graph = load_onnx(content)
    (expected,) = run_oracle("ort" if name in INTEGERS else "reference", onnx.load_from_string(content), {})
    found = graph.data(graph.outputs["y"])
    assert len(graph) == 0 and found is not None and found.dtype == expected.dtype
    assert np.array_equal(found, expected)


def test_every_rule_is_tested_and_builds_the_ops_of_the_table() -> None:
    made = ops_of_onnx()
    assert set(made) == {foreign_name(domain, name) for domain, name in RULES}
    assert made == read_table("onnx"), REWRITE


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("seed", range(12))
def test_chains_of_known_integers(dtype: type, seed: int) -> None:
    """Random arithmetic that overflows; divisors are of at least 2, which C can divide the smallest integer by."""
    chance = random.Random(seed)
    limits = np.iinfo(dtype)
    numbers = [0, 1, -1, 7, limits.max, limits.min, limits.max // 3, 46341]
    constants = {f"c{i}": np.array(chance.choices(numbers, k=3), dtype) for i in range(3)}
    constants["divisor"] = np.array([2, 1000, 3], dtype)
    nodes = []
    for i in range(10):
        op = chance.choice(["Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Min", "Max", "CumSum"])
        known = [*(f"c{j}" for j in range(3)), *(f"h{j}" for j in range(i))]
        second = {"Div": "divisor", "Mod": "divisor", "CumSum": "axis"}.get(op, chance.choice(known))
        names = [chance.choice(known), *([] if op in ("Neg", "Abs") else [second])]
        nodes.append(onnx.helper.make_node(op, names, [f"h{i}"]))
    tensors = [onnx.numpy_helper.from_array(a, name) for name, a in (constants | {"axis": np.array(0)}).items()]
    outputs = [onnx.ValueInfoProto(name=f"h{i}") for i in range(10)]
    proto = model(onnx.helper.make_graph(nodes, "chain", [], outputs, tensors))
    graph = load_onnx(proto.SerializeToString())
    for name, expected in zip(graph.outputs.values(), run_oracle("ort", proto, {}), strict=True):
        assert np.array_equal(graph.data(name), expected)


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_dims(name: str, rng: np.random.Generator) -> None:
    """One load serves all sizes, and arithmetic on shapes leaves no node behind."""
    content = text_model(SYMBOLIC[name])
    graph = load_onnx(content)
    graph.validate()
    assert parse(dump(graph)) is not None and set(graph.symbols) == {"B", "S"}
    for batch, rows in ((2, 4), (1, 6), (3, 2)):
        shapes = {"x": (batch, rows, 12), "w": (rows, 1)}
        feeds = {name: rng.standard_normal(shapes[name]).astype(F) for name in graph.inputs}
        expected = run_oracle("ort", onnx.load_from_string(content), feeds)
        for got, wanted in zip(interpret(graph, feeds).values(), expected, strict=True):
            assert got.dtype == wanted.dtype
            np.testing.assert_allclose(got, wanted, rtol=1e-6)


def test_dims_of_inputs() -> None:
    """dim_params keep their names; expressions over them hold; what is no name becomes one; unknown dims get one."""
    declared = 'batch, "past", "past + 1", "2*past", "a b", "s0//2", ?'
    graph = load_onnx(text_model(f"g (float[{declared}] x) => (y) {{ y = Relu(x) }}"))
    past = symbol("past")
    dims = (symbol("batch"), past, past + 1, past * 2, symbol("a_b"), symbol("s0__2"), symbol("x_6"))
    assert graph.type("x").shape == graph.type("y").shape == dims
    assert parse(dump(graph)).type("x").shape == dims


def test_a_symbol_and_a_number(rng: np.random.Generator) -> None:
    """Einsum takes a symbolic dim to be the number that another operand has there, and refuses others at the run."""
    content = text_model('g (float[n, 2] a, float[2, k] b) => (y) { y = Einsum<equation="ij,ik->jk">(a, b) }')
    a, b = rng.standard_normal((2, 2)).astype(F), rng.standard_normal((2, 3)).astype(F)
    graph = load_onnx(content)
    (expected,) = run_oracle("ort", onnx.load_from_string(content), {"a": a, "b": b})
    np.testing.assert_allclose(interpret(graph, {"a": a, "b": b})["y"], expected, rtol=1e-5)
    with pytest.raises(InputError):
        interpret(graph, {"a": np.ones((3, 2), F), "b": b})


def test_squeeze_of_a_dim_that_may_be_one() -> None:
    """Without axes the rank would depend on the size; a dim that is at least 2 stays."""
    with pytest.raises(UnsupportedError, match="a dim that may be 1, got n"):
        load_onnx(text_model("g (float[n, 1, 3] x) => (y) { y = Squeeze(x) }"))
    content = text_model(
        "g (float[n, 1, 3] x) => (y) { z = Concat<axis=0>(x, w)  y = Squeeze(z) }".replace(
            "{", "<float[2, 1, 3] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> {", 1
        )
    )
    feeds = {"x": np.ones((1, 1, 3), F)}
    (expected,) = run_oracle("ort", onnx.load_from_string(content), feeds)
    assert np.array_equal(interpret(load_onnx(content), feeds)["y"], expected)


OLD = {
    "squeeze": (11, "[2, 1, 3] x) => (float[1, 2, 3] y) { a = Squeeze<axes=[1]>(x)  y = Unsqueeze<axes=[0]>(a) }"),
    "reduce": (11, "[2, 1, 3] x) => (float[2, 1] y) { y = ReduceSum<axes=[2], keepdims=0>(x) }"),
    "split": (11, "[2, 3] x) => (float[2, 1] y, float[2, 2] z) { y, z = Split<axis=1, split=[1, 2]>(x) }"),
    "clip": (10, "[2, 1, 3] x) => (float[2, 1, 3] y) { y = Clip<min=-1.0, max=0.5>(x) }"),
    "pad": (10, "[2, 3] x) => (float[2, 6] y) { y = Pad<pads=[0, 1, 0, 2]>(x) }"),
    "softmax over the rest": (11, "[2, 4, 3] x) => (float[2, 4, 3] y) { y = Softmax<axis=1>(x) }"),
    "dropout": (9, "[2, 4, 3] x) => (float[2, 4, 3] y) { y = Dropout<ratio=0.5>(x) }"),
    "slice": (9, "[2, 4, 3] x) => (float[2, 2, 3] y) { y = Slice<axes=[1], starts=[1], ends=[3]>(x) }"),
}


@pytest.mark.parametrize("name", OLD)
def test_old_opsets(name: str, rng: np.random.Generator) -> None:
    opset, body = OLD[name]
    proto = onnx.load_from_string(text_model(f"g (float{body}", opset))
    x = rng.standard_normal([d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]).astype(F)
    graph = load_onnx(proto.SerializeToString())
    for got, wanted in zip(interpret(graph, {"x": x}).values(), run_oracle("ort", proto, {"x": x}), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_old_opset_keeps_weights(rng: np.random.Generator) -> None:
    """A weight too large for the converter passes it by; as an input's default value it is no input."""
    weight = rng.standard_normal((40, 40)).astype(F)
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["h"]),
        onnx.helper.make_node("Squeeze", ["h"], ["y"], axes=[0]),
    ]
    x = rng.standard_normal((1, 5, 40)).astype(F)
    inputs, outputs = [value_info("x", x), value_info("w", weight)], [value_info("y", x[0])]
    constants = [onnx.numpy_helper.from_array(weight, "w")]
    proto = model(onnx.helper.make_graph(nodes, "g", inputs, outputs, constants), opset=11)
    graph = load_onnx(proto.SerializeToString())
    assert graph.inputs == ["x"] and graph.values["w"].kind == "weight"
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], (x @ weight)[0], rtol=1e-4, atol=1e-5)


def test_functions(rng: np.random.Generator) -> None:
    """Model-local functions: attributes by reference and by default, optional inputs, the same body twice."""
    proto = parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18, "local" : 1]>
        g (float[2, 3] x) => (y) {
            a = local.scaled<alpha=0.3>(x)  b = local.scaled(a)  y = local.bounded(b) }
        <domain: "local", opset_import: ["" : 18, "local" : 1]>
        scaled<alpha: float = 0.7>(v) => (w) { t = LeakyRelu<alpha: float = @alpha>(v)  w = local.twice(t) }
        <domain: "local", opset_import: ["" : 18]> twice(v) => (w) { w = Add(v, v) }
        <domain: "local", opset_import: ["" : 18]> bounded(v, low) => (w) { w = Clip(v, low) }
    """)
    x = rng.standard_normal((2, 3)).astype(F)
    graph = load_onnx(proto.SerializeToString())
    leaky = np.where(x < 0, x * 0.3, x) * 2
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], np.where(leaky < 0, leaky * 0.7, leaky) * 2, rtol=1e-6)


def test_a_schema_body_of_another_domain(rng: np.random.Generator) -> None:
    """FlexAttention, whose body takes in a graph that the node carries."""
    doubled = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["scores", "scores"], ["out"])],
        "score_mod",
        [onnx.ValueInfoProto(name="scores")],
        [onnx.ValueInfoProto(name="out")],
    )
    feeds = {name: rng.standard_normal((2, heads, 5, 8)).astype(F) for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    domain = "ai.onnx.preview"
    node = onnx.helper.make_node("FlexAttention", list(feeds), ["y"], domain=domain, score_mod=doubled)
    inputs = [value_info(name, array) for name, array in feeds.items()]
    graph = onnx.helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name="y")])
    proto = model(graph, 26, **{domain: 1})
    (expected,) = run_oracle("reference", proto, feeds)
    np.testing.assert_allclose(interpret(load_onnx(proto.SerializeToString()), feeds)["y"], expected, rtol=1e-5)


def test_outputs_that_no_node_computes() -> None:
    """An input, though with dims of other names, a weight, a shape and one value under two names are all outputs."""
    content = text_model("""g (float[2, 3] x) => (float[N, 3] x, w, s, a, b) <float[2] w = {1.0, 2.0}> {
        s = Shape(x)  t = Relu(x)  a = Identity(t)  b = Identity(t) }""")
    x = np.array([[1, -2, 3], [-4, 5, -6]], F)
    results = interpret(load_onnx(content), {"x": x})
    expected = {"x": x, "w": np.array([1, 2], F), "s": np.array([2, 3]), "a": np.maximum(x, 0), "b": np.maximum(x, 0)}
    assert list(results) == list(expected)
    assert all(np.array_equal(results[k], expected[k]) and results[k].dtype == expected[k].dtype for k in expected)


def test_unsupported_nodes_are_listed_together() -> None:
    """Each with its name and why; what only reads their results is not."""
    content = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18, "com.example" : 1]> g (float[2, 3] x, float[n, 3] s) => (y) {
        [Near_1] a = com.example.Near(x)  [Relu_2] b = Relu(a)  [Far_3] c = com.example.Far(x)
        [Squeeze_4] d = Squeeze(s)
        [Add_5] y = Add(b, d) }"""
    ).SerializeToString()
    with pytest.raises(UnsupportedError) as caught:
        load_onnx(content)
    assert str(caught.value).splitlines() == [
        "onnx node 'Near_1': Near (opset 18): op com.example.Near has no rule; see 'ingot ops'",
        "onnx node 'Far_3': Far (opset 18): op com.example.Far has no rule; see 'ingot ops'",
        "onnx node 'Squeeze_4': Squeeze (opset 18): squeeze without axes: a dim that may be 1, got n of [n, 3]",
    ]


MODULES = {
    "mlp": models.mlp,
    "block": lambda: models.block(causal=True),
    "manual": lambda: models.block("manual", causal=True),
    "convnet": models.convnet,
    "gpt2": models.gpt2,
    "bert": models.bert,
}
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "dynamic"),
    [
        ("mlp", True),
        ("block", True),
        ("convnet", False),
        ("gpt2", False),
        ("bert", True),
        pytest.param("manual", True, marks=slow),
        pytest.param("convnet", True, marks=slow),
        pytest.param("gpt2", True, marks=slow),
        pytest.param("bert", False, marks=slow),
    ],
)
def test_exported_module(name: str, dynamic: bool, tmp_path: Path) -> None:
    """torch.onnx.export against torch; with dynamic shapes, at other sizes than those exported."""
    module, inputs = MODULES[name]()
    axes = {0: "batch"} if name in ("mlp", "convnet") else {0: "batch", 1: "rows"}
    options = {"dynamic_shapes": tuple(axes for _ in inputs)} if dynamic else {}
    export_onnx(module, inputs, tmp_path / "m.onnx", external_data=True, **options)
    graph = load_onnx(tmp_path / "m.onnx")
    graph.validate()
    if dynamic:
        assert graph.symbols == list(axes.values())
        inputs = tuple(torch.cat([x, x.flip(0), x])[:, : x.shape[1] - (len(axes) - 1)] for x in inputs)
    with torch.no_grad():
        result = module(*inputs)
    expected = [result] if isinstance(result, torch.Tensor) else list(result.values())
    feeds = dict(zip(graph.inputs, (x.numpy() for x in inputs), strict=True))
    for got, wanted in zip(interpret(graph, feeds).values(), expected, strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-4, atol=1e-5)


def test_sympy_waits_until_it_is_asked_for() -> None:
    """It takes longer to import than a small model to load, and onnx_ir wants it for arithmetic with dims alone."""
    code = (
        "import sys\nfrom ingot.load.onnx import load_onnx\nload_onnx(sys.argv[1])\n"
        "import onnx_ir\nassert 'sympy' not in sys.modules and 'onnx_ir._symbolic_shapes' not in sys.modules\n"
        "print(onnx_ir.SymbolicDim('n') + 1, 'sympy' in sys.modules)\n"
        "import sympy.core\nprint(sympy.Symbol('a') * 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, SHIPPED["digits"]], capture_output=True, text=True, check=True)
    assert done.stdout == "n + 1 True\n2*a\n"
