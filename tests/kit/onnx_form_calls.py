"""Valid calls of each op, from which onnx_forms.py makes its forms, and what it must know of some ops."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from onnx_models import Case, case, ints

F = np.float32
MS = "com.microsoft"
I32 = np.int32


def ms(op: str, operands: str, outputs: int = 1, **rest: Any) -> Case:
    return case(op, operands, outputs, domain=MS, **rest)


def lengths(*values: int) -> np.ndarray:
    """An int32 vector."""
    return np.array(values, I32)


ROWS_KEPT = np.array([[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]], I32)
ANGLES = np.linspace(0, 6, 96, dtype=F).reshape(12, 8)
TURNS = {"c": np.cos(ANGLES), "d": np.sin(ANGLES)}
ONE = np.array(0.02, F)
QUARTER = np.array(0.25, F)
HEADS_APART = [
    ms(
        "MultiHeadAttention",
        "q[2,5,32] k[2,5,32] v[2,5,32] b[96] @m a[2,4,5,8] p[2,4,3,8] r[2,4,3,8]",
        3,
        num_heads=4,
        m=ROWS_KEPT,
    ),
    ms("MultiHeadAttention", "q[2,5,4,3,8]", num_heads=4),
    ms("MultiHeadAttention", "q[2,5,4,3,8] none none b[96]", num_heads=4),
    ms("MultiHeadAttention", "q[2,5,32] k[2,7,4,2,8]", num_heads=4),
    ms("MultiHeadAttention", "q[2,5,32] k[2,4,7,8] v[2,4,7,8]", num_heads=4),
    ms("MultiHeadAttention", "q[2,5,32] k[2,4,7,8] v[2,4,7,8] b[96]", num_heads=4),
    ms("MultiHeadAttention", "q[2,5,32] k[2,7,32] v[2,7,48] none @m", num_heads=4, m=lengths(7, 4)),
    ms("MultiHeadAttention", "q[2,5,32] k[2,7,32] v[2,7,32] none @m", num_heads=4, m=lengths(7, 4, 0, 5, 10, 0, 7, 14)),
    ms("MultiHeadAttention", "q[2,5,32] k[2,7,32] v[2,7,32] none m:i32<2[2,5,7]", num_heads=4),
    ms(
        "MultiHeadAttention",
        "q[2,1,32] k[2,1,32] v[2,1,32] none none none p[2,4,9,8] r[2,4,9,8] @n",
        3,
        num_heads=4,
        n=lengths(5),
    ),
    ms(
        "MultiHeadAttention",
        "q[2,1,32] k[2,1,32] v[2,1,32] b[96] none none p[2,4,9,8] r[2,4,9,8] @n @i",
        3,
        num_heads=4,
        n=lengths(5),
        i=np.zeros((2, 1, 9), I32),
    ),
]
HEADS_TOGETHER = [
    ms("Attention", "x[2,5,16] w[16,96] b[96] @m p[2,2,4,3,8] a[2,4,5,8]", 2, num_heads=4, m=ROWS_KEPT),
    ms("Attention", "x[2,5,16] w[16,64] b[64]", num_heads=4, qkv_hidden_sizes=[16, 16, 32]),
    ms("Attention", "x[2,5,16] w[16,96] b[96] m:i32<2[2,5,5]", num_heads=4),
    ms("Attention", "x[2,5,16] w[16,96] b[96] @m", num_heads=4, m=lengths(5, 3, 0, 1)),
    ms("Attention", "x[2,5,16] w[16,96] b[96] @m", num_heads=4, m=np.ones((2, 1), I32)),
    ms("Attention", "x[2,1,16] w[16,96] b[96] none p[2,2,4,9,8] none @n", 2, num_heads=4, past_present_share_buffer=1,
       n=lengths(5)),
    ms("Attention", "x[2,5,16] w[16,96] b[96]", num_heads=4, do_rotary=1, rotary_embedding_dim=8),
    ms("QAttention", "x:u8<200[2,5,16] w:u8<200[16,96] b[96] @s t>0.01<0.02[96] @m @z @y", num_heads=4, s=ONE,
       z=np.array(97, np.uint8), y=np.arange(96, dtype=np.uint8), m=lengths(5, 3)),
    ms("GroupQueryAttention", "q[2,1,64] k[2,1,32] v[2,1,32] a[2,2,5,16] b[2,2,5,16] @s @t @c @d p:i64<9[2,1]"
       " bias[2,4,1,6] sinks[4]", 3, num_heads=4, kv_num_heads=2, do_rotary=1, s=lengths(5, 5),
       t=np.array(6, I32), **TURNS),
    ms("GroupQueryAttention", "q[2,5,128] none none none none @s @t @c @d", 3, num_heads=4, kv_num_heads=2, do_rotary=1,
       s=lengths(4, 4), t=np.array(5, I32), **TURNS),
    ms("GroupQueryAttention", "q[2,5,32] k[2,5,16] v[2,5,16] none none @s @t none none none none none none none"
       " g>0.5<1.5[8] h>0.5<1.5[8]", 3, num_heads=4, kv_num_heads=2, s=lengths(4, 4), t=np.array(5, I32)),
    ms("GroupQueryAttention", "q[2,5,32] k[2,5,16] v[2,5,16] none none @s @t", 4, num_heads=4, kv_num_heads=2,
       qk_output=1, s=lengths(4, 4), t=np.array(5, I32)),
    ms("GroupQueryAttention", "q[2,1,32] k[2,1,16] v[2,1,16] a:i8>-99<99[2,2,5,8] b:i8>-99<99[2,2,5,8] @s @t none none"
       " none none none x>0.01<0.02[1] y>0.01<0.02[1]", 3, num_heads=4, kv_num_heads=2, k_quant_type="PER_TENSOR",
       v_quant_type="PER_TENSOR", kv_cache_bit_width=8, s=lengths(5, 5), t=np.array(6, I32)),
    ms("RotaryEmbedding", "x[2,5,24] p:i64<9[2,5] c[12,2] d[12,2]", num_heads=3, rotary_embedding_dim=4, scale=1.0),
    ms("RotaryEmbedding", "x[2,3,5,8] @p c[12,4] d[12,4]", interleaved=1, p=np.array([3])),
]  # fmt: skip
SUMMED = [
    ms("SkipLayerNormalization", "x[2,3,8] s[1,3,8] w[8] b[8] c[8]", 4),
    ms("SkipLayerNormalization", "x[6,8] s[6,8] w[8] none c[8]"),
    ms("SkipSimplifiedLayerNormalization", "x[2,3,8] s[3,8] w[8] c[8]", 4),
    ms("SkipSimplifiedLayerNormalization", "x[6,8] s[6,8] w[8]"),
    ms(
        "EmbedLayerNormalization",
        "i:i32<9[2,3] j:i32<2[2,3] w[9,8] p[5,8] s[2,8] g[8] b[8] m:i32<2[2,3] q:i32<5[2,3]",
        3,
        mask_index_type=1,
    ),
    ms("EmbedLayerNormalization", "i:i32<9[2,3] none w[9,8] p[5,8] none g[8] b[8] none q:i32<5[1,3]", 2),
    ms(
        "QEmbedLayerNormalization",
        "i:i32<9[2,5] j:i32<2[2,5] w:u8<200[9,8] p:u8<200[6,8] s:u8<200[2,8] g:u8<200[8]"
        " b:u8<200[8] m:i32<2[2,5] @s @s @s @s @s @z @z @z @z @z",
        2,
        s=ONE,
        z=np.array(97, np.uint8),
    ),
    case("SimplifiedLayerNormalization", "x[2,3,8] w[8]", 2, axis=-1),
    case("SimplifiedLayerNormalization", "x[2,3,8] w[3,8]", axis=1),
]
PRODUCTS = [
    ms("FusedMatMul", "a[4,2,3] b[2,3,5]", transBatchA=1, alpha=0.5),
    ms("FusedMatMul", "a[2,4,3] b[3,2,5]", transBatchB=1),
    ms("FusedMatMul", "a[2,3,4] b[2,4,5]", transA=0, transB=0),
    ms("FusedMatMul", "a[5,2,4,3] b[5,2,3,6]"),
    ms("FusedMatMul", "a[4] b[4,3]", transA=1),
    ms("FusedConv", "x[1,3,9] w[4,3,3] b[4]", activation="Relu"),
    ms("FusedConv", "x[1,2,4,5,3] w[4,2,2,2,2] b[4]", activation="Relu"),
    ms("FusedConv", "x[1,4,6,6] w[6,2,3,3] none z[1,6,6,6]", activation="LeakyRelu", activation_params=[0.1],
       pads=[1] * 4, group=2, strides=[1, 1], dilations=[1, 1], kernel_shape=[3, 3]),
    ms("FusedConv", "x[1,3,7,8] w[4,3,3,2] b[4]", activation="Relu", auto_pad="SAME_UPPER", strides=[2, 2]),
    ms("FusedGemm", "a[3,6] b[6,5] c[5]", activation="Elu", activation_alpha=0.7),
    ms("FusedGemm", "a[3,6] b[6,5] c[]"),
    ms("MatMulIntegerToFloat", "a:u8<200[2,3,6] b:u8<200[2,6,5] @s t>0.01<0.02[5] @z y:u8<9[5] c[5]", s=ONE,
       z=np.array(97, np.uint8)),
    ms("MatMulIntegerToFloat", "a:i8>-99<99[2,3,6] b:i8>-99<99[6,5] @s @t @y @y c[5]", s=ONE, t=QUARTER,
       y=np.array(3, np.int8)),
    ms("DynamicQuantizeMatMul", "a[2,3,6] b:u8<200[6,5] t>0.01<0.02[5] y:u8<9[5] c[5]"),
    ms("DynamicQuantizeMatMul", "a[3,6] b:u8<200[6,5] @t @y c[5]", t=ONE, y=np.array(3, np.uint8)),
    ms("DynamicQuantizeMatMul", "a[2,3,6] b:u8<200[2,6,5] t>0.01<0.02[2,1,5] y:u8<9[2,1,5]"),
    *(
        ms("MatMulNBits", f"x[2,3,40] b:u8<255[5,3,{2 * bits}] s>0.01<0.02[{shape}] z:u8<255[{zeros}] none c[5]",
           N=5, K=40, bits=bits, block_size=16, accuracy_level=level)
        for bits, shape, zeros, level in ((4, "5,3", "5,2", 0), (8, "15", "15", 4), (2, "5,3", "5,1", 0))
    ),
    ms("MatMulNBits", "x[3,40] b:u8<255[5,3,8] s>0.01<0.02[15] z>5<9[15] @g c[5]", N=5, K=40, bits=4, block_size=16,
       g=np.arange(40, dtype=I32) % 3),
    ms("MatMulNBits", "x[3,32] b:u8<255[5,1,16] s>0.01<0.02[5]", N=5, K=32, block_size=32, weight_prepacked=0),
    ms("GatherBlockQuantized", "w:u8<255[4,3,16] i:i64<4[2] s>0.01<0.02[4,3,2] z:u8<255[4,3,1]", quantize_axis=2,
       block_size=16),
    ms("GatherBlockQuantized", "w:u8<255[4,16] i:i32<4[2,5] s>0.01<0.02[4,1] z:u8<255[4,1]", quantize_axis=1,
       block_size=16, bits=8, gather_axis=0),
    ms("GatherBlockQuantized", "w:u8<255[4,32] i:i64<4[] s>0.01<0.02[4,4]", quantize_axis=1, block_size=16),
    ms("GatherBlockQuantized", "@w i:i64<5[2] s>0.01<0.02[2,5] @z", quantize_axis=0, gather_axis=1, block_size=16,
       w=np.arange(160).reshape(32, 5).__mod__(16).astype(ml_dtypes.uint4), z=np.ones((2, 5), ml_dtypes.uint4)),
]  # fmt: skip
QUANTIZED = [
    ms("QLinearAveragePool", "x:u8<200[2,4,5,3] @s @z @t @z", channels_last=1, kernel_shape=[2, 3], strides=[1, 2],
       s=ONE, t=np.array(0.0313, F), z=np.array(97, np.uint8)),
    ms("QLinearAveragePool", "x:u8<200[2,3,9] @s @z @t @z", kernel_shape=[3], ceil_mode=1, strides=[2],
       s=ONE, t=np.array(0.0313, F), z=np.array(97, np.uint8)),
    ms("QLinearAveragePool", "x:i8>-99<99[2,3,4,5] @s @z @t @z", kernel_shape=[2, 2], auto_pad="SAME_UPPER",
       s=ONE, t=np.array(0.0313, F), z=np.array(-7, np.int8)),
    ms("QLinearGlobalAveragePool", "x:u8<200[2,4,5,3] @s @z @t @z", channels_last=1, s=ONE, t=np.array(0.0313, F),
       z=np.array(97, np.uint8)),
    Case("QLinearSoftmax", "x:u8<200[2,3,4] @s @z @t @z",
       {"opset": 13, "axis": 1}, {"s": ONE, "t": np.array(1 / 256, F), "z": np.array(0, np.uint8)}, domain=MS),
    ms("QuantizeLinear", "x[2,3] @s @z", s=QUARTER, z=np.array(3, np.int8), axis=0),
    ms("QuantizeLinear", "x[2,3] s>0.1<0.2[2] z:i8<9[2]", axis=0),
    ms("DequantizeLinear", "x:i8>-99<99[2,3] s>0.1<0.2[2] z:i8<9[2]", axis=0),
    ms("DequantizeLinear", "x:i32>-99<99[2,3] @s", s=QUARTER),
    ms("DynamicQuantizeLSTM", "x[4,2,5] w:u8<200[2,5,12] r:u8<200[2,3,12] b[2,24] @n h[2,2,3] c[2,2,3] p[2,9] @s @z @s"
       " @z", 3, hidden_size=3, direction="bidirectional", n=lengths(4, 2), s=np.full(2, 0.005, F),
       z=np.array([97, 120], np.uint8)),
]  # fmt: skip
PLAIN = [
    case("Attention", "q[2,4,5,8] k[2,2,7,8] v[2,2,7,6] m[5,7] none none n:i64>3<8[2]", 1, opset=24),
    case("Attention", "q[2,4,5,8] k[2,4,7,8] v[2,4,7,8] m[2,4,5,7]", 4, opset=23, qk_matmul_output_mode=1),
    case("CausalConvWithState", "x[2,3,7] w[3,1,4] b[3] p[2,3,3]", 2, opset=27),
    case("NonMaxSuppression", "@b @s @m @i @t", opset=11,
         b=np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [2, 2, 3, 3]]], F),
         s=np.array([[[0.9, 0.8, 0.7], [0.1, 0.6, 0.9]]], F), m=ints(3), i=np.array([0.5], F), t=np.array([0.3], F)),
    case("Compress", "x[3,4] @c", axis=0, c=np.array([True, False, True])),
    case("Compress", "x[3,4] @c", c=np.array([True, False, True])),
    case("NonZero", "x:i64<2[3,4]"),
    case("Unique", "x:i64<4[9]", 4, sorted=1),
    case("Unique", "x:i64<2[5,2]", 4, axis=0),
    case("NegativeLogLikelihoodLoss", "x[3,5,4] t:i64<5[3,4] w>0.1[5]", reduction="mean", ignore_index=2),
    case("SoftmaxCrossEntropyLoss", "x[3,5,4] t:i64<5[3,4] w>0.1[5]", 2, reduction="mean", ignore_index=2),
    case("Swish", "x[3,4]", opset=24, alpha=0.7),
    case("CenterCropPad", "x[5,7,3] @s", axes=[0, 1], s=ints(3, 9)),
    case("Bernoulli", "p>0<1[3,4]"),
    case("RandomNormal", "", shape=[2, 3]),
    case("RandomNormalLike", "x[2,3]"),
    case("Multinomial", "x>-2<-1[2,5]", sample_size=4),
    case("Conv", "x[1,2,4,5,3] w[4,2,2,2,2] b[4]"),
    case("Conv", "x[1,4,9] w[6,2,3] b[6]", group=2, pads=[1, 2], strides=[2], dilations=[1], kernel_shape=[3]),
    case("ConvTranspose", "x[1,3,5] w[3,4,3] b[4]", strides=[2], output_padding=[1]),
    case("ConvTranspose", "x[1,2,3,4,2] w[2,3,2,2,2]", strides=[2, 1, 1]),
    case("MaxPool", "x[1,2,4,5,3]", kernel_shape=[2, 2, 2]),
    case("MaxPool", "x[1,3,9]", 2, kernel_shape=[3], strides=[2], pads=[1, 1], dilations=[1], ceil_mode=1),
    case("AveragePool", "x[1,3,9]", kernel_shape=[3], strides=[2], pads=[1, 1], dilations=[1], ceil_mode=1, opset=19),
    case("LpPool", "x[1,3,7,8]", kernel_shape=[3, 2], p=3, strides=[2, 2]),
    case("QLinearConv", "x:u8<200[1,2,9] @s @z w:u8<200[3,2,3] @s @z @t @z b:i32>-99<99[3]", s=ONE, t=QUARTER,
         z=np.array(97, np.uint8)),
    case("ConvInteger", "x:u8<200[1,2,9] w:u8<200[3,2,3] @z @z", z=np.array(97, np.uint8)),
    case("MatMulInteger", "a:u8<200[2,3,4] b:u8<200[2,4,5] z:u8<9[2,3,1] y:u8<9[2,1,5]"),
    case("QLinearMatMul", "a:u8<200[2,3,4] @s @z b:u8<200[2,4,5] @s @z @t @z", s=ONE, t=QUARTER,
         z=np.array(97, np.uint8)),
]  # fmt: skip
# Calls that the other tables have not, mostly those that give every input.
FULL = [*HEADS_APART, *HEADS_TOGETHER, *SUMMED, *PRODUCTS, *QUANTIZED, *PLAIN]

# Ops whose results are drawn, so that only their types are compared.
_DRAWN = "Bernoulli Dropout Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
DRAWN = {("", name) for name in _DRAWN.split()}
# Ops whose reference computes less than they say.
UNKNOWN = {("", name) for name in ("GRU", "LSTM", "RNN", "GlobalMaxPool", "GridSample", "AffineGrid", "StringSplit")}
# Ops that round a float to an integer, where the last bit of the float decides.
ONE_STEP = (
    *("QuantizeLinear", "QLinearConv", "QLinearMatMul", "QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearWhere"),
    *("QLinearLeakyRelu", "QLinearConcat", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearSoftmax"),
    *("QGemm", "DynamicQuantizeLinear"),
)
# How near results must be, where not to 2e-5.
NEAR: dict[tuple[str, str], float] = {
    (MS, "DynamicQuantizeLSTM"): 0.05,  # ONNX Runtime rounds what weights are multiplied with to 8 bits
}

# Values of attributes, by the name of the attribute, or of the op and the attribute.
_ACTIVATIONS = ("Relu", "Tanh", "Sigmoid", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign", "HardSigmoid",
                "ThresholdedRelu", "ScaledTanh", "Affine", "Gelu", "HardSwish", "Clip")  # fmt: skip
VALUES: dict[Any, tuple[Any, ...]] = {
    "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", ""),
    "epsilon": (1e-3, 0.0),
    "activation": _ACTIVATIONS,
    ("FusedConv", "activation_params"): ([0.3], [-0.2, 0.3]),
    "direction": ("forward", "reverse"),
    ("LSTM", "activations"): (["HardSigmoid", "Tanh", "Relu"], ["Sigmoid", "Softsign", "Tanh"]),
    ("DynamicQuantizeLSTM", "activations"): (["HardSigmoid", "Tanh", "Relu"] * 2,),
    ("GRU", "activations"): (["HardSigmoid", "Tanh"], ["Sigmoid", "Softsign"]),
    ("RNN", "activations"): (["Relu"], ["Sigmoid"], ["Affine"], ["Elu"], ["ThresholdedRelu"], ["Softplus"]),
    "clip": (0.5, 3.0),
    "reduction": ("none", "mean", "sum", "add", "mul", "min", "max"),
    "mode": (
        "constant",
        "reflect",
        "edge",
        "wrap",
        "nearest",
        "linear",
        "cubic",
        "bilinear",
        "DCR",
        "CRD",
        "avg",
        "max",
        "TF",
        "IDF",
        "TFIDF",
    ),
    "coordinate_transformation_mode": (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_crop_and_resize",
        "output_half_pixel",
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "keep_aspect_ratio_policy": ("stretch", "not_larger", "not_smaller"),
    "padding_mode": ("zeros", "border", "reflection"),
    "approximate": ("none", "tanh"),
    "interpolation_mode": ("linear", "nearest"),
    "post_transform": ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"),
    "norm": ("MAX", "L1", "L2"),
    "to": tuple(range(1, 24)),
    "dtype": (1, 6, 7, 9, 10, 11),
    "output_dtype": (0, 1, 2, 3, 4, 5, 10),
    "stash_type": (1, 10, 11),
    "softmax_precision": (1, 10, 11),
    "round_mode": ("up", "down", "nearest"),
    "pixel_format": ("RGB", "BGR", "Grayscale"),
    "case_change_action": ("NONE", "LOWER", "UPPER"),
    "detect_negative": (0, 1),
    "num_heads": (1, 2, 4),
    "q_num_heads": (2, 4),
    "kv_num_heads": (1, 2, 4),
    "mask_filter_value": (-1e4, -3e38),
    "local_window_size": (-1, 1, 3),
    "left_window_size": (-1, 0, 2),
    "right_window_size": (-1, 0, 2),
    "accuracy_level": (0, 1, 2, 3, 4),
    "bits": (2, 4, 8),
    "k_quant_type": ("NONE", "PER_TENSOR", "PER_CHANNEL"),
    "v_quant_type": ("NONE", "PER_TENSOR", "PER_CHANNEL"),
    "qk_matmul_output_mode": (0, 1, 2, 3),
    "qk_output": (0, 1, 2),
    "alpha": (0.0, 0.75, 2.0),
    "beta": (0.0, 0.75, 2.0),
    "group": (1, 2, 3),
    "pads": ([0, 0], [1, 1], [0] * 4, [1] * 4, [1, 0, 0, 1], [1] * 6),
    "strides": ([1], [2], [2, 2], [1, 2], [2, 1, 1]),
    "dilations": ([1], [2], [2, 2], [1, 2]),
    "kernel_shape": ([1], [2], [3], [2, 2], [3, 3], [3, 2], [1, 1], [2, 2, 2]),
    "blocksize": (1, 2),
    "size": (1, 2, 3, 4),
    "p": (1, 2, 3),
    "softcap": (0.0, 0.75),
    "k": (-2, -1, 0, 1, 5),
    "storage_order": (0, 1),
    "start": (-9, -2, 0, 1, 9),
    "end": (-9, -1, 0, 2, 9),
}
