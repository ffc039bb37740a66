"""Random ONNX models agree with ONNX Runtime, or with ONNX's reference; `make soak` runs many more."""

import ctypes
import subprocess
import sys

import numpy as np
from onnx import helper
from onnx.reference import ReferenceEvaluator

from forked import Say, batch, limited
from places import KIT
from random_onnx import REDUCE, WRONG_ON_EMPTY, F, model_of, session_of

COUNT = 200


def test_random_models() -> None:
    script = str(KIT / "onnx_differential.py")
    command = [sys.executable, script, "--count", str(COUNT), "--jobs", "1"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert f"{COUNT} seeds" in result.stdout


# A node of each op, and the shapes of its operands, for which ONNX Runtime behaves as in WRONG_ON_EMPTY.
_BY_LAST_AXIS = (np.array([-1]),)
EXAMPLES: dict[str, tuple[dict[str, object], tuple[tuple[int, ...], ...], tuple[np.ndarray, ...]]] = {
    "Einsum": ({"equation": "bqd,bkd->bqk"}, ((2, 2, 0), (2, 2, 0)), ()),
    "Conv": ({"pads": [0, 1, 2, 2]}, ((2, 0, 5, 3), (17, 0, 2, 2)), ()),
    "MatMul": ({}, ((1000, 0), (0,)), ()),
    "Gemm": ({"beta": 2.0}, ((2, 0), (0, 3), (3,)), ()),
    **{op: ({"axis": -1}, ((0, 3),), ()) for op in ("ArgMax", "ArgMin")},
    **{op: ({}, ((0, 3),), _BY_LAST_AXIS) for op in REDUCE},
}


def _is_right(seed: int, say: Say) -> str:
    """Whether ONNX Runtime gives what ONNX's reference does; it may hang, or die."""
    op, (attributes, shapes, axes) = list(EXAMPLES.items())[seed]
    feed = {f"x{i}": array for i, array in enumerate((*(np.full(shape, 3, F) for shape in shapes), *axes))}
    node = helper.make_node(op, list(feed), ["y"], **attributes)
    proto = model_of(node, feed)
    (expected,) = ReferenceEvaluator(proto).run(None, feed)
    perturb = -6  # mallopt's M_PERTURB: memory that nobody has written to is not zero by chance
    ctypes.CDLL(None).mallopt(perturb, 90)
    say("hangs")
    with limited(2):
        (got,) = session_of(proto).run(None, feed)
    return "right" if got.shape == expected.shape and np.array_equal(got, expected) else "wrong"


def test_what_the_oracle_gets_wrong_over_nothing_is_still_wrong() -> None:
    outcomes = dict(zip(EXAMPLES, batch(range(len(EXAMPLES)), _is_right).values(), strict=True))
    assert set(outcomes) == set(WRONG_ON_EMPTY)
    assert not [op for op, outcome in outcomes.items() if outcome == "right"], outcomes
