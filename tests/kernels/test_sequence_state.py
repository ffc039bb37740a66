"""Recurrent kernels with slots: the same bits in every way to call them, and however rows are cut into calls."""

from typing import Any

import numpy as np
import pytest

from ingot.ir.graph import OPS
from kernel_calls import LIBRARY, close, floats, run, ways

pytestmark = pytest.mark.native

# Rows of two sequences, of which one begins among them; the other one continues.
POSITIONS, OWNERS, SLOTS = [5, 6, 0, 1, 7, 2, 3], [1, 1, 0, 0, 1, 0, 0], [3, 1]
ROWS = len(POSITIONS)


def case(op: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Operands by name, in the order of the op, and the fields of sizes and numbers of its kernel."""
    match op:
        case "causal_conv":
            operands = {"state": (4, 2, 37), "x": (ROWS, 37), "weight": (3, 37), "bias": (37,)}
            fields: dict[str, Any] = {"channels": 37, "taps": 3, "x_stride": 37, "out_stride": 37}
        case "selective_scan":
            operands = {"state": (4, 5, 37), "x": (ROWS, 37), "step": (ROWS, 37), "decay": (5, 37), "b": (ROWS, 5),
                        "c": (ROWS, 5), "skip": (37,)}  # fmt: skip
            strides = {f"{name}_stride": 37 for name in ("x", "steps", "out")}
            fields = {"channels": 37, "size": 5, "b_stride": 5, "c_stride": 5, **strides}
        case "linear_attention_of_rows":
            operands = {"state": (4, 4, 6, 70), "q": (ROWS, 2, 6), "k": (ROWS, 2, 6), "v": (ROWS, 4, 70),
                        "decay": (ROWS, 4), "beta": (ROWS, 4)}  # fmt: skip
            fields = {"heads": 4, "groups": 2, "k_dim": 6, "v_dim": 70, "decay_dim": 1, "scale": 0.5}
        case "wkv":
            operands = {"state": (4, 3, 37), "k": (ROWS, 37), "v": (ROWS, 37), "decay": (37,), "first": (37,)}
            fields = {"channels": 37, "k_stride": 37, "v_stride": 37, "out_stride": 37}
        case _:
            operands = {"state": (4, 37), "x": (ROWS, 37), "decay": (ROWS, 37)}
            fields = {"channels": 37, "x_stride": 37, "decay_stride": 37, "out_stride": 37}
    low = {"decay": -1.0 if op in ("selective_scan", "wkv") else 0.2, "step": 0.0, "beta": 0.0, "k": -0.4}
    high = {"decay": 0.0 if op in ("selective_scan", "wkv") else 1.0, "step": 1.0, "beta": 1.0, "k": 0.4}
    low |= {"state": 0.1} if op == "wkv" else {}
    drawn = {
        name: floats(i, shape, low.get(name, -2.0), high.get(name, 2.0))
        for i, (name, shape) in enumerate(operands.items())
    }
    return drawn, fields


def called(op: str, operands: dict[str, np.ndarray], fields: dict[str, Any], isa: str, parts: int, rows: slice):
    """The states and the results of a kernel for some of the rows."""
    by_rows = {name for name, array in operands.items() if name != "state" and array.shape[0] == ROWS}
    given = {name: np.ascontiguousarray(a[rows] if name in by_rows else a) for name, a in operands.items()}
    given["state"] = operands["state"].copy()
    shape = operands["v" if "v" in operands else "x"].shape
    out = np.full((len(range(*rows.indices(ROWS))), *shape[1:]), np.nan, np.float32)
    fault = LIBRARY.ffi.new("ingot_fault *")
    tables = {"positions": POSITIONS[rows], "owners": OWNERS[rows], "slots": SLOTS}
    arrays = {name: np.array(table, np.int32) for name, table in tables.items()}
    named = {"steps" if name == "step" else name: array for name, array in given.items()}
    sizes = {"rows": len(out), "total_slots": len(given["state"]), "sequences": len(SLOTS), "fault": fault}
    run(f"{op}_f32", isa, parts, fields | named | arrays | sizes | {"out": out})
    assert fault.code == 0
    return given["state"], out


OPS_WITH_SLOTS = ["causal_conv", "selective_scan", "linear_attention_of_rows", "linear_recurrence", "wkv"]


@pytest.mark.parametrize("op", OPS_WITH_SLOTS)
def test_results(op: str):
    operands, fields = case(op)
    wide = {name: array.astype(np.float64) for name, array in operands.items()}
    tables = {
        name: np.array(t, np.int32) for name, t in (("positions", POSITIONS), ("owners", OWNERS), ("slots", SLOTS))
    }
    numbers = {"scale": 0.5} if op == "linear_attention_of_rows" else {}
    expected = OPS[op].function(**wide, **tables, **numbers)
    first = None
    for isa, parts in ways():
        whole = called(op, operands, fields, isa, parts, slice(0, ROWS))
        state, before = called(op, operands, fields, isa, parts, slice(0, 4))
        cut = called(op, operands | {"state": state}, fields, isa, parts, slice(4, ROWS))
        np.testing.assert_array_equal(cut[0], whole[0])
        np.testing.assert_array_equal(np.concatenate([before, cut[1]]), whole[1])
        first = first or whole
        for found, other, wanted in zip(whole, first, expected, strict=True):
            np.testing.assert_array_equal(found.view(np.uint32), other.view(np.uint32))
            close(found, wanted, 1e-5)
