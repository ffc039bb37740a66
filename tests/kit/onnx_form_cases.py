"""Forms of ONNX models that ONNX Runtime runs though they are unusual: scalars as vectors of one element and the other
way round, nodes in any order, names that are hidden or long, inputs without a shape, ranks up to the largest.
"""

from collections.abc import Iterator

import numpy as np

from onnx_models import Case, case, ints

F = np.float32
MS = "com.microsoft"
LARGE = "[2,1,2,1,2,2,1,2,1,2,1,2]"  # a shape of the largest rank, and one that broadcasts with it
OTHER = "[1,2,1,2,2,1,2,1,2,2,2,1]"
DENSE = "[2,2,2,2,2,2,2,2,2,2,2,2]"
EACH_SECOND = ints(1, 3, 5, 7, 9, 11)
MIXED = [11, 0, 10, 1, 9, 2, 8, 3, 7, 4, 6, 5]

MASKS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint64, np.float16, np.float64]
OPTIONAL_FORMS = [
    *(
        case("Attention", "q[1,2,3,8] k[1,2,4,8] v[1,2,4,8] @m", opset=23, m=np.arange(12).reshape(3, 4).astype(dtype))
        for dtype in MASKS
    ),
    case("BatchNormalization", "x[4] s[1] b[1] m[1] v>0.1[1]"),
    case("BatchNormalization", "x[4] s[1] b[1] m[1] v>0.1[1]", 3, training_mode=1),
    case("SkipLayerNormalization", "x[2,3,8] s[2,3,8] w[8] b[8] c[8]", 4, domain=MS),
    case("SkipLayerNormalization", "x[2,3,8] s[1,3,8] w[8]", 3, domain=MS, epsilon=0.1),
    case("SkipSimplifiedLayerNormalization", "x[2,3,8] s[3,8] w[8] c[8]", 4, domain=MS),
    case("Conv", "x[1,3,7,8] w[4,3,3,3]", pads=[1, 0, 1, 2], auto_pad=""),
    case("ConvTranspose", "x[1,3,4,4] w[3,2,3,3]", strides=[2, 2], auto_pad=""),
    case("MaxPool", "x[1,3,7,8]", kernel_shape=[3, 2], pads=[1, 0, 1, 1], auto_pad=""),
    case("AveragePool", "x[1,3,7,8]", kernel_shape=[3, 2], auto_pad=""),
    case("LpPool", "x[1,3,7,8]", kernel_shape=[3, 2], pads=[1, 0, 1, 1], auto_pad=""),
]
LARGEST_RANK = [
    case("Transpose", f"x{DENSE}", perm=MIXED),
    case("Transpose", f"x:i64{DENSE}", perm=MIXED),
    case("Add", f"x{LARGE} y{OTHER}"),
    case("Where", f"c:bool{LARGE} x{OTHER} y{DENSE}"),
    case("Sin", f"x{DENSE}"),
    case("Cast", f"x{DENSE}", to=7),
    case("Clip", f"x{DENSE} @a @b", a=np.array(-0.5, F), b=np.array(0.5, F)),
    case("ReduceSum", f"x{DENSE} @a", a=EACH_SECOND),
    case("ReduceMax", f"x{DENSE} @a", a=EACH_SECOND, keepdims=0),
    case("ArgMax", f"x{DENSE}", axis=3),
    case("CumSum", f"x{DENSE} @a", a=np.array(4)),
    case("TopK", f"x{DENSE} @k", 2, k=ints(1), axis=4),
    case("Softmax", f"x{DENSE}", axis=3),
    case("LayerNormalization", f"x{DENSE} w[2]"),
    case("BatchNormalization", f"x{DENSE} s[2] b[2] m[2] v>0.1[2]"),
    case("MatMul", f"x{LARGE} y[1,2,1,2,2,1,2,1,2,2,2,3]"),
    case("MatMulInteger", f"x:u8<9{DENSE} y:u8<9{DENSE}"),
    case("Concat", f"x{DENSE} y{DENSE}", axis=6),
    case("Split", f"x{DENSE}", 2, axis=7, num_outputs=2),
    case("Slice", f"x{DENSE} @a @b @c", a=ints(0, 1), b=ints(1, 2), c=ints(3, 8)),
    case("Pad", f"x{LARGE} @p", p=ints(1, *[0] * 22, 1)),
    case("Tile", f"x{LARGE} @r", r=ints(1, 2, 1, 2, 2, 1, 2, 1, 2, 2, 2, 1)),
    case("Expand", f"x{LARGE} @s", s=ints(*[2] * 12)),
    case("Gather", f"x{DENSE} i:i64<2[3]", axis=5),
    case("GatherElements", f"x{DENSE} i:i64<2{DENSE}", axis=3),
    case("GatherND", f"x{DENSE} i:i64<2[3,11]"),
    case("ScatterElements", f"x{DENSE} i:i64<1[1,2,2,2,2,2,2,2,2,2,2,2] u[1,2,2,2,2,2,2,2,2,2,2,2]", axis=0),
    case("Squeeze", f"x{LARGE} @a", a=ints(1, 3, 6)),
    case("Unsqueeze", "x[2,2,2,2,2,2,2,2,2] @a", a=ints(0, 5, 11)),
    case("OneHot", "i:i64<2[2,1,2,1,2,2,1,2,1,2,1] @d v[2]", d=np.array(2)),
    case("NonZero", f"x{LARGE}"),
]
FORMS = [*OPTIONAL_FORMS, *LARGEST_RANK]

# A node, and the places of operands that are one number, as a scalar or as a vector of one, as ONNX Runtime takes both.
_QUANT = {"x": np.arange(6, dtype=np.uint8).reshape(2, 3), "w": np.arange(6, dtype=np.uint8).reshape(3, 2)}
_SCALE, _ZERO = np.array(0.1, F), np.array(3, np.uint8)
_BOTH: list[tuple[Case, str]] = [
    (case("Clip", "x[2,3] @a @b", a=np.array(-0.5, F), b=np.array(0.5, F)), "a b"),
    (case("Clip", "x:i32>-9<9[9] @a @b", a=np.array(-3, np.int32), b=np.array(4, np.int32)), "a b"),
    (case("Clip", "x:u8<9[9] @a", a=np.array(3, np.uint8)), "a"),
    (case("CumSum", "x[2,3] @a", a=np.array(1)), "a"),
    (case("OneHot", "i:i64<3[3] @d v[2]", d=np.array(3)), "d"),
    (case("Range", "@a @b @c", a=np.array(0), b=np.array(5), c=np.array(2)), "b c"),
    (case("Range", "@a @b @c", a=np.array(0, F), b=np.array(5, F), c=np.array(2, F)), "b c"),
    (case("Pad", "x[2,3] @p @v", p=ints(0, 1, 0, 1), v=np.array(2, F)), "v"),
    (case("Trilu", "x[3,3] @k", k=np.array(1)), "k"),
    (case("Unsqueeze", "x[2,3] @a", a=np.array(1)), "a"),
    (case("Resize", "x[3] none @s", s=np.array(2, F)), "s"),
    (case("Resize", "x[3] none none @s", s=np.array(6)), "s"),
    (case("Upsample", "x[3] @s", opset=9, s=np.array(2, F)), "s"),
    (case("NonMaxSuppression", "b>0<1[1,4,4] s[1,1,4] @n @o @t", n=np.array(2), o=np.array(0.5, F), t=np.array(0, F)),
     "n o t"),
    (case("STFT", "x[1,16,1] @s none @n", s=np.array(4), n=np.array(8)), "s"),
    (case("MelWeightMatrix", "@a @b @c @d @e", a=np.array(8), b=np.array(64), c=np.array(8192), d=np.array(0, F),
          e=np.array(4096, F)), "b c d e"),
    (case("QuantizeLinear", "x[2,3] @s @z", s=_SCALE, z=_ZERO), "s z"),
    (case("DequantizeLinear", "@x @s @z", x=_QUANT["x"], s=_SCALE, z=_ZERO), "s z"),
    (case("MatMulInteger", "@x @w @z @o", **_QUANT, z=_ZERO, o=_ZERO), "z o"),
    (case("QLinearMatMul", "@x @s @z @w @t @o @u @p", **_QUANT, s=_SCALE, z=_ZERO, t=_SCALE, o=_ZERO, u=_SCALE,
          p=_ZERO), "s z t o u p"),
]  # fmt: skip


def scalars() -> Iterator[tuple[Case, bool]]:
    """Each node with one of its numbers as a scalar, a vector of one, or both dims 1, and whether all is fed.

    ONNX Runtime is the judge: what it refuses is no form.
    """
    for each, names in _BOTH:
        for name in names.split():
            for shape in ((), (1,), (1, 1)):
                constants = each.constants | {name: each.constants[name].reshape(shape)}
                for fed in (False, True):
                    yield Case(each.op, each.operands, each.attributes, constants, each.opset, each.domain), fed


LONG = "n" * 60_000
# Models over x f32[2,3] and a bool c: bodies in ONNX's text form.
_FUNCTION = """g (float[2,3] x, bool c) => (y) {{ y = local.f (x) }}
    <domain: "local", opset_import: ["" : 18]> f (a) => (b) {{ {} }}"""
_BRANCHES = """g (float[2,3] x, bool c) => (y) {{
    y = If (c) <then_branch = t () => (p) {{ {} }}, else_branch = e () => (o) {{ {} }}> }}"""
MODELS = {
    "a main graph": "g (float[2,3] x, bool c) => (y) { y = Add (a, b) b = Neg (a) a = Relu (x) }",
    "a subgraph": _BRANCHES.format("p = Add (q, r) r = Neg (q) q = Relu (x)", "o = Abs (n) n = Neg (x)"),
    "a subgraph that reads what comes later": """g (float[2,3] x, bool c) => (y) {
        y = If (c) <then_branch = t () => (p) { p = Neg (late) }, else_branch = e () => (o) { o = Abs (late) }>
        late = Relu (x) }""",
    "subgraphs in one another that read what comes later": """g (float[2,3] x, bool c) => (y) {
        y = If (c) <then_branch = t () => (p) {
                p = If (d) <then_branch = u () => (q) { q = Neg (late) }, else_branch = w () => (r) { r = Abs (x) }>
            }, else_branch = e () => (o) { o = Abs (x) }>
        d = Not (c) late = Relu (x) }""",
    "an input of a subgraph that hides one": """g (float[2,3] x, bool c) => (y) <int64 n = {3}> {
        r = Relu (x) y = Loop (n, , r) <body = b (int64 i, bool c, float[2,3] x) => (bool c2, float[2,3] v2) {
            c2 = Identity (c) v2 = Add (x, x) }> }""",
    "an initializer of a subgraph that hides one": """g (float[2,3] x, bool c) => (y) <int64 n = {3}, float k = {1}> {
        r = Add (x, k) y = Loop (n, , r) <body = b (int64 i, bool d, float[2,3] v) => (bool d2, float[2,3] v2)
            <float k = {10}> { d2 = Identity (d) v2 = Add (v, k) }> }""",
    "an input of a subgraph that has the node's name": """g (float[2,3] x, bool c) => (y) <int64 n = {3}> {
        y = Loop (n, , x) <body = b (int64 i, bool d, float[2,3] y) => (bool d2, float[2,3] v2) {
            d2 = Identity (d) v2 = Add (y, x) }> }""",
    "inputs of subgraphs that are initializers": """g (float[2,3] x, bool c) => (y) <int64 n = {3}> {
        a = If (c) <then_branch = t (float k) => (p) <float k = {2}> { p = Add (x, k) },
                    else_branch = e (float k) => (o) <float k = {5}> { o = Mul (x, k) }>
        y = Loop (n, , a) <body = b (int64 i, bool d, float[2,3] v, float w) => (bool d2, float[2,3] v2)
            <float w = {10}> { d2 = Identity (d) v2 = Add (v, w) }> }""",
    "inputs of a known branch that are initializers": """g (float[2,3] x, bool c) => (y) <bool f = {1}> {
        y = If (f) <then_branch = t (float k) => (p) <float k = {2}> { p = Add (x, k) },
                    else_branch = e (float k) => (o) <float k = {5}> { o = Mul (x, k) }> }""",
    "long names": f"""g (float[2,3] x, bool c) => (y) {{
        {LONG}a = Relu (x) {LONG}b = Neg ({LONG}a) y = Add ({LONG}a, {LONG}b) }}""",
    "a function": _FUNCTION.format("b = Add (d, e) e = Neg (d) d = Relu (a)"),
}
# Those of them that ONNX Runtime refuses, in order.
SORTED = {
    "a subgraph": _BRANCHES.format("q = Relu (x) r = Neg (q) p = Add (q, r)", "n = Neg (x) o = Abs (n)"),
    "a function": _FUNCTION.format("d = Relu (a) e = Neg (d) b = Add (d, e)"),
}
