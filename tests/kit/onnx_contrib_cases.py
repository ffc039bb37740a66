"""Cases of the ops of com.microsoft that exporters of language models and quantizers write, of random shapes."""

import random

import ml_dtypes
import numpy as np

from onnx_models import Case, case

F = np.float32
MS = "com.microsoft"


def product(seed: int) -> Case:
    """A product with rows of few bits, whose scales may be numbers of f16, and whose columns may name their blocks."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    block = chance.choice((16, 32, 64, 128, 256))
    rows, columns = chance.randint(1, 40), chance.choice((24, 32, 40, 64, 160))
    bits = chance.choice((4, 4, 8))
    blocks, per = -(-columns // block), 8 // bits
    scales = rng.uniform(0.01, 0.1, rows * blocks).astype(F)
    constants = {
        "b": rng.integers(0, 256, (rows, blocks, block // per), np.uint8),
        "s": scales.astype(np.float16).astype(F) if chance.random() < 0.5 else scales,
    }
    operands = f"x[{chance.choice(('', '2,'))}3,{columns}] @b @s"
    zeros = chance.choice(("codes", "codes", "floats", ""))
    if zeros == "codes":
        constants["z"] = rng.integers(0, 256, rows * -(-blocks // per), np.uint8)
    elif zeros and bits == 4:  # ONNX Runtime takes floats of no other codes
        constants["z"] = rng.uniform(5, 10, rows * blocks).astype(F)
    operands += " @z" if "z" in constants else ""
    # ONNX Runtime takes such an order of no other codes, and leaves out the zero points that are codes.
    if bits == 4 and zeros != "codes" and chance.random() < 0.5:
        operands += " @g" if "z" in constants else " none @g"
        constants["g"] = rng.integers(0, blocks, columns, np.int32)
    return case("MatMulNBits", operands, domain=MS, N=rows, K=columns, bits=bits, block_size=block, **constants)


def table(seed: int) -> Case:
    """Rows of a table of few bits: codes in bytes, which have a middle, or of a dtype of their own."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    block, bits = chance.choice((16, 32, 128)), chance.choice((4, 4, 8))
    rows, columns = chance.randint(1, 40), chance.choice((32, 64, 160, 256))
    blocks, per = -(-columns // block), 8 // bits
    attributes: dict = {"quantize_axis": chance.choice((1, -1)), "block_size": block}
    scales = rng.uniform(0.01, 0.1, (rows, blocks)).astype(F)
    constants = {"s": scales.astype(np.float16).astype(F) if chance.random() < 0.5 else scales}
    if chance.random() < 0.7:
        attributes["bits"] = bits
        constants["w"] = rng.integers(0, 256, (rows, columns // per), np.uint8)
        constants["z"] = rng.integers(0, 256, (rows, -(-blocks // per)), np.uint8)
    else:
        dtype, low = chance.choice(((ml_dtypes.int4, -8), (ml_dtypes.uint4, 0)))
        constants["w"] = rng.integers(low, low + 16, (rows, columns)).astype(dtype)
        constants["z"] = rng.integers(low, low + 16, (rows, blocks)).astype(dtype)
    if chance.random() < 0.4:
        del constants["z"]
    zeros = " @z" if "z" in constants else ""
    return case("GatherBlockQuantized", f"@w i:i64<{rows}[2,5] @s{zeros}", domain=MS, **attributes, **constants)


def grouped(seed: int) -> Case:
    """Attention with a cache whose length is known, all rows being as long as it."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    batch, kv_heads, groups, width = (
        chance.randint(1, 3),
        chance.randint(1, 2),
        chance.randint(1, 3),
        16,
    )
    past = chance.choice((0, 0, 1, 5))
    rows = 1 if past else chance.choice((1, 2, 6))
    heads, total = kv_heads * groups, past + rows
    constants = {"s": np.full(batch, total - 1, np.int32), "t": np.array(total, np.int32)}
    if chance.random() < 0.3:
        parts = f"q[{batch},{rows},{(heads + 2 * kv_heads) * width}] none none"
    else:
        parts = f"q[{batch},{rows},{heads * width}] " + " ".join(
            f"{x}[{batch},{rows},{kv_heads * width}]" for x in "kv"
        )
    cache = " ".join(f"{x}[{batch},{kv_heads},{past},{width}]" for x in "ab")
    attributes: dict = {"num_heads": heads, "kv_num_heads": kv_heads}
    if chance.random() < 0.6:
        angles = rng.uniform(0, 6, (9, width // 2))
        constants |= {"c": np.cos(angles).astype(F), "d": np.sin(angles).astype(F)}
        attributes |= {"do_rotary": 1, "rotary_interleaved": chance.randint(0, 1)}
    if chance.random() < 0.4:
        attributes["local_window_size"] = chance.randint(1, 4)
    if chance.random() < 0.3:
        attributes["scale"] = 0.3
    rotation = " @c @d" if "c" in constants else " none none"
    if chance.random() < 0.3:
        attributes["softcap"] = 0.8
    kind = chance.choice(("", "", "smooth", "sinks"))
    bias = f" bias[{chance.choice((1, batch))},{chance.choice((1, heads))},{rows},{total}]"
    rotation += f" none{bias if chance.random() < 0.3 else ' none'}"
    if kind == "smooth":
        attributes["smooth_softmax"] = 1
    rotation += f" sinks[{heads}]" if kind == "sinks" else ""
    return case("GroupQueryAttention", f"{parts} {cache} @s @t{rotation}", 3, domain=MS, **attributes, **constants)


PADDED = np.array([[1] * 8, [1] * 5 + [0] * 3], np.int32)
QUANTIZED = "x:u8<200[2,5,16] w:{}[16,96] b[96] @s @t {} @z {}"
SCALES = {"s": np.array(0.02, F), "t": np.array(0.01, F), "z": np.array(97, np.uint8)}
# No scale of a result lets a number lie half way between two of its steps, which rounding errors would decide.
A, B = "a:u8<200[2,3,4,5] @s @y", "b:i8>-99<99[2,3,4,5] @t @u"
STEPS = {"s": np.array(0.02, F), "t": np.array(0.015, F), "y": np.array(97, np.uint8), "u": np.array(-7, np.int8),
         "r": np.array(0.0313, F)}  # fmt: skip
ROUNDED = [
    *(
        case(op, f"{A} b:u8<200[{shape}] @t @y @r @y", domain=MS, **STEPS)
        for op in ("QLinearAdd", "QLinearMul")
        for shape in ("2,3,4,5", "3,1,5")
    ),
    case("QLinearAdd", f"{B} c:i8>-99<99[5] @s @u @r @u", domain=MS, **STEPS),
    case("QLinearSigmoid", f"{A} @p @z", domain=MS, p=np.array(1 / 256, F), z=np.array(0, np.uint8), **STEPS),
    case("QLinearSigmoid", f"{B} @p @u", domain=MS, p=np.array(1 / 256, F), **STEPS),
    case("QLinearLeakyRelu", f"{A} @r @y", domain=MS, alpha=0.2, **STEPS),
    case("QLinearLeakyRelu", f"{B} @r @u", domain=MS, **STEPS),
    *(
        case("QLinearConcat", f"@r @y {A} b:u8<200[2,{channels},4,5] @t @z", domain=MS, axis=axis,
             z=np.array(120, np.uint8), **STEPS)
        for channels, axis in ((2, 1), (3, -4))
    ),
    case("QLinearAveragePool", f"{A} @r @y", domain=MS, kernel_shape=[2, 3], strides=[1, 2], **STEPS),
    case("QLinearAveragePool", f"{A} @r @y", domain=MS, kernel_shape=[2, 3], pads=[1, 1, 0, 1], **STEPS),
    case("QLinearAveragePool", f"{A} @r @y", domain=MS, kernel_shape=[2, 2], pads=[1, 1, 0, 1], count_include_pad=1,
         **STEPS),
    case("QLinearGlobalAveragePool", f"{A} @r @y", domain=MS, **STEPS),
    *(
        Case("QLinearSoftmax", f"{A} @p @z", {"axis": axis, "opset": opset},
             STEPS | {"p": np.array(1 / 256, F), "z": np.array(0, np.uint8)}, domain=MS)
        for opset, axis in ((13, -1), (11, 2))
    ),
    case("QLinearWhere", "c:bool[2,1,4,5] a:u8<200[2,3,4,5] @s @y b:u8<200[3,1,5] @t @y @r @y", domain=MS, **STEPS),
    *(
        case(f"{op}Linear", f"{x}[2,3,4] @s @y", domain=MS, s=np.array([0.02, 0.03, 0.04], F),
             y=np.array([0, 7, 300], np.uint16), axis=1)
        for op, x in (("Quantize", "x"), ("Dequantize", "x:u16<999"))
    ),
    *(
        case("MatMulIntegerToFloat", f"a:u8<200[{batch}3,6] b:i8>-99<99[6,5] @s @v{rest}", domain=MS,
             v=np.linspace(0.01, 0.05, 5, dtype=F), w=np.array([0, 1, -2, 3, 4], np.int8), **STEPS)
        for batch, rest in (("", ""), ("2,", " @y @w"), ("", " @y @w bias[5]"), ("", " none none bias[5]"))
    ),
    *(
        case("DynamicQuantizeMatMul", f"a[{batch}3,6] b:i8>-99<99[6,5] @v{rest}", domain=MS,
             v=np.linspace(0.01, 0.05, 5, dtype=F), w=np.array([0, 1, -2, 3, 4], np.int8))
        for batch, rest in (("", ""), ("2,", " @w"), ("", " none bias[5]"))
    ),
    *(
        case("QGemm", f"a:u8<200[3,6] @s @y b:u8<200[{shape}] @t @z{rest}", domain=MS, alpha=alpha, transB=transposed,
             z=np.array(101, np.uint8), q=np.array(0.3001, F), **STEPS)
        for shape, transposed, alpha, rest in (
            ("6,5", 0, 1.0, ""), ("5,6", 1, 0.4, " c:i32>-99<99[5]"), ("6,5", 0, 1.0, " c:i32>-99<99[5] @q @y"),
            ("5,6", 1, 0.4, " none @q @y"),
        )
    ),
    case("QGemm", "a:u8<200[3,6] @s @y b:i8>-99<99[6,5] @v @w none @q @y", domain=MS,
         v=np.array([0.01, 0.02, 0.03, 0.04, 0.05], F), w=np.array([0, 1, -2, 3, 4], np.int8), q=np.array(0.3001, F),
         **STEPS),
]  # fmt: skip
# One step from zeros, of numbers that are codes already: nothing is left to round.
LAYER = {
    "x": np.array([[[0, 9, 255, 77], [31, 2, 0, 140]]], F), "w": np.arange(-24, 24, dtype=np.int8).reshape(1, 4, 12),
    "r": np.zeros((1, 3, 12), np.int8), "s": np.array([1e-4], F), "z": np.zeros(1, np.int8),
}  # fmt: skip
RENAMED = [
    case("ExpandDims", "x[2,3] @a", domain=MS, a=np.array(-1, np.int32)),
    case("GatherND", "x[3,5] i:i64<3[4,2,2]", domain=MS),
    case("GatherND", "x[3,5] i:i32<3[2,1]", domain=MS),
    case("GridSample", "x[2,3,5,4] g>-1.6<1.6[2,6,7,2]", domain=MS, mode="bicubic", padding_mode="border",
         align_corners=1),
    case("Pad", "x[2,3] @p @v", domain=MS, p=np.array([1, 0, 0, 2]), v=np.array(7, F)),
    case("Pad", "x[4,3] @p", domain=MS, p=np.array([1, 0, 0, 2]), mode="reflect"),
    case("Range", "@a @b @c", domain=MS, a=np.array(9), b=np.array(1), c=np.array(-3)),
    case("Range", "@a @b", domain=MS, a=np.array(1.5, F), b=np.array(7, F)),
    case("Trilu", "x[2,4,3] @k", domain=MS, k=np.array(-1), upper=0),
    case("Trilu", "x[3,4]", domain=MS),
    case("MatMulInteger16", "a:i16>-999<999[2,3,4] b:i16>-999<999[4,5]", domain=MS),
    case("NhwcMaxPool", "x:u8<200[2,7,8,3]", domain=MS, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    case("NhwcMaxPool", "x:i8>-99<99[2,7,8,3]", domain=MS, kernel_shape=[2, 2], dilations=[2, 1], ceil_mode=1),
    *(
        case("QLinearConv", f"x:u8<200[{image}] @s @z w:u8<200[4,1,2,3] @s @z @t @z b:i32>-99<99[4]", domain=MS,
             channels_last=last, group=2, pads=[1, 0, 2, 1], s=np.array(0.01, F), t=np.array(0.09, F),
             z=np.array(100, np.uint8))
        for image, last in (("1,2,5,4", 0), ("1,5,4,2", 1))
    ),
]  # fmt: skip
EXPORTED = [
    *ROUNDED,
    *RENAMED,
    case("DynamicQuantizeLSTM", "@x @w @r b[1,24] none none none none @s @z @s @z", 3, domain=MS, hidden_size=3,
         **LAYER),
    case("QEmbedLayerNormalization",
         "i:i32<9[2,5] none w:u8<200[9,8] p:u8<200[6,8] none g:u8<200[8] b:u8<200[8] m:i32<2[2,5] @s @t none @t @t"
         " @z @z none @z @z", 2, domain=MS, **SCALES),
    case("Attention", "x[2,5,16] w[16,96] b[96] none p[2,2,4,3,8]", 2, domain=MS, num_heads=4),
    case("Attention", "x[2,5,16] w[16,96] b[96] none p[2,2,4,3,8]", 2, domain=MS, num_heads=4, unidirectional=1),
    case("Attention", "x[2,5,16] w[16,96] b[96] @m p[2,2,4,3,8]", 2, domain=MS, num_heads=4, m=PADDED),
    case("Attention", "x[2,5,16] w[16,96] b[96] none none q[2,4,5,5]", domain=MS, num_heads=4),
    case("QAttention", QUANTIZED.format("i8>-99<99", "none", ""), domain=MS, num_heads=4, **SCALES),
    case("QAttention", QUANTIZED.format("u8<200", "@m", "@y"), domain=MS, num_heads=4, y=np.array(101, np.uint8),
         m=PADDED[:, 3:], **SCALES),
    case("QAttention", QUANTIZED.format("i8>-99<99", "none", "@y p[2,2,4,3,8]"), 2, domain=MS, num_heads=4,
         y=np.array(3, np.int8), unidirectional=1, **SCALES),
    *(
        case("RotaryEmbedding", f"x[2,{shape}] @p c[9,4] d[9,4]", domain=MS, p=np.array([3], np.int64))
        for shape in ("4,5,8", "5,32")
    ),
    *(product(seed) for seed in range(24)),
    *(table(seed) for seed in range(12)),
    *(grouped(seed) for seed in range(24)),
    *(
        case("FusedConv", "x[1,3,5,6] w[4,3,3,3] b[4]", domain=MS, activation=kind, activation_params=numbers,
             pads=[1] * 4)
        for kind, numbers in (("LeakyRelu", [0.2]), ("Clip", [-0.3, 0.4]), ("HardSigmoid", [0.2, 0.5]))
    ),
    *(
        case("FusedConv", "x[1,3,5,6] w[4,3,3,3] b[4]", domain=MS, activation=kind)
        for kind in ("Relu", "Tanh", "Sigmoid")
    ),
    case("FusedConv", "x[1,3,5,6] w[4,3,3,3] b[4] z[1,4,3,4]", domain=MS, activation="Relu"),
    case("FusedGemm", "a[3,6] b[5,6] c[5]", domain=MS, activation="Relu", alpha=0.5, transB=1),
    case("FusedGemm", "a[6,3] b[6,5]", domain=MS, activation="LeakyRelu", activation_alpha=0.2, transA=1),
    case("FusedGemm", "a[3,6] b[6,5] c[3,1]", domain=MS, activation="HardSigmoid", activation_alpha=0.3,
         activation_beta=0.4, beta=2.0),
    *(
        case("MurmurHash3", f"x:{dtype}{numbers}[3,4]", domain=MS, seed=seed, positive=seed % 2)
        for dtype, numbers in (("i32", ">-99<99"), ("u32", "<99"), ("i64", ">-99<99"), ("u64", "<99"), ("f32", ""),
                               ("f64", ""))
        for seed in (0, 7)
    ),
    *(
        case("NGramRepeatBlock", "i:i64<3[3,20] s[3,9]", domain=MS, ngram_size=size)
        for size in (1, 2, 3, 5, 21)
    ),
    case("LinearAttention", "q[2,5,24] k[2,5,24] v[2,5,60]", 2, domain=MS, update_rule="linear", q_num_heads=3,
         kv_num_heads=3),
    case("LinearAttention", "q[1,6,16] k[1,6,8] v[1,6,6] s[1,2,4,3] d>-1.0<0.0[1,6,8]", 2, domain=MS,
         update_rule="gated", q_num_heads=4, kv_num_heads=2),
    case("LinearAttention", "q[2,4,8] k[2,4,8] v[2,4,12] none none b>0.0<1.0[2,4,1]", 2, domain=MS, update_rule="delta",
         q_num_heads=2, kv_num_heads=2, scale=0.3),
    case("LinearAttention", "q[2,5,16] k>-0.3<0.3[2,5,32] v[2,5,80] s[2,4,8,20] d>-1.0<0.0[2,5,4] b>0.0<1.0[2,5,4]", 2,
         domain=MS, q_num_heads=2, kv_num_heads=4),
    case("LinearAttention", "q[1,3,12] k[1,3,4] v[1,3,6] s[1,1,4,6] d>-1.0<0.0[1,3,1] b>0.0<1.0[1,3,1]", 2, domain=MS,
         q_num_heads=3, kv_num_heads=1),
    case("LinearAttention", "q[1,3,16] k>-0.3<0.3[1,3,8] v[1,3,6] s[1,2,4,3] d>-1.0<0.0[1,3,2] b>0.0<1.0[1,3,2]", 2, 27,
         q_num_heads=4, kv_num_heads=2, oracle="reference"),
]  # fmt: skip
