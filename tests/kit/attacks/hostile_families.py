"""Attacks on the rules of images, classical models and contributed ops."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attacks.hostile_onnx import IMAGE, Attack, one
from ingot.errors import LimitError, LoadError, ShapeError, UnsupportedError
from ingot.load.onnx.registry import MICROSOFT, ML
from onnx_models import ints


def regions(**attributes: Any) -> Callable[[], Any]:
    constants = {"w": IMAGE, "r": np.zeros((1, 4), np.float32), "b": ints(0)}
    return one("RoiAlign", list(constants), constants, **attributes)


def trees(**changed: Any) -> Callable[[], Any]:
    """A tree of one comparison."""
    attributes: dict[str, Any] = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"], "nodes_values": [0.5, 0.0, 0.0],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
        "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
    }  # fmt: skip
    return one("TreeEnsembleRegressor", ["x"], domain=ML, **attributes | changed)


def machine(**changed: Any) -> Callable[[], Any]:
    """A classifier of two support vectors."""
    attributes: dict[str, Any] = {
        "vectors_per_class": [1, 1], "support_vectors": [0.5] * 6, "coefficients": [1.0, -1.0], "rho": [0.1],
        "classlabels_ints": [0, 1],
    }  # fmt: skip
    return one("SVMClassifier", ["x"], domain=ML, **attributes | changed)


def few_bits(places: Any = None, **changed: Any) -> Callable[[], Any]:
    """A product with three rows of 4 bits. places: the blocks of its columns."""
    constants = {"a": np.ones((2, 16), np.float32), "b": np.zeros((3, 1, 8), np.uint8), "s": np.ones(3, np.float32)}
    inputs = list(constants)
    if places is not None:
        inputs, constants = [*inputs, "", "g"], constants | {"g": np.array(places, np.int32)}
    return one("MatMulNBits", inputs, constants, domain=MICROSOFT, **{"N": 3, "K": 16, "block_size": 16} | changed)


def grouped(**attributes: Any) -> Callable[[], Any]:
    """Attention of two rows without a cache."""
    part = np.ones((1, 2, 4), np.float32)
    constants = {"q": part, "k": part, "v": part, "s": np.ones(1, np.int32), "t": np.array(2, np.int32)}
    return one("GroupQueryAttention", ["q", "k", "v", "", "", "s", "t"], constants, domain=MICROSOFT, **attributes)


FAMILIES: list[Attack] = [
    ("bins of a region", regions(output_height=2**40), LimitError, "too many points"),
    ("points of a bin", regions(output_width=2, sampling_ratio=2**40), LimitError, "too many points"),
    *(
        (f"trees, {name}", trees(**changed), error, what)
        for name, changed, error, what in [
            ("a cycle", {"nodes_truenodeids": [0, 0, 0]}, LoadError, "nodes form a cycle"),
            (
                "a child that is not there",
                {"nodes_truenodeids": [9, 0, 0]},
                LoadError,
                "node 9 of tree 0 does not exist",
            ),
            ("a node twice", {"nodes_nodeids": [0, 1, 1]}, LoadError, "a node is given twice"),
            ("a vote of an inner node", {"target_nodeids": [0, 2]}, LoadError, "no leaf"),
            ("a target beyond", {"target_ids": [0, 1]}, LoadError, "target out of range, got 1"),
            ("a feature beyond", {"nodes_featureids": [7, 0, 0]}, LoadError, "feature out of range, got 7"),
            ("columns differ", {"nodes_values": [0.5]}, LoadError, "differ in length"),
            ("a mode", {"nodes_modes": ["BRANCH_IN", "LEAF", "LEAF"]}, LoadError, "nodes_modes"),
            ("many targets", {"n_targets": 2**40}, LoadError, "targets of"),
            ("transform", {"post_transform": "SQUARE"}, LoadError, "post_transform"),
        ]
    ),
    *(
        (f"machine, {name}", machine(**changed), error, what)
        for name, changed, error, what in [
            ("sizes", {"vectors_per_class": [2**40, 1]}, LoadError, "coefficients, expected 1 for"),
            ("classes", {"vectors_per_class": [1]}, UnsupportedError, "vectors_per_class for 2 classes"),
            ("pairs", {"rho": [0.1, 0.2]}, LoadError, "elements of rho, expected 1"),
            ("kernel", {"kernel_type": "CUBE"}, LoadError, "kernel_type"),
            ("probabilities", {"prob_a": [1.0]}, LoadError, "0 of prob_b"),
            ("labels", {"classlabels_strings": ["a", "b"]}, LoadError, "expected one"),
        ]
    ),
    ("categories", one("OneHotEncoder", ["x"], domain=ML, cats_strings=["a"]), LoadError, "'cats_int64s'"),
    ("imputed", one("Imputer", ["x"], domain=ML, imputed_value_floats=[1.0, 2.0]), LoadError, "2 values"),
    *(
        (f"laid out for a CPU, {op}", one(op, ["x", "x"], domain=domain), UnsupportedError, "ORT_ENABLE_EXTENDED")
        for domain, op in (
            ("com.microsoft.nchwc", "Conv"),
            ("com.microsoft.nchwc", "ReorderInput"),
            (MICROSOFT, "NhwcFusedConv"),
        )
    ),
    ("map of other columns", one("ZipMap", ["x"], domain=ML, classlabels_int64s=[1]), ShapeError, "columns and labels"),
    ("map without labels", one("ZipMap", ["x"], domain=ML), LoadError, "expected one"),
    *(
        (f"few bits, {name}", few_bits(**changed), error, what)
        for name, changed, error, what in [
            ("rows", {"N": 2**40}, LoadError, "expected u8[1099511627776, 1, 8]"),
            ("columns", {"K": 2**62}, LoadError, "expected u8[3,"),
            ("bits", {"bits": 5}, UnsupportedError, "5 bits"),
            ("block", {"block_size": 17}, UnsupportedError, "blocks of 17"),
            ("no rows", {"N": 0}, UnsupportedError, "0 x 16"),
            ("a block beyond", {"places": [0] * 15 + [1]}, LoadError, "g_idx is from 0 to 1, expected 0..0"),
            ("a block before", {"places": [-1] * 16}, LoadError, "g_idx is from -1 to -1, expected 0..0"),
            ("blocks of few columns", {"places": [0]}, UnsupportedError, "expected fixed integers [16]"),
        ]
    ),
    *(
        (f"grouped, {name}", grouped(**changed), error, what)
        for name, changed, error, what in [
            ("heads", {"num_heads": 3, "kv_num_heads": 2}, LoadError, "3 heads over 2"),
            ("no heads", {"num_heads": 0, "kv_num_heads": 0}, LoadError, "0 heads over 0"),
            ("many heads", {"num_heads": 2**40, "kv_num_heads": 1}, LoadError, "heads"),
            ("scores", {"num_heads": 1, "kv_num_heads": 1, "qk_output": 3}, UnsupportedError, "qk_output 3"),
        ]
    ),
    ("mode of a region", regions(mode="most"), LoadError, "mode 'most'"),
]
