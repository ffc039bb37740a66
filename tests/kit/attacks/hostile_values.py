"""Attacks on control flow, sequences, optionals, strings and quantized numbers: at load, and in runs of what loads."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from attacks.hostile_onnx import Attack, X, graph, node, one
from ingot.errors import IngotError, InputError, LoadError, ResourceError, ShapeError, UnsupportedError
from onnx_models import ints, text_model, value_info

F = np.float32
ONES = np.ones((2, 3), F)
_TURN = "int64 i, bool d, float[2,3] v"
_GIVEN = "(bool e, float[2,3] w)"


def text(body: str, opset: int = 18) -> Callable[[], bytes]:
    return lambda: text_model(body, opset)


def loop(
    body: str, operands: str = "n, c, x", inputs: str = _TURN, outputs: str = _GIVEN, made: str = "y", types: str = ""
) -> Callable[[], bytes]:
    given = types or "float[2,3] x, int64 n, bool c"
    return text(
        f"g ({given}) => ({made}) {{ {made} = Loop ({operands}) <body = b ({inputs}) => {outputs} {{ {body} }}> }}"
    )


def scan(
    attributes: str = "num_scan_inputs=1", body: str = "w = Add(v, e)", x: str = "float[4,3] x"
) -> Callable[[], bytes]:
    return text(
        f"g (float[3] s, {x}) => (y, z) {{ y, z = Scan <{attributes}, body = b (float[3] v, float[3] e) => (w, o) "
        f"{{ {body} o = Identity(e) }}> (s, x) }}"
    )


def branches(then: str, other: str, condition: str = "c", given: str = "bool c") -> Callable[[], bytes]:
    return text(
        f"g (float[2,3] x, {given}) => (y) {{ y = If ({condition}) <then_branch = t () => (p) {{ p = {then} }}, "
        f"else_branch = f () => (q) {{ q = {other} }}> }}"
    )


def line(body: str, given: str = "float[2,3] x, int64 i", opset: int = 18) -> Callable[[], bytes]:
    return text(f"g ({given}) => (y) {{ {body} }}", opset)


def quantized(op: str, operands: str, **changed: Any) -> Callable[[], Any]:
    """A node over a scale s, a zero point z, images, bytes and floats, some of which are given otherwise."""
    arrays = {"s": np.array(0.5, F), "z": np.array(3, np.uint8), "a": np.ones((2, 3), np.uint8)}
    arrays |= {
        "b": np.ones((3, 2), np.uint8),
        "i": np.ones((1, 1, 4, 4), np.uint8),
        "k": np.ones((2, 1, 2, 2), np.uint8),
    }
    arrays |= {name: changed.pop(name) for name in list(changed) if isinstance(changed[name], np.ndarray)}
    used = {name: arrays[name] for name in operands.split() if name in arrays}
    return one(op, operands.split(), used, opset=21, **changed)


def _on_relu() -> onnx.ModelProto:
    body = helper.make_graph([node("Neg", ["x"], ["w"])], "b", [], [onnx.ValueInfoProto(name="w")])
    relu = node("Relu", ["x"], ["y"])
    relu.attribute.append(helper.make_attribute("body", body))
    return graph([relu])


def _made_twice() -> onnx.ModelProto:
    """Branches whose nodes make a value of a name that the graph around has."""
    bodies = [
        helper.make_graph([node("Neg", ["x"], ["h" + end])], "b", [], [onnx.ValueInfoProto(name="h" + end)])
        for end in ("", "2")
    ]
    nodes = [node("Abs", ["x"], ["h"]), node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])]
    return graph(nodes, inputs=[X, value_info("c", np.array(True))])


def _given_twice() -> onnx.ModelProto:
    """A loop whose body has an initializer of an input's name."""
    names = (("i", TensorProto.INT64, []), ("d", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [2, 3]))
    inputs = [helper.make_tensor_value_info(*each) for each in names]
    nodes = [node("Identity", ["d"], ["e"]), node("Neg", ["v"], ["w"])]
    results = [onnx.ValueInfoProto(name=name) for name in "ew"]
    body = helper.make_graph(nodes, "b", inputs, results, [numpy_helper.from_array(ONES, "v")])
    return graph([node("Loop", ["n", "", "x"], ["y"], body=body)], inputs=[X, value_info("n", np.array(1))])


def _sparse() -> onnx.ModelProto:
    values = numpy_helper.from_array(np.ones(1, F), "v")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(ints(0), "i"), [4])
    return graph([node("Constant", [], ["y"], sparse_value=sparse)])


def _typed(type: onnx.TypeProto) -> Callable[[], onnx.ModelProto]:
    return lambda: graph([node("Identity", ["o"], ["y"])], inputs=[onnx.ValueInfoProto(name="o", type=type)])


def _nested(wrap: Callable[[onnx.TypeProto], onnx.TypeProto]) -> onnx.TypeProto:
    return wrap(wrap(helper.make_tensor_type_proto(TensorProto.FLOAT, [2])))


_MAP = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
_STEP = "e = Identity(d) w = Neg(v)"
_MADE = "a s z b s z s z"
_CONV = "i s z k s z s z"

VALUES: list[Attack] = [
    ("condition of many, of a turn", loop("e = Greater(v, v) w = Neg(v)"), ShapeError, "expected one bool"),
    ("condition of floats, of a turn", loop("e = Neg(v) w = Neg(v)"), ShapeError, "expected one bool"),
    ("carried in another dtype", loop("e = Identity(d) w = Cast<to=7>(v)"), ShapeError, "types differ"),
    ("too few results of a body", loop("e = Identity(d)", outputs="(bool e)"), LoadError, "results, got 1, expected 2"),
    (
        "too few inputs of a body",
        loop("e = Identity(d) w = Neg(x)", inputs="int64 i, bool d"),
        LoadError,
        "wrong number of inputs, got 2, expected 3",
    ),
    ("results that nobody makes", loop(_STEP, outputs="(bool e, float[2,3] x)"), LoadError, "'x' has no producer"),
    (
        "two numbers of trips",
        loop(_STEP, types="float[2,3] x, int64[2] n, bool c"),
        ShapeError,
        "bad number of trips",
    ),
    ("trips in floats", loop(_STEP, types="float[2,3] x, float n, bool c"), ShapeError, "wrong dtype, got f32[]"),
    ("two first conditions", loop(_STEP, types="float[2,3] x, int64 n, bool[2] c"), ShapeError, "expected one bool"),
    (
        "a loop of nothing",
        loop("e = Identity(d)", operands="", outputs="(bool e)"),
        LoadError,
        "wrong number of inputs",
    ),
    ("more results than a body has", loop(_STEP, made="y, z"), LoadError, "results, got 2, expected 3"),
    *(
        (f"{count} scanned", scan(f"num_scan_inputs={count}"), LoadError, f"'num_scan_inputs' is {count}")
        for count in (0, -1, 5, 2**62)
    ),
    ("scanned axis", scan("num_scan_inputs=1, scan_input_axes=[7]"), ShapeError, "axis out of range, got 7"),
    ("scanned axes", scan("num_scan_inputs=1, scan_input_axes=[0, 0]"), LoadError, "has 2 axes"),
    ("axis of a result", scan("num_scan_inputs=1, scan_output_axes=[9, 9]"), LoadError, "has 2 axes"),
    ("direction", scan("num_scan_inputs=1, scan_input_directions=[2]"), LoadError, "expected 1 of 0 and 1"),
    ("scanned scalar", scan(x="float x"), ShapeError, "axis out of range, got 0"),
    ("scanned in another dtype", scan(body="w = Cast<to=7>(v)"), ShapeError, "types differ"),
    ("branches of two dtypes", branches("Neg(x)", "Cast<to=7>(x)"), ShapeError, "types differ"),
    ("branches of two kinds", branches("Neg(x)", "SequenceConstruct(x)"), ShapeError, "types differ"),
    ("condition of numbers", branches("Neg(x)", "Abs(x)", "x"), ShapeError, "input 0 has a wrong dtype"),
    ("condition of nothing", branches("Neg(x)", "Abs(x)", given="bool[0] c"), ShapeError, "expected one bool"),
    ("body of an op without one", _on_relu, LoadError, "unknown attribute 'body'"),
    ("name of a graph around", _made_twice, LoadError, "'h' is defined twice"),
    ("input of a body and initializer", _given_twice, LoadError, "wrong number of inputs, got 2, expected 3"),
    ("sequence of two dtypes", line("z = Cast<to=7>(x) y = SequenceConstruct(x, z)"), ShapeError, "differ in dtype"),
    (
        "inserted in another dtype",
        line("q = SequenceConstruct(x) z = Cast<to=7>(x) y = SequenceInsert(q, z)"),
        ShapeError,
        "types differ",
    ),
    (
        "axis of a sequence",
        line("q = SequenceConstruct(x) y = ConcatFromSequence<axis=5>(q)"),
        ShapeError,
        "axis out of range, got 5",
    ),
    ("axis of parts", line("y = SplitToSequence<axis=7>(x)"), ShapeError, "axis out of range, got 7"),
    ("sequence as a tensor", line("q = SequenceConstruct(x) y = Relu(q)"), ShapeError, "got sequence<f32[2, 3]>"),
    ("tensor as a sequence", line("y = SequenceLength(x)"), ShapeError, "input 0 has a wrong dtype"),
    ("sequence of sequences", line("q = SequenceConstruct(x) y = SequenceConstruct(q)"), ShapeError, "wrong dtype"),
    ("sequence of dtype 99", line("y = SequenceEmpty<dtype=99>()"), LoadError, "unknown dtype, got 99"),
    ("strings negated", line("y = Neg(s)", "string[2] s"), ShapeError, "got string[2]"),
    ("strings joined", line("y = StringConcat(s, t)", "string[2] s, string[3] t", 20), ShapeError, "do not broadcast"),
    (
        "regex in a regex",
        line('y = RegexFullMatch<pattern="(a{1,99}){1,99}b">(s)', "string[2] s", 20),
        LoadError,
        "invalid repetition size",
    ),
    *(
        (f"{op} by {scale}", quantized(op, operands, s=np.array(scale, F)), LoadError, "expected finite scales")
        for op, operands, scales in (
            ("QuantizeLinear", "x s z", (np.nan, np.inf)),
            ("DequantizeLinear", "a s", (np.nan, -np.inf)),
            ("QLinearMatMul", _MADE, (np.nan,)),
            ("QLinearConv", _CONV, (np.inf,)),
        )
        for scale in scales
    ),
    ("zero point in floats", quantized("QuantizeLinear", "x s z", z=np.array(3, F)), ShapeError, "wrong dtype"),
    (
        "zero point of a matrix",
        quantized("QuantizeLinear", "x s z", z=np.ones((2, 2), np.uint8)),
        ShapeError,
        "does not",
    ),
    ("scales of five columns", quantized("QuantizeLinear", "x s", s=np.ones(5, F)), ShapeError, "dims differ, got 5"),
    (
        "zero points of two",
        quantized("QuantizeLinear", "x s z", s=np.ones(3, F), z=np.ones(2, np.uint8)),
        ShapeError,
        "fit",
    ),
    ("axis of scales", quantized("QuantizeLinear", "x s", s=np.ones(3, F), axis=7), ShapeError, "out of range, got 7"),
    ("zero point with a sign", quantized("DequantizeLinear", "a s z", z=np.array(1, np.int8)), ShapeError, "differ"),
    ("blocks", quantized("DequantizeLinear", "a s", s=np.ones((2, 1), F), block_size=2**40), LoadError, "'block_size'"),
    ("zero points of seven rows", quantized("MatMulInteger", "a b z", z=np.ones(7, np.uint8)), ShapeError, "broadcast"),
    (
        "zero points of filters",
        quantized("QLinearConv", "i s z k s t s z", t=np.ones(3, np.uint8)),
        ShapeError,
        "broad",
    ),
    ("bias of nine", quantized("QLinearConv", _CONV + " t", t=np.ones(9, np.int32)), ShapeError, "dims differ, got 9"),
    ("results of one name", quantized("DynamicQuantizeLinear", "x"), LoadError, "wrong number of outputs"),
    ("sparse constant", _sparse, UnsupportedError, "sparse tensors"),
    ("map", _typed(_MAP), UnsupportedError, "'o' is a map"),
    ("optional map", _typed(helper.make_optional_type_proto(_MAP)), UnsupportedError, "'o' is a map"),
    ("optional of an optional", _typed(_nested(helper.make_optional_type_proto)), ShapeError, "wrong dtype"),
    ("sequence input of sequences", _typed(_nested(helper.make_sequence_type_proto)), ShapeError, "wrong dtype"),
    ("scale of doubles", quantized("QuantizeLinear", "x s z", s=np.array(1.0)), ShapeError, "wrong dtype, got f64[]"),
    (
        "zero point of 32 bits",
        quantized("QuantizeLinear", "x s z", z=np.array(1, np.int32)),
        ShapeError,
        "wrong dtype, got i32[]",
    ),
    ("sparse input", _typed(helper.make_sparse_tensor_type_proto(1, [2])), UnsupportedError, "onnx input 'o'"),
]

# Files that load, what they are fed, and the error of the run, which names the node.
Run = tuple[str, Callable[[], bytes], dict[str, Any], type[IngotError], str]
_AT = {"x": ONES, "i": np.array(5)}
_WORDS = {"s": np.array(["a", "b"], object)}


def _memory(body: str, given: str, feeds: dict[str, Any], name: str) -> Run:
    return name, line(body, given, 20), feeds, ResourceError, "no memory"


RUNS: list[Run] = [
    *(
        (f"{what} {place}", line(body), {"x": ONES, "i": np.array(place)}, InputError, "position: index out of range")
        for what, body in (
            ("element", "q = SequenceConstruct(x, x) y = SequenceAt(q, i)"),
            ("inserted at", "q = SequenceConstruct(x, x) y = SequenceInsert(q, x, i)"),
            ("erased", "q = SequenceConstruct(x, x) y = SequenceErase(q, i)"),
        )
        for place in (5, -5, 2**62)
    ),
    (
        "shape of twenty sizes from data",
        line("t = Expand(s, s) y = Reshape(x, t)", "float[2,3] x, int64[1] s"),
        {"x": ONES, "s": np.array([20])},
        InputError,
        "number of elements",
    ),
    ("erased of none", line("q = SequenceEmpty() y = SequenceErase(q)"), _AT, InputError, "node 'y'"),
    ("joined of none", line("q = SequenceEmpty() y = ConcatFromSequence<axis=0>(q)"), _AT, InputError, "is empty"),
    (
        "joined of two shapes",
        line("z = Transpose(x) q = SequenceConstruct(x, z) y = ConcatFromSequence<axis=0>(q)"),
        _AT,
        InputError,
        "elements do not fit",
    ),
    ("parts of 0", line("y = SplitToSequence<axis=0>(x, i)"), _AT | {"i": np.array(0)}, InputError, "bad size"),
    ("parts of -1", line("y = SplitToSequence<axis=0>(x, i)"), _AT | {"i": np.array(-1)}, InputError, "bad size"),
    (
        "element of nothing",
        line("o = Optional<type=float[2]>() y = OptionalGetElement(o)"),
        _AT,
        InputError,
        "the optional is absent",
    ),
    (
        "sequences of two lengths",
        line(
            "q = SequenceConstruct(x, x) r = SequenceConstruct(x) y = SequenceMap "
            "<body = b (float[2,3] v, float[2,3] u) => (w) { w = Add(v, u) }> (q, r)"
        ),
        _AT,
        InputError,
        "lengths differ",
    ),
    ("a word as a number", line("y = Cast<to=7>(s)", "string[2] s"), _WORDS, InputError, "not a number, got 'a'"),
    (
        "numbers as strings",
        line("y = StringConcat(s, s)", "string[2] s", 20),
        {"s": np.ones(2, F)},
        InputError,
        "dtype",
    ),
    (
        "objects as strings",
        line("y = StringConcat(s, s)", "string[2] s", 20),
        {"s": np.array([1, None], object)},
        InputError,
        "not only strings",
    ),
    _memory(
        "y = Expand(s, i)", "string[1] s, int64[2] i", {"s": _WORDS["s"][:1], "i": ints(2**16, 2**16)}, "many words"
    ),
    _memory(
        "y = Loop (n, , s) <body = b (int64 i, bool d, string[1] v) => (bool e, string[1] w) "
        "{ e = Identity(d) w = StringConcat(v, v) }>",
        "string[1] s, int64 n",
        {"s": np.array(["a" * 2**20], object), "n": np.array(60)},
        "words that grow",
    ),
]

ENDLESS = {
    "by its count": loop(_STEP, types="float[2,3] x, int64 n", operands="n, , x"),
    "by its condition": loop("e = Identity(d) w = Neg(v)", operands=", c, x", types="float[2,3] x, bool c"),
    "of what grows slowly": text(
        """g (float[2,3] x, int64 n) => (y) { q = SequenceConstruct(x) y = Loop (n, , q) <body = b (int64 i, bool d,
        seq(float[2,3]) v) => (bool e, seq(float[2,3]) w) { e = Identity(d) s = SequenceErase(v)
        w = SequenceInsert(s, x) }> }"""
    ),
}
ENDLESS_FEEDS = {"x": ONES, "n": np.array(2**63 - 1), "c": np.array(True)}
