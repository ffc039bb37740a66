"""Trainer: trains a model from any source natively. A step is one C call over planned memory."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

import ingot.ops
from ingot.compile import Compiled
from ingot.errors import InputError, KindError, bounded
from ingot.ir.graph import Graph
from ingot.passes.precision import F32
from ingot.run.interpret import bind_symbols
from ingot.session.inputs import arrays
from ingot.support import html
from ingot.support.collector import uncollected
from ingot.support.columns import counted, table
from ingot.support.config import check
from ingot.support.locks import OwnedLock
from ingot.support.machine import byte_number
from ingot.training import checkpoint
from ingot.training.adapters import Lora
from ingot.training.budget import EVALUATE, GRADIENTS, METRICS, TRAIN, UPDATE, step_target, training_graphs
from ingot.training.change import Change
from ingot.training.diagnosis import first_nonfinite, subgraph_of
from ingot.training.graph import (
    LOSS,
    PART,
    RATE,
    TARGET,
    forward_graph,
    gradient_graph,
    gradient_name,
    loss_graph,
    moving_statistics,
    step_passes,
    trained_graph,
    update_graph,
)
from ingot.training.losses import CrossEntropy, loss_of
from ingot.training.optimizers import STEP, Optimizer
from ingot.training.programs import TrainingPrograms
from ingot.training.ranges import expect_positive, expect_range, expect_whole
from ingot.training.schedules import Schedule, rate_at
from ingot.training.sources import batch_part, expect_parts, load_trained, state_bytes, trained_weights

if TYPE_CHECKING:
    from ingot.emit.c import Emission
    from ingot.load import ModelSource
    from ingot.load.hf import Folder
    from ingot.ort.session import InferenceSession

assert ingot.ops  # the import registers every op

MAX_THREADS = 256  # of a trainer
MAX_SEED = 2**63 - 1  # of dropout
_CHECKED_STEPS = 3  # steps of the self-check of emitted C


class Trainer:
    """Trains a model step by step.

    source: an nn.Module, an ExportedProgram, ONNX (a path or bytes), the folder of a language model (a path, or the
    result of `read_model`), whose input is ids i64[batch, length], or a Graph; with one output, unless `prediction`
    names the value to compute the loss of, such as logits before a softmax. loss: "cross_entropy" of logits [...,
    classes] and i64 labels [...], or a `CrossEntropy` with settings, "mse", or "bce" of logits; each is the mean over
    all elements.
    example_inputs: the model's inputs, then the target; every step has these shapes. optimizer: SGD or AdamW.
    trainable: names of weights, or patterns of names, or `ingot.lora(...)`; None for the module's parameters that
    require gradients, or all float weights. clip: the maximum norm of all gradients together. accumulate: the number of
    equal parts, along the first axis, into which a step splits its inputs; they run one after another, and memory is
    planned for one part. memory: the most bytes that steps may use, such as "2GB"; activations are then recomputed, as
    few as possible, and `trade` describes the result. seed: of dropout. precision: "f32", or "bf16" or "bf16amx", with
    which steps round both operands of matrix products for the CPU's dot products; sums, parameters and the optimizer's
    states stay f32. threads: 0 means as many as the machine allows.

    For a module in training mode, steps apply dropout, including dropout of attention weights, whose masks depend only
    on the seed, the step, the node and the element; batch norms in training mode use the statistics of the batch and
    update the running ones. The module's own parameters are read once and never written. The loss and the parameters
    have the same bits for any number of threads and, in f32, any instruction set.

    Raises InputError for options and examples that do not fit and if there is nothing to train, KindError for arguments
    of another type, LimitError if no step fits the memory, UnsupportedError naming every op without a gradient or
    kernel, and the errors of loading. Steps of several threads are serialized.
    """

    @uncollected()
    def __init__(
        self,
        source: ModelSource | Folder,
        *,
        loss: str | CrossEntropy = "cross_entropy",
        example_inputs: Sequence[Any],
        optimizer: Optimizer,
        trainable: Sequence[str] | Lora | None = None,
        prediction: str | None = None,
        clip: float | None = None,
        accumulate: int = 1,
        memory: str | int | None = None,
        seed: int = 0,
        precision: str = F32.name,
        threads: int = 0,
    ):
        expect_whole("option seed", seed, 0, MAX_SEED)
        expect_whole("option threads", threads, 0, MAX_THREADS)
        if clip is not None:
            expect_positive("option clip", clip)
        if not isinstance(optimizer, Optimizer):
            raise KindError(f"optimizer: got a {type(optimizer).__name__}, expected an ingot.AdamW or ingot.SGD")
        _expect_examples(example_inputs)
        expect_parts(example_inputs, accumulate)
        self.optimizer = optimizer
        self._accumulate, self._clip, self._loss_name = accumulate, clip, loss
        self._budget = None if memory is None else byte_number(memory)
        self._schedule: float | Schedule = optimizer.lr
        self._seed = seed
        self._step_lock = OwnedLock("step")
        self.losses: list[float] = []  # of the steps of this object, in order
        target, self._precision = step_target(precision, threads)
        example = batch_part(example_inputs, 0, accumulate)
        self._programs = TrainingPrograms(target)
        # The size of the states is known in advance only without names of weights and without a budget.
        is_known = trainable is None and memory is None and target.threads > 1
        expected = state_bytes(source, optimizer.kept + (accumulate > 1), target.alignment) if is_known else 0
        with bounded(f"source {type(source).__name__}"), self._programs.state.expecting("state", expected):
            self._forward, candidates = load_trained(
                source, tuple(example[:-1]), prediction, is_named=trainable is not None
            )
            self._trained, self.adapters = trained_weights(self._forward, candidates, trainable)
            graphs, self.trade = training_graphs(
                self._forward, loss, optimizer, self._trained, clip, accumulate, target, self._budget, seed,
                self._precision,
            )  # fmt: skip
            self.graph = next(iter(graphs.values()))
            for name, graph in graphs.items():
                self._programs.add(name, graph)
        self.parameters = [name for name in self._trained if name in self.graph.states]
        self._moving = [*moving_statistics(self._forward), *self._forward.states]
        self._ranges = _ranges(self.graph)
        definition = named if isinstance(named := loss_of(loss), CrossEntropy) else loss
        self._ignored = definition.ignore_index if isinstance(definition, CrossEntropy) else None
        if self._ignored is not None:
            self._ranges[TARGET] = 0, _classes(self._forward)
        self._change = Change()  # the last change of states; it may have been interrupted
        self._settings = repr((definition, self._trained, replace(optimizer, lr=0.0), clip, seed, precision))
        self._feed(example)

    def __repr__(self) -> str:
        parameters = counted(len(self.parameters), "parameter")
        return f"<Trainer: {counted(self.steps, 'step')}, {parameters}, {self.optimizer}>"

    def __str__(self) -> str:
        return table(repr(self), [(name, str(self.graph.values[name].type)) for name in self.parameters])

    def _repr_html_(self) -> str:
        losses = [loss for loss in self.losses if math.isfinite(loss)]
        if not losses:
            return html.title(repr(self))
        caption = f"{counted(len(losses), 'loss', 'losses')} from {losses[0]:.4g} to {losses[-1]:.4g}"
        return html.curve(repr(self), losses, caption)

    @property
    def compiled(self) -> Compiled:
        """The compiled program of a step, or with accumulation of the gradients of a part."""
        return next(iter(self._programs.compiled.values()))

    @property
    def steps(self) -> int:
        """The number of steps done."""
        return int(self._programs.states[STEP])

    @property
    def rate(self) -> float:
        """The learning rate of the next step. Setting it fixes the rate of all later steps.

        Raises InputError for a negative or infinite rate, and KindError for a value that is not a number.
        """
        return rate_at(self._schedule, self.steps)

    @rate.setter
    def rate(self, value: float) -> None:
        expect_range("rate", value)
        self._schedule = float(value)

    def step(self, *inputs: Any) -> float:
        """Do one step; return the loss of the inputs before the update. The last input is the target.

        The learning rate is `rate`. Raises InputError for shapes or dtypes that differ from the example, labels outside
        the classes or all ignored, and input indices outside a table; then no state has changed. It is also raised for
        an index out of range that the model itself computes, and for a loss that is not finite: with accumulation no
        state has changed; otherwise the step is incomplete, and all methods except `load` raise InputError.
        """
        fed_parts = self._parts(inputs)
        with self._step_lock.once():
            self._expect_whole()
            loss = self._stepped(fed_parts)
            self.losses.append(loss)
            return loss

    def evaluate(self, *inputs: Any) -> float:
        """Return the loss of inputs, without training. The last input is the target. Raises the errors of `step`."""
        return self._measured(EVALUATE, inputs)[LOSS]

    def metrics(self, *inputs: Any) -> dict[str, float]:
        """Return the "loss" of inputs, as `evaluate`, and a metric.

        The metric is "accuracy", the share of labels with the largest logit, or for "bce" of logits with the right
        sign; for "mse" it is "mean_absolute_error".
        """
        return self._measured(METRICS, inputs)

    def gradients(self, *inputs: Any) -> tuple[float, dict[str, np.ndarray]]:
        """Return the loss of inputs and the gradients of the parameters, by name. The parameters do not change.

        Running statistics of batch norms are updated: `gradients` and `apply` together are one step. Raises the errors
        of `step`; then no state has changed.
        """
        fed_parts = self._parts(inputs)
        with self._step_lock.once():
            self._expect_whole()
            self._add_gradients()
            try:
                loss = self._sum_gradients(fed_parts)
                found = {name: total.copy() for name, total in self._totals().items()}
                self._change.codes.append(0)
            finally:
                self._settle()
            return loss, found

    def apply(self, gradients: Mapping[str, Any]) -> None:
        """Update the parameters by gradients as `gradients` returns them, such as averages over several trainers.

        Raises InputError for other names or shapes and for values that are not arrays, and KindError for another type
        than a mapping; then no state has changed.
        """
        with self._step_lock.once():
            self._expect_whole()
            self._add_gradients()
            totals = self._totals()
            if not isinstance(gradients, Mapping):
                got = type(gradients).__name__
                raise KindError(f"gradients: not a mapping, got {got}, expected {_shapes(totals)}")
            given = {name: _floats(name, value) for name, value in arrays(self.graph, gradients).items()}
            shapes = {name: value.shape for name, value in totals.items()}
            if {name: value.shape for name, value in given.items()} != shapes:
                raise InputError(f"gradients: do not fit, got {_shapes(given)}, expected {_shapes(totals)}")
            for name, total in totals.items():
                total[...] = given[name]
            self._change = Change(step=self.steps + 1)
            self._update()

    def session(self) -> InferenceSession:
        """Return a session that runs the model with the present parameters of this trainer, also after later steps.

        No parameters or frozen weights are copied; the session reads the trainer's memory. Its runs must not overlap
        with steps.
        """
        from ingot.ort.session import InferenceSession
        from ingot.session.source import Shared

        with self._step_lock.once():
            self._settle()
            graph = forward_graph(self._forward, self._trained)
            programs = self._programs
            unpacked = programs.target.unpacked
            offsets, weights = programs.placement.states, programs.weights
            shared = Shared(graph, programs.state, offsets, weights, unpacked, self.snapshot)
        return InferenceSession(shared, threads=programs.target.threads, passes=step_passes())

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the trained parameters, and of statistics and buffers that steps update, by name."""
        with self._step_lock.once():
            self._expect_whole()
            return {name: self._programs.states[name].copy() for name in (*self.parameters, *self._moving)}

    def snapshot(self) -> Graph:
        """Return the model as a graph with the values of `state_dict`, for a session, `export_onnx` or `emit`."""
        return trained_graph(self._forward, self.state_dict())

    def emit_c(
        self,
        folder: str | os.PathLike[str],
        *inputs: Any,
        prefix: str = "train",
        threads: int = 1,
        force: bool = False,
    ) -> Emission:
        """Write a training program in plain C that continues from the present state; return the paths.

        The program reads samples from files. inputs: of a step, with which `make check` does a few steps and compares
        their losses bit by bit; this trainer's state does not change. prefix, threads, force: as in
        `ingot.emit.c.emit`. Raises InputError for another precision than f32, and the errors of `step` and `emit`.
        """
        from ingot.emit.training.program import Checked, emit_training
        from ingot.emit.training.source import Fitting

        if self._precision is not F32:
            raise InputError(f"emit_c: unsupported precision, got {self._precision.name!r}, expected {F32.name!r}")
        fed_parts = self._parts(inputs)
        with self._step_lock.once():
            self._expect_whole()
            before = {name: array.copy() for name, array in self._kept_states().items()}
            rates = np.array([rate_at(self._schedule, self.steps + i) for i in range(_CHECKED_STEPS)])
            try:
                losses = np.array([self._stepped(fed_parts) for _ in rates], np.float32)
            finally:
                self._restore(before)
        first = {"step": self.graph}
        if self._accumulate > 1:
            update = update_graph(self.graph, self.optimizer, self._clip)
            update.set_output("steps", update.states[STEP])
            first = {GRADIENTS: self.graph, UPDATE: update}
        graphs = first | {
            EVALUATE: loss_graph(self._forward, self._loss_name, self._trained),
            "predict": forward_graph(self._forward, self._trained),
        }
        fitting = Fitting(
            RATE, float(rates[0]), STEP, checkpoint.header(self._digest, before), self._digest.tobytes(),
            self._accumulate, PART, {gradient_name(name): total.nbytes for name, total in self._totals().items()},
        )  # fmt: skip
        fed = [*map(np.concatenate, zip(*fed_parts, strict=True)), rates]
        return emit_training(
            graphs, before, fitting, folder, Checked(fed, losses), prefix=prefix, threads=threads, force=force
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint atomically: parameters and the optimizer's states. Raises OutputError, ResourceError."""
        with self._step_lock.once(), bounded(os.fspath(path)):
            self._expect_whole()
            checkpoint.write(path, self._digest, self._kept_states())

    def load(self, path: str | os.PathLike[str], *, most: int | None = None) -> None:
        """Continue from a checkpoint; later steps have the same bits as in the original run.

        most: the largest number of steps that the checkpoint may have. Raises MissingFileError for a missing file;
        LoadError for a file that is no checkpoint, truncated, or of another trainer; InputError for a checkpoint with
        more steps; ResourceError when out of memory or files. Then no state has changed.
        """
        with self._step_lock.once(), bounded(os.fspath(path)):
            self._settle()
            states = checkpoint.read(path, self._digest, self._kept_states())
            if most is not None and states[STEP] > most:
                raise InputError(f"{os.fspath(path)}: too many steps, got {int(states[STEP])}, expected at most {most}")
            self._restore(states)

    @cached_property
    def _digest(self) -> np.ndarray:
        """The digest in checkpoints. It is computed on first use, because it reads all frozen weights."""
        return checkpoint.digest(self._forward, [*self._trained, *self._moving], self._settings)

    # -- inside -------------------------------------------------------------------------------------------------

    def _add_gradients(self) -> None:
        """Compile the programs that sum gradients and that update by them, if that is not done yet."""
        if GRADIENTS not in self._programs:
            settings = self._accumulate, self._seed, self._precision
            graph = gradient_graph(self._forward, self._loss_name, self._trained, *settings)
            self._programs.add(GRADIENTS, graph)
            self._programs.add(UPDATE, update_graph(graph, self.optimizer, self._clip))

    def _measured(self, program: str, inputs: Sequence[Any]) -> dict[str, float]:
        """Return the outputs of a program for a batch, averaged over its parts."""
        fed_parts = self._parts(inputs)
        with self._step_lock.once():
            self._expect_whole()
            if program not in self._programs:
                is_metric = program == METRICS
                graph = loss_graph(self._forward, self._loss_name, self._trained, with_metric=is_metric)
                self._programs.add(program, graph)
            names = list(self._programs.compiled[program].graph.outputs)
            sums, results = dict.fromkeys(names, 0.0), [np.zeros((), np.float32) for _ in names]
            for fed in fed_parts:
                self._programs.run(program, fed, results)
                for name, result in zip(names, results, strict=True):
                    sums[name] += float(result) / self._accumulate
            return sums

    def _restore(self, states: Mapping[str, np.ndarray]) -> None:
        """Set the states to the given values."""
        self._change = Change(states)
        self._settle()
        self._change = Change()

    def _settle(self) -> None:
        """Restore the states after a change that is incomplete, for example because a call was interrupted."""
        self._programs.follow()
        self._change.settle(self._programs.states)

    def _kept_states(self) -> dict[str, np.ndarray]:
        """Return the states that persist between steps."""
        sums = {gradient_name(name) for name in self._trained}
        return {name: array for name, array in self._programs.states.items() if name not in sums}

    def _totals(self) -> dict[str, np.ndarray]:
        """Return the sums of gradients by parameter."""
        states = self._programs.states
        return {name: states[gradient_name(name)] for name in self._trained if gradient_name(name) in states}

    def _sum_gradients(self, fed_parts: Sequence[list[np.ndarray]]) -> float:
        """Sum the gradients of the parts of a batch; return their mean loss.

        It begins a change, because running statistics are updated: the caller completes it or restores the states.
        """
        previous = {name: self._programs.states[name].copy() for name in self._moving}
        self._change = Change(previous, step=self.steps + 1)
        for total in self._totals().values():
            total.fill(0)
        loss, part_loss = 0.0, np.zeros((), np.float32)
        for number, fed in enumerate(fed_parts):
            part = [np.array(number, np.float64)] if PART in self.graph.inputs else []
            before = self._states_read()
            self._programs.run(GRADIENTS, [*fed, *part], [part_loss])
            loss += self._number(part_loss, self.steps + 1, [*fed, *part], before) / self._accumulate
        return loss

    def _update(self) -> None:
        """Complete a change: update the parameters by the sums of gradients."""
        self._programs.run(UPDATE, [self._rate()], [], self._change.codes)

    def _stepped(self, fed_parts: Sequence[list[np.ndarray]]) -> float:
        """Do a step; return its loss."""
        if self._accumulate == 1:
            return self._stepped_at_once(fed_parts[0])
        try:
            loss = self._sum_gradients(fed_parts)
            self._update()
        finally:
            self._settle()
        return loss

    def _stepped_at_once(self, fed: list[np.ndarray]) -> float:
        """Do a step in one run; return its loss."""
        before = self._states_read()
        self._change = change = Change(step=self.steps + 1)
        self._programs.run(TRAIN, [*fed, self._rate()], [change.loss], change.codes)
        return self._number(change.loss, self.steps, fed, before)

    @cached_property
    def _loss_part(self) -> Graph:
        """The part of a step's graph that computes the loss."""
        return subgraph_of(self.graph, LOSS)

    def _states_read(self) -> dict[str, np.ndarray]:
        """Return copies of the states that the next loss depends on, for `_number`; empty without INGOT_CHECK."""
        if not check():
            return {}
        return {
            name: self._programs.states[name].copy() for name in self._loss_part.states if self._loss_part.users(name)
        }

    def _number(self, found: np.ndarray, step: int, fed: list[np.ndarray], before: dict[str, np.ndarray]) -> float:
        """Return the loss of a step as a number. Raises InputError if it is not finite.

        Under INGOT_CHECK the error names the first node with such a value, found from the inputs and earlier states.
        """
        loss = float(found)
        if math.isfinite(loss):
            return loss
        why = "INGOT_CHECK=1 finds the node that computed it"
        if check():
            names = [name for name in self._loss_part.inputs if name != RATE]
            own = {RATE: self._rate()} if RATE in self._loss_part.inputs else {}
            why = first_nonfinite(self._loss_part, dict(zip(names, fed, strict=True)) | own | before, loss)
        raise InputError(f"step {step}: the loss is {loss}, {why}, expected a number")

    def _rate(self) -> np.ndarray:
        return np.array(self.rate, np.float64)

    def _expect_whole(self) -> None:
        self._settle()
        if fault := self._change.fault:
            raise InputError(f"trainer: a step is incomplete, got {fault}, expected a checkpoint to load")

    def _parts(self, inputs: Sequence[Any]) -> list[list[np.ndarray]]:
        """Return the arrays of each part of a batch."""
        if self._accumulate == 1:
            return [self._feed(inputs)]
        expect_parts(inputs, self._accumulate)
        return [self._feed(batch_part(inputs, i, self._accumulate)) for i in range(self._accumulate)]

    def _feed(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        """Return the checked arrays of a run, in the graph's order."""
        own = {RATE: self._rate(), PART: np.zeros((), np.float64)}
        names = [name for name in self.graph.inputs if name not in own]
        if len(inputs) != len(names):
            raise InputError(f"inputs: got {len(inputs)}, expected {len(names)}: {', '.join(names)}")
        given = {name: value for name, value in own.items() if name in self.graph.inputs}
        feeds: Mapping[str, Any] = arrays(self.graph, dict(zip(names, inputs, strict=True)) | given)
        bind_symbols(self.graph, feeds)
        for name, (low, high) in self._ranges.items():
            bad = feeds[name][(feeds[name] < low) | (feeds[name] >= high)]
            if name == TARGET and (feeds[name] == self._ignored).all():
                raise InputError(f"input {name!r}: every label is ignored, got only {self._ignored}, expected another")
            bad = bad[bad != self._ignored] if name == TARGET else bad
            if bad.size:
                raise InputError(f"input {name!r}: index out of range, got {bad.flat[0]}, expected {low}..{high - 1}")
        return [np.require(feeds[name], requirements=("C", "A")) for name in names]


def _expect_examples(example_inputs: Any) -> None:
    """Raise KindError for another type than a list; InputError without a target, for an empty target or non-arrays."""
    if isinstance(example_inputs, str) or not isinstance(example_inputs, Sequence):
        got = type(example_inputs).__name__
        raise KindError(f"example_inputs: not a list, got {got}, expected the model's inputs and a target")
    if len(example_inputs) < 2:
        raise InputError(f"example_inputs: got {len(example_inputs)}, expected the model's inputs and a target")
    try:
        shapes = [np.shape(x) for x in example_inputs]
    except ValueError as error:
        raise InputError(f"example_inputs: not arrays, {error}, expected arrays or tensors") from error
    if 0 in shapes[-1]:
        shape = list(shapes[-1])
        raise InputError(f"example_inputs: an empty batch, got a target {shape}, expected at least one element")


def _floats(name: str, gradient: Any) -> np.ndarray:
    try:
        return np.asarray(gradient, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"gradients: not numbers for {name!r}, {error}, expected an array of numbers") from error


def _shapes(found: Mapping[str, np.ndarray]) -> str:
    shown = [f"{name} {list(array.shape)}" for name, array in list(found.items())[:20]]
    return ", ".join(shown) or "none"


def _classes(graph: Graph) -> int:
    """Return the number of classes of a graph's logits."""
    (prediction,) = graph.outputs.values()
    return graph.type(prediction).dims[-1]


_PASSED = {"cast", "checked_index"}  # ops between an input and the op that uses it as indices
_INDEXED = {"gather", "gather_elements", "scatter_elements"}  # along `axis` of the first operand, by the second


def _ranges(graph: Graph) -> dict[str, tuple[int, int]]:
    """Return the range of each input of indices: least value and one past the largest."""
    found: dict[str, tuple[int, int]] = {}
    for node in graph.nodes:
        if node.op.name not in _INDEXED:
            continue
        table, name, wraps = str(node.operands[0]), str(node.operands[1]), True
        while (producer := graph.producer(name)) is not None and (producer.op.view or producer.op.name in _PASSED):
            name, wraps = str(producer.operands[0]), wraps and producer.op.name != "checked_index"
        if name in graph.inputs and graph.type(name).dtype.kind == "i":
            low, high = found.get(name, (-(2**63), 2**63))
            size = graph.type(table).dims[node.axis]
            found[name] = max(low, -size if wraps else 0), min(high, size)
    return found
