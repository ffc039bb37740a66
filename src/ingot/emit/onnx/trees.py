"""ONNX rule of tree ensembles, whose tables are attributes of TreeEnsemble."""

from __future__ import annotations

import numpy as np

from ingot.emit.onnx.builder import ML, Builder, tensor
from ingot.emit.onnx.registry import rule
from ingot.errors import UnsupportedError
from ingot.ir.graph import Node
from ingot.ops.trees import FALSE, FEATURE, MEMBERS, MEMBERS_END, MISSING, MODE, MODES, TRUE

_AGGREGATES = ("average", "sum", "min", "max")


@rule("tree_ensemble")
def tree_ensemble(builder: Builder, node: Node, x: str, *_: str) -> str:
    """In ONNX a leaf has one vote: further votes are in further ensembles, whose results are added."""
    tables = [builder.graph.data(name) for name in node.operands[1:]]
    if any(table is None for table in tables):
        raise UnsupportedError("tables that are no constants are not supported")
    splits, nodes, leaves, weights, targets, roots, members = (np.asarray(table) for table in tables)
    counts = leaves[:, 1] - leaves[:, 0]
    if node.aggregate in ("min", "max") and (counts != 1).any():
        raise UnsupportedError(f"{node.aggregate} over leaves without one vote each is not supported")
    nodes, splits, starts = _rooted(nodes, splits, roots)
    parts = []
    for vote in range(int(counts.max(initial=1))):
        index = np.where(vote < counts, leaves[:, 0] + vote, len(weights))  # a zero vote after the last one
        own = np.append(weights, weights.dtype.type(0))[index], np.append(targets, 0)[index]
        parts.append(_ensemble(builder, node, x, (splits, nodes, starts, members, *own)))
    return parts[0] if len(parts) == 1 else builder.Sum(*parts)


def _rooted(nodes: np.ndarray, splits: np.ndarray, roots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return nodes, splits and roots; a tree of one leaf gets a node whose two children are that leaf."""
    alone = roots[roots < 0]
    added = np.zeros((len(alone), nodes.shape[1]), np.int64)
    added[:, TRUE] = added[:, FALSE] = alone
    starts = roots.copy()
    starts[roots < 0] = len(nodes) + np.arange(len(alone))
    return np.concatenate([nodes, added]), np.append(splits, np.zeros(len(alone), splits.dtype)), starts


def _ensemble(builder: Builder, node: Node, x: str, tables: tuple[np.ndarray, ...]) -> str:
    splits, nodes, starts, members, weights, targets = tables
    nan = np.full(1, np.nan, members.dtype)
    sets = [np.append(members[row[MEMBERS] : row[MEMBERS_END]], nan) for row in nodes if row[MODE] == MODES.index("in")]
    (result,) = builder.add_all(
        "TreeEnsemble",
        1,
        x,
        domain=ML,
        aggregate_function=_AGGREGATES.index(node.aggregate),
        n_targets=node.targets,
        leaf_targetids=targets.tolist(),
        leaf_weights=tensor("leaf_weights", weights),
        membership_values=tensor("membership_values", np.concatenate(sets)) if sets else None,
        nodes_featureids=nodes[:, FEATURE].tolist(),
        nodes_modes=tensor("nodes_modes", nodes[:, MODE].astype(np.uint8)),
        nodes_missing_value_tracks_true=nodes[:, MISSING].tolist(),
        nodes_splits=tensor("nodes_splits", splits),
        nodes_truenodeids=_child_ids(nodes[:, TRUE]),
        nodes_trueleafs=(nodes[:, TRUE] < 0).astype(int).tolist(),
        nodes_falsenodeids=_child_ids(nodes[:, FALSE]),
        nodes_falseleafs=(nodes[:, FALSE] < 0).astype(int).tolist(),
        tree_roots=starts.tolist(),
    )
    return result


def _child_ids(children: np.ndarray) -> list[int]:
    """Return nodes and leaves, each numbered from 0."""
    return np.where(children < 0, -1 - children, children).tolist()
