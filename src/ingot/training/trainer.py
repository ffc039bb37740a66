"""Trainer: a model from any source, fitted natively. A step is one C call over planned memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import ingot.ops
from ingot.compile import Compiled, Mode, compile_mode
from ingot.errors import InputError, KindError, bounded
from ingot.feeds import arrays
from ingot.ir import Graph, TensorType
from ingot.load import load_model
from ingot.locks import OwnedLock
from ingot.lower import Target
from ingot.machine import usable_threads
from ingot.run.arena import Arena
from ingot.run.interpret import bind_symbols
from ingot.run.library import load
from ingot.run.native import NativeProgram
from ingot.run.store import WeightStore
from ingot.training import checkpoint
from ingot.training.graph import RATE, TARGET, chosen, training_graph
from ingot.training.optimizers import Optimizer

assert ingot.ops  # the import registers every op

MAX_THREADS = 256  # of a trainer


class Trainer:
    """A model that is fitted step by step.

    source: an nn.Module, an ExportedProgram or a Graph, of one output. loss: "cross_entropy" of logits [..., classes]
    and i64 labels [...], "mse", or "bce" of logits; each the mean over all elements. example_inputs: the model's
    inputs, then the target: every step takes such shapes. optimizer: SGD or AdamW. trainable: names of weights, or
    patterns of names; None for the module's parameters that require gradients, or all float weights. threads: 0 means
    what the machine allows.

    A module is exported in eval mode: dropout does nothing and the statistics of batch norm stay. Its own parameters
    are read once and never written. The loss and the parameters have the same bits for any number of threads and any
    instruction set.

    Raises InputError for options and examples that do not fit and where there is nothing to train, KindError for what
    is no model or loss, UnsupportedError naming every op without a gradient or kernel, and what loading raises.
    Steps of several threads take turns.
    """

    def __init__(
        self,
        source: Any,
        *,
        loss: str = "cross_entropy",
        example_inputs: Sequence[Any],
        optimizer: Optimizer,
        trainable: Sequence[str] | None = None,
        threads: int = 0,
    ):
        if not 0 <= threads <= MAX_THREADS:
            raise InputError(f"option threads: out of range, got {threads}, expected 0..{MAX_THREADS}")
        if len(example_inputs) < 2:
            raise InputError(f"example_inputs: got {len(example_inputs)}, expected the model's inputs and a target")
        self.rate = optimizer.lr
        with bounded(f"source {type(source).__name__}"):
            forward = _loaded(source, tuple(example_inputs[:-1]))
            trained = chosen(forward, _candidates(source, forward), trainable)
            self.graph = training_graph(forward, loss, optimizer, trained)
            self.parameters = [name for name in trained if name in self.graph.states]
            self._ranges = _ranges(self.graph)
            if loss == "cross_entropy":
                self._ranges[TARGET] = 0, _classes(forward)
            self._compile(threads or usable_threads())
        self._turn = OwnedLock("step")
        self._feed(example_inputs)

    def _compile(self, threads: int) -> None:
        self.compiled: Compiled = compile_mode(self.graph, Target(load().isa(), threads), Mode("train"))
        lowered, plan = self.compiled.native
        segment = self.compiled.segments[0].graph
        self._native = NativeProgram(segment, lowered, plan, WeightStore(threads), Arena())
        self._states = {t.name: self._native.tensor(t.id) for t in lowered.tensors.values() if t.kind == "state"}
        self._loss = np.zeros((), np.float32)
        self._half_trained = ""  # why states are those of no step, or ""

    def step(self, *inputs: Any) -> float:
        """One step: the loss of these inputs, the last of them the target, before their step is taken.

        The rate of the step is `rate`. Raises InputError for other shapes or dtypes than those of the example, labels
        that are no class, and an input of indices outside a table; then nothing has been trained. So does an index that
        the model itself computes; then a step is half done, and everything but `load` raises InputError.
        """
        fed = self._feed(inputs)
        with self._turn.once():
            self._expect_whole()
            try:
                self._native.run_into(fed, [self._loss])
            except InputError as error:
                self._half_trained = str(error)
                raise
            return float(self._loss)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters that are trained, by name."""
        with self._turn.once():
            self._expect_whole()
            return {name: self._states[name].copy() for name in self.parameters}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a checkpoint, whole or not at all: parameters and the optimiser's states. Raises OutputError."""
        with self._turn.once():
            self._expect_whole()
            checkpoint.write(path, self.graph, self._states)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on from a checkpoint, with the bits that the run it is of would have had.

        Raises LoadError for what is no checkpoint, is damaged, or is of another trainer; then nothing has changed.
        """
        found = checkpoint.read(path, self.graph)
        with self._turn.once():
            for name, array in found.items():
                self._states[name][...] = array
            self._half_trained = ""

    def _expect_whole(self) -> None:
        if self._half_trained:
            raise InputError(f"trainer: a step is half done, got {self._half_trained}, expected a checkpoint to load")

    def _feed(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        """The arrays of a run, in the graph's order."""
        names = [name for name in self.graph.inputs if name != RATE]
        if len(inputs) != len(names):
            raise InputError(f"inputs: got {len(inputs)}, expected {len(names)}: {', '.join(names)}")
        rate = np.array(self.rate, np.float64)
        feeds: Mapping[str, Any] = arrays(self.graph, dict(zip(names, inputs, strict=True)) | {RATE: rate})
        bind_symbols(self.graph, feeds)
        for name, (low, high) in self._ranges.items():
            bad = feeds[name][(feeds[name] < low) | (feeds[name] >= high)]
            if bad.size:
                raise InputError(f"input {name!r}: index out of range, got {bad.flat[0]}, expected {low}..{high - 1}")
        return [np.require(feeds[name], requirements=("C", "A")) for name in self.graph.inputs]


def _loaded(source: Any, example_inputs: tuple[Any, ...]) -> Graph:
    """The graph of a source, its symbols bound to what the examples say."""
    if isinstance(source, Graph):
        graph: Any = source.copy()
    elif hasattr(source, "named_parameters"):
        graph = load_model(source, _as_tensors(example_inputs)).graph
    else:  # other loaders make constants of small weights, and these would silently stay as they are
        name = type(source).__name__
        raise KindError(f"source: cannot be trained, got {name}, expected a module, an ExportedProgram or a Graph")
    if len(graph.inputs) != len(example_inputs):
        raise InputError(
            f"example_inputs: got {len(example_inputs)} and a target, expected {len(graph.inputs)}: "
            f"{', '.join(graph.inputs)}"
        )
    feeds = arrays(graph, dict(zip(graph.inputs, example_inputs, strict=True)))
    symbols = bind_symbols(graph, feeds)
    graph = graph.bind(symbols)
    unknown = [name for name, value in graph.values.items() if not _is_static(value.type)]
    if unknown:
        raise KindError(f"source: shapes depend on data, got {unknown[:20]}, expected known ones")
    return graph


def _as_tensors(example_inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arrays as what a module is exported with, where there may be one."""
    torch = sys.modules.get("torch")
    if torch is None:
        return example_inputs
    return tuple(torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in example_inputs)


def _is_static(type: Any) -> bool:
    return isinstance(type, TensorType) and type.is_static


def _candidates(source: Any, graph: Graph) -> list[str]:
    """The weights of a graph that are there to be trained."""
    weights = [name for name, value in graph.values.items() if value.kind == "weight"]
    if hasattr(source, "named_parameters"):  # nn.Module and ExportedProgram: what is no parameter is a buffer
        wanted = {name for name, parameter in source.named_parameters() if parameter.requires_grad}
        return [name for name in weights if name in wanted]
    return [name for name in weights if graph.type(name).dtype.kind == "f"]


def _classes(graph: Graph) -> int:
    """How many classes a graph's logits are of."""
    (prediction,) = graph.outputs.values()
    return graph.type(prediction).dims[-1]


_INDEXED = {"gather", "gather_elements", "scatter_elements"}  # along `axis` of the first operand, by the second


def _ranges(graph: Graph) -> dict[str, tuple[int, int]]:
    """The inputs that are indices, with the least that each may be and one past the largest."""
    found: dict[str, tuple[int, int]] = {}
    for node in graph.nodes:
        if node.op.name not in _INDEXED:
            continue
        table, name = str(node.operands[0]), str(node.operands[1])
        while (maker := graph.producer(name)) is not None and (maker.op.view or maker.op.name == "cast"):
            name = str(maker.operands[0])
        if name in graph.inputs and graph.type(name).dtype.kind == "i":
            size = min(graph.type(table).dims[node.axis], found.get(name, (0, 2**63))[1])
            found[name] = -size, size
    return found
