"""Measurement of all kernels that can compute one op on one shape, to check the kernel that lowering chooses."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ingot.compile import compile_segment
from ingot.errors import ShapeError
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph, Node, TensorType
from ingot.lower import step_cost
from ingot.lower.cost import Cost
from ingot.lower.cpu import CPU, KERNEL_RULES
from ingot.lower.cpu.kernel_rules import accept
from ingot.lower.selection import KernelRule, Selection
from ingot.lower.target import Target
from ingot.run.arena import Arena
from ingot.run.native import NativeProgram
from ingot.run.store import WeightStore

ROUNDS = 11
MAX_ELEMENTS = 1 << 29  # of one tensor


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of op to measure. numbers: the names of the numbers of its shape; add: adds the op for these numbers."""

    numbers: tuple[str, ...]
    add: Callable[..., Node]

    def graph(self, shape: Sequence[int]) -> Graph:
        """Return a graph of one node with random weights. Raises ShapeError if the numbers are inconsistent."""
        assert len(shape) == len(self.numbers)
        graph = Graph("one_op")
        graph.set_output("y", self.add(graph, *shape).outputs[0])
        return graph


def _type(name: str, shape: tuple[int, ...]) -> TensorType:
    type = TensorType(f32, shape)
    if type.size > MAX_ELEMENTS:
        raise ShapeError(f"{name}: too large, got {type}, expected at most {MAX_ELEMENTS} elements")
    return type


def _input(graph: Graph, name: str, *shape: int) -> str:
    return graph.add_input(name, _type(name, shape))


def _weight(graph: Graph, name: str, *shape: int) -> str:
    data = np.random.default_rng(1).standard_normal(_type(name, shape).dims, np.float32)
    return graph.add_weight(name, data)


def _gemm(graph: Graph, m: int, k: int, n: int) -> Node:
    return graph.add("matmul", [_input(graph, "x", m, k), _weight(graph, "w", k, n)])


def _attention(causal: bool) -> Callable[..., Node]:
    def add(graph: Graph, batch: int, heads: int, rows: int, keys: int, width: int) -> Node:
        q = _input(graph, "q", batch, heads, rows, width)
        k, v = (_input(graph, name, batch, heads, keys, width) for name in "kv")
        offset = keys - rows if causal else 0
        return graph.add("attention", [q, k, v], scale=width**-0.5, causal=causal, causal_offset=offset)

    return add


def _conv(
    graph: Graph, channels: int, height: int, width: int, out_channels: int, kernel: int, stride: int, groups: int
) -> Node:
    x = _input(graph, "x", 1, channels, height, width)
    w = _weight(graph, "w", out_channels, channels // groups, kernel, kernel)
    pad = kernel // 2
    return graph.add("conv", [x, w], strides=(stride, stride), pads=(pad,) * 4, dilations=(1, 1), groups=groups)


def _softmax(graph: Graph, rows: int, cols: int) -> Node:
    return graph.add("softmax", [_input(graph, "x", rows, cols)], axis=1)


def _layer_norm(graph: Graph, rows: int, cols: int) -> Node:
    operands = [_input(graph, "x", rows, cols), _weight(graph, "w", cols), _weight(graph, "b", cols)]
    return graph.add("layer_norm", operands, eps=1e-5)


_ATTENTION = ("BATCH", "HEADS", "ROWS", "KEYS", "WIDTH")
FAMILIES = {
    "gemm": Family(("M", "K", "N"), _gemm),
    "attention": Family(_ATTENTION, _attention(False)),
    "attention-causal": Family(_ATTENTION, _attention(True)),
    "conv": Family(("CHANNELS", "HEIGHT", "WIDTH", "OUT_CHANNELS", "KERNEL", "STRIDE", "GROUPS"), _conv),
    "softmax": Family(("ROWS", "COLS"), _softmax),
    "layer_norm": Family(("ROWS", "COLS"), _layer_norm),
}


@dataclass(slots=True)
class Candidate:
    """A kernel on one instruction set, ready to run. rounds: nanoseconds of its steps, one number per round."""

    kernel: str
    isa: str
    program: NativeProgram
    chosen: bool
    rounds: list[float] = field(default_factory=list)

    @property
    def steps(self) -> list[int]:
        """The indices of this kernel's steps: a kernel rule may also emit copies."""
        return [i for i, step in enumerate(self.program.plan.steps) if step.kernel == self.kernel]

    @property
    def parts(self) -> int:
        """The largest number of tasks of its steps."""
        return max(self.program.plan.steps[i].parts for i in self.steps)

    @property
    def cost(self) -> Cost:
        """The cost of its steps."""
        lowered = self.program.lowered
        costs = [step_cost(lowered, self.program.plan.steps[i]) for i in self.steps]
        return Cost(*(sum(getattr(c, name) for c in costs) for name in ("flops", "weight_bytes", "other_bytes")))

    @property
    def nanoseconds(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.rounds)

    def measure(self, inputs: Sequence[np.ndarray], runs: int) -> float:
        """Return the median nanoseconds of `runs` runs, after one more run that loads the data into the caches."""
        times = self.program.profile(inputs, runs + 1)[1:, self.steps]
        return float(np.median(times.sum(1)))


@dataclass(frozen=True, slots=True)
class Candidates:
    """The kernels that can compute a graph of one node, and the reasons why others were refused."""

    able: tuple[Candidate, ...]
    refused: tuple[tuple[str, str], ...]
    inputs: tuple[np.ndarray, ...]

    @staticmethod
    def of(graph: Graph, isas: Iterable[str], threads: int) -> Candidates:
        """Compile each kernel for each instruction set; lowering would choose the last of `isas`."""
        weights, generator = WeightStore(), np.random.default_rng(0)
        inputs = tuple(generator.standard_normal(graph.type(name).dims, np.float32) for name in graph.inputs)
        (node,) = graph.nodes
        able, refused = [], []
        names = list(isas)
        selection = Selection(graph, Target(names[-1], threads), CPU)
        choice = selection.ask(node).row
        for rule in KERNEL_RULES[node.op.name]:
            reason = selection.refusal(rule, node)
            if reason:
                refused.append((rule.kernel, reason))
                continue
            for isa in names:
                program = _compile(graph, rule, Target(isa, threads), weights)
                able.append(Candidate(rule.kernel, isa, program, rule is choice and isa == names[-1]))
        return Candidates(tuple(able), tuple(refused), inputs)

    def measure(self, seconds: float, rounds: Iterable[int] = range(ROUNDS)) -> None:
        """Fill `rounds` of every candidate, interleaved, in about `seconds` seconds."""
        share = 1e9 * seconds / len(self.able) / ROUNDS
        runs = [max(1, round(share / c.measure(self.inputs, 1)) - 1) for c in self.able]
        for _ in rounds:
            for candidate, count in zip(self.able, runs, strict=True):
                candidate.rounds.append(candidate.measure(self.inputs, count))


def _compile(graph: Graph, rule: KernelRule, target: Target, weights: WeightStore) -> NativeProgram:
    """Compile a graph of one node with the given kernel rule only, even if lowering would avoid it."""
    backend = replace(CPU, rules=KERNEL_RULES | {rule.op: [replace(rule, avoid=accept, misplaced=accept)]})
    segment = compile_segment(graph, target, backend=backend)
    assert segment.native is not None
    return NativeProgram(segment.graph, *segment.native, weights, Arena())
