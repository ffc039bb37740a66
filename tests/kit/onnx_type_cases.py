"""Cases of the ONNX rules over narrow numbers, strings, and what ai.onnx.ml makes of either."""

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

from onnx_models import Case, case, ints

F = np.float32
ML = "ai.onnx.ml"

NUMBERS = np.array([0, -0.0, 0.3, 1, 1.5, 2.5, -1, 3, 5.2, 6.9, 7, -7.5, 100, 300, -300, 464, 465, 7e4, 1e9, -1e9], F)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 3.4e38, 1e-40], F)
FLOATS = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16")
FLOATS_OF_8 = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")
NARROW_INTEGERS = ("INT4", "UINT4", "INT2", "UINT2")
INTEGERS = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64")
TYPES = (*FLOATS, *FLOATS_OF_8, "FLOAT8E8M0", "FLOAT4E2M1", *NARROW_INTEGERS, *INTEGERS, "BOOL")


def number(name: str) -> int:
    return int(TensorProto.DataType.Value(name))


def few(name: str) -> np.ndarray:
    """Elements that each type of that name holds."""
    values = [1, 2, 4] if name == "FLOAT8E8M0" else [0, 1] if name in (*NARROW_INTEGERS, "BOOL") else [0, 1, 2, 3]
    return np.array(values, F).astype(helper.tensor_dtype_to_np_dtype(number(name)))


def held(x: np.ndarray, to: str) -> np.ndarray:
    """The floats of x with an integer part that integers of the type hold; ONNX leaves the others undefined."""
    info = ml_dtypes.iinfo(helper.tensor_dtype_to_np_dtype(number(to)))
    return x[(np.trunc(x) >= info.min) & (np.trunc(x) <= info.max)]


def cast(x: np.ndarray, to: str, **attributes: object) -> Case:
    return case("Cast", "@x", x=x, to=number(to), opset=25, oracle="reference", **attributes)


def cast_like(x: np.ndarray, to: str) -> Case:
    return case("CastLike", "@x @like", x=x, like=few(to), opset=25, oracle="reference")


WORDS = np.array(["1", "-2", "3.5", "1e2", "INF", "-inf", "NaN", "+4", " 5"], object)
# From and to f32; test_ops.py has all pairs.
# Texts of 8 digits, with and without exponents.
AS_TEXT = np.array([0.9529405, 1.5, 12345.678, 1e-5, 9.8765432e-4, -0.0, 0.1, 2**-20, 65504, -3.0000001])
CASTS = [
    *(cast(few(name), "FLOAT") for name in TYPES),
    *(cast(few("FLOAT"), name) for name in TYPES if name not in NARROW_INTEGERS),
    *(cast_like(few("INT8"), name) for name in TYPES),
    *(cast(NUMBERS, to) for to in (*FLOATS, *FLOATS_OF_8, "FLOAT4E2M1")),
    *(cast(held(NUMBERS, to), to) for to in NARROW_INTEGERS),
    *(cast(NUMBERS.astype(np.float64), to) for to in (*FLOATS_OF_8, "BFLOAT16")),
    *(cast(np.append(NUMBERS, SPECIAL), to, saturate=0) for to in FLOATS_OF_8),
    *(cast(SPECIAL, to) for to in FLOATS_OF_8),
    *(cast(NUMBERS[NUMBERS > 0], "FLOAT8E8M0", round_mode=mode) for mode in ("up", "down", "nearest")),
    *(cast(np.arange(-300, 300, 7), to) for to in (*NARROW_INTEGERS, "INT8", "UINT8")),
    *(case("Cast", "@x", x=WORDS, to=number(to), opset=21) for to in ("FLOAT", "DOUBLE")),
    case("Cast", "@x", x=np.array(["1", "-2", "300"], object), to=TensorProto.INT64, opset=21),
    case("Cast", "@x", x=np.array([0.1, 1, 1e20, 1e-7, np.nan, np.inf, -np.inf], F), to=TensorProto.STRING, opset=21),
    *(
        case("Cast", "@x", x=AS_TEXT.astype(kind), to=TensorProto.STRING, opset=21)
        for kind in (F, np.float64, np.float16)
    ),
    case("Cast", "x:i64>-9<9[5]", to=TensorProto.STRING, opset=21),
    case("Cast", "x:bool[5]", to=TensorProto.STRING, opset=21),
]

ZEROS = {name: np.array(0, helper.tensor_dtype_to_np_dtype(number(name))) for name in TYPES}
SCALE = np.array(0.3, F)
QUANTIZED = [
    case("QuantizeLinear", "x>-9<9[2,5] @s", s=np.array(0.05, F), opset=21),
    *(
        case("QuantizeLinear", "x>-9<9[2,5] @s @z", s=np.array(0.3, F), z=z, opset=25, oracle="reference")
        for name in ("INT8", "UINT8", "INT16", "UINT16", *FLOATS_OF_8, "FLOAT4E2M1", *NARROW_INTEGERS)
        for z in [ZEROS[name]]
    ),
    case("QuantizeLinear", "x>-9<9[2,5] @s @z", s=np.array(0.05, F), z=np.array(3, np.int8), opset=13),
    case("QuantizeLinear", "x>-9<9[2,3,5] s>0.01<0.1[3] z:u8<9[3]", opset=13),
    case("QuantizeLinear", "x>-9<9[2,3,5] s>0.01<0.1[5] z:i8<9[5]", axis=-1, opset=13),
    case("QuantizeLinear", "x>-9<9[2,4,5] s>0.01<0.1[2,2,5] z:u8<9[2,2,5]", axis=1, block_size=2, opset=21),
    case("QuantizeLinear", "x>-9<9[2,5,3] s>0.01<0.1[2,3,3]", axis=1, block_size=2, output_dtype=5, opset=21),
    case("QuantizeLinear", "x:f16>-9<9[2,5] s:f16>0.01<0.1[]", output_dtype=3, opset=21),
    case("QuantizeLinear", "@x @s", x=np.array([-1e4, 2.5, 3.5, -0.5], F), s=np.array(1, F), output_dtype=3,
         opset=21),
    case("QuantizeLinear", "x>-9<9[2,5] @s @z", s=np.array(0.01, F), z=ZEROS["FLOAT8E5M2"], saturate=0, opset=25,
         oracle="reference"),
    *(
        case("DequantizeLinear", "@x @s @z", x=few(name), s=SCALE, z=ZEROS[name], opset=25, oracle="reference")
        for name in ("INT8", "UINT8", "INT16", "UINT16", *FLOATS_OF_8, "FLOAT4E2M1", *NARROW_INTEGERS)
    ),
    case("DequantizeLinear", "x:i32>-999<999[2,5] @s", s=np.array(0.3, F), opset=13),
    case("DequantizeLinear", "x:u8<200[2,3,5] s>0.01<0.1[3] z:u8<9[3]", opset=13),
    case("DequantizeLinear", "x:i8<99[2,4,5] s>0.01<0.1[2,2,5]", axis=1, block_size=2, opset=21),
    case("DequantizeLinear", "x:i8<99[2,4,5] s:f16>0.01<0.1[]", opset=21),
    case("DequantizeLinear", "x:i8<99[3] s>0.01<0.1[]", output_dtype=10, opset=24, oracle="reference"),
    case("DynamicQuantizeLinear", "x>-9<3[2,5]", 3),
    case("DynamicQuantizeLinear", "x>1<3[2,5]", 3),
    case("MatMulInteger", "a:u8<200[2,3] b:u8<200[3,4] @z", z=np.array(12, np.uint8)),
    case("MatMulInteger", "a:i8>-99<99[2,3] b:i8>-99<99[3,4] none z:i8<9[4]"),
    case("MatMulInteger", "a:u8<200[2,3] b:i8>-99<99[3,4]"),
    case("MatMulInteger", "a:u8<200[3] b:i8>-99<99[3,4]"),
    case("ConvInteger", "x:u8<200[1,2,5,4] w:u8<200[3,2,2,3] @z", z=np.array(7, np.uint8)),
    case("ConvInteger", "x:u8<200[1,2,5,4] w:u8<200[4,1,2,3] @z @v", z=np.array(7, np.uint8), v=np.array(3, np.uint8),
         pads=[1, 0, 2, 1], group=2, strides=[2, 1]),
    case("QLinearMatMul", "a:u8<200[2,3] @s @z b:u8<200[3,4] @s @z @t @z", s=np.array(0.01, F), t=np.array(0.02, F),
         z=np.array(113, np.uint8)),
    case("QLinearMatMul", "a:i8>-99<99[2,2,3] @s @z b:i8>-99<99[3,4] @v @y @t @z", s=np.array(0.01, F),
         v=np.array([0.01, 0.02, 0.03, 0.04], F), y=np.zeros(4, np.int8), t=np.array(0.02, F), z=np.array(1, np.int8)),
    case("QLinearConv", "x:u8<200[1,2,5,4] @s @z w:u8<200[3,2,2,3] @s @z @t @z b:i32>-99<99[3]", s=np.array(0.01, F),
         t=np.array(0.09, F), z=np.array(100, np.uint8), pads=[1, 0, 2, 1]),
    case("QLinearConv", "x:u8<200[1,2,5,4] @s @z w:i8>-99<99[3,2,2,3] @v @y @t @z", s=np.array(0.01, F),
         v=np.array([0.01, 0.02, 0.03], F), y=np.zeros(3, np.int8), t=np.array(0.09, F), z=np.array(100, np.uint8)),
]  # fmt: skip

GRAMS = {"max_gram_length": 2, "ngram_counts": [0, 2], "ngram_indexes": [0, 3, 1, 2], "weights": [0.5, 2.0, 3.0, 4.0]}
POOL = [1, 2, 1, 2, 2, 0]
PATTERNS = [
    r"[\w.]+|\s.*", r"(?i)(monday|a)\b.*", r".*\by\b.*", r"\pL\W{1,4}[^a-c]*", r"[[:alpha:]]+(?:\.a)?", r"",
    r"(.?){6}\z", r"\Qa.b\E\.{2}c", r"[\x{c0}-\x{ff}.]+", r"(?s-i:^a.+c$)|[^\S]*",
]  # fmt: skip
TEXTS = np.array([["a.b..c", "", " x  y "], ["é.ÉÀ", "monday.a", "Monday"]], object)
STRINGS = [
    case("StringConcat", "a:string[2,3] b:string[3]", opset=20),
    case("StringConcat", "a:string[] b:string[]", opset=20),
    *(
        case("StringSplit", "@x", 2, x=TEXTS, opset=20, oracle="reference", **attributes)
        for attributes in ({}, {"delimiter": "."}, {"delimiter": ".", "maxsplit": 1})
    ),
    case("StringNormalizer", "@x", x=TEXTS[0, ::2], case_change_action="UPPER", stopwords=["A.B..C"],
         oracle="reference"),
    case("StringNormalizer", "@x", x=TEXTS[1:, 1:], case_change_action="LOWER", stopwords=["monday"],
         is_case_sensitive=1, oracle="reference"),
    *(case("RegexFullMatch", "@x", x=TEXTS, pattern=pattern, opset=20) for pattern in PATTERNS),
    case("RegexFullMatch", "@x", x=np.array(["K", "\u212a", "\u017f", "ς"], object), pattern="(?i)k|S|Σ", opset=20),
    case("RegexFullMatch", "@x", x=np.array(["λ", "s"], object), pattern=r"\p{Greek}{0}\p{Greek}", opset=20),
    case("RegexFullMatch", "@x", x=np.array(["a", "aa"], object), pattern="(" * 1000 + "a" + ")" * 1000, opset=20),
    case("Equal", "a:string[2,3] b:string[3]", opset=19),
    case("Where", "c:bool[2,3] a:string[3] b:string[2,1]", opset=16),
    *(case(op, "x:string[2,3] @s", s=ints(3, 2)) for op in ("Reshape",)),
    case("Gather", "x:string[4,3] @i", i=ints(2, 0), oracle="reference"),
    case("Concat", "x:string[2,3] y:string[1,3]", axis=0),
    *(
        case("TfIdfVectorizer", "x:i64<3[2,9]", mode=mode, min_gram_length=least, max_skip_count=skips,
             pool_int64s=POOL, **GRAMS)
        for mode, least, skips in (("TF", 1, 0), ("TF", 2, 3), ("IDF", 1, 1), ("TFIDF", 1, 2))
    ),
    case("TfIdfVectorizer", "@x", x=np.array(["a", "b", "a", "c"], object), mode="TF", min_gram_length=1,
         max_skip_count=0, pool_strings=["a", "c", "a", "b", "b", "a"], **GRAMS),
]  # fmt: skip


def ml(op: str, operands: str, outputs: int = 1, version: int = 1, **rest: object) -> Case:
    return case(op, operands, outputs, domain=ML, version=version, **rest)


# A tree of two comparisons, and one that is a leaf.
TREES = {
    "n_targets": 2, "tree_roots": [0, 2], "nodes_featureids": [0, 1, 0], "nodes_truenodeids": [1, 1, 2],
    "nodes_falsenodeids": [0, 3, 2], "nodes_trueleafs": [0, 1, 1], "nodes_falseleafs": [1, 1, 1],
    "leaf_targetids": [0, 1, 1, 0], "nodes_missing_value_tracks_true": [1, 0, 0],
    "leaf_weights": helper.make_tensor("w", TensorProto.FLOAT, [4], [0.5, 1.5, -2.0, 3.0]),
    "nodes_splits": helper.make_tensor("s", TensorProto.FLOAT, [3], [0.25, -0.5, 0.0]),
}  # fmt: skip


def modes(*values: int) -> TensorProto:
    return helper.make_tensor("m", TensorProto.UINT8, [len(values)], values)


TABLES = [
    ml("ArrayFeatureExtractor", "x[3,4] @i", i=ints(3, 0, 0)),
    ml("ArrayFeatureExtractor", "x:string[4] @i", i=ints(3, 0)),
    ml("Binarizer", "x[3,4]", threshold=0.5),
    ml("Scaler", "x[3,4]", offset=[0.5, 1.0, -1.0, 0.0], scale=[2.0, 1.0, 0.5, 3.0]),
    ml("Scaler", "x:i64<9[3,4]", offset=[0.5], scale=[2.0]),
    *(ml("Normalizer", "x[3,4]", norm=norm, oracle="reference") for norm in ("MAX", "L1", "L2")),
    *(
        ml("LinearRegressor", "x[3,4]", coefficients=[0.5, 1.0, -1.0, 2.0] * 2, targets=2, intercepts=[0.5, 1.0],
           post_transform=t)
        for t in ("NONE", "SOFTMAX", "LOGISTIC")
    ),
    ml("LabelEncoder", "@x", x=TEXTS, keys_strings=["", "Monday", "", "é.ÉÀ"], values_int64s=[1, 2, 3, 4], version=2,
       oracle="reference"),
    ml("LabelEncoder", "x:i64<5[3,4]", keys_int64s=[1, 2, 3], values_strings=["a", "b", "c"], version=2),
    ml("LabelEncoder", "@x", x=np.array([np.nan, 1.5, 0], F), keys_floats=[float("nan"), 1.5],
       values_floats=[2.0, 3.0], version=4),
    ml("LabelEncoder", "@x", x=np.array(["b", "z"], object), classes_strings=["a", "b"], default_int64=7),
    *(
        ml("TreeEnsemble", "x[9,2]", aggregate_function=how, nodes_modes=modes(0, mode, 0), version=5,
           oracle="reference", **TREES)
        for how, mode in ((1, 0), (0, 1), (1, 2), (1, 3), (1, 4), (1, 5))
    ),
    ml("TreeEnsemble", "@x", x=np.array([[np.nan, 1], [0, np.nan], [0, 2.0]], F), nodes_modes=modes(0, 6, 0), version=5,
       membership_values=helper.make_tensor("v", TensorProto.FLOAT, [3], [1.0, 2.0, float("nan")]),
       oracle="reference", **TREES),
]  # fmt: skip

TYPED = [*CASTS, *QUANTIZED, *STRINGS, *TABLES]
