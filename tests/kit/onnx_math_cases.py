"""Cases of the ONNX rules of functions, bits, windows, scattering, padding, pooling and random numbers."""

import numpy as np

from onnx_models import Case, case, ints

F = np.float32
NOTHING = np.array([[1, 2, 2], [0, 0, 0]], F)  # a row of ties, and one whose norm is 0
REDUCTIONS = ("add", "mul", "max", "min")

FUNCTIONS = [
    *(case(op, "x[2,3,5]", low=-1.0, high=1.0) for op in ("Acos", "Asin")),
    case("Acosh", "x[2,3,5]", low=1.0, high=9.0),
    case("Atanh", "x[2,3,5]", low=-0.9, high=0.9),
    case("Shrink", "x[3,7]"),
    case("Shrink", "x[3,7]", lambd=1.0, bias=0.25),
    case("Shrink", "x:i32>-9<9[9]", lambd=1.5, bias=1.5),
    case("Shrink", "x:u8<9[9]", lambd=2.5, bias=1.0),
    case("Selu", "x[3,7]", alpha=2.0, gamma=3.0),
    case("BitwiseAnd", "x:i64>-99<99[2,5] y:i64>-99<99[5]"),
    case("BitwiseOr", "x:i32>-99<99[2,5] y:i32>-99<99[5]"),
    case("BitwiseXor", "x:u8<99[2,5] y:u8<99[5]"),
    case("BitwiseNot", "x:i8>-99<99[2,5]"),
    case("BitShift", "x:u8<99[2,5] y:u8<8[5]", direction="LEFT"),
    case("BitShift", "x:u64<99[2,5] y:u64<70[5]", direction="RIGHT", oracle="reference"),
    case("BitShift", "x:i64>-99<99[2,5] y:i64>-3<70[2,5]", direction="LEFT", opset=28, oracle="reference"),
    case("BitShift", "x:i16>-99<99[2,5] y:i16>-3<20[2,5]", direction="RIGHT", opset=28, oracle="reference"),
    case("BitCast", "x[2,5]", to=6, opset=26, oracle="reference"),
    case("BitCast", "x:i64[2,5]", to=11, opset=26, oracle="reference"),
    case("BitCast", "x:bool[2,5]", to=2, opset=26, oracle="reference"),
    case("Hardmax", "@x", x=NOTHING),
    case("Hardmax", "x[2,3,5]", axis=1),
    case("LpNormalization", "@x", x=NOTHING),
    case("LpNormalization", "x[2,3,5]", axis=1, p=1),
    case("LRN", "x[2,7,3,2]", size=3),
    case("LRN", "x[5,5,3,2]", size=4, alpha=0.5, beta=0.6, bias=2.0, oracle="reference"),
    case("Det", "x[3,3]"),
    case("Det", "x[2,5,4,4]"),
    case("Einsum", "a[2,3,3]", equation="...ii->...i"),
    case("Einsum", "a[3,3]", equation="ii"),
    case("Einsum", "a[2,3,2,3]", equation="abab->ba"),
    case("Einsum", "a[2,3,4,5]", equation="...ij->...ji"),
    case("Einsum", "a[2,3,4] b[2,4,5]", equation="...ij,...jk->...ik"),
    case("Einsum", "a[7,2,3,4] b[2,4,5]", equation="...ij,...jk", oracle="reference"),
    case("Einsum", "a[1,3,4] b[2,4,5]", equation="...ij,...jk->i...k"),
    case("Einsum", "a[2,3,4] b[4]", equation="...j,j->..."),
    case("Einsum", "a[2,3] b[3,4] c[4,5]", equation="ij,jk,kl->il"),
    case("Einsum", "a[2,3] b[3,4] c[4,2]", equation="ij,jk,ki"),
    case("Einsum", "a[2,2,3] b[3]", equation="iij,j->i", oracle="reference"),
    *(
        case("CumProd", "x[2,5] @axis", axis=np.array(axis), opset=26, oracle="reference", **given)
        for axis, given in ((1, {}), (-2, {"exclusive": 1}), (1, {"reverse": 1}), (0, {"reverse": 1, "exclusive": 1}))
    ),
    case("CumProd", "x:i32>-3<4[2,5] @axis", axis=np.array(0), opset=26, oracle="reference"),
    *(case(op, "@n", n=np.array(10)) for op in ("HannWindow", "HammingWindow", "BlackmanWindow")),
    case("HannWindow", "@n", n=np.array(9), periodic=0, output_datatype=11),
    case("HammingWindow", "@n", n=np.array(1, np.int32), periodic=0),
    case("Range", "@a @b @c", a=np.array(0.5), b=np.array(3.0), c=np.array(0.1)),
    case("Range", "a>0<1[] b>4<5[] c>0.3<0.7[]"),
    case("Range", "a>4<5[] b>0<1[] c>0.3<0.7[]"),
    case("Range", "a:i64<3[] b:i64>9<20[] c:i64>1<4[]"),
    case("Range", "a:i32>9<20[] b:i32<3[] c:i32>-4<0[]"),
]
POSITIONS = [
    case("ScatterElements", "x[3,5] @i u[1,3]", i=np.array([[4, 0, -2]]), axis=1),
    case("ScatterElements", "x:i64[3,5] @i u:i64[2,2]", i=np.array([[2, 0], [-1, 1]])),
    *(case("ScatterElements", "x[3,5] i:i64>-3<3[4,5] u[4,5]", reduction=r) for r in REDUCTIONS),
    *(case("ScatterElements", "x:bool[3,5] @i u:bool[1,5]", reduction=r, i=ints(2, 0, 1, 1, 2)[None])
      for r in ("add", "mul")),
    case("ScatterND", "x[4,5] @i u[2,5]", i=np.array([[1], [-4]])),
    case("ScatterND", "x[2,3,5] @i u[2,2,5]", i=np.array([[[0, 1], [1, 2]], [[1, 0], [0, -1]]])),
    case("ScatterND", "x[3,5] i:i64<3[6,2] u[6]", reduction="add"),
    *(case("ScatterND", "x[3,5] i:i64<3[6,1] u[6,5]", reduction=r) for r in REDUCTIONS),
    case("TensorScatter", "x[2,3,7,4] u[2,3,2,4] @w", w=ints(5, 0), opset=24, oracle="reference"),
    case("TensorScatter", "x[2,7,4] u[2,3,4] w:i64<7[2]", mode="circular", axis=1, opset=24, oracle="reference"),
    case("TensorScatter", "x[2,7,4] u[2,3,4]", opset=24, oracle="reference"),
    case("ReverseSequence", "x[5,3,2] @n", n=ints(5, 1, 3)),
    case("ReverseSequence", "x[3,5] n:i64<6[3]", batch_axis=0, time_axis=1),
    case("OneHot", "i:i64>-4<6[3] d:i64>3<7[] v[2]"),
    case("OneHot", "i:i64>-4<6[2,3] @d v[2]", d=np.array(4, F), axis=0, oracle="reference"),
    *(case("Pad", "x[4,3,5] @p", p=ints(3, 0, 2, 1, 0, 4), mode=mode) for mode in ("edge", "reflect")),
    case("Pad", "x[4,3,5] @p", p=ints(3, 0, 2, 1, 0, 6), mode="wrap", opset=19),
    case("Pad", "x[1,3] @p", p=ints(2, 0, 3, 0), mode="edge"),
    case("Pad", "x:i64[2,5] @p none @a", p=ints(2, -1), mode="reflect", a=ints(-1)),
    case("Pad", "x[2,3] @p v[]", p=ints(1, 0, 0, 2)),
    case("Pad", "x:i64[2,3] @p v:i64[]", p=ints(1, -1, 0, 2)),
    case("Col2Im", "x[2,12,9] @n @k", n=ints(4, 4), k=ints(2, 2)),
    case("Col2Im", "x[1,9,3] @n @k", n=ints(5, 5), k=ints(1, 9), pads=[0, 2, 0, 2], strides=[2, 1],
         oracle="reference"),
    case("Col2Im", "x[1,8,4] @n @k", n=ints(5, 5), k=ints(2, 2), dilations=[2, 2], strides=[2, 2]),
    case("Col2Im", "x[1,6,9] @n @k", n=ints(3, 4, 3), k=ints(1, 2, 3)),
]  # fmt: skip
POOLS = [
    case("MaxPool", "x[2,3,7,8]", 2, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("MaxPool", "x[2,3,7,8]", 2, kernel_shape=[3, 2], strides=[2, 3], ceil_mode=1, storage_order=1),
    case("MaxPool", "x[2,3,9]", 2, kernel_shape=[3], dilations=[2]),
    case("MaxPool", "x:u8<99[2,3,7,8]", kernel_shape=[3, 2], pads=[1, 0, 1, 1]),
    case("MaxPool", "x:i8>-99<-9[2,3,7,8]", kernel_shape=[3, 2], pads=[1, 0, 1, 1]),
    case("LpPool", "x[2,3,7,8]", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("LpPool", "x[2,3,7,8]", kernel_shape=[3, 2], p=1, auto_pad="SAME_UPPER"),
    case("LpPool", "x[2,3,9]", kernel_shape=[3], p=3, ceil_mode=1, strides=[2], dilations=[2]),
    *(case("GlobalLpPool", "x[2,3,7,8]", p=p) for p in (1, 2, 3)),
    case("MaxUnpool", "x[1,1,2,2] @i", i=np.array([[[[1, 3], [8, 15]]]]), kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxUnpool", "x[1,1,2,2] @i @s", i=np.array([[[[1, 3], [8, 15]]]]), s=ints(1, 1, 5, 5), kernel_shape=[2, 2],
         strides=[2, 2], oracle="reference"),
    case("BatchNormalization", "x[4,3,5] s[3] b[3] m[3] v>0.5<1[3]", 3, training_mode=1, epsilon=0.01),
    case("BatchNormalization", "x[4,3] s[3] b[3] m[3] v>0.5<1[3]", 3, training_mode=1, momentum=0.5),
]  # fmt: skip
# The reference draws the same numbers from a seed.
SEEDED = [
    case("Dropout", "x[30,4] @r @t", 2, seed=7, r=np.array(0.25, F), t=np.array(True), oracle="reference"),
    case("Dropout", "x[30,4] @r @t", 2, seed=3, r=np.array(0.5, F), t=np.array(True), oracle="reference"),
    case("Dropout", "x[3,4] r>0.1<0.2[] @t", seed=0, t=np.array(True), oracle="reference"),
    case("Dropout", "x[3,4] @r @t", 2, r=np.array(0.25, F), t=np.array(False), oracle="reference"),
    case("RandomUniform", "", shape=[3, 5], seed=4.0, oracle="reference"),
    Case("RandomUniformLike", "x[3,5]", {"low": -3.0, "high": 5.0, "seed": 4.0, "dtype": 11}, oracle="reference"),
]
RANDOM = [
    case("RandomNormal", "", shape=[400, 500], mean=3.0, scale=2.0),
    case("RandomNormalLike", "x:i64[300,300]", dtype=11),
    Case("RandomUniform", "", {"shape": [400, 500], "low": -1.0, "high": 3.0}),
    case("Bernoulli", "x[300,300]", low=0.5, high=0.5),
    case("Bernoulli", "x[300,300]", low=0.25, high=0.25, dtype=9, seed=5.0),
]
MULTINOMIAL = case("Multinomial", "@p", p=np.log(np.array([[0.2, 0.5, 0.3], [0.9, 0.1, 1e-30]], F)), sample_size=9000,
                   dtype=7)  # fmt: skip
MATH = [*FUNCTIONS, *POSITIONS, *POOLS, *SEEDED]
