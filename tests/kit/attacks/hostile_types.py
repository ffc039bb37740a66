"""Hostile ONNX models of narrow numbers, strings and tables, each with the error that it must get."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from attacks.hostile_onnx import Attack, changed, one, tensor
from ingot.errors import LimitError, LoadError, ShapeError


def typed_data(dtype: int, **fields: Any) -> Callable[[], onnx.ModelProto]:
    """A weight of that dtype with these fields alone."""

    def change(proto: onnx.ModelProto) -> None:
        weight = proto.graph.initializer[0]
        weight.CopyFrom(TensorProto(name=weight.name, dims=weight.dims, data_type=dtype))
        for name, value in fields.items():
            getattr(weight, name).extend(value)

    return changed(change)


WORDS = np.array(["a", "b"], object)
ML = {"domain": "ai.onnx.ml"}


def tfidf(**changes: Any) -> Callable[[], Any]:
    attributes = {"mode": "TF", "min_gram_length": 1, "max_gram_length": 1, "max_skip_count": 0, "ngram_counts": [0]}
    attributes |= {"ngram_indexes": [0], "pool_strings": ["a"]}
    return one("TfIdfVectorizer", ["s"], {"s": WORDS}, **attributes | changes)


def tree(**changes: Any) -> Callable[[], Any]:
    names = ("featureids", "truenodeids", "falsenodeids")
    attributes: dict[str, Any] = {f"nodes_{name}": [0] for name in names}
    attributes |= {"nodes_trueleafs": [1], "nodes_falseleafs": [1], "tree_roots": [0], "leaf_targetids": [0]}
    attributes |= {"leaf_weights": helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])}
    attributes |= {"nodes_splits": helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])}
    attributes |= {"nodes_modes": helper.make_tensor("m", TensorProto.UINT8, [1], [0])}
    return one("TreeEnsemble", ["x"], **attributes | changes, **ML)


TYPES: list[Attack] = [
    ("raw strings", tensor(data_type=TensorProto.STRING), LoadError, "strings are in string_data"),
    ("raw int4", tensor(data_type=TensorProto.INT4), LoadError, "got 24 bytes, expected 3 for i4"),
    ("raw int2", tensor(data_type=TensorProto.INT2, dims=[3, 3]), LoadError, "got 24 bytes, expected 3 for i2"),
    ("raw float8", tensor(data_type=TensorProto.FLOAT8E4M3FN), LoadError, "got 24 bytes, expected 6 for f8e4m3fn"),
    ("int4 as elements", typed_data(TensorProto.INT4, int32_data=[1] * 6), LoadError, "got 6, expected 3 for i4"),
    ("float8 as floats", typed_data(TensorProto.FLOAT8E5M2, float_data=[1.0] * 6), LoadError, "expected int32_data"),
    ("too few strings", typed_data(TensorProto.STRING, string_data=[b"a"] * 5), LoadError, "got 5, expected 6"),
    ("strings as numbers", typed_data(TensorProto.STRING, int32_data=[1] * 6), LoadError, "expected string_data"),
    ("no UTF-8", typed_data(TensorProto.STRING, string_data=[b"\xff"] * 6), LoadError, "a string is not UTF-8"),
    ("cast with a mode", one("Cast", ["x"], to=24, round_mode="odd", opset=25), LoadError, "'round_mode' is 'odd'"),
    (
        "scales of another axis",
        one("QuantizeLinear", ["x", "s"], {"s": np.ones(7, np.float32)}),
        ShapeError,
        "dims differ",
    ),
    (
        "blocks of nothing",
        one("QuantizeLinear", ["x", "s"], {"s": np.ones((2, 3), np.float32)}, block_size=-1, opset=21),
        LoadError,
        "'block_size' is -1",
    ),
    (
        "quantized to strings",
        one("QuantizeLinear", ["x", "s"], {"s": np.array(1, np.float32)}, output_dtype=8, opset=21),
        ShapeError,
        "bad dtype, got string",
    ),
    *(
        (f"regex {name}", one("RegexFullMatch", ["s"], {"s": WORDS}, pattern=pattern, opset=20), error, message)
        for name, pattern, error, message in (
            ("that looks ahead", "(?=a)b", LoadError, "invalid perl operator"),
            ("that looks back", r"(a)\1", LoadError, "invalid escape sequence"),
            ("without an end", "[a", LoadError, "missing ]"),
            ("of an unknown script", r"\p{Klingon}", LoadError, "invalid character class range"),
            ("too long", "a" * 2**16, LimitError, "too long"),
            ("too deep", "(" * 2**16 + ")" * 2**16, LimitError, "too long"),
            ("repeated too often", "((a{99}){99}){99}", LoadError, "invalid repetition size"),
            ("too large", r"((\pL{10}){10}){10}", LimitError, "pattern too large"),
        )
    ),
    ("tf-idf of a far place", tfidf(ngram_indexes=[2**40]), ShapeError, "out of range"),
    ("tf-idf of many skips", tfidf(max_skip_count=-1), ShapeError, "out of range"),
    ("tf-idf of odd counts", tfidf(ngram_counts=[7]), ShapeError, "bad starts"),
    ("tf-idf of long n-grams", tfidf(max_gram_length=2**60), ShapeError, "out of range"),
    (
        "labels without values",
        one("LabelEncoder", ["s"], {"s": WORDS}, keys_strings=["a"], **ML),
        LoadError,
        "expected one",
    ),
    (
        "labels of two lengths",
        one("LabelEncoder", ["s"], {"s": WORDS}, keys_strings=["a"], values_int64s=[1, 2], **ML),
        LoadError,
        "1 keys and 2 values",
    ),
    ("tree of a cycle", tree(nodes_trueleafs=[0]), LoadError, "nodes form a cycle"),
    ("tree of no leaf", tree(nodes_truenodeids=[9]), LoadError, "node out of range"),
    ("tree of no feature", tree(nodes_featureids=[3]), LoadError, "feature out of range"),
    ("tree of many targets", tree(n_targets=2**60), LoadError, "targets"),
    ("tree of uneven lists", tree(nodes_featureids=[0, 0]), LoadError, "differ in length"),
]
