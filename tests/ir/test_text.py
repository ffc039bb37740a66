"""The text form: everything a graph holds comes back, and text that is not a graph is refused with its line."""

import re
import struct
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.errors import LoadError, ShapeError
from ingot.ir.dim import floordiv, maximum, minimum, symbol
from ingot.ir.dtype import DTYPES, boolean, f32, i64, string, u64
from ingot.ir.graph import MAX_RANK, Graph, MapType, OptionalType, SequenceType, TensorType
from ingot.ir.text import diff, dump, parse

STRANGE = [
    "none",
    "true",
    "inf",
    "inf.x",
    "nan",
    "-inf",
    "graph",
    "input",
    "output",
    "weight",
    "state",
    "constant",
    "base64",
    "base64:AA",
    "a b",
    'quo"te',
    "back\\slash",
    "new\nline",
    "tab\t",
    "\r",
    "\u2028",
    "\x00",
    "é",
    "名前",
    "x=1",
    "a,b",
    "(",
    "]",
    "->",
    "",
    " ",
    "1",
    "1e5",
    "-1",
    "/layers.0/attn/MatMul:0",
    "a.b",
    "_",
    "@f32",
    "#",
]


def round_trip(graph):
    text = dump(graph)
    weights = {name: value.data for name, value in graph.values.items() if value.kind == "weight"}
    again = parse(text, weights)
    assert dump(again) == text
    again.validate()
    assert again.name == graph.name and again.inputs == graph.inputs
    assert again.outputs == graph.outputs and again.states == graph.states
    assert set(again.values) == set(graph.values)
    for name, value in graph.values.items():
        twin = again.values[name]
        assert (twin.kind, twin.type) == (value.kind, value.type)
        if value.data is not None:
            same_bits(twin.data, value.data)
    for node, twin in zip(graph.nodes, again.nodes, strict=True):
        assert (twin.op, twin.operands, twin.outputs) == (node.op, node.operands, node.outputs)
        assert repr(twin.attributes) == repr(node.attributes)
    return again


def same_bits(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    if a.dtype == object:
        assert a.tolist() == b.tolist()
        return
    a, b = (x.view(np.uint8) if x.dtype.itemsize == 1 else x for x in (a, b))
    nan = np.isnan(b) if b.dtype.kind == "f" else np.zeros(b.shape, bool)
    np.testing.assert_array_equal(a != a, nan)
    assert a[~nan].tobytes() == b[~nan].tobytes()


@pytest.mark.parametrize("name", STRANGE)
def test_strange_names(name):
    graph = Graph(name)
    graph.add_input(name, TensorType(f32, (2,)))
    weight = graph.add_weight(f"{name}w", np.ones(2, np.float32))
    constant = graph.add_constant(f"{name}c", np.ones(2, np.float32))
    state = graph.add_state(f"{name}s", TensorType(f32, (2,)))
    y = graph.add("add", [name, weight], f"{name}y").output
    graph.add("mul", [constant, y], f"{name}z")
    graph.set_state(state, y)
    graph.set_output(name, f"{name}z")
    graph.set_output(f"{name}o", name)
    round_trip(graph)


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_name_first_on_its_line(name):
    graph = Graph()
    graph.add_input("x", TensorType(f32, (2, 3)))
    graph.add("topk", ["x"], [name, f"{name}'"], k=1, axis=1, largest=True)
    graph.set_output("y", graph.add("relu", [name]).output)
    round_trip(graph)


EDGES = (
    {
        "f32": [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, 0.1, 1 / 3, 16777217.0],
        "f64": [
            0.0,
            -0.0,
            np.nan,
            np.inf,
            -np.inf,
            5e-324,
            2.2250738585072009e-308,
            1.7976931348623157e308,
            0.1,
            1 / 3,
        ],
        "f16": [0.0, -0.0, np.nan, np.inf, 6e-8, 65504.0, 0.1],
        "bf16": [0.0, -0.0, np.inf, 1e-40, 3.3895e38, 0.1],
        "bool": [True, False],
        "string": ["", "a", '\n"\\', "\u2028, é]", "nan", "\0"],
    }
    | {n: [0.5, 1, 2, 4] for n, d in DTYPES.items() if d.kind == "n" and d.limits is None}
    | {n: [*d.limits, 1, 0] for n, d in DTYPES.items() if d.kind == "n" and d.limits is not None}
    | {n: [np.iinfo(d.numpy).min, np.iinfo(d.numpy).max, 0, 1] for n, d in DTYPES.items() if d.kind in "iu"}
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("repeat", [0, 1, 70], ids=["empty", "inline", "long"])
def test_constants(dtype, repeat):
    graph = Graph()
    numpy_dtype = DTYPES[dtype].numpy
    graph.add_constant("c", np.array(EDGES[dtype] * repeat, numpy_dtype))
    graph.add_constant("scalar", np.array(EDGES[dtype][1], numpy_dtype))
    graph.add_constant("matrix", np.array(EDGES[dtype][:2] * 3, numpy_dtype).reshape(3, 1, 2))
    graph.add_constant("none", np.zeros((0, 3), numpy_dtype))
    graph.add_constant("strided", np.array(EDGES[dtype] * 2, numpy_dtype)[::2])
    round_trip(graph)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=40))
def test_any_f32_bits(bits):
    graph = Graph()
    graph.add_constant("c", np.array(bits, np.uint32).view(np.float32))
    round_trip(graph)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_any_f64_and_i64_bits(bits):
    graph = Graph()
    graph.add_constant("f", np.array(bits, np.uint64).view(np.float64))
    graph.add_constant("i", np.array(bits, np.uint64).view(np.int64))
    round_trip(graph)


@given(st.floats(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=20))
def test_any_attribute_and_name(number, integer, name):
    graph = Graph(name)
    graph.add_input("x", TensorType(f32, (2,)))
    graph.add("clip", ["x"], minimum=number, maximum=-number)
    graph.add("clip", ["x"], minimum=integer)
    graph.add("pad", [graph.add_input("u", TensorType(u64, (2,)))], low=(1,), high=(0,), value=integer + 2**63)
    graph.add("iota", [], name, length=3, start=number, step=integer, dtype=f32)
    again = round_trip(graph)
    start = next(node for node in again.nodes if node.op.name == "iota").start
    assert struct.pack("d", start) == struct.pack("d", number) or number != number


def test_attributes_of_every_kind():
    graph = Graph()
    B, S = symbol("B"), symbol("S")
    graph.add_input("x", TensorType(f32, (B, S, 2 * S + 4)))
    graph.add_input("y", TensorType(f32, (None, 3)))
    graph.add("gelu", ["x"], approximate="tanh")
    graph.add("cast", ["x"], dtype=boolean)
    graph.add("slice", ["x"], starts=(0, 0, S), stops=(B, minimum(S, 5), 2 * S), steps=(1, 1, 2))
    graph.add("reshape", ["y"], shape=(None,))
    graph.add("reshape", ["y"], shape=(3, None))
    graph.add("dims", [], values=(B * S - 1, floordiv(S - 1, 2) * 3, -B, S, 7, maximum(B, S + 1)))
    graph.add("dims", [], values=())
    graph.add("attention", [graph.add("reshape", ["x"], shape=(B, 1, S, 2 * S + 4)).output] * 3, scale=1e-5)
    graph.add("layer_norm", ["y", None, graph.add_weight("b", np.ones(3, np.float32))], eps=1e16)
    graph.add("reduce_sum", ["x"], axes=(), keepdims=True)
    graph.add("clip", ["x"], minimum=np.float64(0.5), maximum=np.float32(0.25))
    assert "minimum=0.5, maximum=0.25" in dump(graph)
    graph.remove(list(graph.nodes)[-1])
    round_trip(graph)


def test_states_and_value_types():
    graph = Graph()
    graph.add_input("list", SequenceType(TensorType(f32, (None, 2))))
    graph.add_input("maybe", OptionalType(SequenceType(TensorType(i64, ()))))
    graph.add_input("maps", SequenceType(MapType(string, f32)))
    graph.add_state("cache", TensorType(f32, (2, symbol("T"))))
    graph.add_state("kept", TensorType(f32, ()))
    graph.set_state("cache", graph.add("neg", ["cache"], "update").output)
    again = round_trip(graph)
    assert again.states == {"cache": "update", "kept": "kept"}
    assert str(again.values["maybe"].type) == "optional<sequence<i64[]>>"
    assert str(again.values["maps"].type) == "sequence<map<string, f32>>"
    assert again.values["maps"].type.onnx == "seq(map(string,tensor(float)))"


def test_a_weight_without_data_stays_headers_only():
    graph = parse("graph g\nweight w: f32[1000000, 1000000]\n")
    assert graph.data("w") is None and graph.type("w").nbytes == 4 * 10**12


def test_defaults_are_left_out():
    text = "graph g\ninput x: f32[2, 2]\ny = matmul(x, x): f32[2, 2]\nz = matmul(x, x, scale=2.0): f32[2, 2]\n"
    assert dump(parse(text)) == text
    assert dump(parse(text.replace("(x, x)", "(x, x, transpose_a=false, scale=1.0)"))) == text


def test_types_may_be_left_out():
    text = "graph g\ninput x: f32[B, 2]\nv, i = topk(x, k=1, axis=1, largest=true)\noutput y = v\n"
    assert "largest=true): f32[B, 1], i64[B, 1]" in dump(parse(text))


def test_diff():
    before = "graph g\ninput x: f32[2]\na = relu(x): f32[2]\noutput y = a\n"
    after = before.replace("relu", "neg")
    assert diff(before, before) == ""
    assert "-a = relu(x): f32[2]\n+a = neg(x): f32[2]\n" in diff(before, after)


GOOD = ["graph g", "input x: f32[2, 3]", "constant c: f32[3] = [1.0, 2.0, 3.0]", "state s: f32[2, 3] -> y",
        "y = add(x, c): f32[2, 3]", "v, i = topk(y, k=2, axis=1, largest=true): f32[2, 2], i64[2, 2]",
        "output out = v"]  # fmt: skip
MALFORMED = [
    (2, "input x f32[2, 3]"),
    (2, "input x: f33[2, 3]"),
    (2, "input x: f32[2, 3"),
    (2, "input x: f32[2, 3] extra"),
    (2, "input x: f32[2, 3/2]"),
    (2, f"input x: f32[{'1, ' * MAX_RANK}1]"),
    (2, "input x: sequence<f32[2, 3]"),
    (2, "input x: map<f32, f32>"),
    (2, "input x: map<i64, string>"),
    (2, "input x: map<i64, f32[2]>"),
    (2, 'input "x: f32[2, 3]'),
    (2, "weights x: f32[2, 3]"),
    (2, 'source -1: "a" "Relu"'),
    (2, 'source 1.5: "a" "Relu"'),
    (2, 'source 9999999999: "a" "Relu"'),
    (2, 'source 0: a "Relu"'),
    (2, 'source 0: "a"'),
    (2, 'source 0: "a" "Relu" "x"'),
    (2, 'source 0: "a" "Relu" domain='),
    (5, "y = add(x, c): f32[2, 3] from 0"),
    (5, "y = add(x, c): f32[2, 3] from"),
    (5, "y = add(x, c): f32[2, 3] from x"),
    (3, "constant c: f32[3] = [1.0, 2.0]"),
    (3, "constant c: f32[3] = [1.0, 2.0, many]"),
    (3, "constant c: f32[3]"),
    (3, "constant c: f32[3] = base64:AAAA"),
    (3, "constant c: f32[3] = base64:A"),
    (3, "constant c: bool[1] = [maybe]"),
    (3, "constant c: i64[1] = [9223372036854775808]"),
    (3, "constant c: i64[1] = [1.5]"),
    (3, "constant c: f32[N] = [1.0]"),
    (3, "constant x: f32[3] = [1.0, 2.0, 3.0]"),
    (4, "state s: sequence<f32[2]> -> y"),
    (5, "y = plus(x, c): f32[2, 3]"),
    (5, "y = add(x, d): f32[2, 3]"),
    (5, "y = add(x): f32[2, 3]"),
    (5, "y = add(x, c, c): f32[2, 3]"),
    (5, "y = add(x, none): f32[2, 3]"),
    (5, "y = add(x, c, axis=1): f32[2, 3]"),
    (5, "y = add(x, c"),
    (5, "y = add(x, c):"),
    (5, "y = add(x, c) f32[2, 3]"),
    (5, "y = add(x, c): f32[2, 4]"),
    (5, "y = add(x, c): i64[2, 3]"),
    (5, "y = add(x, c): f32[2, 3], f32[2, 3]"),
    (5, "x = add(x, c): f32[2, 3]"),
    (6, "v = topk(y, k=2, axis=1, largest=true): f32[2, 2], i64[2, 2]"),
    (6, "v, v = topk(y, k=2, axis=1, largest=true): f32[2, 2], i64[2, 2]"),
    (6, "v, i = topk(y, k=9, axis=1, largest=true): f32[2, 9], i64[2, 9]"),
    (6, "v, i = topk(y, k=2, axis=1): f32[2, 2], i64[2, 2]"),
    (6, 'v, i = topk(y, k="two", axis=1, largest=true): f32[2, 2], i64[2, 2]'),
    (6, "v, i = topk(y, k=[2, axis=1, largest=true): f32[2, 2], i64[2, 2]"),
    (7, "output out = w"),
    (7, "output out"),
]


@pytest.mark.parametrize(("line", "text"), MALFORMED, ids=[text for _, text in MALFORMED])
def test_malformed_line(line, text):
    lines = [*GOOD]
    parse("\n".join(lines))
    lines[line - 1] = text
    with pytest.raises(LoadError, match=f"line {line}: ") as error:
        parse("\n".join(lines))
    assert not isinstance(error.value, ShapeError) and len(str(error.value)) < 1000


def test_malformed_as_a_whole():
    for text in (
        "graph g\noutput a = x\n",
        "graph g\nstate s: f32[2] -> gone\n",
        "graph g\ninput x: f32[3]\nstate s: f32[2] -> x\n",
        "\x7fELF",
        "y",
        "= =",
        '"',
    ):
        with pytest.raises(LoadError, match="graph text"):
            parse(text)
    with pytest.raises(LoadError, match="defined twice"):
        parse("\n".join([*GOOD, GOOD[-1]]))
    assert len(parse("")) == 0


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.text(alphabet="xy ,=()[]:->\"'\\0159.einfa@?{}\n", max_size=6))
def test_damaged_text_is_refused_or_valid(start, length, inserted):
    """Any splice either parses to a graph that holds every invariant or is a LoadError."""
    text = "\n".join(GOOD)
    start %= len(text)
    damaged = text[:start] + inserted + text[start + length % 8 :]
    try:
        graph = parse(damaged)
    except LoadError as error:
        assert re.match("graph text", str(error))
        return
    graph.validate()
    assert dump(parse(dump(graph))) == dump(graph)


@pytest.mark.parametrize("use", [
    "ingot.ir.text.parse('input x: f32[2]\\ny = exp(x)\\noutput y = y')",
    "ingot.ir.graph.Graph().add('absent', [], element=ingot.ir.graph.UnrankedType(ingot.ir.dtype.f32))",
])  # fmt: skip
def test_the_first_use_of_a_process_knows_the_ops(use: str) -> None:
    code = f"import ingot, ingot.ir.text\n{use}\ntry: ingot.ir.graph.OPS['unheard']\nexcept KeyError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "'unheard'\n"
