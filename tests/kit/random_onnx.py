"""Random valid ONNX models over sizes of 0, 1 and a few, with dims that get their values at run time.

A model grows node by node, and ONNX Runtime computes each node at every binding of the symbolic dims: what it refuses
at one of them is no valid model. Numbers that are not finite or large stay out of what later nodes read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import (
    Fail,
    InvalidArgument,
    InvalidGraph,
    NotImplemented,
    RuntimeException,
)

from forked import FAILURES
from ingot.ir.dtype import from_numpy
from onnx_models import NUMBERS, model
from random_growth import Refused

OPSET = 18
LARGEST = 1e3  # absolute value of what later nodes read
MOST_ELEMENTS = 4096
BINDINGS = 3

REDUCE = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2")
REDUCE += ("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
F, I64, I32, B = (np.dtype(t) for t in (np.float32, np.int64, np.int32, np.bool_))
Dims = tuple[int, ...]  # of one binding
Arrays = tuple[np.ndarray, ...]  # of one value, an array for each binding
Feed = Mapping[str, np.ndarray]
T = TypeVar("T")


@dataclass(frozen=True)
class Model:
    """An ONNX model in parts. inputs: dims of each, a symbol's name where it is symbolic; values: of every name."""

    nodes: tuple[onnx.NodeProto, ...]
    inputs: Mapping[str, tuple[int | str, ...]]
    constants: Mapping[str, np.ndarray]
    outputs: tuple[str, ...]
    values: Mapping[str, Arrays]

    @property
    def proto(self) -> onnx.ModelProto:
        inputs = [
            helper.make_tensor_value_info(name, number_of(self.values[name][0]), dims)
            for name, dims in self.inputs.items()
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        constants = [numpy_helper.from_array(data, name) for name, data in self.constants.items()]
        return model(helper.make_graph(self.nodes, "g", inputs, outputs, constants), OPSET)

    def declared(self, name: str) -> tuple[int | str, ...]:
        """The dims of a value as those of an input: a symbol where bindings differ, one for the same sizes."""
        sizes = zip(*(array.shape for array in self.values[name]), strict=True)
        return tuple(d[0] if len(set(d)) == 1 else self._symbol(d) for d in sizes)

    def _symbol(self, sizes: Dims) -> str:
        for name, dims in self.inputs.items():
            for i, dim in enumerate(dims):
                if isinstance(dim, str) and tuple(array.shape[i] for array in self.values[name]) == sizes:
                    return dim
        return "s" + "_".join(map(str, sizes))

    @property
    def bindings(self) -> list[dict[str, np.ndarray]]:
        """The values at each binding that differs from those before."""
        count = len(next(iter(self.values.values()))) if any(map(_is_symbolic, self.inputs.values())) else 1
        return [{name: arrays[i] for name, arrays in self.values.items()} for i in range(count)]


def _is_symbolic(dims: Sequence[int | str]) -> bool:
    return any(isinstance(d, str) for d in dims)


def number_of(array: np.ndarray) -> int:
    """ONNX's number of an array's dtype."""
    return NUMBERS[from_numpy(array.dtype).name]


def session_of(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """ONNX Runtime without optimisation, on one thread, silent."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


REFUSALS = (Fail, InvalidArgument, InvalidGraph, NotImplemented, RuntimeException)  # of ONNX Runtime
# What ONNX Runtime makes of ops over an operand without elements, which ONNX's reference computes in its stead.
WRONG_ON_EMPTY = {
    "Einsum": "divides by zero, which ends the process",
    "Conv": "never ends where there are no channels",
    "MatMul": "leaves what was in memory where k is 0",
    "Gemm": "forgets beta where k is 0",
    **dict.fromkeys(("ArgMax", "ArgMin"), "keeps the dim that it searches"),
    **dict.fromkeys(REDUCE, "keeps the dims of 0 that it reduces, which must become 1 or go"),
}


def reads(node: onnx.NodeProto) -> list[str]:
    """What a node reads, in its subgraphs too."""
    names = list(filter(None, node.input))
    for attribute in node.attribute:
        if attribute.HasField("g"):
            made = {value.name for value in attribute.g.input}
            for inner in attribute.g.node:
                names += [name for name in reads(inner) if name not in made]
                made.update(inner.output)
    return list(dict.fromkeys(names))


def model_of(node: onnx.NodeProto, operands: Feed) -> onnx.ModelProto:
    """A model of one node over arrays of any sizes."""
    inputs = [
        helper.make_tensor_value_info(name, number_of(array), [None] * array.ndim) for name, array in operands.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    return model(helper.make_graph([node], "g", inputs, outputs), OPSET)


def run_node(node: onnx.NodeProto, operands: Mapping[str, Arrays], by_reference: bool = False) -> list[Arrays]:
    """The results of one node at each binding, by ONNX Runtime if it can be asked. Raises Refused when it refuses."""
    proto = model_of(node, {name: arrays[0] for name, arrays in operands.items()})
    feeds = [dict(zip(operands, arrays, strict=True)) for arrays in zip(*operands.values(), strict=True)] or [{}]
    if node.op_type in WRONG_ON_EMPTY and not all(array.size for feed in feeds for array in feed.values()):
        by_reference = True
    try:
        evaluator = ReferenceEvaluator(proto) if by_reference else session_of(proto)
        with np.errstate(all="ignore"):
            runs = [[np.asarray(result) for result in evaluator.run(None, feed)] for feed in feeds]
    except (*FAILURES, *REFUSALS) as error:
        raise Refused(str(error)) from error
    if any(len({array.ndim for array in arrays}) > 1 for arrays in zip(*runs, strict=True)):
        raise Refused("a rank that depends on sizes")
    # The reference sums numbers of 32 bits in 64, and declares it.
    dtype = feeds[0][node.input[0]].dtype if node.op_type in REDUCE else None
    return [tuple(array.astype(dtype or array.dtype) for array in arrays) for arrays in zip(*runs, strict=True)]


class OnnxGrowth:
    """A model that grows. `pool` holds the values that later nodes may read."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, tuple[int | str, ...]] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, Arrays] = {}
        self.pool: list[str] = []
        self.symbols = self._draw_symbols() if self.chance(0.6) else {}
        self.bindings = BINDINGS if self.symbols else 1

    def _draw_symbols(self) -> dict[str, Dims]:
        """A value of each symbol for each binding: the first too odd to be a static dim, or just such a dim."""
        if self.chance(0.75):
            first, others = (7, 11), (0, 0, 1, 1, 2, 3, 5)
        else:
            first, others = (2, 3), (1, 1, 1, 2, 3)
        return {
            name: (size, *(int(self.choose(others)) for _ in range(BINDINGS - 1)))
            for name, size in zip(("N", "M"), first, strict=True)
        }

    # -- chance -------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choose(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def between(self, low: int, high: int) -> int:
        """An int from low to high, both included."""
        return int(self.rng.integers(low, high + 1))

    def dim(self) -> int | str:
        """A symbol, or a small size; 0 and 1 often."""
        if self.symbols and self.chance(0.35):
            return self.choose(list(self.symbols))
        return int(self.choose((0, 1, 1, 1, 2, 2, 3, 3, 4, 5, 8, 17) if self.chance(0.6) else (1, 2, 3, 4)))

    def dims(self, low: int = 0, high: int = 4) -> tuple[int | str, ...]:
        """Dims of a rank from low to high."""
        return tuple(self.dim() for _ in range(self.between(low, high)))

    # -- values -------------------------------------------------------------------------------------------------

    def shapes(self, name: str) -> list[Dims]:
        """The shape of a value at each binding."""
        return [array.shape for array in self.values[name]]

    def shape(self, name: str) -> Dims:
        """The shape of a value at the first binding."""
        return self.values[name][0].shape

    def rank(self, name: str) -> int:
        return self.values[name][0].ndim

    def dtype(self, name: str) -> np.dtype:
        return self.values[name][0].dtype

    def named(self, shapes: Sequence[Dims]) -> tuple[int | str, ...]:
        """Declared dims that have these sizes at each binding. Raises Refused when there are none."""
        found: list[int | str] = []
        for sizes in zip(*shapes, strict=True):
            names = [name for name, values in self.symbols.items() if values == sizes]
            if len(set(sizes)) == 1 and not (names and self.chance(0.5)):
                found.append(sizes[0])
            elif names:
                found.append(names[0])
            else:
                raise Refused("no name for a dim")
        return tuple(found)

    def draw(self, dtype: np.dtype, shape: Dims, low: float, high: float) -> np.ndarray:
        """Random data; half of the floats are eighths, whose sums and products are exact."""
        if dtype == B:
            return np.asarray(self.rng.random(shape) < 0.6)
        if dtype.kind == "f":
            data = np.asarray(self.rng.uniform(low, high, shape))
            return np.asarray(np.clip(np.round(data * 8) / 8, low, high) if self.chance(0.5) else data, dtype)
        return np.asarray(self.rng.integers(int(low), int(high) + 1, shape), dtype)

    def leaf(self, dtype: np.dtype, dims: Sequence[int | str], low: float = -2.0, high: float = 2.0) -> str:
        """A new input, or an initializer where its dims are known."""
        shapes = [tuple(self.symbols[d][i] if isinstance(d, str) else d for d in dims) for i in range(self.bindings)]
        if any(math.prod(shape) > MOST_ELEMENTS for shape in shapes):
            raise Refused("large")
        if not _is_symbolic(dims) and self.chance(0.4):
            return self.constant(self.draw(dtype, shapes[0], low, high))
        name = f"x{len(self.inputs)}"
        self.inputs[name] = tuple(dims)
        self.values[name] = tuple(self.draw(dtype, shape, low, high) for shape in shapes)
        self.pool.append(name)
        return name

    def constant(self, data: np.ndarray, hidden: bool = False) -> str:
        """An initializer; hidden: it is no operand of later nodes."""
        name = f"c{len(self.constants)}"
        self.constants[name] = data
        self.values[name] = (data,) * self.bindings
        self.pool += [] if hidden else [name]
        return name

    def fed(self, data: np.ndarray) -> str:
        """What might be a constant as an input, which no later node reads."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = data.shape
        self.values[name] = (data,) * self.bindings
        return name

    def ints(self, values: Sequence[int], dtype: np.dtype = I64) -> str:
        """A vector that is known at load: axes, sizes, indices."""
        return self.constant(np.asarray(values, dtype), hidden=True)

    def pick(self, *dtypes: np.dtype, low: int = 0, high: int = 5) -> str:
        """A value of one of the dtypes and a rank in low..high: a late one more often, a new one at times."""
        found = [n for n in self.pool if self.dtype(n) in dtypes and low <= self.rank(n) <= high]
        if not found or self.chance(0.2):
            return self.leaf(self.choose(dtypes), self.dims(low, min(high, max(low, 4))))
        return found[-1 - int(len(found) * self.rng.random() ** 2)]

    def like(self, dtype: np.dtype, shapes: Sequence[Dims], low: float = -2.0, high: float = 2.0) -> str:
        """A value of these shapes with numbers in low..high."""
        found = [n for n in self.pool if self.dtype(n) == dtype and self.shapes(n) == list(shapes)]
        found = [n for n in found if all(not a.size or (a.min() >= low and a.max() <= high) for a in self.values[n])]
        if found and self.chance(0.5):
            return self.choose(found)
        return self.leaf(dtype, self.named(shapes), low, high)

    def within(self, name: str, low: float, high: float) -> str:
        """The value, clipped to bounds where it leaves them."""
        if all(not a.size or (a.min() >= low and a.max() <= high) for a in self.values[name]):
            return name
        bounds = [self.constant(np.asarray(b, self.dtype(name)), hidden=True) for b in (low, high)]
        return self.add("Clip", name, *bounds)

    # -- nodes --------------------------------------------------------------------------------------------------

    def add(self, op: str, *operands: str, **attributes: object) -> str:
        """Adds a node of one output and gives its name. Raises Refused when ONNX Runtime does."""
        return self.add_all(op, 1, *operands, **attributes)[0]

    def add_all(self, op: str, outputs: int, *operands: str, **attributes: object) -> list[str]:
        """Adds a node of several outputs."""
        names = [f"y{len(self.nodes)}_{i}" for i in range(outputs)]
        given = {key: value for key, value in attributes.items() if value is not None}
        node = helper.make_node(op, operands, names, f"{op}{len(self.nodes)}", **given)
        results = run_node(node, {name: self.values[name] for name in reads(node)})
        if not results[0]:
            raise Refused("no results")
        if any(array.size > MOST_ELEMENTS or array.ndim > 6 for arrays in results for array in arrays):
            raise Refused("large")
        self.nodes.append(node)
        for name, arrays in zip(names, results, strict=True):
            self.values[name] = arrays if len(arrays) == self.bindings else arrays * self.bindings
            if all(_is_tame(array) for array in arrays):
                self.pool.append(name)
        return names

    def finished(self) -> Model:
        """The model: what nothing reads is an output, and some of what is read."""
        read = {name for node in self.nodes for name in reads(node)}
        made = [name for node in self.nodes for name in node.output]
        outputs = [name for name in made if name not in read or self.chance(0.1)] or list(self.inputs)
        return pruned(Model(tuple(self.nodes), self.inputs, self.constants, tuple(outputs), self.values))


def _is_tame(array: np.ndarray) -> bool:
    return bool(np.isfinite(array).all() and np.abs(array.astype(np.float64)).max(initial=0) <= LARGEST)


def pruned(whole: Model) -> Model:
    """The model without what its outputs do not need."""
    needed, nodes = set(whole.outputs), []
    for node in reversed(whole.nodes):
        if needed & set(node.output):
            needed |= set(reads(node))
            nodes.insert(0, node)
    inputs = {name: dims for name, dims in whole.inputs.items() if name in needed}
    constants = {name: data for name, data in whole.constants.items() if name in needed}
    return replace(whole, nodes=tuple(nodes), inputs=inputs, constants=constants)
