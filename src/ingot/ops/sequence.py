"""Ops over sequences, dictionaries and optionals. At run time a sequence is a list, an absent optional None.

Lists are never modified in place: a reference returns a new list of the same elements.
"""

from __future__ import annotations

import functools

import numpy as np

from ingot.errors import InputError, LimitError, ShapeError
from ingot.ir.dtype import DType, boolean, f32, f64, i32, i64, string
from ingot.ir.graph import (
    Graph,
    Index,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    UnrankedType,
    forget,
    join,
    type_symbols,
)
from ingot.ops.define import Subgraph, op, unify

MAX_LENGTH = 1 << 20  # of a sequence
MAX_SEQUENCE_BYTES = 1 << 36  # of all elements; an array that occurs several times counts each time


def _expect_tensor(where: str, type: Type) -> None:
    if not isinstance(type, (TensorType, UnrankedType)):
        raise ShapeError(f"{where}: got {type}, expected a tensor")


def _expect_sequence(where: str, type: Type) -> SequenceType:
    if not isinstance(type, SequenceType):
        raise ShapeError(f"{where}: got {type}, expected a sequence")
    return type


def is_single(type: Type, *dtypes: DType) -> bool:
    """Return whether a type may have one element, of one of these dtypes."""
    is_one = isinstance(type, TensorType) and all(dim == 1 for dim in type.shape if isinstance(dim, int))
    return is_one and type.dtype in dtypes  # type: ignore[union-attr]


def _expect_position(where: str, type: Type | None) -> None:
    if type is not None and not is_single(type, i32, i64):
        raise ShapeError(f"{where}: bad position, got {type}, expected one i32 or i64")


def _position(position, length: int) -> int:
    """Return a position counted from the front."""
    index = int(np.asarray(position).reshape(()))
    return index + length if index < 0 else index


def _infer_sequence(*xs, dtype):
    for x in xs:
        _expect_tensor("sequence", x)
        if x.dtype is not dtype:
            raise ShapeError(f"sequence: wrong dtype, got {x}, expected {dtype}")
    return SequenceType(functools.reduce(join, map(forget, xs)) if xs else UnrankedType(dtype))


@op(infer=_infer_sequence, any_type=True, computes=False, samples=[])
def sequence(*xs, dtype: DType):
    """The operands, all of one dtype, as a list."""
    return list(xs)


_PLACED = {"position": Index(lambda s, *_: range(-len(s), len(s)))}
_BETWEEN = {"position": Index(lambda s, *_: range(-len(s), len(s) + 1))}


def _infer_insert(s, x, position=None):
    element = _expect_sequence("sequence_insert", s).element
    _expect_position("sequence_insert", position)
    return SequenceType(join(element, forget(x)))


@op(infer=_infer_insert, any_type=True, computes=False, addresses=_BETWEEN, samples=[])
def sequence_insert(s, x, position=None):
    """A list with one more element, inserted before a position that may count from the end, or appended."""
    total = sum(a.nbytes for a in (*s, x) if isinstance(a, np.ndarray))
    if len(s) >= MAX_LENGTH or total > MAX_SEQUENCE_BYTES:
        raise LimitError(
            f"sequence: too large, got {len(s) + 1} elements of {total} bytes in all,"
            f" expected at most {MAX_LENGTH} and {MAX_SEQUENCE_BYTES}"
        )
    index = len(s) if position is None else _position(position, len(s))
    return [*s[:index], x, *s[index:]]


def _infer_erase(s, position=None):
    _expect_position("sequence_erase", position)
    return _expect_sequence("sequence_erase", s)


@op(infer=_infer_erase, any_type=True, computes=False, addresses=_PLACED, samples=[])
def sequence_erase(s, position=None):
    """A list without the element at a position that may count from the end, or without the last.

    Raises InputError for an empty list.
    """
    if not s:
        raise InputError("sequence_erase: bad sequence, got no elements, expected 1 or more")
    index = _position(-1 if position is None else position, len(s))
    return [*s[:index], *s[index + 1 :]]


def _infer_at(s, position):
    _expect_position("sequence_at", position)
    return forget(_expect_sequence("sequence_at", s).element)


@op(infer=_infer_at, any_type=True, computes=False, addresses=_PLACED, samples=[])
def sequence_at(s, position):
    """The element of a list at a position that may count from the end."""
    return s[_position(position, len(s))]


def _infer_length(s):
    _expect_sequence("sequence_length", s)
    return TensorType(i64, ())


@op(infer=_infer_length, any_type=True, computes=False, samples=[])
def sequence_length(s):
    """The number of elements of a list: i64[]."""
    return np.array(len(s), np.int64)


def _infer_split(x, sizes=None, *, axis, keepdims):
    _expect_tensor("split_to_sequence", x)
    if not isinstance(x, TensorType) or not 0 <= axis < x.rank:
        raise ShapeError(f"split_to_sequence: axis out of range, got {axis} for {x}")
    if sizes is not None and (not isinstance(sizes, TensorType) or sizes.dtype not in (i32, i64) or sizes.rank > 1):
        raise ShapeError(f"split_to_sequence: bad sizes, got {sizes}, expected i32 or i64 of rank 0 or 1")
    split_dims = () if sizes is None and not keepdims else (1,) if sizes is None else (None,)
    return SequenceType(forget(TensorType(x.dtype, (*x.shape[:axis], *split_dims, *x.shape[axis + 1 :]))))


@op(infer=_infer_split, any_type=True, computes=False, samples=[])
def split_to_sequence(x, sizes=None, *, axis: int, keepdims: bool):
    """The parts of x along an axis: of the given sizes, of one size (except the last), or of size 1.

    Without sizes the axis is removed if keepdims is false.
    """
    total = x.shape[axis]
    if sizes is None:
        parts = np.full(total, 1)
    elif sizes.ndim == 0:
        if sizes < 1:
            raise InputError(f"split_to_sequence: bad size, got {sizes}, expected 1 or more")
        parts = np.diff([*range(0, total, int(sizes)), total])
    else:
        parts = sizes.astype(np.int64)
        if (parts < 0).any() or parts.sum() != total:
            raise InputError(f"split_to_sequence: sizes do not fit, got {sizes.tolist()} for a dim of {total}")
    if len(parts) > MAX_LENGTH:
        raise LimitError(f"split_to_sequence: too many parts, got {len(parts)}, expected at most {MAX_LENGTH}")
    pieces = np.split(x, np.cumsum(parts)[:-1], axis) if len(parts) else []
    return pieces if sizes is not None or keepdims else [np.squeeze(part, axis) for part in pieces]


def _infer_concat(s, *, axis, new_axis):
    element = _expect_sequence("concat_from_sequence", s).element
    if not isinstance(element, TensorType):
        return element
    rank = element.rank + new_axis
    if not -rank <= axis < rank:
        raise ShapeError(f"concat_from_sequence: axis out of range, got {axis} for {s}, expected {-rank}..{rank - 1}")
    index = axis % rank
    rest = element.shape[:index], element.shape[index + (not new_axis) :]
    return TensorType(element.dtype, (*rest[0], None, *rest[1]))


@op(infer=_infer_concat, any_type=True, computes=False, samples=[])
def concat_from_sequence(s, *, axis: int, new_axis: bool):
    """The elements of a list concatenated along an axis, which may count from the end, or stacked along a new one."""
    if not s:
        raise InputError("concat_from_sequence: the sequence is empty, expected an element or more")
    try:
        return np.stack(s, axis) if new_axis else np.concatenate(s, axis)
    except ValueError as error:
        raise InputError(f"concat_from_sequence: elements do not fit on axis {axis}, {error}") from error


def _infer_zip(x, labels):
    if not isinstance(x, TensorType) or x.dtype not in (f32, f64) or x.rank not in (1, 2):
        raise ShapeError(f"zip_map: bad operand, got {x}, expected rows of f32, or one")
    if not isinstance(labels, TensorType) or labels.dtype not in (i64, string) or labels.rank != 1:
        raise ShapeError(f"zip_map: bad labels, got {labels}, expected a vector of i64 or string")
    unify("zip_map: columns and labels", x.shape[-1], labels.shape[0])
    return SequenceType(MapType(labels.dtype, x.dtype))


@op(infer=_infer_zip, any_type=True, computes=False, samples=[])
def zip_map(x, labels):
    """A dictionary for each row, from its labels to its numbers; of equal labels the last one remains."""
    rows, names = np.atleast_2d(x), labels.tolist()
    if len(rows) > MAX_LENGTH:
        raise LimitError(f"zip_map: too many rows, got {len(rows)}, expected at most {MAX_LENGTH}")
    return [dict(zip(names, row, strict=True)) for row in rows.tolist()]


@op(infer=lambda x: OptionalType(x), any_type=True, computes=False, samples=[])
def optional(x):
    """The value as an optional."""
    return x


def _infer_absent(*, element):
    if type_symbols(element):
        raise ShapeError(f"absent: bad type, got {element}, expected one without symbols")
    return OptionalType(element)


@op(infer=_infer_absent, any_type=True, computes=False, samples=[])
def absent(*, element: Type):
    """An optional without a value."""


@op(infer=lambda x: TensorType(boolean, ()), any_type=True, computes=False, samples=[])
def has_element(x):
    """Whether an optional has a value, true for any other value: bool[]."""
    return np.array(x is not None)


@op(infer=lambda x: forget(x.element) if isinstance(x, OptionalType) else x, any_type=True, computes=False, samples=[])
def get_element(x):
    """The value of an optional; an absent one is an error."""
    if x is None:
        raise InputError("get_element: the optional is absent, expected a value")
    return x


def _infer_map(*xs, body: Graph, sequences):
    if not 1 <= sequences <= len(xs) or len(xs) != len(body.inputs):
        raise ShapeError(f"sequence_map: bad operands, got {len(xs)} for a body of {len(body.inputs)}")
    for x in xs[:sequences]:
        _expect_sequence("sequence_map", x)
    return tuple(SequenceType(forget(body.values[name].type)) for name in body.outputs.values())


@op(infer=_infer_map, outputs=0, any_type=True, computes=False, samples=[])
def sequence_map(*xs, body: Subgraph, sequences: int):
    """The body applied to the elements of lists of equal length, which come first; other operands are the same each
    time.
    """
    lists, shared = xs[:sequences], xs[sequences:]
    if len({len(each) for each in lists}) > 1:
        raise InputError(f"sequence_map: lengths differ, got {[len(each) for each in lists]}")
    rows = [body(*row, *shared) for row in zip(*lists, strict=True)]
    return tuple([row[i] for row in rows] for i in range(body.outputs))
