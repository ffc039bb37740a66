"""How a random graph grows node by node, so that it is valid, connected and well-conditioned.

Every value is computed while its graph grows, twice: exactly in float64, and with an error of each op's tolerance added
after each node. A node is refused when its numbers are not finite, or large, or so sensitive that the two differ much,
or when a step (a comparison, a rounding, an index) would fall the other way after a slightly larger error. What is left
must agree between all executors. Generating only valid graphs and searching for inputs without NaN is the idea of
Liu et al., "NNSmith: Generating Diverse and Valid Test Cases for Deep Learning Compilers", 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from ingot.errors import InputError, ShapeError
from ingot.inspect.comparison.bounds import ERROR_FREE, perturbed
from ingot.ir.dim import Dim, symbol
from ingot.ir.dtype import DType, boolean, f32, f64, from_numpy
from ingot.ir.graph import OPS, Graph, Node, Op, TensorType, bind_attribute
from ingot.ops.define import expand_node

LARGEST = 1e4  # absolute value that a result may have
MOST_ELEMENTS = 20_000  # of one value
INPUT_BYTES = 2**18  # of one input: some runs have regions no larger
SENSITIVITY = 1e-4  # the largest error, relative to max(1, |x|), that the errors of all nodes before may add up to
MARGIN = 2e-3  # an error under which steps must not fall the other way

STEPS = {"floor", "ceil", "round", "sign", "mod", "floor_div"}

Bounds = tuple[float, float]
T = TypeVar("T")


class Refused(Exception):
    """A node that makes no sense for the values at hand; the pattern that wanted it ends there."""


STORAGE = ("columns", "spaced", "unaligned", "locked")


def stored(data: np.ndarray, how: str) -> np.ndarray:
    """The same array, not row-major, not aligned, or not writable, as parameters of models are at times."""
    match how:
        case "columns" if data.ndim:
            return np.asfortranarray(data)
        case "spaced" if data.ndim:
            return np.repeat(data, 2, -1)[..., ::2]
        case "unaligned":
            return np.frombuffer(b"?" + data.tobytes(), np.uint8)[1:].view(data.dtype).reshape(data.shape)
        case "locked":
            data = data.copy()
            data.flags.writeable = False
    return data


class Growth:
    """A graph that grows. `pool` holds the values that later nodes may read; a pattern keeps its -inf out of it."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.turn = seed  # of the ops that are drawn in turn
        self.graph = Graph(f"seed{seed}")
        self.feeds: dict[str, np.ndarray] = {}
        self.pool: list[str] = []
        self.exact: dict[str, np.ndarray] = {}
        self.noisy: dict[str, np.ndarray] = {}
        self.settled: set[str] = set()  # values that come out to the bit, on every executor
        self.twists = self.chance(0.4)  # patterns with a small change, which passes must not take for the real ones
        self.symbols: dict[int, Dim] = {}
        if self.chance(0.4):
            self.symbols = {int(self.rng.integers(2, 9)): symbol(name) for name in ("B", "S")}

    # -- chance -------------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def choose(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def dim(self) -> int:
        """A dim: mostly small, now and then 0, or across the border of a vector, a panel or a chunk."""
        if self.chance(0.01):
            return int(self.choose((0, 0, 257, 1025, 4097, 5000)))
        if self.chance(0.15):
            return int(self.choose((16, 17, 31, 32, 33, 40, 64, 65, 70)))
        return int(self.rng.integers(1, 9))

    def shape(self, low: int = 0, high: int = 4) -> tuple[int, ...]:
        """A shape of a rank from low to high."""
        while True:
            shape = tuple(self.dim() for _ in range(int(self.rng.integers(low, high + 1))))
            if math.prod(shape) <= MOST_ELEMENTS // 4:
                return shape

    # -- values -------------------------------------------------------------------------------------------------

    def dims(self, name: str) -> tuple[int, ...]:
        return self.exact[name].shape

    def symbolic(self, dims: tuple[int, ...], symbols: dict[int, Dim]) -> tuple[Dim, ...]:
        """The dims, of which some that have the value of a symbol are that symbol."""
        return tuple(symbols[d] if d in symbols and self.chance(0.7) else d for d in dims)

    def leaf(self, data: np.ndarray, kinds: str = "iiiiwc", hidden: bool = False) -> str:
        """An input (i), weight (w) or constant (c) that holds the data; hidden: it stays out of the pool."""
        kind, graph = self.choose(kinds), self.graph
        if kind == "i" and data.nbytes > INPUT_BYTES:
            raise Refused(f"an input of {data.nbytes} bytes")
        if kind == "i":
            name = graph.add_input(
                graph.fresh("x"), TensorType(from_numpy(data.dtype), self.symbolic(data.shape, self.symbols))
            )
            self.feeds[name] = data
        elif kind == "w":
            name = graph.add_weight(graph.fresh("w"), stored(data, self.choose(("plain", "plain", *STORAGE))))
        else:
            name = graph.add_constant(graph.fresh("c"), data)
        self._know(name, data)
        self.pool += [] if hidden else [name]
        return name

    def _know(self, name: str, data: np.ndarray) -> None:
        self.exact[name] = self.noisy[name] = data.astype(np.float64) if data.dtype == np.float32 else data
        self.settled.add(name)

    def draw(self, dtype: DType, shape: tuple[int, ...], bounds: Bounds = (-2.0, 2.0)) -> np.ndarray:
        """Random data; integers are in low..high."""
        if dtype is boolean:
            return np.asarray(self.rng.random(shape) < 0.6)
        if dtype.kind == "f":
            return np.asarray(self.rng.uniform(*bounds, shape)).astype(dtype.numpy)
        low = int(bounds[0]) if dtype.kind == "i" else max(int(bounds[0]), 0)
        return np.asarray(self.rng.integers(low, max(int(bounds[1]), low) + 1, shape)).astype(dtype.numpy)

    def fresh(self, dtype: DType, shape: tuple[int, ...], bounds: Bounds = (-2.0, 2.0), kinds: str = "iiiiwc") -> str:
        """A new leaf."""
        return self.leaf(self.draw(dtype, shape, bounds), kinds)

    def weight(self, *shape: int, bounds: Bounds = (-1.0, 1.0)) -> str:
        """A new weight or constant."""
        return self.fresh(f32, shape, bounds, "wwwc")

    def scalar(self, value: float, dtype: DType = f32) -> str:
        """A constant of one element, of rank 0 or 1, for one use."""
        value = value * 1.25 if self.twists and self.chance(0.05) else value
        return self.leaf(np.full(self.choose(((), (), (1,))), value, dtype.numpy), "c", hidden=True)

    def known(self, dtype: DType, rank: int = 0) -> list[str]:
        """The values of the pool of a dtype and at least a rank."""
        return [n for n in self.pool if self.graph.type(n).dtype is dtype and self.graph.type(n).rank >= rank]

    def pick(self, dtype: DType = f32, rank: int = 0) -> str:
        """A value of the pool, a late one more often; a new one at times."""
        found = self.known(dtype, rank)
        if not found or self.chance(0.15):
            return self.fresh(dtype, self.shape(rank))
        return found[-1 - int(len(found) * self.rng.random() ** 2)]

    def operand(self, dtype: DType, shape: tuple[int, ...], bounds: Bounds = (-2.0, 2.0)) -> str:
        """A value of this type within the bounds: of the pool, made to fit from one of the pool, or new."""
        same = [n for n in self.known(dtype) if self.dims(n) == shape]
        if same and self.chance(0.6):
            return self.fit(self.choose(same), bounds)
        others = self.known(dtype)
        if others and self.chance(0.5):
            try:
                return self.fit(self.adapt(self.choose(others), shape), bounds)
            except Refused:
                pass
        return self.fresh(dtype, shape, bounds)

    def fit(self, name: str, bounds: Bounds) -> str:
        """The value, pressed into bounds where it leaves them."""
        values, (low, high) = self.exact[name], np.float32(bounds).tolist()
        if not values.size or values.dtype.kind == "b" or (values.min() >= low and values.max() <= high):
            return name
        if values.dtype.kind != "f":
            return self.add("clip", name, minimum=int(low), maximum=int(high))
        if self.chance(0.7):
            return self.add("clip", name, minimum=float(low), maximum=float(high))
        unit = self.add("sigmoid", name)
        return self.add("add", self.add("mul", unit, self.scalar((high - low) * 0.98)), self.scalar(low + 0.01))

    def adapt(self, name: str, shape: tuple[int, ...]) -> str:
        """A chain of views and copies that makes a value of a shape from another."""
        have, want = self.dims(name), math.prod(shape)
        spread = have + (1,) * (len(shape) - len(have))
        if len(have) <= len(shape) and all(a in (1, b) for a, b in zip(have[::-1], shape[::-1], strict=False)):
            return self.add("expand", name, shape=shape)
        if len(spread) == len(shape) and all(a in (1, b) for a, b in zip(spread, shape, strict=True)):
            return self.add("expand", self.add("reshape", name, shape=spread), shape=shape)
        size = math.prod(have)
        if not size or not want:
            raise Refused
        if len(have) > 1 and self.chance(0.3):
            name = self.add("permute", name, axes=tuple(int(a) for a in self.rng.permutation(len(have))))
        flat = self.add("reshape", name, shape=(size,)) if len(have) != 1 else name
        if size > want:
            step = int(self.choose((1, 1, -1, 2, -2)))
            if (want - 1) * abs(step) >= size:
                step = 1
            start = int(self.rng.integers(size - (want - 1) * abs(step)))
            start += (want - 1) * abs(step) if step < 0 else 0
            stop = start + want * step if step > 0 else max(start + want * step, -1)
            flat = self.add("slice", flat, starts=(start,), stops=(min(stop, size),), steps=(step,))
        elif size < want:
            low = int(self.rng.integers(want - size + 1))
            if want > 5 * size:
                repeated = self.add("expand", flat, shape=(-(-want // size), size))
                whole = self.add("reshape", repeated, shape=(-(-want // size) * size,))
                flat = self.add("slice", whole, starts=(0,), stops=(want,), steps=(1,))
            elif self.graph.type(flat).dtype is not boolean and self.chance(0.5):
                flat = self.add("pad", flat, low=(low,), high=(want - size - low,), value=self.choose((0, 1, -1)))
            else:
                whole = self.add("concat", *[flat] * -(-want // size), axis=0)
                flat = self.add("slice", whole, starts=(0,), stops=(want,), steps=(1,))
        return flat if shape == (want,) else self.add("reshape", flat, shape=shape)

    # -- nodes --------------------------------------------------------------------------------------------------

    def add(self, op: str, *operands: str | None, hidden: bool = False, **attributes: object) -> str:
        """Adds a node and gives its first output. hidden: it stays out of the pool, and may be -inf.

        Raises Refused when the node is impossible, or its numbers are no good.
        """
        if self.twists and self.chance(0.06):
            operands, attributes = self._twisted(op, operands, attributes)
        given = {value: name for value, name in self.symbols.items() if str(name) in self.graph.symbols}
        for key in {"shape", "stops"} & set(attributes) if given else ():
            if key == "shape" or min(attributes["steps"], default=1) > 0:
                attributes[key] = self.symbolic(attributes[key], given)
        try:
            node = self.graph.add(op, operands, **attributes)
        except ShapeError as error:
            raise Refused(str(error)) from error
        try:
            self._compute(node, hidden)
        except Refused:
            self.graph.remove(node)
            raise
        self.pool += [] if hidden else node.outputs
        return node.outputs[0]

    def decompose(self, name: str) -> str:
        """Replaces the node that made a value by simpler ones, as a model would have spelled it, or nearly so."""
        node = self.graph.producer(name)
        assert node is not None
        if node.op.expand is None:
            return name
        before = set(self.graph.nodes)
        expand_node(self.graph, node)
        if self.twists and self.chance(0.3):
            self._twist_one([n for n in self.graph.nodes if n not in before], name)
        return name

    def _twisted(self, op: str, operands: tuple, attributes: dict) -> tuple[tuple, dict]:
        """Other operands or attributes that may fit as well."""
        key = self.choose([*attributes, "operands"])
        value = attributes.get(key)
        if key == "operands":
            if None in operands:
                return operands, attributes
            first = min(1, max(len(operands) - 2, 0))
            return (*operands[:first], *reversed(operands[first:])), attributes
        if isinstance(value, bool):
            value = not value
        elif key in ("axis", "axes", "k", "causal_offset"):
            value = (max(value[-1] - 1, 0),) if isinstance(value, tuple) and value else value
            value = max(value - 1, 0) if isinstance(value, int) else value
        elif isinstance(value, float):
            value = value * 1.25
        return operands, attributes | {key: value}

    def _twist_one(self, nodes: list[Node], name: str) -> None:
        """Changes an operand of one of these nodes, on which a value depends, if that can be."""
        node = self.choose([n for n in nodes if n.operands])
        operands, known = node.operands, (self.exact[name], self.noisy[name])
        constant = self.graph.data(operands[-1])
        if constant is not None and constant.size == 1:
            other = self.leaf(constant * constant.dtype.type(1.25), "c", hidden=True)
            twisted = (*operands[:-1], other)
        else:
            twisted = tuple(reversed(operands))
        try:
            types = [self.graph.type(o) for o in twisted if o is not None]
            if len(types) == len(twisted) and node.op.infer(*types, **node.attributes) == self.graph.type(node.output):
                self.graph.set_operands(node, twisted)
            for n in nodes:
                for operand in n.operands:
                    if operand not in self.exact:
                        self._know(operand, self.graph.data(operand))
                self._compute(n, hidden=name not in n.outputs)
        except (Refused, ShapeError):
            self.graph.set_operands(node, operands)
            self.exact[name], self.noisy[name] = known

    def _compute(self, node: Node, hidden: bool) -> None:
        exact, noisy = self._results(node, self.exact), self._results(node, self.noisy)
        operands = [o for o in node.operands if o is not None]
        free = node.op.name in ERROR_FREE or all(a.dtype.kind != "f" for a in exact)
        settled = free and all(o in self.settled for o in operands)
        noisy = [array if (moved := perturbed(node, array, self.rng)) is None else moved for array in noisy]
        self._check(exact, noisy, hidden)
        if not settled and (node.op.name in STEPS or any(a.dtype.kind != "f" for a in exact)):
            self._check_steps(node, exact)
        for name, a, b in zip(node.outputs, exact, noisy, strict=True):
            self.exact[name], self.noisy[name] = a, b
            if settled:
                self.settled.add(name)

    def _results(self, node: Node, arrays: dict[str, np.ndarray], op: Op | None = None) -> list[np.ndarray]:
        """What a node makes of values of operands; op: or what another op does of them, with its attributes."""
        operands = [None if o is None else arrays[o] for o in node.operands]
        values = {str(name): value for value, name in self.symbols.items()}
        attributes = {k: f64 if v is f32 else bind_attribute(v, values) for k, v in node.attributes.items()}
        with np.errstate(all="ignore"):
            try:
                results = (op or node.op).function(*operands, **attributes)
            except (InputError, ValueError) as error:  # ValueError: symbols that were taken to be other dims
                raise Refused(str(error)) from error
        results = results if isinstance(results, tuple) else (results,)
        return [np.array(r) for r in results]

    def _check(self, exact: list[np.ndarray], noisy: list[np.ndarray], hidden: bool) -> None:
        for a, b in zip(exact, noisy, strict=True):
            if a.size > MOST_ELEMENTS:
                raise Refused("too large")
            if a.dtype.kind != "f":
                if not np.array_equal(a, b) or (a.dtype.kind == "i" and np.abs(a).max(initial=0) > 1e6):
                    raise Refused("integers differ or are large")
                continue
            finite = np.isfinite(a)
            if np.isnan(a).any() or not np.array_equal(a[~finite], b[~finite]) or not (hidden or finite.all()):
                raise Refused("not finite")
            a, b = a[finite], b[finite]
            if np.abs(a).max(initial=0) > LARGEST and not hidden:
                raise Refused("large")
            if (np.abs(a - b) / np.maximum(1, np.abs(a))).max(initial=0) > SENSITIVITY:
                raise Refused("sensitive")

    def _check_steps(self, node: Node, exact: list[np.ndarray]) -> None:
        """Raises Refused when an error of MARGIN in the operands could change a step.

        Numbers that are nearly equal show only in which is less: moved by so much, they are as unequal as before.
        """
        op = OPS["less"] if node.op.name in ("equal", "not_equal") else node.op
        exact = exact if op is node.op else self._results(node, self.exact, op)
        floats = {o for o in node.operands if o is not None and self.exact[o].dtype.kind == "f"}
        for _ in range(4):
            moved = dict(self.exact)
            for name in floats - self.settled:
                sign = self.rng.choice((-1.0, 1.0), self.exact[name].shape)
                moved[name] = self.exact[name] + sign * MARGIN * np.maximum(1, np.abs(self.exact[name]))
            for a, b in zip(exact, self._results(node, moved, op), strict=True):
                stepped = a.dtype.kind != "f" or node.op.name in STEPS
                close = MARGIN * 4 * np.maximum(1, np.abs(a)) if a.dtype.kind == "f" else 0
                if stepped and np.any(np.abs(a.astype(np.float64) - b) > close):
                    raise Refused("close to a step")
