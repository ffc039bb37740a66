"""Ensembles of decision trees."""

from typing import Literal

import numpy as np

from ingot.errors import InputError, ShapeError
from ingot.ir.dtype import f16, f32, f64, i64
from ingot.ir.graph import TensorType
from ingot.ops.define import op, sample

MODES = ("<=", "<", ">=", ">", "==", "!=", "in")
FEATURE, MODE, TRUE, FALSE, MISSING, MEMBERS, MEMBERS_END = range(7)  # columns of `nodes`


def check_trees(nodes, roots, leaves, features: int, targets, count: int, members: int) -> None:
    """Raise InputError for an index out of range, and for nodes in a cycle.

    nodes i64[n, 7], a column for each of FEATURE .. MEMBERS_END; roots i64[trees]; a node or root below 0 is a leaf, -1
    the first. leaves i64[leaves, 2], ranges of targets i64[votes]. features, count and members: the sizes of the index
    ranges.
    """
    for what, numbers, low, high in (
        ("feature", nodes[:, FEATURE], 0, features),
        ("mode", nodes[:, MODE], 0, len(MODES)),
        ("node", nodes[:, [TRUE, FALSE]], -len(leaves), len(nodes)),
        ("member", nodes[:, [MEMBERS, MEMBERS_END]], 0, members + 1),
        ("root", roots, -len(leaves), len(nodes)),
        ("vote", leaves, 0, len(targets) + 1),
        ("target", targets, 0, count),
    ):
        bad = numbers[(numbers < low) | (numbers >= high)]
        if bad.size:
            raise InputError(f"tree_ensemble: {what} out of range, got {bad.flat[0]}, expected {low}..{high - 1}")
    waits = np.bincount(nodes[:, [TRUE, FALSE]][nodes[:, [TRUE, FALSE]] >= 0], minlength=len(nodes))
    ready = np.flatnonzero(waits == 0).tolist()
    done = 0
    while ready:
        done += 1
        for child in nodes[ready.pop(), [TRUE, FALSE]].tolist():
            if child >= 0:
                waits[child] -= 1
                ready += [child] if waits[child] == 0 else []
    if done < len(nodes):
        raise InputError(f"tree_ensemble: nodes form a cycle, got {len(nodes) - done} of {len(nodes)} in or after it")


def _infer(x, splits, nodes, leaves, weights, vote_targets, roots, members, *, targets, aggregate):
    floats = (x, splits, weights, members)
    fits = x.rank == 2 and all(t.dtype is x.dtype for t in floats) and x.dtype in (f64, f32, f16)
    fits = fits and all(t.dtype is i64 for t in (nodes, leaves, vote_targets, roots)) and nodes.rank == 2
    fits = fits and all(t.rank == 1 for t in (splits, weights, vote_targets, roots, members))
    fits = fits and nodes.shape == (*splits.shape, 7) and weights.shape == vote_targets.shape and targets >= 1
    fits = fits and leaves.rank == 2 and leaves.shape[1] == 2
    if not fits:
        got = ", ".join(map(str, (x, splits, nodes, leaves, weights, vote_targets, roots, members)))
        raise ShapeError(f"tree_ensemble: bad operands, got {got} and {targets} targets, expected tables that fit")
    return TensorType(x.dtype, (x.shape[0], targets))


@op(
    infer=_infer,
    addresses=dict.fromkeys(
        ("nodes", "leaves", "vote_targets", "roots"), "`check_trees` checks the range of each number"
    ),
    samples=[
        sample("x[5,3] s[0] n:i64[0,7] l:i64>0<2[1,2] w[1] t:i64<1[1] r:i64>-1<0[2] m[1]", targets=2, aggregate="sum"),
        sample("x[0,3] s[0] n:i64[0,7] l:i64>0<2[1,2] w[1] t:i64<1[1] r:i64>-1<0[2] m[0]", targets=1, aggregate="max"),
    ],
)
def tree_ensemble(
    x,
    splits,
    nodes,
    leaves,
    weights,
    vote_targets,
    roots,
    members,
    *,
    targets: int,
    aggregate: Literal["average", "sum", "min", "max"],
):
    """The votes of the leaves that rows of x [rows, features] reach, one in each tree, by target: [rows,
    targets].

    nodes i64 [nodes, 7]: a feature; a comparison with the node's split, one of <= < >= > == != and 6 for "is one of";
    the next nodes if it is true and if not, -1 - leaf for a leaf; 1 if it is true for NaN; the range of `members` for
    comparison 6. leaves i64 [leaves, 2]: the range of the votes of each, which have a weight and a target. roots: a
    node, or -1 - leaf, for each tree. A target without votes is 0. An index out of range is an error.
    """
    check_trees(nodes, roots, leaves, x.shape[1], vote_targets, targets, len(members))
    start = {"min": np.inf, "max": -np.inf}.get(aggregate, 0)
    result = np.full((len(x), targets), start, x.dtype)
    has_votes = np.zeros(result.shape, np.bool_)
    rows = np.arange(len(x))
    combine = {"min": np.minimum, "max": np.maximum}.get(aggregate, np.add)
    for root in roots.tolist():
        node_index = np.full(len(x), root, np.int64)
        while (inner := np.flatnonzero(node_index >= 0)).size:
            at = nodes[node_index[inner]]
            holds = _compared(x[inner, at[:, FEATURE]], splits[node_index[inner]], at, members)
            node_index[inner] = np.where(holds, at[:, TRUE], at[:, FALSE])
        first, end = leaves[-1 - node_index].T
        for vote in range((end - first).max(initial=0)):
            voting = rows[first + vote < end]
            at = first[voting] + vote
            value = weights[at] / len(roots) if aggregate == "average" else weights[at]
            result[voting, vote_targets[at]] = combine(result[voting, vote_targets[at]], value)
            has_votes[voting, vote_targets[at]] = True
    return np.where(has_votes, result, x.dtype.type(0))


def _compared(x, splits, at, members):
    mode = at[:, MODE]
    table = [x <= splits, x < splits, x >= splits, x > splits, x == splits, x != splits]
    holds = np.choose(np.minimum(mode, 5), table)
    for i in np.flatnonzero(mode == 6).tolist():
        holds[i] = x[i] in members[at[i, MEMBERS] : at[i, MEMBERS_END]]
    return holds | (np.isnan(x) & (at[:, MISSING] != 0))
