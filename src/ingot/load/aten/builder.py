"""What rules build with: plain ops, constants, casts after torch's promotion, and sizes that become data."""

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
    """The DType of a torch dtype. Raises UnsupportedError for complex and quantized types."""
    if dtype not in FROM_TORCH:
        raise UnsupportedError(f"torch dtype: not supported, got {dtype}, expected a real, integer or bool type")
    return FROM_TORCH[dtype]


def is_complex(value: Any) -> bool:
    """Whether a complex number, a tensor of them, or what such a tensor became."""
    return value.is_complex() if isinstance(value, torch.Tensor) else isinstance(value, (complex, Complex))


@dataclass(frozen=True, slots=True)
class Complex:
    """What a tensor of complex numbers became: two values of its shape."""

    real: Tensor
    imaginary: Tensor


def element_count(dims: Sequence[Known]) -> Known:
    """The product of dims."""
    count: Known = 1
    for size in dims:
        count = count * size
    return count


def broadcast(where: str, *shapes: Sequence[Known]) -> tuple[Known, ...]:
    """The broadcast shape. Raises ShapeError."""
    return broadcast_shapes(where, *map(tuple, shapes))  # type: ignore[return-value]  # no unknown dims, none out


class AtenBuilder:
    """Adds plain ops to `graph` for one ATen call at a time.

    `target` is its overload name, `hint` names its values, `result` is the type that torch gives its result (a list
    of types when there are several; of complex numbers, the type of a part, and `makes_complex`), which spares the
    rules of views all arithmetic on shapes. `ops` are the names of what was added for it. `trains`: the graph is to be
    differentiated. `drops`: the call's dropout stays. `moving`: the running means of batch norms that are trained, and
    by what share a step moves them. `draws`: whether random ops may draw from Ingot's generator. `of_data`: the dims
    that a run measures. `fakes` gives the call's arguments as fake tensors, which have strides.
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
        """`axis` counted from the front; torch has checked its range."""
        return axis % max(self.rank(x), 1)

    def axes(self, x: Tensor, axes: Sequence[int] | int | None) -> tuple[int, ...]:
        """Sorted axes counted from the front; None and [] mean all of them."""
        if self.rank(x) == 0:
            return ()
        if axes is None or axes == []:
            return tuple(range(self.rank(x)))
        return tuple(sorted({self.axis(x, a) for a in ([axes] if isinstance(axes, int) else axes)}))

    def is_of_data(self, size: Known) -> bool:
        """Whether a run measures a size."""
        return isinstance(size, Expr) and not symbols_of(size).isdisjoint(self.of_data)

    def static(self, size: Known, what: str) -> int:
        """`size` as an int. Raises UnsupportedError when it is symbolic."""
        if not isinstance(size, int):
            raise UnsupportedError(f"torch node {self.hint!r}: {what} is symbolic, got {size}, expected a number")
        return size

    def pen(self, *sizes: Known) -> Builder:
        """What computes formulas over sizes at once, or writes them into the graph where one is symbolic."""
        return Eager() if is_known(*sizes) else AtenGraphBuilder(self)

    # -- adding nodes

    def add(self, op: str, *operands: Tensor | None, **attributes: Any) -> Any:
        """Adds a node; gives its output's name, or a tuple of names where the op has several."""
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
        """Elements start, start+step ... before stop of one axis; the bounds are canonical."""
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
        """What a rule computed as a constant; a tensor is itself."""
        return self.constant(value) if isinstance(value, np.ndarray) else value

    def scalar(self, value: Number, dtype: DType) -> Tensor:
        """A rank-0 value; a symbolic size becomes data through the `dims` op, and a number of data is there."""
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
        """A tensor cast to `dtype`, or a number as a rank-0 tensor of it."""
        return self.cast(x, dtype) if isinstance(x, str) else self.scalar(x, dtype)

    def promoted(self, *operands: Tensor | Number) -> DType:
        """The dtype that torch computes one or two operands in."""
        samples = [self._sample(operand) for operand in operands]
        return from_torch(torch.result_type(samples[0], samples[-1]))

    def promote(self, *operands: Tensor | Number, floating: bool = False) -> list[Tensor]:
        """One or two operands in torch's common dtype; `floating` turns integers and bools into f32."""
        dtype = self.promoted(*operands)
        if floating and dtype.kind != "f":
            dtype = f32
        return [self.tensor(operand, dtype) for operand in operands]

    def _sample(self, operand: Tensor | Number) -> Any:
        if isinstance(operand, str):
            return torch.empty((1,) * min(self.rank(operand), 1), dtype=TO_TORCH[self.dtype(operand)], device="meta")
        return 1 if isinstance(operand, Expr) else operand


class AtenGraphBuilder(Builder):
    """What writes formulas over sizes into the graph of a rule; numbers and sizes take the dtype of the last tensor."""

    def __init__(self, rule: AtenBuilder):
        super().__init__(rule.graph)
        self.rule = rule

    def scalar(self, value: Number, dtype: DType) -> Tensor:
        """A value of rank 0."""
        return self.rule.scalar(value, dtype)

    def _add(self, op: str, *operands: Any, **attributes: Any) -> Tensor:
        dtypes = [self.type(o).dtype for o in operands if isinstance(o, str)]
        names = [self.scalar(o, dtypes[-1]) if isinstance(o, (int, float, Expr)) else o for o in operands]
        return self.rule.add(op, *names, **attributes)
