"""Where a residual may lie: not where sums wait that go on after it was written."""

import numpy as np
import pytest

from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, TensorType
from stored_products import compiled, random

pytestmark = pytest.mark.native

ROWS, COLUMNS = 40, 48


@pytest.mark.parametrize("k", [200, 300])
def test_a_product_adds_what_dies_there_however_many_elements_it_packs_at_a_time(k):
    shapes = {"x": (ROWS, COLUMNS), "a": (ROWS, k), "b": (k, COLUMNS)}
    graph = Graph("residual")
    x, a, b = (graph.add_input(name, TensorType(f32, shape)) for name, shape in shapes.items())
    product, residual = graph.add("matmul", [a, b]).output, graph.add("exp", [x]).output
    graph.set_output("y", graph.add("exp", [graph.add("add", [residual, product]).output]).output)
    program, kernels = compiled(graph)
    assert kernels == ["exp_f32", "matmul_f32", "exp_f32"]
    given = {name: random(name, *shape) / 8 for name, shape in shapes.items()}
    expected = np.exp(np.exp(given["x"].astype(float)) + given["a"].astype(float) @ given["b"])
    np.testing.assert_allclose(program.run([*given.values()])[0], expected, rtol=2e-6)
