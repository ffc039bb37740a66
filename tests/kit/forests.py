"""Ensembles of random trees, as the tables of the op `tree_ensemble`."""

from typing import Any

import numpy as np


def forest(seed: int, dtype: Any, trees: int, depth: int, features: int, targets: int) -> dict[str, np.ndarray]:
    """Tables of random trees whose nodes compare in every way, and whose leaves have none or several votes."""
    rng = np.random.default_rng(seed)
    nodes: list[list[int]] = []
    leaves: list[tuple[int, int]] = []
    votes = 0

    def grow(left: int) -> int:
        nonlocal votes
        if left == 0 or rng.random() < 0.15:
            count = int(rng.integers(0, 4))
            leaves.append((votes, votes + count))
            votes += count
            return -len(leaves)
        place = len(nodes)
        first = int(rng.integers(0, 5))
        end = first + int(rng.integers(0, 4))
        node = [int(rng.integers(features)), int(rng.integers(7)), 0, 0, int(rng.integers(2)), first, end]
        nodes.append(node)
        node[2:4] = grow(left - 1), grow(left - 1)
        return place

    roots = [grow(depth) for _ in range(trees)]
    return {
        "splits": rng.integers(-2, 3, len(nodes)).astype(dtype),
        "nodes": np.array(nodes, np.int64).reshape(-1, 7),
        "leaves": np.array(leaves, np.int64).reshape(-1, 2),
        "weights": rng.normal(size=votes).astype(dtype),
        "targets": rng.integers(0, targets, votes),
        "roots": np.array(roots, np.int64),
        "members": rng.integers(-2, 3, 8).astype(dtype),
    }
