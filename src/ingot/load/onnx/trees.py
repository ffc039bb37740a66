"""Rules for tree ensembles of ai.onnx.ml: the newest op describes them by indices, older ones by ids of trees and
nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from ingot.errors import InputError
from ingot.ir.dtype import DType, f32, f64, i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.classify import (
    MAX_TARGETS,
    labelled,
    labels_of,
    spread,
    transform_of,
    transformed,
)
from ingot.load.onnx.registry import ML, onnx
from ingot.ops.trees import check_trees

_AGGREGATES = ("average", "sum", "min", "max")
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


@dataclass(slots=True)
class Trees:
    """The tables of the op `tree_ensemble`, in the order of its operands."""

    splits: np.ndarray
    nodes: np.ndarray
    leaves: np.ndarray
    weights: np.ndarray
    targets: np.ndarray
    roots: np.ndarray
    members: np.ndarray

    def ensemble(self, call: Call, x: str, count: int, aggregate: str) -> str:
        """Return the votes for `count` targets. Raises LoadError for invalid indices in the tables."""
        if not 1 <= count <= MAX_TARGETS or call.build.type(x).rank != 2:
            raise call.malformed(f"{count} targets of {call.build.type(x)}")
        features = call.build.type(x).shape[-1]
        try:
            bound = features if isinstance(features, int) else 2**31
            check_trees(self.nodes, self.roots, self.leaves, bound, self.targets, count, len(self.members))
        except InputError as error:
            raise call.malformed(str(error)) from error
        literals = [call.build.literal(getattr(self, field.name), "trees") for field in fields(self)]
        return call.build.tree_ensemble(x, *literals, targets=count, aggregate=aggregate)


@onnx("TreeEnsemble", domain=ML)
def tree_ensemble(call: Call) -> str:
    """Flags mark the children of a node as nodes or leaves; a root whose two children are the same leaf is that
    leaf.
    """
    ints = {name: _ints(call, f"nodes_{name}") for name in ("featureids", "truenodeids", "falsenodeids")}
    count = len(ints["featureids"])
    modes = call.attr_tensor("nodes_modes").astype(np.int64).ravel()
    missing = _ints(call, "nodes_missing_value_tracks_true", np.zeros(count, np.int64))
    leaves = {name: _ints(call, f"nodes_{name}leafs") for name in ("true", "false")}
    splits = call.attr_tensor("nodes_splits").ravel()
    members = call.attr_tensor("membership_values", np.zeros(0, call.type(0).dtype.numpy)).ravel()
    missing = (missing == 1).astype(np.int64)  # it is a flag
    columns = [*ints.values(), modes, missing, *leaves.values(), splits]
    if any(len(column) != count for column in columns):
        raise call.malformed(f"attributes 'nodes_*' differ in length, got {[len(column) for column in columns]}")
    children = [
        np.where(leaves[name] != 0, -1 - ints[f"{name}nodeids"], ints[f"{name}nodeids"]) for name in ("true", "false")
    ]
    if any(ints[f"{name}nodeids"].min(initial=0) < 0 for name in ("true", "false")):
        raise call.malformed("attributes 'nodes_truenodeids' and 'nodes_falsenodeids': a negative index")
    nodes = np.stack([ints["featureids"], modes, *children, missing, *_member_ranges(call, modes, members)], 1)
    weights, targets = call.attr_tensor("leaf_weights").ravel(), _ints(call, "leaf_targetids")
    aggregate, transform = call.attr_int("aggregate_function", 1), call.attr_int("post_transform", 0)
    if not (0 <= aggregate < len(_AGGREGATES) and 0 <= transform < 5):
        raise call.malformed(f"aggregate_function {aggregate}, post_transform {transform}")
    ranges = np.arange(len(targets))[:, None] + [0, 1]
    trees = Trees(
        splits, nodes, ranges, weights, targets, _ints(call, "tree_roots"), np.nan_to_num(members, nan=math.inf)
    )
    result = trees.ensemble(call, call[0], call.attr_int("n_targets", 1), _AGGREGATES[aggregate])
    return transformed(call, result, ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[transform])


def _ints(call: Call, name: str, default: np.ndarray | None = None) -> np.ndarray:
    if default is not None and name not in call.attributes:
        return default
    return np.array(call.attr_ints(name), np.int64)


def _member_ranges(call: Call, modes: np.ndarray, members: np.ndarray) -> list[np.ndarray]:
    """Return the begin and end of the members of each node: a NaN terminates the members of a node, in the order of
    nodes with members.
    """
    begins, ends = np.zeros((2, len(modes)), np.int64)
    (stops,), (users,) = np.nonzero(np.isnan(members)), np.nonzero(modes == 6)
    if len(users) and len(stops) != len(users):
        raise call.malformed(f"{len(stops)} sets of members for {len(users)} nodes")
    ends[users] = stops[: len(users)]
    begins[users] = np.append(0, stops[:-1] + 1)[: len(users)]
    return [begins, ends]


@onnx("TreeEnsembleRegressor", domain=ML)
def tree_ensemble_regressor(call: Call) -> str:
    aggregate = call.attr_text("aggregate_function", "SUM").lower()
    if aggregate not in _AGGREGATES:
        raise call.malformed(f"attribute 'aggregate_function' is {aggregate!r}, expected one of {_AGGREGATES}")
    x, count = _features(call), call.attr_int("n_targets", 1)
    scores = _votes(call, "target", call.build.type(x).dtype).ensemble(call, x, count, aggregate)
    base = _base_values(call, call.build.type(x).dtype)
    if base.size not in (0, count):
        raise call.malformed(f"{base.size} base_values for {count} targets")
    scores = call.build.add(scores, call.build.constant(base)) if base.size else scores
    return transformed(call, call.cast(scores, f32), transform_of(call))


@onnx("TreeEnsembleClassifier", domain=ML)
def tree_ensemble_classifier(call: Call) -> tuple[str, str]:
    """Return the class with the highest score. With two classes, all votes may be for the first one: its score is then
    the score of the second class, which wins above 0.5, or above 0 if votes have both signs.
    """
    build, labels, transform, x = call.build, labels_of(call, "classlabels_int64s"), transform_of(call), _features(call)
    dtype = build.type(x).dtype
    trees, base = _votes(call, "class", dtype), _base_values(call, dtype)
    voted = np.unique(trees.targets).tolist()
    scores = trees.ensemble(call, x, len(labels), "sum")
    if len(labels) != 2 or len(voted) != 1:
        if base.size not in (0, len(labels)):
            raise call.malformed(f"{base.size} base_values for {len(labels)} classes")
        scores = build.add(scores, build.constant(base)) if base.size else scores
        winners = build.argmax(scores, axis=1, keepdims=False)
        return labelled(call, winners, labels), transformed(call, call.cast(scores, f32), transform)
    if base.size > 1 - voted[0]:
        raise call.unsupported(f"{base.size} base_values of two classes whose votes are all for class {voted[0]}")
    score = call.slice(scores, 1, voted[0], voted[0] + 1)
    score = build.add(score, build.constant(base)) if base.size else score
    mixed = bool((trees.weights < 0).any())
    second = build.reshape(build.greater(score, 0.0 if mixed else 0.5), shape=(build.type(x).shape[0],))
    label = labelled(call, call.cast(second, i64), labels)
    score = call.cast(score, f32)
    if voted[0]:
        return label, transformed(call, build.concat(build.mul(score, 0.0), score, axis=1), transform)
    return label, spread(call, score, transform, mixed=mixed)


def _features(call: Call) -> str:
    """Return the operand in the dtype of the comparisons."""
    return call[0] if call.type(0).dtype in (f32, f64) else call.cast(call[0], f32)


def _column(call: Call, name: str, dtype: DType) -> np.ndarray:
    """Return an attribute of numbers, given as floats or as a tensor."""
    if f"{name}_as_tensor" in call.attributes:
        return call.attr_tensor(f"{name}_as_tensor").ravel().astype(dtype.numpy)
    return np.array(call.attr_floats(name, ()), np.float32).astype(dtype.numpy)


def _base_values(call: Call, dtype: DType) -> np.ndarray:
    return _column(call, "base_values", dtype)


def _votes(call: Call, kind: str, dtype: DType) -> Trees:
    """Return the trees of an op with ids. The first node of a tree is its root; a vote names its leaf by id."""
    owners = _ints(call, "nodes_treeids"), _ints(call, "nodes_nodeids")
    children = _ints(call, "nodes_truenodeids"), _ints(call, "nodes_falsenodeids")
    features, modes = _ints(call, "nodes_featureids"), np.array(call.attr_texts("nodes_modes"), object)
    splits = _column(call, "nodes_values", dtype)
    missing = _ints(call, "nodes_missing_value_tracks_true", np.zeros(0, np.int64))
    missing = (missing == 1).astype(np.int64) if missing.size else np.zeros(len(modes), np.int64)
    columns = [*owners, *children, features, modes, splits, missing]
    if len({len(column) for column in columns}) > 1:
        raise call.malformed(f"attributes 'nodes_*' differ in length, got {[len(column) for column in columns]}")
    if not set(modes.tolist()) <= {*_MODES, "LEAF"}:
        raise call.malformed(f"attribute 'nodes_modes': got {sorted(set(modes.tolist()))[:9]}, expected {_MODES}")
    is_leaf = modes == "LEAF"
    # Inner nodes count up from 0, leaves count down from -1.
    numbers = np.where(is_leaf, -np.cumsum(is_leaf), np.cumsum(~is_leaf) - 1)
    number_of = dict(zip(zip(*(owner.tolist() for owner in owners), strict=True), numbers.tolist(), strict=True))
    if len(number_of) < len(modes):
        raise call.malformed("attributes 'nodes_treeids' and 'nodes_nodeids': a node is given twice")
    inner = np.flatnonzero(~is_leaf)
    child_numbers = [_node_numbers(call, number_of, owners[0][inner], column[inner]) for column in children]
    mode_numbers = np.array([_MODES.index(mode) for mode in modes[inner].tolist()], np.int64)
    none = np.zeros(len(inner), np.int64)
    nodes = np.stack([features[inner], mode_numbers, *child_numbers, missing[inner], none, none], 1)
    _, firsts = np.unique(owners[0], return_index=True)
    ranges, order = _leaf_votes(call, kind, number_of, int(is_leaf.sum()))
    targets, weights = _ints(call, f"{kind}_ids"), _column(call, f"{kind}_weights", dtype)
    if not len(targets) == len(weights) == len(order):
        raise call.malformed(
            f"attributes '{kind}_*' differ in length, got {len(targets)}, {len(weights)}, {len(order)}"
        )
    return Trees(
        splits[inner], nodes, ranges, weights[order], targets[order], numbers[np.sort(firsts)], np.zeros(0, dtype.numpy)
    )


def _node_numbers(
    call: Call, number_of: dict[tuple[int, int], int], trees: np.ndarray, nodes: np.ndarray
) -> np.ndarray:
    """Return the numbers of nodes. Raises LoadError for an unknown node."""
    keys = list(zip(trees.tolist(), nodes.tolist(), strict=True))
    unknown = next((key for key in keys if key not in number_of), None)
    if unknown is not None:
        raise call.malformed(f"node {unknown[1]} of tree {unknown[0]} does not exist")
    return np.array([number_of[key] for key in keys], np.int64)


def _leaf_votes(
    call: Call, kind: str, number_of: dict[tuple[int, int], int], count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the range of each leaf in the sorted votes, and the order that sorts them."""
    trees, nodes = _ints(call, f"{kind}_treeids"), _ints(call, f"{kind}_nodeids")
    if len(trees) != len(nodes):
        raise call.malformed(f"attributes '{kind}_*' differ in length, got {len(trees)} and {len(nodes)}")
    leaves = -1 - _node_numbers(call, number_of, trees, nodes)
    if leaves.min(initial=0) < 0:
        raise call.malformed(f"attribute '{kind}_nodeids': a node that is no leaf has a vote")
    order = np.argsort(leaves, kind="stable")
    ends = np.cumsum(np.bincount(leaves, minlength=count)).astype(np.int64)
    return np.stack([np.append(0, ends[:-1])[:count], ends], 1), order
