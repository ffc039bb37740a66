"""Dims that are planned for at most, of which a run uses a beginning; states that are written in place."""

import math

import numpy as np
import pytest

from ingot.compile import compile_mode
from ingot.errors import UnsizedError
from ingot.ir import text
from ingot.ir.dim import AtMost, floordiv, grows, maximum, minimum, size_at, symbol
from ingot.ir.dtype import f32
from ingot.lower import Target
from ingot.lower.view import View, collapse, contiguous_strides
from ingot.passes import optimize
from ingot.run.arena import Arena
from ingot.run.interpret import interpret
from ingot.run.library import load
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
    return Program(compile_mode(bound, Target(load().isa(), threads)), WeightStore(threads), Arena())


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: n * 3, lambda n: 3 * n, lambda n: n * 6 // 2, lambda n: 0 + n, lambda n: n + n, lambda n: -n,
        lambda n: sum([n, n, n]), lambda n: n * 5 - n, lambda n: 0 - n, lambda n: n + 1, lambda n: n - 1,
        lambda n: n // 3, lambda n: n * n, lambda n: 3 + n, lambda n: n % 2, lambda n: 80 - n,
        lambda n: (n - 1) // 2 + 1,
        lambda n: 80 // n, lambda n: n * n // n, lambda n: n // (n * 3), lambda n: n * 6 % (n * 2), lambda n: n - n,
        lambda n: 80 % n, lambda n: 3 % (n + 1),
        lambda n: minimum(n, 100), lambda n: minimum(n, 7), lambda n: maximum(n - 3, 0), lambda n: maximum(n, 1),
        lambda n: maximum(0, (n - 1) // 2) + 1, lambda n: math.prod([2, n, n]),
    ],
)  # fmt: skip
def test_arithmetic_reports_that_of_a_run(compute):
    """Planned it is the number, and at every run what the same arithmetic makes of the size there."""
    planned = compute(AtMost(40, "rows"))
    assert int(planned) == compute(40)
    for rows in range(1, 41):
        assert size_at(planned, {"rows": rows}) == compute(rows)


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: n / 2, lambda n: float(n), lambda n: n**2, lambda n: n << 1, lambda n: n & 3, lambda n: 1 | n,
        lambda n: n ^ 1, lambda n: ~n, lambda n: divmod(n, 2), lambda n: 80 >> n,
    ],
)  # fmt: skip
def test_what_would_lose_the_size_is_refused(compute):
    """Else a field would keep the planned size at every run, and nothing would say so."""
    with pytest.raises(UnsizedError, match="dim rows: would be lost"):
        compute(AtMost(40, "rows"))
    assert isinstance(AtMost(40, "rows") * 0.5, float)  # an estimate


def test_a_size_equals_what_it_is_at_every_run():
    rows, others = AtMost(40, "rows"), AtMost(40, "others")
    assert rows == AtMost(40, "rows") and hash(rows * 2) == hash(rows + rows)
    assert rows - rows == 0 and rows * 6 // (rows * 2) == 3 and minimum(rows, 40) == rows
    for other in (40, others, rows + 0 * others + 1, None):
        assert rows != other and other != rows and (rows, 3) != (other, 3)


def test_which_sizes_grow():
    rows = symbol("rows")
    for dim in (rows, rows * rows, floordiv(rows - 1, 2) + 1, minimum(rows, 9), rows * 2 - 7):
        assert grows(dim), dim
    for dim in (9 - rows, rows * rows - rows, floordiv(40, rows), rows - floordiv(rows, 2)):
        assert not grows(dim), dim
    both = (rows - 2) * (floordiv(symbol("columns"), 20) - 1)
    assert not grows(both) and not grows(both, {"rows": 2, "columns": 19})
    assert grows(both, {"rows": 2, "columns": 20}) and not grows(9 - rows, {"rows": 1})


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
        program.run_into([x, ids], [y], {"rows": rows})
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


def test_unused_rows_need_no_memory():
    """Dims outside one that is planned for step over what a run uses of it, and merge with it."""
    rows = AtMost(PLANNED, "rows")
    view = contiguous("x", (3, rows, 4))
    assert view.strides == (rows * 4, 4, 1) and view.is_contiguous
    assert collapse([view]) == ((rows * 12,), [(1,)])
    flat = view.rows()
    assert flat is not None and flat.shape == (rows * 3, 4)
    assert contiguous("x", (1, rows, 4, 2)).reshape((rows, 8)).shape == (rows, 8)
    assert contiguous("x", (rows * 3,)).reshape((3, rows)).strides == (rows, 1)
    assert contiguous("x", (rows, rows)).reshape((rows * rows,)).strides == (1,)
    assert contiguous("x", (rows * 3,)).reshape((PLANNED, 3)) is None
    transposed = View("x", f32, 0, (3, rows - 1, rows - 1), ((rows - 1) * (rows - 1), 1, rows - 1))
    assert transposed.reshape(transposed.shape) == transposed
    assert contiguous("x", (3, rows - 1, 8)).reshape((3, rows - 1, 2, 4)).strides == (rows * 8 - 8, 8, 4, 1)
    assert view.slice((1, 0, 0), (3, rows, 4), (1, 1, 1)).offset == rows * 4


@pytest.mark.parametrize("rows", [1, 7, PLANNED])
def test_offsets_that_depend_on_the_size(rows):
    """A concat of two such dims, and a batch of them: pointers move with the size."""
    graph = text.parse(
        """graph g
input x: f32[2, rows, 12]
input z: f32[2, rows, 12]
both = concat(x, z, x, axis=1): f32[2, 3*rows, 12]
first = slice(both, starts=[1, 0, 0], stops=[2, 3*rows, 12], steps=[1, 1, 1]): f32[1, 3*rows, 12]
y = exp(first): f32[1, 3*rows, 12]
output both = both
output y = y
"""
    )
    program = compiled(graph, {"rows": AtMost(PLANNED, "rows")}).single
    assert program is not None
    generator = np.random.default_rng(1)
    x, z = (generator.standard_normal((2, rows, 12)).astype(np.float32) for _ in range(2))
    both, y = program.run([x, z], {"rows": rows})
    assert np.array_equal(both, np.concatenate([x, z, x], 1))
    np.testing.assert_allclose(y, np.exp(both[1:]), rtol=1e-5)
