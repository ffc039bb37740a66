"""The arrays of a feed: converted from lists, numbers and tensors of other libraries, or drawn at random."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot.errors import InputError, KindError
from ingot.ir.dim import Limit
from ingot.ir.dtype import DType, string
from ingot.ir.graph import Graph
from ingot.ir.types import (
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    UnrankedType,
    bind_type,
    type_symbols,
)

# Values without a dtype, which get the input's.
_PLAIN = (list, tuple, bool, int, float, str)


def arrays(interface: Graph, feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert the values of a feed to arrays where possible; other values stay, for checks to report.

    Raises KindError for a feed without names, InputError for a list that is no array of the input's dtype and for a
    tensor that cannot be read.
    """
    if not isinstance(feed, Mapping):
        expected = ", ".join(f"{name!r}: array" for name in interface.inputs)
        raise KindError(f"inputs: names are needed, got {type(feed).__name__}, expected {{{expected}}}")
    values = interface.values
    return {
        name: _as_array(name, value, values[name].type) if name in values else value for name, value in feed.items()
    }


def _as_array(name: str, value: Any, declared: Type) -> Any:
    if isinstance(declared, OptionalType):
        return None if value is None else _as_array(name, value, declared.element)
    if isinstance(declared, SequenceType):
        return (
            [_as_array(name, each, declared.element) for each in value] if isinstance(value, (list, tuple)) else value
        )
    if isinstance(declared, MapType):
        return value
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"input {name!r}: a masked array, got {type(value).__name__}, expected one without a mask")
    if isinstance(value, np.ndarray):
        return value.astype(object) if declared.dtype is string and value.dtype.kind == "U" else value
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, _PLAIN):
        return _array(name, value, declared.dtype)
    return _foreign(name, value)


def _array(name: str, value: Any, dtype: DType) -> np.ndarray:
    """Return an array of a dtype that represents every number of a list; floats are rounded to it."""
    try:
        found = np.asarray(value, dtype=object if dtype is string else None)
    except ValueError as error:
        raise InputError(f"input {name!r}: a {type(value).__name__} that is not an array, {error}") from error
    if dtype is string:
        return found
    if found.size == 0:
        return found.astype(dtype.numpy)
    if found.dtype.kind not in "biuf":
        raise InputError(f"input {name!r}: a {type(value).__name__} of {found.dtype}, expected numbers for {dtype}")
    with np.errstate(all="ignore"):
        converted = found.astype(dtype.numpy)
        if dtype.limits is not None and not np.array_equal(converted, found):
            lost = found[converted != found].flat[0]
            raise InputError(
                f"input {name!r}: a {type(value).__name__} of numbers out of range, got {lost}, expected {dtype}"
            )
    return converted


def _foreign(name: str, value: Any) -> Any:
    """Return a tensor of another library as an array, by `__array__` or DLPack, without a copy if possible."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        from ingot.load.aten import to_numpy

        if value.is_meta:
            raise InputError(f"input {name!r}: a tensor of the meta device, got no data, expected one on the CPU")
        return to_numpy(value)
    if not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"):
        return value
    try:
        return np.asarray(value) if hasattr(value, "__array__") else np.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InputError(f"input {name!r}: a {type(value).__name__} that cannot be read, {error}") from error


def row_major(value: Any) -> Any:
    """An array that kernels can read; what is none is left as it is."""
    return np.require(value, requirements=("C", "A")) if isinstance(value, np.ndarray) else value


def random_inputs(
    interface: Graph, dims: Mapping[str, int | Limit], seed: int = 0, given: Mapping[str, Any] = {}
) -> dict[str, np.ndarray]:
    """Draw arrays for the inputs that are not given: floats in -1..1, integers 0 or 1.

    dims: of symbols, those of a limit at the limit; others follow from the given arrays, or are 1. Raises InputError
    for an input that is no tensor of numbers.
    """
    generator, found = np.random.default_rng(seed), dict[str, np.ndarray]()
    sizes = {name: dim.size if isinstance(dim, Limit) else dim for name, dim in dims.items()}
    for name in (name for name in interface.inputs if name in given):
        type = interface.values[name].type
        if isinstance(type, TensorType):
            shape = zip(type.shape, np.shape(given[name]), strict=False)
            sizes |= {str(dim): size for dim, size in shape if str(dim) in type_symbols(type)}
    for name in interface.inputs:
        type = interface.values[name].type
        if name in given:
            continue
        if not isinstance(type, TensorType | UnrankedType) or type.dtype is string:
            raise InputError(f"input {name!r}: no random values, got {type}, expected an array in option inputs")
        bound = bind_type(type, {symbol: sizes.get(symbol, 1) for symbol in type_symbols(type)})
        dims_of = [dim if isinstance(dim, int) else 1 for dim in bound.shape] if isinstance(bound, TensorType) else []
        drawn = generator.uniform(-1, 1, dims_of) if type.dtype.kind == "f" else generator.integers(0, 2, dims_of)
        found[name] = np.asarray(drawn).astype(type.dtype.numpy)
    return found
