"""Views against numpy: the same slicing, permuting, expanding and reshaping of an array of its own positions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.ir.dtype import f32
from ingot.lower.view import View, collapse, contiguous_strides, with_long_rows


def positions(view: View) -> np.ndarray:
    """The element offset of each element of a view."""
    grids = np.indices(view.shape)
    return view.offset + sum((g * s for g, s in zip(grids, view.strides, strict=True)), np.zeros(view.shape, int))


def root(*shape: int) -> View:
    return View("t0", f32, 0, shape, contiguous_strides(shape))


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@st.composite
def views(draw) -> View:
    view = root(*draw(shapes))
    if draw(st.booleans()):
        view = view.permute(draw(st.permutations(range(len(view.shape)))))
    if draw(st.booleans()):
        bounds = [sorted(draw(st.tuples(st.integers(0, d), st.integers(0, d)))) for d in view.shape]
        steps = [draw(st.sampled_from([1, 2])) for _ in bounds]
        view = view.slice([b[0] for b in bounds], [b[1] for b in bounds], steps)
    return view


@given(views(), st.data())
@settings(max_examples=300)
def test_reshape_is_numpy_or_none(view: View, data: st.DataObject) -> None:
    factors = [d for d in view.shape for _ in [0]]
    target = data.draw(st.permutations(factors)) if data.draw(st.booleans()) else [view.size]
    reshaped = view.reshape(tuple(target))
    if reshaped is None:
        assert not view.is_contiguous
        return
    assert np.array_equal(positions(reshaped), positions(view).reshape(target))


def test_reshape_splits_a_strided_last_dim() -> None:
    """The heads of a slice of a fused projection are a view."""
    q = root(2, 5, 24).slice((0, 0, 8), (2, 5, 16), (1, 1, 1))
    heads = q.reshape((2, 5, 4, 2))
    assert heads is not None and heads.strides == (120, 24, 2, 1) and heads.offset == 8


@pytest.mark.parametrize("start, stop, step", [(0, 5, 1), (1, 5, 2), (4, -1, -1), (3, 0, -2), (2, 2, 1), (0, 3, -1)])
def test_slice_is_numpys(start: int, stop: int, step: int) -> None:
    view = root(5).slice((start,), (stop,), (step,))
    expected = np.arange(5)[start : None if stop < 0 else stop : step]
    assert np.array_equal(positions(view), expected)


@given(views())
@settings(max_examples=200)
def test_extent_and_rows_and_collapse(view: View) -> None:
    where = positions(view)
    low, high = view.extent
    assert (low, high) == ((where.min(), where.max() + 1) if view.size else (view.offset, view.offset))
    assert view.is_contiguous == bool(view.size == 0 or np.array_equal(where.ravel(), np.arange(low, high)))
    rows = view.rows()
    if rows is not None:
        assert np.array_equal(positions(rows).ravel(), where.ravel())
    if view.size:
        shape, (strides,) = collapse([view])
        assert np.array_equal(positions(View("t0", f32, view.offset, shape, strides)).ravel(), where.ravel())


def test_expand_repeats() -> None:
    view = root(3, 1).expand((2, 3, 4))
    assert np.array_equal(positions(view), np.broadcast_to(np.arange(3).reshape(3, 1), (2, 3, 4)))


@pytest.mark.parametrize(
    "shape, expected",
    [((84, 8, 3, 2), (8, 3, 2, 84)), ((99, 40, 3), (99, 3, 40)), ((6, 7, 2), (6, 7, 2)), ((9, 5), (9, 5)), ((), ())],
)
def test_a_short_last_dim_is_swapped(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """With the last of twice as many elements as rows should have, if there is one; strides go along."""
    nest, (strides,) = with_long_rows(shape, [contiguous_strides(shape)], 5)
    assert nest == expected
    assert sorted(zip(nest, strides, strict=True)) == sorted(zip(shape, contiguous_strides(shape), strict=True))
