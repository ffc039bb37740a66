"""Dims that are planned for at most, of which a run uses a beginning; states that are written in place."""

import numpy as np
import pytest

from ingot import text
from ingot.compile import compile_mode
from ingot.dim import AtMost
from ingot.dtype import f32
from ingot.lower import Target
from ingot.lower.view import View, collapse, contiguous_strides
from ingot.passes import optimize
from ingot.run.arena import Arena
from ingot.run.interpret import interpret
from ingot.run.program import Program
from ingot.run.store import WeightStore

pytestmark = [pytest.mark.native, pytest.mark.checked]

PLANNED = 40
STEPS_OF_ROWS = """graph g
input x: f32[rows, 12]
input ids: i32[rows]
weight table: f32[7, 12]
weight w: f32[24, 12]
weight v: f32[12, 24]
weight norm: f32[12]
e = gather(table, ids, axis=0): f32[rows, 12]
a = add(x, e): f32[rows, 12]
n = rms_norm(a, norm, eps=1e-05): f32[rows, 12]
m = matmul(n, w, transpose_b=true): f32[rows, 24]
s = silu(m): f32[rows, 24]
q = reshape(s, shape=[rows, 4, 6]): f32[rows, 4, 6]
h = exp(q): f32[rows, 4, 6]
r = reshape(h, shape=[rows, 24]): f32[rows, 24]
o = matmul(r, v, transpose_b=true): f32[rows, 12]
y = add(o, a): f32[rows, 12]
output y = y
"""


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    shapes = {"table": (7, 12), "w": (24, 12), "v": (12, 24), "norm": (12,)}
    return {name: generator.standard_normal(shape).astype(np.float32) / 3 for name, shape in shapes.items()}


def contiguous(tensor: str, shape: tuple[int, ...]) -> View:
    return View(tensor, f32, 0, shape, contiguous_strides(shape))


def compiled(graph, sizes, threads=2) -> Program:
    bound = graph.bind(sizes)
    optimize(bound)
    return Program(compile_mode(bound, Target(threads=threads)), WeightStore(threads), Arena())


def test_multiples_stay():
    rows = AtMost(40, "rows")
    multiples = (
        (rows * 3, 3), (3 * rows, 3), (rows * 6 // 2, 3), (0 + rows, 1), (2 * (rows + 0), 2), (rows + rows, 2),
        (sum([rows, rows, rows]), 3), (rows * 5 - rows, 4), (-rows, -1), (0 - rows, -1), (rows - 0, 1),
    )  # fmt: skip
    for size, factor in multiples:
        assert isinstance(size, AtMost) and (int(size), size.symbol, size.factor) == (40 * factor, "rows", factor)


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: n + 1, lambda n: n - 1, lambda n: n // 3, lambda n: n * n, lambda n: 3 + n, lambda n: n % 2,
        lambda n: 80 // n, lambda n: 80 - n, lambda n: 80 % n, lambda n: n + AtMost(40, "taken"),
        lambda n: n // AtMost(40, "taken"), lambda n: n // (n * 3),
    ],
)  # fmt: skip
def test_what_is_no_multiple_is_refused(compute):
    """Else a field would keep the planned size at every run, and nothing would say so."""
    with pytest.raises(TypeError, match="would lose its symbol"):
        compute(AtMost(40, "rows"))
    assert isinstance(AtMost(40, "rows") * 0.5, float)


def test_multiples_of_one_symbol_divide_and_cancel():
    rows = AtMost(40, "rows")
    for size, expected in (
        (rows * 6 // (rows * 2), 3),
        (rows * 6 % (rows * 2), 0),
        (rows * 6 % 3, 0),
        (rows - rows, 0),
    ):
        assert size == expected and not isinstance(size, AtMost)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_uses_a_beginning(threads):
    graph = text.parse(STEPS_OF_ROWS, weights())
    program = compiled(graph, {"rows": AtMost(PLANNED, "rows")}, threads).single
    assert program is not None
    generator = np.random.default_rng(1)
    for rows in (PLANNED, 1, 17, 0, PLANNED):
        x = generator.standard_normal((PLANNED, 12)).astype(np.float32)
        ids = np.full(PLANNED, 99, np.int32)  # rows that are not used may hold anything
        ids[:rows] = generator.integers(0, 7, rows)
        y = np.full((PLANNED, 12), np.nan, np.float32)
        program.resize("rows", rows)
        program.run_into([x, ids], [y])
        expected = interpret(graph, {"x": x[:rows], "ids": ids[:rows]}, float64=True)["y"]
        np.testing.assert_allclose(y[:rows], expected, rtol=1e-5, atol=1e-5)
        assert np.isnan(y[rows:]).all()


def test_every_step_of_rows_is_resized():
    graph = text.parse(STEPS_OF_ROWS, weights())
    program = compiled(graph, {"rows": AtMost(PLANNED, "rows")}).single
    assert program is not None
    for step in program.lowered.steps:
        sizes = [v for field in step.fields.values() for v in (field if isinstance(field, tuple) else (field,))]
        assert any(isinstance(size, AtMost) for size in sizes), step.kernel


def test_what_is_not_used_lies_between():
    """Dims outside a planned one step over all that is planned, and are not merged with it."""
    rows, view = AtMost(PLANNED, "rows"), contiguous("x", (3, AtMost(PLANNED, "rows"), 4))
    assert view.strides == (PLANNED * 4, 4, 1)
    assert view.rows() is None and view.reshape((3 * PLANNED * 4,)) is None
    assert collapse([view]) == ((3, rows * 4), [(PLANNED * 4, 1)])
    alone = contiguous("x", (1, rows, 4, 2)).reshape((rows, 8))
    assert alone is not None and alone.shape[0].symbol == "rows"
    assert contiguous("x", (rows * 3,)).reshape((3, rows)) is None


def test_more_than_planned_is_refused():
    program = compiled(text.parse(STEPS_OF_ROWS, weights()), {"rows": AtMost(PLANNED, "rows")}).single
    assert program is not None
    with pytest.raises(AssertionError, match="more than the planned 40"):
        program.resize("rows", 41)
