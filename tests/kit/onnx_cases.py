"""Cases of the ONNX rules: nodes for an oracle to compare, and models with symbolic dims in ONNX's text form."""

import numpy as np

from ingot.load.onnx import elementwise, reduce
from onnx_contrib_cases import EXPORTED
from onnx_earlier_cases import EARLIER
from onnx_image_cases import IMAGES
from onnx_layer_cases import LAYERS
from onnx_math_cases import MATH
from onnx_ml_cases import CLASSICAL
from onnx_models import case, ints
from onnx_sequence_cases import SEQUENCES
from onnx_training_cases import PREVIEWS
from onnx_type_cases import TYPED

F = np.float32

EXTREMES = np.array(
    [0, -0.0, 1, -1, 5.5, -7, 1e-45, -3e-45, 1e-40, -1e-38, 3.4e38, -3e38, 1e30, np.inf, -np.inf, np.nan], F
)
HIDDEN = np.array([[1] * 7, [0] * 7], np.int32)  # a padding mask whose second row keeps nothing
BLIND = np.zeros((2, 4, 5, 7), F)  # a bias of scores whose second row of each head hides everything
BLIND[:, :, 1] = -np.inf
POSITIVE = ["Log", "Sqrt", "Reciprocal"]
FLOATS = [op for op in elementwise.UNARY if op not in [*POSITIVE, "BitwiseNot", "Not"]]
FLOATS += ["Celu", "Elu", "HardSigmoid", "Identity", "IsInf", "LeakyRelu", "LogSoftmax"]
FLOATS += ["Selu", "Softmax", "Softsign", "Tan", "ThresholdedRelu"]
BINARY = [op for op in elementwise.BINARY if not op.endswith(("And", "Or", "Xor"))] + [
    "Pow",
    *elementwise.VARIADIC,
    "Mean",
]
REDUCE = [*reduce.PLAIN, "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceSumSquare"]

ELEMENTWISE = [
    *(case(op, "x[2,3,5]") for op in FLOATS),
    *(case(op, "x[2,3,5]", low=0.1) for op in POSITIVE),
    *(case(op, "x>0.5[2,3,5] y>0.5[3,1]") for op in BINARY),
    *(case(op, "x:i64>-9<9[2,5] y:i64>1<5[5]") for op in ("Add", "Div", "Mod", "Mul", "Sub", "Max", "Min", "Equal")),
    *(case(op, "x:bool[2,3] y:bool[3]") for op in ("And", "Or", "Xor")),
    *(case(op, "x[4] y[1] z[3,1]") for op in ("Max", "Min", "Sum", "Mean")),
    case("Max", "x[4]"),
    case("Not", "x:bool[2,3]"),
    case("Celu", "x[]"),
    case("Celu", "x[3,4]", alpha=0.5),
    case("Clip", "x[3,4] @a @b", a=np.array(-0.5, F), b=np.array(1, F)),
    case("Clip", "x[3,4] none @b", b=np.array(0.5, F)),
    case("Clip", "x[3,4] a[] b[]"),
    case("Clip", "x:i64>-9<9[9] @a @b", a=np.array(-3), b=np.array(4)),
    case("Clip", "x:u8<9[9] @a @b", a=np.array(2, np.uint8), b=np.array(4, np.uint8)),
    case("Gelu", "x[3,4]", opset=20),
    case("Gelu", "x[3,4]", opset=20, approximate="tanh"),
    case("HardSigmoid", "x[3,4]", alpha=0.3, beta=0.4),
    case("LeakyRelu", "x[3,4]", alpha=0.3),
    case("Elu", "x[3,4]", alpha=0.3),
    case("PRelu", "x[3,4] s[4]"),
    case("PRelu", "x:i32>-9<9[3,4] s:i32>-9<9[4]"),
    case("IsInf", "@x", x=np.array([1, np.inf, -np.inf, np.nan], F), detect_positive=0),
    case("IsInf", "@x", x=np.array([1, np.inf, -np.inf, np.nan], F), detect_negative=0),
    case("Pow", "x>0.5[3] y:i64<4[3]"),
    case("Pow", "x:i64<4[3] y:i64<4[3]"),
    case("Pow", "x:i64>1<4[3] y>0.5[3]"),
    case("Mod", "x:i64>-9<9[9] y:i64>-5<-1[9]"),
    case("Mod", "x:i64>-9<9[9] y:i64>-5<-1[9]", fmod=1),
    case("Mod", "x>-9<9[40] y>-2<-1[40]", fmod=1),
    case("Mod", "x>-9<9[40] y>1<2[40]", fmod=1),
    case("Mod", "@a @b", fmod=1, a=EXTREMES[:, None], b=EXTREMES),
    case("Where", "c:bool[2,3] x[3] y[2,1]"),
    case("Cast", "x>-9<9[9]", to=7),
    case("Cast", "x:i64>-9<9[9]", to=1),
    case("Cast", "x[9]", to=9),
    case("Cast", "x:bool[9]", to=6),
    case("Cast", "x[9]", to=11),
    case("CastLike", "x>-9<9[9] y:i64[1]", opset=19),
    case("Dropout", "x[3,4]", outputs=2),
]
REDUCTIONS = [
    *(case(op, "x>0.1[2,3,5] @axes", axes=ints(1)) for op in REDUCE),
    *(case(op, "x>0.1[2,3,5] @axes", axes=ints(-1, 0), keepdims=0) for op in REDUCE),
    *(case(op, "x>0.1[2,3,5]") for op in REDUCE),
    *(case(op, "x>0.1[2,3,5]", opset=13, axes=[2], keepdims=0) for op in REDUCE if op != "ReduceSum"),
    case("ReduceSum", "x[2,3,5] @axes", opset=13, axes=ints(2), keepdims=0),
    case("ReduceSum", "x[2,3] @axes", axes=ints(), noop_with_empty_axes=1),
    case("ReduceSumSquare", "x[2,3] @axes", axes=ints(), noop_with_empty_axes=1, oracle="reference"),
    case("ReduceSum", "x:i64[2,3] @axes", axes=ints(0)),
    case("ReduceMax", "x:i64[2,3] @axes", axes=ints(0)),
    case("ReduceLogSumExp", "@x", x=np.array([[-np.inf, 1], [-np.inf, -np.inf]], F), opset=13, axes=[1]),
    *(case(op, "x:i64>1<9[3,4] @axes", axes=ints(1)) for op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")),
    *(case(op, "x:i32>1<9[3,4]", keepdims=0) for op in ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp")),
    case("ReduceL2", "x:i64>1<9[3,4] @axes", axes=ints(0), oracle="reference"),
    case("ArgMax", "x[3,4]", axis=1, keepdims=0),
    case("ArgMin", "x[3,4]", axis=-2),
    case("ArgMax", "@x", x=np.array([[2, 5, 5], [7, 7, 1]], F), axis=1, select_last_index=1),
    case("CumSum", "x[2,5] @axis", axis=np.array(1)),
    case("CumSum", "x[2,5] @axis", axis=np.array(-2), exclusive=1),
    case("CumSum", "x[2,5] @axis", axis=np.array(1), reverse=1),
    case("CumSum", "x[2,5] @axis", axis=np.array(1), reverse=1, exclusive=1),
    case("TopK", "x[3,9] @k", 2, k=ints(4)),
    case("TopK", "x[9,3] @k", 2, k=ints(4), axis=0, largest=0),
]
LINEAR = [
    case("MatMul", "a[2,3] b[3,4]"),
    case("MatMul", "a[3] b[3,4]"),
    case("MatMul", "a[5,2,3] b[3]"),
    case("MatMul", "a[3] b[3]"),
    case("MatMul", "a[2,1,4,3] b[5,3,2]"),
    case("Gemm", "a[2,3] b[3,4] c[4]"),
    case("Gemm", "a[3,2] b[4,3] c[2,1]", alpha=0.5, beta=2.0, transA=1, transB=1),
    case("Gemm", "a[2,3] b[3,4]"),
    case("Einsum", "a[2,3] b[3,4]", equation="ij,jk->ik"),
    case("Einsum", "a[2,3,4] b[2,4,5]", equation="bij, bjk -> bik"),
    case("Einsum", "a[2,5,3,4] b[2,7,3,4]", equation="bqhd,bkhd->bhqk"),
    case("Einsum", "a[3] b[4]", equation="i,j->ij"),
    case("Einsum", "a[3,4] b[3,4]", equation="ij,ij"),
    case("Einsum", "a[3,4]", equation="ij->ji"),
    case("Einsum", "a[3,4]", equation="ij->i"),
    case("Einsum", "a[2,3,4] b[4,5]", equation="abc,cd->da"),
]
NORMS = [
    case("LayerNormalization", "x[2,3,8] w[8] b[8]"),
    case("LayerNormalization", "x[2,3,8] w[8]", epsilon=0.01),
    case("LayerNormalization", "x[2,3,8] w[3,8] b[3,8]", axis=1),
    case("LayerNormalization", "x[2,3,8] w[8] b[3,8]", axis=1, oracle="reference"),
    case("LayerNormalization", "x[2,3,8] w[8] b[8]", 3, oracle="reference"),
    case("LayerNormalization", "x:f16[2,8] w:f16[8] b:f16[8]", 3),
    case("LayerNormalization", "x:f64[2,8] w:f64[8]", 3, opset=11),
    case("RMSNormalization", "x[2,3,8] w[8]", opset=23),
    case("RMSNormalization", "x[2,3,8] w[3,8]", opset=23, axis=-2, epsilon=0.1),
    case("SimplifiedLayerNormalization", "x[2,3,8] w[8]", epsilon=0.1, axis=-1),
    case("BatchNormalization", "x[2,3,4,5] s[3] b[3] m[3] v>0.1[3]", epsilon=0.01),
    case("InstanceNormalization", "x[2,3,4,5] s[3] b[3]"),
    case("GroupNormalization", "x[2,6,4] s[3] b[3]", num_groups=3, opset=18),
    case("GroupNormalization", "x[2,6,4] s[6] b[6]", num_groups=3, opset=21, oracle="reference"),
    case("Softmax", "x[2,3,4]", axis=1),
    case("LogSoftmax", "x[2,3,4]", axis=0),
    case("MeanVarianceNormalization", "x[2,3,4,5]", oracle="reference"),
]
SHAPES = [
    case("Reshape", "x[2,3,4] @s", s=ints(0, -1)),
    case("Reshape", "x[0,3] @s", s=ints(3, 0), allowzero=1),
    case("Reshape", "x[2,3,4] @s", s=ints(4, 1, 6)),
    case("Transpose", "x[2,3,4]"),
    case("Transpose", "x[2,3,4]", perm=[1, 0, 2]),
    case("Squeeze", "x[1,3,1] @a", a=ints(-1)),
    case("Squeeze", "x[1,3,1]"),
    case("Squeeze", "x[1,3,1] @a", a=np.zeros(0, np.int64)),
    case("Unsqueeze", "x[2,3] @a", a=ints(0, -1)),
    case("Flatten", "x[2,3,4]"),
    case("Flatten", "x[2,3,4]", axis=-1),
    case("Flatten", "x[2,3,4]", axis=0),
    case("Concat", "x[2,3] y[2,1] z[2,4]", axis=-1),
    case("Concat", "x[2,3]", axis=0),
    case("Split", "x[2,6]", 3, opset=13, axis=1),
    case("Split", "x[7,2]", 3, num_outputs=3),
    case("Split", "x[7,2] @s", 2, s=ints(3, 4)),
    case("Slice", "x[5,7] @a @b", a=ints(1, -3), b=ints(4, 100)),
    case("Slice", "x[5,7] @a @b @c @d", a=ints(-1, 1), b=ints(-100, 6), c=ints(-1, 0), d=ints(-2, 3)),
    case("Slice", "x[5,7] @a @b @c", a=ints(3), b=ints(2), c=ints(0)),
    case("Slice", "x[5] @a @b @c @d", a=ints(2**63 - 1), b=ints(-(2**63)), c=ints(0), d=ints(-1)),
    *(
        case("Slice", f"x[{n},3] @a @b @c @d", a=ints(start), b=ints(stop), c=ints(0), d=ints(step))
        for n, start, stop, step in (
            *(
                (1, -3, -100, -7),
                (1, -3, 9, -7),
                (5, -9, -100, -7),
                (5, -6, -6, -1),
                (5, -6, -5, -1),
                (0, -3, -100, -7),
            ),
            *(
                (5, -9, 3, 2),
                (5, 7, -9, 1),
                (5, 9, 1, -3),
                (5, 2**63 - 1, 0, -(2**63)),
                (5, -(2**63), 2**63 - 1, 2**62),
            ),
        )
    ),
    case("Slice", "x[5,3] @a @b @c @d", a=ints(9), b=ints(-9), c=ints(0), d=ints(-3), oracle="reference"),
    case("Expand", "x[3,1] @s", s=ints(2, 1, 4)),
    case("Expand", "x[3,4] @s", s=ints(1)),
    case("Tile", "x[2,3] @r", r=ints(2, 3)),
    case("Tile", "x[2,3] @r", r=ints(1, 0)),
    case("Pad", "x[2,3] @p", p=ints(1, 0, 0, 2)),
    case("Pad", "x[2,3] @p @v", p=ints(-1, 1, 0, 2), v=np.array(7, F)),
    case("Pad", "x[2,3,4] @p @v @a", p=ints(1, 2), v=np.array(7, F), a=ints(-1)),
    case("Pad", "x:i64[2] @p @v", p=ints(1, 0), v=np.array(2**63 - 1)),
    case("Pad", "x:u64[2] @p @v", p=ints(1, 0), v=np.array(2**64 - 1, np.uint64)),
    case("Pad", "x:bool[2] @p @v", p=ints(1, 0), v=np.array(True)),
    case("Trilu", "x[3,4]", opset=14),
    case("Trilu", "x[2,4,3] @k", k=np.array(-1), upper=0, opset=14),
    case("DepthToSpace", "x[1,8,2,3]", blocksize=2),
    case("DepthToSpace", "x[1,8,2,3]", blocksize=2, mode="CRD"),
    case("SpaceToDepth", "x[1,2,4,6]", blocksize=2),
    case("Trilu", "x[3,4] @k", k=np.array(2**63 - 1), opset=14),
    case("Trilu", "x[3,4] @k", k=np.array(-(2**63)), opset=14),
    case("EyeLike", "x[3,4]", k=1),
    case("Constant", "", value_floats=[1.0, 2.5]),
    case("Constant", "", value_int=3),
    case("ConstantOfShape", "@s", s=ints(2, 3)),
    case("Range", "@a @b @c", a=np.array(1), b=np.array(9), c=np.array(3)),
    case("Range", "@a @b @c", a=np.array(9), b=np.array(1), c=np.array(-3)),
    case("Range", "@a @b @c", a=np.array(0.5, F), b=np.array(3, F), c=np.array(0.75, F)),
    case("Range", "@a @b @c", a=np.array(0), b=np.array(100), c=np.array(1)),
    case("Shape", "x[2,3]"),
    case("Shape", "x[2,3,4]", start=1, end=-1),
    case("Size", "x[2,3]"),
    case("Gather", "x[5,3] i:i64>-5<5[2,2]", axis=0),
    case("Gather", "x[3,5] i:i64<5[]", axis=-1),
    case("GatherElements", "x[3,5] i:i64<3[2,5]", axis=0),
    case("GatherND", "x[3,5] i:i64<3[2,1]"),
    case("GatherND", "x[3,5] i:i64>-3<3[4,2,2]"),
    case("GatherND", "x[2,3,4,5] i:i64<3[2,6,2]", batch_dims=1),
    case("GatherND", "x[2,3,4] i:i64<3[2,3,1]", batch_dims=2),
    case("OneHot", "i:i64>-4<6[3] @d v[2]", d=ints(4)),
    case("OneHot", "i:i64>-4<6[2,3] @d v[2]", d=np.array(4), axis=1),
]
CONVS = [
    case("Conv", "x[1,3,7,8] w[4,3,3,3] b[4]", pads=[1, 0, 1, 2], strides=[2, 1]),
    case("Conv", "x[1,4,9] w[6,2,3]", group=2, dilations=[2], kernel_shape=[3]),
    case("Conv", "x[1,3,7,8] w[4,3,3,2]", auto_pad="SAME_UPPER", strides=[2, 2]),
    case("Conv", "x[1,3,7,8] w[4,3,3,2]", auto_pad="SAME_LOWER"),
    case("Conv", "x[1,3,7,8] w[4,3,3,2]", auto_pad="VALID"),
    case("MaxPool", "x[1,3,7,8]", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("MaxPool", "x[1,3,7,8]", kernel_shape=[3, 2], strides=[2, 3], ceil_mode=1),
    case("MaxPool", "x[1,3,9]", kernel_shape=[3], dilations=[2]),
    case("AveragePool", "x[1,3,7,8]", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    case("AveragePool", "x[1,3,7,8]", kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1),
    case("AveragePool", "x[1,3,8,9]", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, opset=19),
    case("AveragePool", "x[1,1,8,8]", kernel_shape=[3, 3], strides=[3, 3], pads=[1, 1, 1, 1], ceil_mode=1,
         count_include_pad=1, opset=19, oracle="reference"),
    case("GlobalAveragePool", "x[1,3,7,8]"),
    case("GlobalMaxPool", "x[1,3,7]"),
]  # fmt: skip
MS = "com.microsoft"
HEADS = {"opset": 23, "q_num_heads": 4, "kv_num_heads": 2}
ATTENTION = [
    case("Attention", "q[2,3,5,8] k[2,3,7,8] v[2,3,7,6]", opset=23),
    case("Attention", "q[2,3,5,8] k[2,3,5,8] v[2,3,5,8]", opset=23, is_causal=1, scale=0.3),
    case("Attention", "q[2,5,32] k[2,7,16] v[2,7,16]", **HEADS),
    case("Attention", "q[2,5,32] k[2,7,16] v[2,7,16] m:bool[5,7]", **HEADS),
    case("Attention", "q[2,3,5,8] k[2,3,2,8] v[2,3,2,8] m[2,1,5,6] p[2,3,4,8] r[2,3,4,8]", 3, opset=23),
    case("Attention", "q[2,3,5,8] k[2,3,5,8] v[2,3,5,8] none p[2,3,4,8] r[2,3,4,8]", 3, opset=24, is_causal=1,
         oracle="reference"),
    case("Attention", "q[2,3,5,8] k[2,3,7,8] v[2,3,7,6]", opset=23, softcap=2.0),
    case("Attention", "q[2,4,5,8] k[2,2,7,8] v[2,2,7,6] none none none n:i64>3<8[2]", opset=24, is_causal=1,
         oracle="reference"),
    case("Attention", "q[2,3,5,8] k[2,3,5,8] v[2,3,5,8] none p[2,3,4,8] r[2,3,4,8]", 3, opset=25, left_window_size=2,
         right_window_size=1, oracle="reference"),
    case("CausalConvWithState", "x[2,3,7] w[3,1,4] none p[2,3,3]", 2, opset=27, activation="silu", oracle="reference"),
    case("RotaryEmbedding", "x[2,3,5,8] c[9,4] s[9,4] p:i64<9[2,5]", opset=23, oracle="reference"),
    case("RotaryEmbedding", "x[2,5,24] c[2,5,4] s[2,5,4]", opset=23, num_heads=3, oracle="reference"),
    case("RotaryEmbedding", "x[2,3,5,8] c[9,2] s[9,2] p:i64<9[2,5]", opset=23, rotary_embedding_dim=4,
         interleaved=1, oracle="reference"),
    case("RotaryEmbedding", "x[2,3,5,8] p:i64<9[2,5] c[9,4] s[9,4]", domain=MS),
    case("MultiHeadAttention", "q[2,5,32] k[2,7,32] v[2,7,32]", domain=MS, num_heads=4),
    case("MultiHeadAttention", "q[2,5,32] k[2,7,32] v[2,7,32] b[96]", domain=MS, num_heads=4, scale=0.3),
    case("MultiHeadAttention", "q[2,5,32] k[2,7,32] v[2,7,32] none none a[2,4,5,7]", domain=MS, num_heads=4),
    case("MultiHeadAttention", "q[2,5,32] k[2,7,32] v[2,7,32] none @m", domain=MS, num_heads=4,
         m=np.array([[1] * 7, [1] * 4 + [0] * 3], np.int32)),
    case("MultiHeadAttention", "q[2,5,32] k[2,7,32] v[2,7,32] none @m", domain=MS, num_heads=4, m=HIDDEN,
         mask_filter_value=-3e38),
    case("MultiHeadAttention", "q[2,5,32] k[2,7,32] v[2,7,32] none @m a[2,4,5,7]", domain=MS, num_heads=4, m=HIDDEN,
         mask_filter_value=-3e38),
    case("MultiHeadAttention", "q[2,5,32] k[2,7,32] v[2,7,32] none none @a", domain=MS, num_heads=4, a=BLIND),
    case("Attention", "q[2,4,5,8] k[2,4,7,8] v[2,4,7,8] @a", opset=23, a=BLIND),
    case("Attention", "q[2,4,5,8] k[2,4,7,8] v[2,4,7,8] @a", opset=23, a=BLIND == 0),
    case("Attention", "x[2,5,16] w[16,96] b[96]", domain=MS, num_heads=4),
    case("Attention", "x[2,5,16] w[16,96] b[96]", domain=MS, num_heads=4, unidirectional=1),
    case("Attention", "x[2,5,16] w[16,96] b[96] @m", domain=MS, num_heads=4,
         m=np.array([[1] * 5, [1] * 3 + [0] * 2], np.int32)),
    case("Attention", "x[2,5,16] w[16,96] b[96] @m", domain=MS, num_heads=4, m=np.array([5, 3], np.int32)),
]  # fmt: skip
CONTRIB = [
    case("FusedMatMul", "a[2,4,3] b[2,5,4]", domain=MS, transA=1, transB=1, alpha=0.5),
    case("TransposeMatMul", "a[2,4,3] b[2,5,4]", domain=MS, transA=1, transB=1),
    case("BiasGelu", "x[2,3,8] b[8]", domain=MS),
    case("Gelu", "x[2,3,8]", domain=MS),
    case("FastGelu", "x[2,3,8] b[8]", domain=MS),
    case("QuickGelu", "x[2,3,8]", domain=MS),
    case("SkipLayerNormalization", "x[2,3,8] s[2,3,8] w[8] b[8] c[8]", domain=MS, epsilon=0.01),
    case("SkipSimplifiedLayerNormalization", "x[2,3,8] s[2,3,8] w[8] c[8]", domain=MS, epsilon=0.01),
    case("EmbedLayerNormalization", "i:i32<9[2,3] j:i32<2[2,3] w[9,8] p[5,8] s[2,8] g[8] b[8]", domain=MS, outputs=2),
]

NODES = [
    *ELEMENTWISE, *REDUCTIONS, *LINEAR, *NORMS, *SHAPES, *CONVS, *IMAGES, *SEQUENCES, *ATTENTION, *CONTRIB,
    *MATH, *TYPED, *PREVIEWS, *CLASSICAL,
    *EXPORTED, *LAYERS, *EARLIER,
]  # fmt: skip

# Integers that are known at load, each expression in the dtype it has.
INTEGERS = {
    "narrowed": """
        a = Constant<value_ints=[4294967301, -2147483649]>()  b = Cast<to=6>(a)  y = Cast<to=7>(b)""",
    "bytes": """
        a = Constant<value_ints=[300, -1]>()  b = Cast<to=2>(a)  c = Add(b, b)  y = Cast<to=7>(c)""",
    "product": """
        a = Constant<value_ints=[100000]>()  b = Cast<to=6>(a)  c = Mul(b, b)
        d = Constant<value_ints=[1000]>()  e = Cast<to=6>(d)  y = Div(c, e)""",
    "sum": """
        a = Constant<value_ints=[9223372036854775807, 1]>()  y = Add(a, a)""",
    "difference": """
        a = Constant<value_int=-9223372036854775808>()  b = Constant<value_int=1>()  y = Sub(a, b)""",
    "smallest": """
        a = Constant<value_ints=[-9223372036854775808, 3]>()  b = Neg(a)  c = Abs(a)  y = Concat<axis=0>(b, c)""",
    "remainder": """
        a = Constant<value_ints=[-7, 7, -9223372036854775808]>()  b = Constant<value_ints=[3, -3, 10]>()
        c = Mod(a, b)  d = Mod<fmod=1>(a, b)  e = Div(a, b)  y = Concat<axis=0>(c, d, e)""",
    "chosen": """
        a = Constant<value_ints=[1, 2, 3]>()  b = Constant<value_ints=[3, 2, 1]>()  c = Equal(a, b)  d = Less(a, b)
        e = Or(c, d)  f = Xor(e, c)  g = Where(f, a, b)  y = Min(g, a)""",
    "moved": """
        a = Constant<value_ints=[5, 6, 7, 8]>()  i = Constant<value_ints=[-1, 0]>()  b = Gather(a, i)
        s = Constant<value_ints=[2, 2]>()  c = Reshape(a, s)  d = Transpose(c)  z = Constant<value_ints=[0]>()
        e = Unsqueeze(b, z)  f = Concat<axis=0>(d, e)  y = Tile(f, s)""",
}
# ONNX Runtime adds and counts these in floating point; ONNX's reference does not.
INTEGERS_BY_REFERENCE = {
    "reduced": """
        a = Constant<value_ints=[9223372036854775807, 2]>()  b = ReduceSum(a)  c = ReduceProd(a)  d = ReduceMax(a)
        e = ReduceMin(a)  y = Concat<axis=0>(b, c, d, e)""",
    "range": """
        a = Constant<value_int=9223372036854775805>()  b = Constant<value_int=9223372036854775807>()
        c = Constant<value_int=1>()  y = Range(a, b, c)""",
}

SYMBOLIC = {
    "reshape to dims of another": """
        g (float[B, S, 12] x) => (y) {
            s = Shape<start=0, end=2>(x)  t = Constant<value_ints=[3, -1]>()
            u = Concat<axis=0>(s, t)  v = Reshape(x, u)  y = Transpose<perm=[0, 2, 1, 3]>(v) }""",
    "gathered dims, merged": """
        g (float[B, S, 12] x) => (y) {
            s = Shape(x)  i = Constant<value_int=0>()  j = Constant<value_int=1>()  a = Constant<value_ints=[0]>()
            b = Gather(s, i)  c = Gather(s, j)  d = Mul(b, c)  e = Unsqueeze(d, a)
            m = Constant<value_ints=[12]>()  u = Concat<axis=0>(e, m)  y = Reshape(x, u) }""",
    "the last of the largest": """
        g (float[B, S, 12] x) => (y) { r = Round(x)  y = ArgMax<axis=1, select_last_index=1>(r) }""",
    "a mean of integers": """
        g (float[B, S, 12] x) => (y) { i = Cast<to=7>(x)  a = Constant<value_ints=[1]>()  y = ReduceMean(i, a) }""",
    "half of a dim": """
        g (float[B, S, 12] x) => (y, z) {
            s = Shape<start=1, end=2>(x)  two = Constant<value_ints=[2]>()  o = Constant<value_ints=[0]>()
            a = Constant<value_ints=[1]>()  h = Div(s, two)  y = Slice(x, o, h, a)  z = Slice(x, h, s, a) }""",
    "half of a dim less one": """
        g (float[B, S, 12] x) => (y) {
            s = Shape<start=1, end=2>(x)  two = Constant<value_ints=[2]>()  o = Constant<value_ints=[0]>()
            a = Constant<value_ints=[1]>()  t = Sub(s, a)  h = Div(t, two)  y = Slice(x, o, h, a) }""",
    "padded to a multiple, and cut by half": """
        g (float[B, S, 12] x) => (y, z) {
            s = Shape<start=1, end=2>(x)  n = Constant<value_ints=[5]>()  a = Constant<value_ints=[1]>()
            two = Constant<value_ints=[2]>()  o = Constant<value_ints=[0]>()  empty = Constant<value_float=0.0>()
            r = Mod(s, n)  d = Sub(n, r)  p = Concat<axis=0>(o, d)  y = Pad(x, p, empty, a)
            h = Div(s, two)  m = Neg(h)  q = Concat<axis=0>(m, a)  z = Pad(x, q, empty, a) }""",
    "the last rows": """
        g (float[B, S, 12] x) => (y) {
            a = Constant<value_ints=[1]>()  o = Constant<value_ints=[-1]>()
            e = Constant<value_ints=[9223372036854775807]>()  y = Slice(x, o, e, a) }""",
    "positions": """
        g (float[B, S, 12] x) => (y) {
            s = Shape(x)  j = Constant<value_int=1>()  n = Gather(s, j)  o = Constant<value_int=0>()
            r = Range(o, n, j)  f = Cast<to=1>(r)  a = Constant<value_ints=[1]>()
            c = Unsqueeze(f, a)  y = Add(x, c) }""",
    "expand where minus one": """
        g (float[B, S, 12] x, float[S, 1] w) => (y) {
            s = Shape(x)  m = Constant<value_ints=[-1, -1, -1]>()  k = Constant<value_ints=[3]>()
            o = ConstantOfShape<value=int64[1] {1}>(k)  e = Equal(s, m)  t = Where(e, o, s)  y = Expand(w, t) }""",
    "a dim as data": """
        g (float[B, S, 12] x) => (y) {
            s = Shape(x)  f = Cast<to=1>(s)  y = Sqrt(f) }""",
    "causal mask": """
        g (float[B, S, 12] x) => (y) {
            n = Shape<start=1, end=2>(x)  t = Concat<axis=0>(n, n)  one = ConstantOfShape<value=float[1] {1.0}>(t)
            l = Trilu<upper=0>(one)  b = Cast<to=9>(l)  z = Constant<value_float=0.0>()
            m = Constant<value_float=-9.0>()  y = Where(b, z, m) }""",
    "squeezed batch of one": """
        g (float[B, S, 12] x) => (y) {
            s = Shape(x)  n = Size(x)  t = Constant<value_ints=[12]>()  d = Div(n, t)  a = Constant<value_ints=[0]>()
            e = Squeeze(t, a)  f = Div(n, e)  g = Unsqueeze(f, a)  u = Concat<axis=0>(g, t)  y = Reshape(x, u) }""",
    "wraps in 32 bits": """
        g (float[B, S, 12] x) => (y, z) {
            s = Shape(x)  i = Cast<to=6>(s)  h = Constant<value_ints=[100000]>()  k = Cast<to=6>(h)
            t = Constant<value_ints=[1000]>()  d = Cast<to=6>(t)  a = Mul(i, k)  b = Mul(a, k)  y = Div(b, d)
            u = Cast<to=3>(s)  z = Cast<to=7>(u) }""",
    "in 32 bits": """
        g (float[B, S, 12] x) => (y) {
            s = Shape(x)  i = Cast<to=6>(s)  m = Neg(i)  n = Abs(m)  r = Max(n, i)  k = Cast<to=7>(r)
            o = Constant<value_ints=[1, 1, 2]>()  e = Mul(k, o)  f = ReduceProd<keepdims=1>(e)
            p = Constant<value_ints=[-1]>()  q = Concat<axis=0>(f, p)  t = Tile(x, o)  y = Reshape(t, q) }""",
    "a known branch": """
        g (float[B, S, 12] x) => (y) {
            s = Shape(x)  i = Constant<value_int=2>()  n = Gather(s, i)  t = Constant<value_int=12>()  c = Equal(n, t)
            y = If (c) <then_branch = a () => (p) { p = Relu(x) }, else_branch = b () => (q) { q = Neg(x) }> }""",
    "split and joined": """
        g (float[B, S, 12] x) => (y) {
            p, q, r = Split<axis=2, num_outputs=3>(x)  y = Concat<axis=1>(q, p, r) }""",
    "repeated heads": """
        g (float[B, S, 12] x) => (y) {
            s = Shape(x)  r = Constant<value_ints=[1, 2, 3]>()  y = Tile(x, r) }""",
}
