"""Models whose values are more than arrays of known shape, in ONNX's text form; each input x is f32[2, 3, 4].

An oracle runs them with the same feeds. Other inputs are integers, bools and lists, which no load knows.
"""

from typing import Any

import numpy as np
from onnx import helper

from onnx_models import model, text_model

F = np.float32


def _model(inputs: str, outputs: str, body: str) -> str:
    return f"g (float[2, 3, 4] x{', ' * bool(inputs)}{inputs}) => ({outputs}) {{ {body} }}"


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


Model = tuple[str, dict[str, Any]]  # text, feeds in addition to x

SEQUENCES: dict[str, Model] = {
    "made, changed and joined": (
        _model(
            "int64 i",
            "n, a, j, k",
            """y = Neg(x)  s = SequenceConstruct(x, y)  z = Abs(x)  t = SequenceInsert(s, z, i)
            u = SequenceInsert(t, y)  v = SequenceErase(u, i)  w = SequenceErase(v)
            n = SequenceLength(w)  a = SequenceAt(w, i)
            j = ConcatFromSequence<axis=-1>(w)  k = ConcatFromSequence<axis=1, new_axis=1>(w)""",
        ),
        {"i": np.array(-1)},
    ),
    "begun empty": (
        _model(
            "",
            "y, n",
            """e = SequenceEmpty<dtype=1>()  s = SequenceInsert(e, x)  i = Constant<value_int=0>()  y = SequenceAt(s, i)
            n = SequenceLength(e)""",
        ),
        {},
    ),
    "split": (
        _model(
            "int64[2] p, int64 q",
            "a, b, c, d",
            """s = SplitToSequence<axis=1>(x, p)  t = SplitToSequence<axis=2>(x, q)  i = Constant<value_int=1>()
            u = SplitToSequence<axis=0, keepdims=0>(x)  v = SplitToSequence<axis=-1>(x)
            a = SequenceAt(s, i)  b = SequenceAt(t, i)  c = SequenceAt(u, i)  d = SequenceAt(v, i)""",
        ),
        {"p": _ints(1, 2), "q": np.array(3)},
    ),
    "returned": (_model("", "s", "y = Neg(x)  t = SequenceConstruct(x, y)  s = Identity(t)"), {}),
    "given": (
        _model("seq(float[k]) s", "n, a", "n = SequenceLength(s)  i = Constant<value_int=1>()  a = SequenceAt(s, i)"),
        {"s": [np.ones(2, F), np.zeros(3, F)]},
    ),
    "mapped": (
        _model(
            "seq(float[k]) s, float o",
            "t",
            "t = SequenceMap (s, o) <body = b (float[k] e, float p) => (float[k] r) { q = Add(e, p)  r = Neg(q) }>",
        ),
        {"s": [np.ones(2, F), np.zeros(3, F)], "o": np.array(2, F)},
    ),
}
OPTIONALS: dict[str, Model] = {
    "there": (_model("", "y, h", "o = Optional(x)  y = OptionalGetElement(o)  h = OptionalHasElement(o)"), {}),
    "asked without one": (_model("", "h, g", "h = OptionalHasElement()  g = OptionalHasElement(x)"), {}),
}
CONTROL: dict[str, Model] = {
    "a branch that a run takes": (
        _model(
            "bool c",
            "y",
            """z = Neg(x)  y = If (c) <then_branch = a () => (float[2, 3, 4] p) { p = Relu(z) },
            else_branch = b () => (float[2, 3, 4] q) { r = Abs(x)  q = Add(r, z) }>""",
        ),
        {"c": np.array(False)},
    ),
    "loops of known turns that make nothing, beside a size that data say": (
        _model(
            "bool c",
            "n, y, z",
            """n = NonZero(x)  m = Constant<value_int=2>()  k = Constant<value = bool {1}>()
            u = If (c) <then_branch = a () => (float[2, 3, 4] p) { p = Relu(x) },
            else_branch = b () => (float[2, 3, 4] q) { q = Abs(x) }>
            y, z = Loop (m, k, x, x) <body = b (int64 i, bool f, float[2, 3, 4] d, float[2, 3, 4] e) =>
            (bool l, float[2, 3, 4] o, float[2, 3, 4] s) { l = Identity(f)  o = Identity(x)  s = Identity(e)
            t = Neg(u) }>""",
        ),
        {"c": np.array(True)},
    ),
    "branches of two shapes": (
        _model(
            "bool c",
            "y",
            """y = If (c) <then_branch = a () => (float[2, n, 4] p) { p = Concat<axis=1>(x, x) },
            else_branch = b () => (float[2, m, 4] q) { q = Identity(x) }>  """,
        ),
        {"c": np.array(True)},
    ),
    "a loop that grows what it carries": (
        _model(
            "int64 m, bool c",
            "y, z",
            """y, z = Loop (m, c, x) <body = b (int64 i, bool k, float[2, n, 4] v) =>
            (bool l, float[2, p, 4] w, float e) { l = Identity(k)  w = Concat<axis=1>(v, x)  e = Cast<to=1>(i) }>""",
        ),
        {"m": np.array(3), "c": np.array(True)},
    ),
    "a loop until its condition": (
        _model(
            "",
            "y, z",
            """t = Constant<value_float=50.0>()  o = Constant<value_float=1.0>()
            y, z = Loop (, , o) <body = b (int64 i, bool k, float v) => (bool l, float w, float e) {
            w = Add(v, v)  l = Less(w, t)  e = Identity(w) }>""",
        ),
        {},
    ),
    "a loop in a branch in a loop": (
        _model(
            "int64 m, bool c",
            "y",
            """y = Loop (m, c, x) <body = b (int64 i, bool k, float[2, 3, 4] v) => (bool l, float[2, 3, 4] w) {
            l = Identity(k)  w = If (k) <then_branch = d () => (float[2, 3, 4] p) {
            p = Loop (m, k, v) <body = e (int64 j, bool f, float[2, 3, 4] s) => (bool h, float[2, 3, 4] r) {
            h = Identity(f)  r = Add(s, x) }> }, else_branch = g () => (float[2, 3, 4] q) { q = Neg(v) }> }>""",
        ),
        {"m": np.array(2), "c": np.array(True)},
    ),
    "a loop of a known number of turns": (
        _model(
            "",
            "y, z, w",
            """m = Constant<value_int=3>()  c = Constant<value=bool {1}>()  n = Neg(x)
            y, z, w = Loop (m, c, x, n, x) <body = b (int64 i, bool k, float[2, 3, 4] v, float[2, 3, 4] p,
            float[2, 3, 4] q) => (bool l, float[2, 3, 4] p, float[2, 3, 4] r, float[2, 3, 4] r) {
            l = Identity(k)  f = Cast<to=1>(i)  a = Mul(v, q)  r = Add(a, f) }>""",
        ),
        {},
    ),
    "no trip": (
        _model(
            "int64 m",
            "y, z",
            """y, z = Loop (m, , x) <body = b (int64 i, bool k, float[2, 3, 4] v) =>
            (bool l, float[2, 3, 4] w, float[2, 3, 4] e) { l = Identity(k)  w = Neg(v)  e = Abs(v) }>""",
        ),
        {"m": np.array(0)},
    ),
    "a scan that measures": (
        _model(
            "",
            "y, z",
            """s = Constant<value=float[2, 4] {1, 2, 3, 4, 5, 6, 7, 8}>()
            y, z = Scan<num_scan_inputs=1, scan_input_axes=[1], body = b (float[2, k] v, float[2, m] e) => (w, o) {
                w = Add(v, e)  n = NonZero(w)  t = Transpose(n)  q = Flatten<axis=0>(t)  p = Cast<to=1>(q)
                o = ReduceSum(p) }>(s, x)""",
        ),
        {},
    ),
    "a scan": (
        _model(
            "float[2, 4] s",
            "y, z",
            """t = Neg(s)  y, z = Scan<num_scan_inputs=1, scan_input_axes=[1], scan_input_directions=[1],
            scan_output_axes=[-1], body = b (float[2, 4] v, float[2, 4] e) => (float[2, 4] w, float[2, 4] o) {
            w = Add(v, e)  o = Mul(w, t) }>(s, x)""",
        ),
        {"s": np.ones((2, 4), F)},
    ),
}
LENGTHS: dict[str, Model] = {
    "positions": (_model("", "y, z", "z = NonZero(x)  t = Transpose<perm=[1, 0]>(z)  y = GatherND(x, t)"), {}),
    "rows that a mask keeps": (
        _model("bool[3] m, bool[5] f", "y, z", "y = Compress<axis=-2>(x, m)  z = Compress(x, f)"),
        {"m": np.array([True, False, True]), "f": np.array([False, True, True, False, True])},
    ),
    "different elements": (
        _model("int64[7] i", "a, b, c, d", "a, b, c, d = Unique<sorted=0>(i)"), {"i": _ints(5, 2, 5, 9, 2, 5, 1)},
    ),
    "different rows": (
        _model("int64[3, 2] i", "a, b, c, d", "a, b, c, d = Unique<axis=0>(i)"),
        {"i": np.array([[3, 1], [0, 2], [3, 1]])},
    ),
    "boxes": (
        _model(
            "float[1, 4, 4] b, float[1, 2, 4] s, int64[1] m, float[1] o, float[1] l",
            "y",
            "y = NonMaxSuppression(b, s, m, o, l)",
        ),
        {
            "b": np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [2, 2, 1, 1], [0, 5, 1, 6]]], F),
            "s": np.array([[[0.9, 0.8, 0.1, 0.7], [0.3, 0.6, 0.5, 0.4]]], F),
            "m": _ints(2), "o": np.array([0.5], F), "l": np.array([0.2], F),
        },
    ),
    "what follows a length": (
        _model(
            "",
            "y",
            """r = Relu(x)  z = NonZero(r)  s = Shape(z)  i = Constant<value_int=1>()  n = Gather(s, i)
            a = Constant<value_ints=[0]>()  v = Unsqueeze(n, a)  c = ConstantOfShape<value=float[1] {1.5}>(v)
            d = Cast<to=1>(z)  y = Mul(d, c)""",
        ),
        {},
    ),
}  # fmt: skip
# Of a rank that only a run knows.
RANKS: dict[str, Model] = {
    "a loop that adds a dim each time": (
        _model(
            "int64 m",
            "y, z",
            """a = Constant<value_ints=[0]>()  b = Constant<value_ints=[-1]>()
            y = Loop (m, , x) <body = b (int64 i, bool k, float[] v) => (bool l, float[] w) {
            l = Identity(k)  u = Unsqueeze(v, a)  w = Concat<axis=0>(u, u) }>  z = Reshape(y, b)""",
        ),
        {"m": np.array(3)},
    ),
    "a loop that takes dims until one is left": (
        _model(
            "",
            "y, z",
            """o = Constant<value_int=1>()  c = Greater(o, o)  d = Not(c)  a = Constant<value_ints=[0]>()
            y = Loop (, d, x) <body = b (int64 i, bool k, float[] v) => (bool l, float[] w) {
            w = ReduceSum<keepdims=0>(v, a)  s = Shape(w)  n = Size(s)  l = Greater(n, o) }>  z = Softmax(y)""",
        ),
        {},
    ),
    "branches of two ranks, read by products": (
        _model(
            "bool c, float[4, 5] w",
            "y, z, n",
            """a = Constant<value_ints=[0]>()  p = Constant<value_ints=[0]>()  i = Constant<value_int=0>()
            t = If (c) <then_branch = d () => (float[] q) { q = Gather(x, i) },
            else_branch = e () => (float[] r) { r = Identity(x) }>
            y = MatMul(t, w)  s = Add(t, t)  u = Mul(s, t)  z = Concat<axis=-1>(u, t)  n = Shape(z)""",
        ),
        {"c": np.array(True), "w": np.ones((4, 5), F)},
    ),
    "what takes one rank alone": (
        _model(
            "bool c, float[4, 5] w",
            "y, k",
            """i = Constant<value_int=0>()  j = Constant<value_ints=[2]>()
            t = If (c) <then_branch = d () => (float[] q) { q = Gather(x, i) },
            else_branch = e () => (float[] r) { r = Identity(x) }>
            y = Gemm(t, w)  v, k = TopK(t, j)""",
        ),
        {"c": np.array(True), "w": np.ones((4, 5), F)},
    ),
    "shapes of as many dims": (
        _model(
            "bool c",
            "y, z",
            """i = Constant<value_int=0>()  o = Constant<value_float=1.5>()
            t = If (c) <then_branch = d () => (float[] q) { q = Gather(x, i) },
            else_branch = e () => (float[] r) { r = Identity(x) }>
            s = Shape(t)  e = Expand(o, s)  y = Add(e, t)  k = Shape(s)  g = ConstantOfShape<value=int64[1] {0}>(k)
            h = Slice(x, g, s)  z = Reshape(h, s)""",
        ),
        {"c": np.array(False)},
    ),
    "all dims of 1 that there are": (
        _model(
            "bool[3] m, bool[2] f",
            "y, z",
            "c = Compress<axis=1>(x, m)  d = Compress<axis=0>(c, f)  y = Squeeze(d)  z = Neg(y)",
        ),
        {"m": np.array([False, True, False]), "f": np.array([True, True])},
    ),
}
SIZES: dict[str, Model] = {
    "Reshape": (_model("int64[3] s", "y", "y = Reshape(x, s)"), {"s": _ints(0, -1, 2)}),
    "Reshape to nothing": (_model("int64[2] s", "y", "e = Slice(x, s, s, s)  y = Identity(e)"), {"s": _ints(1, 2)}),
    "Squeeze": (
        _model("int64[1] a", "y", "b = Constant<value_ints=[1]>()  u = Unsqueeze(x, b)  y = Squeeze(u, a)"),
        {"a": _ints(-3)},
    ),
    "Unsqueeze": (_model("int64[2] a", "y", "y = Unsqueeze(x, a)"), {"a": _ints(3, -5)}),
    "Slice": (
        _model("int64[2] s, int64[2] e, int64[2] a, int64[2] t", "y, z", "y = Slice(x, s, e, a, t) z = Slice(x, s, e)"),
        {"s": _ints(-1, 9), "e": _ints(0, -9), "a": _ints(1, -1), "t": _ints(2, -2)},
    ),
    "Slice of known axes": (
        _model("int64[1] s, int64[1] e", "y", "a = Constant<value_ints=[-1]>()  y = Slice(x, s, e, a)"),
        {"s": _ints(-3), "e": _ints(2**62)},
    ),
    "Slice of what a run counts": (
        _model(
            "bool[5] f",
            "y, z",
            """c = Compress(x, f)  n = Shape(c)  t = Constant<value_ints=[2]>()  m = Sub(n, t)
            a = Constant<value_ints=[0]>()
            b = Constant<value_ints=[-1]>()  y = Slice(c, m, a, a, b)  z = Slice(c, m, n)""",
        ),
        {"f": np.array([False, True, True, False, True])},
    ),
    "Expand": (_model("int64[4] s", "y", "y = Expand(x, s)"), {"s": _ints(2, 1, 3, 4)}),
    "Tile": (_model("int64[3] s", "y", "y = Tile(x, s)"), {"s": _ints(1, 2, 3)}),
    "Split": (_model("int64[2] s", "a, b", "a, b = Split<axis=2>(x, s)"), {"s": _ints(1, 3)}),
    "Pad": (
        _model("int64[6] p, float v", "y, z", "y = Pad(x, p)  z = Pad(x, p, v)"),
        {"p": _ints(1, -1, 0, 0, 2, -2), "v": np.array(3, F)},
    ),
    "Pad of some axes": (
        _model("int64[4] p, int64[2] a", "y", "y = Pad(x, p, , a)"), {"p": _ints(1, 0, 0, 2), "a": _ints(-1, 0)},
    ),
    "ConstantOfShape": (_model("int64[2] s", "y", "y = ConstantOfShape(s)"), {"s": _ints(3, 0)}),
    "Range": (
        _model("int64 a, int64 b, int64 c, float d, float e, float f", "y, z", "y = Range(a, b, c) z = Range(d, e, f)"),
        {"a": np.array(7), "b": np.array(-2), "c": np.array(-2)}
        | {"d": np.array(0, F), "e": np.array(1, F), "f": np.array(0.25, F)},
    ),
    "TopK": (_model("int64[1] k", "y, i", "y, i = TopK<axis=1>(x, k)"), {"k": _ints(2)}),
    "OneHot": (
        _model("int64[2] i, int64 d", "y", "v = Constant<value_floats=[0.0, 2.0]>()  y = OneHot<axis=0>(i, d, v)"),
        {"i": _ints(1, -1), "d": np.array(3)},
    ),
    "CumSum": (_model("int64 a", "y", "y = CumSum<reverse=1>(x, a)"), {"a": np.array(-2)}),
    "Trilu": (_model("int64 k", "y, z", "y = Trilu<upper=0>(x, k)  z = Trilu(x, k)"), {"k": np.array(-1)}),
    "reductions": (
        _model(
            "int64[2] a",
            "p, q, r, s, t",
            """p = ReduceSum<keepdims=0>(x, a)  q = ReduceMean(x, a)  r = ReduceMax(x, a)  s = ReduceLogSumExp(x, a)
            t = ReduceL2<keepdims=0>(x, a)""",
        ),
        {"a": _ints(-1, 0)},
    ),
}  # fmt: skip
MAPS: dict[str, Model] = {
    "of rows by integers": (
        _model(
            "",
            "y, seq(map(int64, float)) m",
            """s = Constant<value_ints=[6, 4]>()  r = Reshape(x, s)  y = Softmax(r)
            m = ai.onnx.ml.ZipMap<classlabels_int64s=[7, -1, 9, 3]>(y)""",
        ),
        {},
    ),
    "of one row by strings": (
        _model(
            "",
            "m, y",
            """a = Constant<value_ints=[0, 1]>()  r = ReduceMax<keepdims=0>(x, a)
            m = ai.onnx.ml.ZipMap<classlabels_strings=["b", "a b", "", "b"]>(r)  y = Neg(r)""",
        ),
        {},
    ),
    "of no row": (
        _model("float[rows, 2] z", "m", "m = ai.onnx.ml.ZipMap<classlabels_int64s=[0, 1]>(z)"),
        {"z": np.zeros((0, 2), F)},
    ),
    "of as many rows as a run has": (
        _model("float[rows, columns] z", "m", "m = ai.onnx.ml.ZipMap<classlabels_int64s=[0, 1, 2]>(z)"),
        {"z": np.array([[1, np.inf, 2]] * 5, F)},
    ),
}

VALUES = {
    f"{kind}: {name}": model
    for kind, models in (
        ("sequence", SEQUENCES), ("map", MAPS), ("optional", OPTIONALS), ("control", CONTROL), ("length", LENGTHS),
        ("rank", RANKS), ("size", SIZES),
    )
    for name, model in models.items()
}  # fmt: skip
BY_REFERENCE = {"sequence: mapped", "optional: asked without one", "control: branches of two shapes"}


def scan_with_batch() -> bytes:
    """A scan of opset 8, whose values have a batch before all."""
    return text_model(
        """g (float[2, 4] s, float[2, 3, 4] x) => (float[2, 4] y, float[2, 3, 4] z) {
        y, z = Scan<num_scan_inputs=1, body = b (float[4] v, float[4] e) => (float[4] w, float[4] o) {
        w = Add(v, e)  o = Identity(w) }>( , s, x) }""",
        opset=8,
    )


def absent_optional() -> bytes:
    """An optional without a value, asked whether it has one."""
    type = helper.make_tensor_type_proto(1, [5])
    nodes = [helper.make_node("Optional", [], ["o"], type=type), helper.make_node("OptionalHasElement", ["o"], ["y"])]
    return model(helper.make_graph(nodes, "g", [], [helper.make_tensor_value_info("y", 9, [])])).SerializeToString()
