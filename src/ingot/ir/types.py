"""The type of a graph's value: a dense tensor of known or unknown shape, a dictionary, a sequence, or an optional."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ingot.errors import ShapeError
from ingot.ir.dim import AtMost, Dim, Expr, bind, symbols_of
from ingot.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class TensorType:
    """Dtype and shape of a dense tensor; a dim may be an int, an `Expr` or None (unknown).

    is_static: whether every dim is an int. is_sized: whether a dim is a run-time size.
    """

    dtype: DType
    shape: tuple[Dim, ...]
    is_static: bool = field(init=False, repr=False, compare=False)
    is_sized: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        is_static, is_sized = True, False
        for dim in self.shape:
            if dim.__class__ is int:  # the most common case
                continue
            is_static = is_static and isinstance(dim, int)
            is_sized = is_sized or isinstance(dim, AtMost)
        object.__setattr__(self, "is_static", is_static)
        object.__setattr__(self, "is_sized", is_sized)

    def __repr__(self) -> str:
        return f"<TensorType {self}>"

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.dtype}[{dims}]"

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape of a static tensor."""
        assert self.is_static, self
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> int:
        """The number of elements of a static tensor; run-time sizes count as planned."""
        size = 1
        for dim in self.dims:
            size *= int(dim)
        return size

    @property
    def extent(self) -> int:
        """The product of the dims that are known and not 0: a bound on strides, and on loops over empty rows."""
        extent = 1
        for dim in self.shape:
            if isinstance(dim, int) and int(dim):
                extent *= int(dim)
        return extent

    @property
    def nbytes(self) -> int:
        """Bytes of a static tensor."""
        return self.dtype.nbytes(self.size)

    @property
    def onnx(self) -> str:
        """ONNX's name of the type, without a shape."""
        return self.dtype.onnx


@dataclass(frozen=True, slots=True)
class UnrankedType:
    """A dense tensor of which only the dtype is known before a run.

    rank_symbol: for a model's input, the symbol of its number of dims; a run gives it, and each dim, a value.
    """

    dtype: DType
    rank_symbol: str = ""

    def sizes(self, shape: Sequence[int]) -> dict[str, int]:
        """Return the values that a shape gives the rank, and each dim under a name that no symbol has."""
        return {self.rank_symbol: len(shape), **{f"{self.rank_symbol}.{i}": size for i, size in enumerate(shape)}}

    def __str__(self) -> str:
        return f"{self.dtype}[...]"

    @property
    def onnx(self) -> str:
        """ONNX's name of the type."""
        return self.dtype.onnx


@dataclass(frozen=True, slots=True)
class MapType:
    """A dictionary of floats by integers or strings; its size is not part of the type."""

    key: DType
    value: DType

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"

    @property
    def onnx(self) -> str:
        """ONNX's name of the type."""
        return f"map({self.key.onnx.removeprefix('tensor(').removesuffix(')')},{self.value.onnx})"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type; dims that differ between the values are unknown."""

    element: Type

    def __str__(self) -> str:
        return f"sequence<{self.element}>"

    @property
    def onnx(self) -> str:
        """ONNX's name of the type."""
        return f"seq({self.element.onnx})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value that may be absent."""

    element: Type

    def __str__(self) -> str:
        return f"optional<{self.element}>"

    @property
    def onnx(self) -> str:
        """ONNX's name of the type."""
        return f"optional({self.element.onnx})"


Type = TensorType | UnrankedType | MapType | SequenceType | OptionalType
_SHAPELESS = (UnrankedType, MapType)


def forget(type: Type, known: Collection[str] = ()) -> Type:
    """Return a type whose symbolic dims are unknown, except dims of known symbols."""
    if isinstance(type, TensorType):
        shape = (dim if symbols_of(dim) <= set(known) else None for dim in type.shape)
        return TensorType(type.dtype, tuple(shape))
    return type if isinstance(type, _SHAPELESS) else type.__class__(forget(type.element, known))


def join(a: Type, b: Type) -> Type:
    """Return the most specific type that covers both.

    Dims that differ are unknown, and so is a rank that differs; a value joined with an optional is optional. Raises
    ShapeError when there is none.
    """
    if a == b:
        return a
    if isinstance(a, (TensorType, UnrankedType)) and isinstance(b, (TensorType, UnrankedType)):
        if a.dtype is b.dtype:
            if isinstance(a, UnrankedType) or isinstance(b, UnrankedType) or a.rank != b.rank:
                return UnrankedType(a.dtype)
            return TensorType(a.dtype, tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True)))
    elif isinstance(a, OptionalType) or isinstance(b, OptionalType):
        return OptionalType(join(*(t.element if isinstance(t, OptionalType) else t for t in (a, b))))
    elif isinstance(a, SequenceType) and isinstance(b, SequenceType):
        return SequenceType(join(a.element, b.element))
    raise ShapeError(f"types differ, got {a} and {b}")


def bind_type(type: Type, symbols: Mapping[str, int]) -> Type:
    """Return a type with the given symbols replaced."""
    if isinstance(type, TensorType):
        if type.is_static:
            return type
        shape = [dim if dim.__class__ is int else bind(dim, symbols) for dim in type.shape]
        return TensorType(type.dtype, tuple(shape))
    return type if isinstance(type, _SHAPELESS) else type.__class__(bind_type(type.element, symbols))


def type_symbols(type: Type) -> list[str]:
    """Return the names of the symbols in a type, in order of appearance."""
    if isinstance(type, TensorType):
        return [] if type.is_static else [name for dim in type.shape for name in sorted(symbols_of(dim))]
    if isinstance(type, UnrankedType):
        return [type.rank_symbol] if type.rank_symbol else []
    return [] if isinstance(type, _SHAPELESS) else type_symbols(type.element)


def narrowed(name: str, inferred: Type, declared: Type) -> Type:
    """Return the inferred type, with unknown and symbolic dims refined by the declared type."""
    if not compatible(declared, inferred):
        raise ShapeError(f"value {name!r}: types differ, got {inferred}, expected {declared}")
    if not isinstance(inferred, TensorType) or not isinstance(declared, TensorType):
        return inferred
    pairs = zip(inferred.shape, declared.shape, strict=True)
    shape = tuple(a if (isinstance(a, int) and not isinstance(b, AtMost)) or b is None else b for a, b in pairs)
    return TensorType(inferred.dtype, shape)


def compatible(declared: Type, inferred: Type) -> bool:
    """Return whether types are equal, where an unknown or symbolic dim, or an unknown rank, matches anything."""
    if isinstance(declared, UnrankedType) or isinstance(inferred, UnrankedType):
        tensors = all(isinstance(type, (TensorType, UnrankedType)) for type in (declared, inferred))
        return tensors and declared.dtype is inferred.dtype  # type: ignore[union-attr]
    if isinstance(declared, MapType) or isinstance(inferred, MapType):
        return declared == inferred
    if not isinstance(declared, TensorType) or not isinstance(inferred, TensorType):
        if isinstance(declared, TensorType) or declared.__class__ is not inferred.__class__:
            return False
        return compatible(declared.element, inferred.element)  # type: ignore[union-attr]
    if declared.dtype != inferred.dtype or declared.rank != inferred.rank:
        return False
    pairs = zip(declared.shape, inferred.shape, strict=True)
    return all(a == b or a is None or b is None or isinstance(a, Expr) or isinstance(b, Expr) for a, b in pairs)
