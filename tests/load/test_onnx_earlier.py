"""Models of opsets before 13: every form of every op, and graphs as the exporters of those years wrote them."""

import numpy as np
import pytest

from ingot.load.onnx import load_onnx
from ingot.run.interpret import interpret
from onnx_earlier_cases import FORMULAS, Formula
from onnx_models import Case, one_node


@pytest.mark.parametrize(("case", "formula"), FORMULAS, ids=str)
def test_forms_that_nobody_else_runs(case: Case, formula: Formula, rng: np.random.Generator) -> None:
    proto, feeds = one_node(case, rng)
    expected = formula(*feeds.values())
    expected = expected if isinstance(expected, list) else [expected]
    results = list(interpret(load_onnx(proto.SerializeToString()), feeds).values())
    for got, wanted in zip(results, expected[: case.outputs], strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=2e-5, atol=2e-5)
