"""The builder of ATen rules: plain ops, constants, casts by torch's promotion, and sizes as data."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from ingot.errors import UnsupportedError
from ingot.ir.dim import Expr, Known, symbols_of
from ingot.ir.dtype import DType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from ingot.ir.graph import Graph, TensorType
from ingot.load.eager import Eager, Value, is_known
from ingot.ops.define import Builder, broadcast_shapes

Tensor = str  # the name of a tensor value
Number = bool | int | float | Expr

FROM_TORCH = {
    torch.float64: f64, torch.float32: f32, torch.float16: f16, torch.bfloat16: bf16,
    torch.int64: i64, torch.int32: i32, torch.int16: i16, torch.int8: i8,
    torch.uint64: u64, torch.uint32: u32, torch.uint16: u16, torch.uint8: u8, torch.bool: boolean,
}  # fmt: skip
FROM_COMPLEX = {torch.complex128: f64, torch.complex64: f32, torch.complex32: f16}
TO_TORCH = {ours: theirs for theirs, ours in FROM_TORCH.items()}


def from_torch(dtype: torch.dtype) -> DType:
    """Return the DType of a torch dtype. Raises UnsupportedError for complex and quantized types."""
    if dtype not in FROM_TORCH:
        raise UnsupportedError(f"torch dtype: not supported, got {dtype}, expected a real, integer or bool type")
    return FROM_TORCH[dtype]


def is_complex(value: Any) -> bool:
    """Return whether a value is a complex number, a tensor of them, or the two values of such a tensor."""
    return value.is_complex() if isinstance(value, torch.Tensor) else isinstance(value, (complex, Complex))


@dataclass(frozen=True, slots=True)
class Complex:
    """A tensor of complex numbers as two values of its shape."""

    real: Tensor
    imaginary: Tensor


def element_count(dims: Sequence[Known]) -> Known:
    """Return the product of dims."""
    count: Known = 1
    for size in dims:
        count = count * size
    return count


def broadcast(where: str, *shapes: Sequence[Known]) -> tuple[Known, ...]:
    """Return the broadcast shape. Raises ShapeError."""
    return broadcast_shapes(where, *map(tuple, shapes))  # type: ignore[return-value]  # no unknown dims, none out


class AtenBuilder:
    """Add plain ops to `graph` for one ATen call at a time.

    `target` is its overload name, `hint` the base of its value names, `result` the type of its result from torch (a
    list of types if there are several; for complex numbers, the type of a part, with `makes_complex` set), so that
    rules of views need no shape arithmetic. `ops` are the names of the ops added for the call. `trains`: the graph will
    be differentiated. `drops`: the call's dropout stays. `moving`: the running means of batch norms in training, with
    the share by which a step moves them. `draws`: whether random ops may use Ingot's generator. `of_data`: the dims
    measured at run time. `fakes` returns the call's arguments as fake tensors, which have strides.
    """

    trains = drops = False
    draws = True
    moving: Mapping[str, float] = MappingProxyType({})
    of_data: Collection[str] = ()
    fakes: Callable[[], Any]

    def __init__(self, graph: Graph):
        self.graph = graph
        self.hint = "t"
        self.result: Any = None
        self.makes_complex = False
        self.target = ""
        self.ops: set[str] = set()
        self._scalars: dict[tuple[str, str], Tensor] = {}

    # -- reading

    def type(self, x: Tensor) -> TensorType:
        return self.graph.type(x)

    def dtype(self, x: Tensor) -> DType:
        return self.graph.type(x).dtype

    def shape(self, x: Tensor) -> tuple[Known, ...]:
        return self.graph.type(x).shape  # type: ignore[return-value]  # torch knows every size

    def rank(self, x: Tensor) -> int:
        return self.graph.type(x).rank

    def axis(self, x: Tensor, axis: int) -> int:
        """Return `axis` counted from the front; torch has checked its range."""
        return axis % max(self.rank(x), 1)

    def axes(self, x: Tensor, axes: Sequence[int] | int | None) -> tuple[int, ...]:
        """Return sorted axes counted from the front; None and [] mean all of them."""
        if self.rank(x) == 0:
            return ()
        if axes is None or axes == []:
            return tuple(range(self.rank(x)))
        return tuple(sorted({self.axis(x, a) for a in ([axes] if isinstance(axes, int) else axes)}))

    def is_of_data(self, size: Known) -> bool:
        """Return whether a size is measured at run time."""
        return isinstance(size, Expr) and not symbols_of(size).isdisjoint(self.of_data)

    def static(self, size: Known, what: str) -> int:
        """Return `size` as an int. Raises UnsupportedError when it is symbolic."""
        if not isinstance(size, int):
            raise UnsupportedError(f"torch node {self.hint!r}: {what} is symbolic, got {size}, expected a number")
        return size

    def builder_for(self, *sizes: Known) -> Builder:
        """Return the builder for formulas over sizes: immediate if all are known, else one that adds nodes to the
        graph.
        """
        return Eager() if is_known(*sizes) else AtenGraphBuilder(self)

    # -- adding nodes

    def add(self, op: str, *operands: Tensor | None, **attributes: Any) -> Any:
        """Add a node; return its output's name, or a tuple of names if the op has several."""
        self.ops.add(op)
        node = self.graph.add(op, operands, f"{self.hint}.{op}", **attributes)
        return node.outputs if len(node.outputs) > 1 else node.output

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        return x if self.dtype(x) is dtype else self.add("cast", x, dtype=dtype)

    def reshape(self, x: Tensor, shape: Sequence[Known]) -> Tensor:
        return x if self.shape(x) == tuple(shape) else self.add("reshape", x, shape=tuple(shape))

    def expand(self, x: Tensor, shape: Sequence[Known]) -> Tensor:
        return x if self.shape(x) == tuple(shape) else self.add("expand", x, shape=tuple(shape))

    def permute(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x if list(axes) == sorted(axes) else self.add("permute", x, axes=tuple(axes))

    def slice(self, x: Tensor, axis: int, start: Known, stop: Known, step: int = 1) -> Tensor:
        """Slice elements start, start+step ... before stop of one axis; the bounds are canonical."""
        shape = self.shape(x)
        if (start, stop, step) == (0, shape[axis], 1):
            return x
        starts: list[Known] = [0] * len(shape)
        stops, steps = list(shape), [1] * len(shape)
        starts[axis], stops[axis], steps[axis] = start, stop, step
        return self.add("slice", x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))

    def constant(self, array: np.ndarray, hint: str = "constant") -> Tensor:
        return self.graph.add_constant(self.graph.fresh(hint), array)

    def table(self, value: Value) -> Tensor:
        """Store an array that a rule computed as a constant; a tensor is returned unchanged."""
        return self.constant(value) if isinstance(value, np.ndarray) else value

    def scalar(self, value: Number, dtype: DType) -> Tensor:
        """Return a value of rank 0; a symbolic size becomes data through the `dims` op, and a number from data is
        already a value.
        """
        if isinstance(value, str):
            return self.cast(value, dtype)
        if isinstance(value, Expr):
            size = self.reshape(self.add("dims", values=(value,)), ())
            return self.cast(size, dtype)
        key = (dtype.name, repr(value))
        if key not in self._scalars:
            self._scalars[key] = self.constant(np.array(value).astype(dtype.numpy), f"scalar.{value}")
        return self._scalars[key]

    def tensor(self, x: Tensor | Number, dtype: DType) -> Tensor:
        """Cast a tensor to `dtype`, or convert a number to a rank-0 tensor of it."""
        return self.cast(x, dtype) if isinstance(x, str) else self.scalar(x, dtype)

    def promoted(self, *operands: Tensor | Number) -> DType:
        """Return the dtype in which torch computes one or two operands."""
        samples = [self._sample(operand) for operand in operands]
        return from_torch(torch.result_type(samples[0], samples[-1]))

    def promote(self, *operands: Tensor | Number, floating: bool = False) -> list[Tensor]:
        """Cast one or two operands to torch's common dtype; `floating` converts integers and bools to f32."""
        dtype = self.promoted(*operands)
        if floating and dtype.kind != "f":
            dtype = f32
        return [self.tensor(operand, dtype) for operand in operands]

    def _sample(self, operand: Tensor | Number) -> Any:
        if isinstance(operand, str):
            return torch.empty((1,) * min(self.rank(operand), 1), dtype=TO_TORCH[self.dtype(operand)], device="meta")
        return 1 if isinstance(operand, Expr) else operand


class AtenGraphBuilder(Builder):
    """A builder for formulas over sizes in the graph of a rule; numbers and sizes take the dtype of the last tensor."""

    def __init__(self, rule: AtenBuilder):
        super().__init__(rule.graph)
        self.rule = rule

    def scalar(self, value: Number, dtype: DType) -> Tensor:
        """Return a value of rank 0."""
        return self.rule.scalar(value, dtype)

    def _add(self, op: str, *operands: Any, **attributes: Any) -> Tensor:
        dtypes = [self.type(o).dtype for o in operands if isinstance(o, str)]
        names = [self.scalar(o, dtypes[-1]) if isinstance(o, (int, float, Expr)) else o for o in operands]
        return self.rule.add(op, *names, **attributes)
