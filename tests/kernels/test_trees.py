"""Ensembles of trees: the votes are the reference's, bit for bit, and a table that leads nowhere is a fault."""

from typing import Any

import numpy as np
import pytest

from forests import forest
from ingot.ops.trees import FALSE, FEATURE, MEMBERS, MISSING, MODE, TRUE, tree_ensemble
from ingot.support.abi import constant
from kernel_calls import LIBRARY, every

pytestmark = pytest.mark.native


def arguments(x: np.ndarray, tables: dict[str, np.ndarray], targets: int, divisor: int) -> dict[str, Any]:
    counts = {"node": "splits", "leaf": "leaves", "vote": "weights", "tree": "roots", "member": "members"}
    nodes = tables["nodes"]
    kinds = 16 * nodes[:, FEATURE] + 8 * nodes[:, MISSING] + nodes[:, MODE]
    splits = tables["splits"].astype(np.float32).view(np.int32)
    packed = np.stack([kinds, nodes[:, TRUE], nodes[:, FALSE], splits], 1)
    return tables | {
        "nodes": np.ascontiguousarray(packed.astype(np.int32)), "sets": np.ascontiguousarray(nodes[:, MEMBERS:]),
        "x": x, "fault": LIBRARY.ffi.new("ingot_fault *"), "rows": len(x), "features": x.shape[1],
        "x_stride": x.shape[1], "divisor": divisor, "target_count": targets,
        **{f"{name}_count": len(tables[table]) for name, table in counts.items()},
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("trees, depth, targets", [(1, 0, 1), (1, 5, 1), (13, 6, 3), (40, 3, 2), (0, 0, 2)])
@pytest.mark.parametrize("rows", [0, 1, 5, 37])
def test_votes(dtype, trees, depth, targets, rows):
    tables = forest(trees * 8 + depth, dtype, trees, depth, 6, targets)
    x = np.random.default_rng(rows).integers(-2, 3, (rows, 6)).astype(dtype)
    x[x == 2] = np.nan
    for aggregate in ("sum", "average", "min", "max"):
        expected = tree_ensemble(x, *tables.values(), targets=targets, aggregate=aggregate)
        fields = arguments(x, tables, targets, trees if aggregate == "average" else 1)
        if aggregate in ("min", "max"):
            fields |= {"voted": np.full((rows, targets), 7, np.uint8), "merge": constant(f"INGOT_MERGE_{aggregate}")}
        name = f"tree_ensemble_f{np.dtype(dtype).itemsize * 8}"
        np.testing.assert_array_equal(every(name, fields, "out", (rows, targets), dtype=dtype), expected)
        assert fields["fault"].code == 0


@pytest.mark.parametrize(
    ("table", "place", "value"),
    [
        ("nodes", (0, FEATURE), 6), ("nodes", (0, FEATURE), -1), ("nodes", (0, TRUE), 99), ("nodes", (0, FALSE), -99),
        ("nodes", (0, slice(TRUE, FALSE + 1)), 0), ("roots", 0, 99), ("roots", 0, -99),
        ("leaves", (slice(None), 1), 99), ("leaves", (slice(None), 0), -3), ("targets", slice(None), 3),
        ("targets", slice(None), -1),
        ("nodes", (0, slice(MODE, None)), [6, -1, -1, 0, 7, 9]),
    ],
)  # fmt: skip
def test_a_table_that_leads_nowhere_is_a_fault(table, place, value):
    tables = forest(3, np.float32, 4, 4, 6, 2)
    tables["roots"] = np.zeros(4, np.int64)
    tables["nodes"][0, MODE] = 5
    tables[table][place] = value
    x = np.random.default_rng(1).integers(-2, 3, (19, 6)).astype(np.float32)
    fields = arguments(x, tables, 2, 1)
    every("tree_ensemble_f32", fields, "out", (19, 2))
    assert fields["fault"].code == 2
