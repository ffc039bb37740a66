"""The `op` decorator, samples, and the shape inference that several ops share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ingot.dim import Dim, Expr
from ingot.dtype import DTYPES, DType, boolean, f16, f32, f64
from ingot.errors import ShapeError
from ingot.ir import OPS, REQUIRED, Op, Sample, TensorType

Reference = Callable[..., Any]


def op(
    *,
    infer: Callable[..., Any],
    samples: Sequence[Sample],
    outputs: int = 1,
    view: bool = False,
    inplace: tuple[int, ...] = (),
    tolerance: dict[DType, float] | None = None,
    domain: tuple[float, float] = (-2.0, 2.0),
    expand: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Callable[[Reference], Reference]:
    """Declares an op: the decorated function is its reference, its signature the schema, line one of its doc the docs.

    Positional parameters are operands (default None: optional; `*xs`: variadic); keyword-only ones are attributes.
    infer(*types, **attributes) gives the output type, or a tuple of them; it raises ShapeError with values.
    outputs: how many values an op of fixed count makes. view: the result is the operand's memory, seen differently.
    inplace: operands that the result may overwrite. tolerance: per dtype, relative to max(1, |expected|), for any
    executor against the float64 reference; default f32 2e-6. domain: the range samples draw floats from.
    expand(graph, node) -> value name(s): adds simpler nodes before `node` that compute the same, and returns their
    result; the caller replaces the uses.
    """

    def declare(function: Reference) -> Reference:
        operands, optional, attributes, variadic = [], set(), {}, False
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                variadic = True
                operands.append(parameter.name)
            elif parameter.kind is parameter.KEYWORD_ONLY:
                attributes[parameter.name] = REQUIRED if parameter.default is parameter.empty else parameter.default
            else:
                operands.append(parameter.name)
                if parameter.default is None:
                    optional.add(parameter.name)
        label = name or function.__name__.rstrip("_")
        assert label not in OPS, f"op {label} is declared twice"
        assert function.__doc__, f"op {label} has no documentation"
        OPS[label] = Op(
            label, function, infer, tuple(operands), frozenset(optional), variadic, attributes, outputs, view, inplace,
            tuple(samples), {f32: 2e-6, f16: 2e-3, f64: 1e-12} | (tolerance or {}), domain, expand,
            function.__doc__.splitlines()[0],
        )  # fmt: skip
        return function

    return declare


def sample(operands: str, **attributes: Any) -> Sample:
    """A test case: `x[2,5,64] ids:i64<7[3] mask:bool[5]`; floats fill the op's domain, `<n` bounds integers."""
    return Sample(operands, attributes)


def draw(operands: str, rng: np.random.Generator, domain: tuple[float, float]) -> list[np.ndarray]:
    """Random arrays for a sample's operands."""
    arrays = []
    for part in operands.split():
        head, dims = part[:-1].split("[")
        name_and_type, _, bound = head.partition("<")
        dtype = DTYPES[name_and_type.partition(":")[2] or "f32"]
        shape = tuple(int(d) for d in dims.split(",")) if dims else ()
        arrays.append(_draw_array(dtype, shape, int(bound or 5), rng, domain))
    return arrays


def _draw_array(
    dtype: DType, shape: tuple[int, ...], bound: int, rng: np.random.Generator, domain: tuple[float, float]
) -> np.ndarray:
    if dtype is boolean:
        return rng.random(shape) < 0.5
    if dtype.kind == "f":
        return rng.uniform(*domain, shape).astype(dtype.numpy)
    return rng.integers(0, bound, shape).astype(dtype.numpy)


def same_as(index: int) -> Callable[..., TensorType]:
    """Inference: the type of operand `index`."""
    return lambda *types, **_: types[index]


def broadcast(name: str, dtype: DType | None = None, first: int = 0) -> Callable[..., TensorType]:
    """Inference: numpy broadcasting of operands from `first` on, all of one dtype; `dtype` overrides the result's."""

    def infer(*types: TensorType, **_: Any) -> TensorType:
        operands = types[first:]
        if any(t.dtype is not operands[0].dtype for t in operands):
            raise ShapeError(f"{name}: operands differ in dtype, got {', '.join(map(str, types))}")
        return TensorType(dtype or operands[0].dtype, broadcast_shapes(name, *(t.shape for t in types)))

    return infer


def broadcast_shapes(where: str, *shapes: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The broadcast shape; a symbolic dim beside an int other than 1 is taken to equal it. Raises ShapeError."""
    rank = max(map(len, shapes))
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, rank - len(shape)):
            result[i] = _broadcast_dim(where, result[i], dim, shapes)
    return tuple(result)


def _broadcast_dim(where: str, a: Dim, b: Dim, shapes: Sequence[tuple[Dim, ...]]) -> Dim:
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int) and isinstance(b, int):
        raise ShapeError(f"{where}: shapes do not broadcast, got {' and '.join(str(list(s)) for s in shapes)}")
    if a is None or b is None:
        return b if a is None else a
    return a if isinstance(a, int) or not isinstance(b, int) else b


def normalize_axis(where: str, axis: int, rank: int) -> int:
    """`axis` counted from the front. Raises ShapeError when it is out of range."""
    if not -rank <= axis < max(rank, 1):
        raise ShapeError(f"{where}: axis out of range, got {axis}, expected {-rank}..{rank - 1}")
    return axis + rank if axis < 0 else axis


def product(dims: Sequence[Dim]) -> Dim:
    """The product of dims; unknown when one is unknown."""
    total: int | Expr = 1
    for dim in dims:
        if dim is None:
            return None
        total = total * dim
    return total
