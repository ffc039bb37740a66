"""Trainer: a model from any source, fitted natively. A step is one C call over planned memory."""

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
from ingot.support.collector import uncollected
from ingot.support.columns import counted, table
from ingot.support.config import check
from ingot.support.locks import OwnedLock
from ingot.support.machine import byte_number
from ingot.training import checkpoint
from ingot.training.adapters import Lora
from ingot.training.budget import EVALUATE, GRADIENTS, METRICS, TRAIN, UPDATE, step_target, training_graphs
from ingot.training.change import Change
from ingot.training.diagnosis import first_bad, way_to
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
_CHECKED_STEPS = 3  # that emitted C takes to check itself


class Trainer:
    """A model that is fitted step by step.

    source: an nn.Module, an ExportedProgram, ONNX (a path or bytes), the folder of a language model (a path, or what
    `read_model` gives), which takes ids i64[batch, length], or a Graph; of one output, unless `prediction` says which
    value the loss is of, such as logits before a softmax. loss: "cross_entropy" of logits [..., classes] and i64 labels
    [...], or a `CrossEntropy` with settings, "mse", or "bce" of logits; each the mean over all elements.
    example_inputs: the model's inputs, then the target: every step takes such shapes. optimizer: SGD or AdamW.
    trainable: names of weights, or patterns of names, or `ingot.lora(...)`; None for the module's parameters that
    require gradients, or all float weights. clip: the most that the norm of all gradients together may be. accumulate:
    in how many equal parts along the first axis a step takes its inputs, one after another; memory is planned for one
    of them. memory: the most bytes that steps may take, such as "2GB": activations are then computed again, as few as
    must be; `trade` says which. seed: what dropout draws from. precision: "f32", or "bf16" or "bf16amx", by which steps
    round both operands of matrix products for the CPU's dot products; sums, parameters and what the optimiser keeps
    stay f32. threads: 0 means what the machine allows.

    Of a module in training mode, dropout is done in steps, that of attention's weights too, which the seed, the step,
    the node and the element alone decide; batch norms in training mode divide by what they find in a batch, and
    move their statistics. Its own parameters are read once and never written. The loss and the parameters have the same
    bits for any number of threads and, in f32, any instruction set.

    Raises InputError for options and examples that do not fit and where there is nothing to train, KindError for what
    is no model, loss, optimiser or number, LimitError where no steps fit the memory, UnsupportedError naming every op
    without a gradient or kernel, and what loading raises. Steps of several threads take turns.
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
        self._turn = OwnedLock("step")
        target, self._precision = step_target(precision, threads)
        example = batch_part(example_inputs, 0, accumulate)
        self._programs = TrainingPrograms(target)
        # Where names say what is trained, or a budget what fits, nobody knows yet.
        is_told = trainable is None and memory is None and target.threads > 1
        ahead = state_bytes(source, optimizer.kept + (accumulate > 1), target.alignment) if is_told else 0
        with bounded(f"source {type(source).__name__}"), self._programs.state.expecting("state", ahead):
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
        row = named if isinstance(named := loss_of(loss), CrossEntropy) else loss
        self._ignored = row.ignore_index if isinstance(row, CrossEntropy) else None
        if self._ignored is not None:
            self._ranges[TARGET] = 0, _classes(self._forward)
        self._change = Change()  # the last of what states hold; it may have been interrupted
        self._settings = repr((row, self._trained, replace(optimizer, lr=0.0), clip, seed, precision))
        self._feed(example)

    def __repr__(self) -> str:
        parameters = counted(len(self.parameters), "parameter")
        return f"<Trainer: {counted(self.steps, 'step')}, {parameters}, {self.optimizer}>"

    def __str__(self) -> str:
        return table(repr(self), [(name, str(self.graph.values[name].type)) for name in self.parameters])

    @property
    def compiled(self) -> Compiled:
        """What runs a step, or the gradients of a part of one."""
        return next(iter(self._programs.compiled.values()))

    @property
    def steps(self) -> int:
        """How many steps have been taken."""
        return int(self._programs.states[STEP])

    @property
    def rate(self) -> float:
        """The learning rate of the next step. One that is set is that of all steps to come.

        Raises InputError for one that is negative or infinite, and KindError for what is no number.
        """
        return rate_at(self._schedule, self.steps)

    @rate.setter
    def rate(self, value: float) -> None:
        expect_range("rate", value)
        self._schedule = float(value)

    def step(self, *inputs: Any) -> float:
        """One step: the loss of these inputs, the last of them the target, before their step is taken.

        The rate of the step is `rate`. Raises InputError for other shapes or dtypes than those of the example, labels
        that are no class or all ignored, and an input of indices outside a table; then nothing has been trained. So do
        an index that the model itself computes and a loss that is no number; then nothing has been trained where steps
        are taken in parts, else a step is half done, and everything but `load` raises InputError.
        """
        fed_parts = self._parts(inputs)
        with self._turn.once():
            self._expect_whole()
            return self._stepped(fed_parts)

    def evaluate(self, *inputs: Any) -> float:
        """The loss of inputs, the last of them the target; nothing is trained. Raises as `step`."""
        return self._measured(EVALUATE, inputs)[LOSS]

    def metrics(self, *inputs: Any) -> dict[str, float]:
        """As `evaluate`, "loss", and beside it "accuracy", the share of labels that have the largest logit, or for
        "bce" that of logits on the right side of 0; for "mse" it is "mean_absolute_error".
        """
        return self._measured(METRICS, inputs)

    def gradients(self, *inputs: Any) -> tuple[float, dict[str, np.ndarray]]:
        """The loss of inputs, and the gradients of the parameters that it depends on, by name; these stay as they are.

        Statistics of batch norms move, as they do in a step: `gradients` and `apply` together are one. Raises as
        `step`; then nothing has moved.
        """
        fed_parts = self._parts(inputs)
        with self._turn.once():
            self._expect_whole()
            self._add_gradients()
            try:
                loss = self._add_up(fed_parts)
                found = {name: total.copy() for name, total in self._totals().items()}
                self._change.codes.append(0)
            finally:
                self._settle()
            return loss, found

    def apply(self, gradients: Mapping[str, Any]) -> None:
        """The optimiser's step by gradients, as `gradients` gives them: those of several trainers, say, averaged.

        Raises InputError for other names or shapes and what is no array, and KindError for what has no names; then
        nothing has been trained.
        """
        with self._turn.once():
            self._expect_whole()
            self._add_gradients()
            totals = self._totals()
            if not isinstance(gradients, Mapping):
                got = type(gradients).__name__
                raise KindError(f"gradients: names are needed, got {got}, expected {_shapes(totals)}")
            given = {name: _floats(name, value) for name, value in arrays(self.graph, gradients).items()}
            shapes = {name: value.shape for name, value in totals.items()}
            if {name: value.shape for name, value in given.items()} != shapes:
                raise InputError(f"gradients: do not fit, got {_shapes(given)}, expected {_shapes(totals)}")
            for name, total in totals.items():
                total[...] = given[name]
            self._change = Change(step=self.steps + 1)
            self._update()

    def session(self) -> InferenceSession:
        """A session that runs the model with the parameters as they lie here, whatever steps are taken meanwhile.

        Nothing is copied: neither parameters nor frozen matrices that steps read where they lie. Its runs and steps are
        not to overlap.
        """
        from ingot.ort.session import InferenceSession
        from ingot.session.source import Shared

        with self._turn.once():
            self._settle()
            graph = forward_graph(self._forward, self._trained)
            programs = self._programs
            unpacked = programs.target.unpacked
            places, weights = programs.placement.states, programs.weights
            shared = Shared(graph, programs.state, places, weights, unpacked, self.snapshot)
        return InferenceSession(shared, threads=programs.target.threads, passes=step_passes())

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of the parameters that are trained, and of statistics and buffers that batches moved, by name."""
        with self._turn.once():
            self._expect_whole()
            return {name: self._programs.states[name].copy() for name in (*self.parameters, *self._moving)}

    def snapshot(self) -> Graph:
        """The model with copies of what `state_dict` has, in a graph of its own: for a session, `export_onnx` or
        `emit`.
        """
        return trained_graph(self._forward, self.state_dict())

    def emit_c(
        self,
        folder: str | os.PathLike[str],
        *inputs: Any,
        prefix: str = "train",
        threads: int = 1,
        force: bool = False,
    ) -> Emission:
        """Writes what goes on from here as plain C, with a program that takes files of rows; returns the paths.

        inputs: those of a step, with which `make check` takes a few steps and compares their losses to the bit; nothing
        is trained here. prefix, threads, force: as `ingot.emit.c.emit` has them. Raises InputError for
        another precision than f32, and what `step` and `emit` raise.
        """
        from ingot.emit.training.program import Checked, emit_training
        from ingot.emit.training.source import Fitting

        if self._precision is not F32:
            raise InputError(f"emit_c: steps of f32 are written, got {self._precision.name!r}, expected {F32.name!r}")
        fed_parts = self._parts(inputs)
        with self._turn.once():
            self._expect_whole()
            before = {name: array.copy() for name, array in self._kept_states().items()}
            rates = np.array([rate_at(self._schedule, self.steps + i) for i in range(_CHECKED_STEPS)])
            try:
                losses = np.array([self._stepped(fed_parts) for _ in rates], np.float32)
            finally:
                self._go_on(before)
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
        """Writes a checkpoint, whole or not at all: parameters and the optimiser's states. Raises OutputError."""
        with self._turn.once():
            self._expect_whole()
            checkpoint.write(path, self._digest, self._kept_states())

    def load(self, path: str | os.PathLike[str], *, most: int | None = None) -> None:
        """Goes on from a checkpoint, with the bits that the run it is of would have had. most: how many steps it may
        have taken.

        Raises LoadError, MissingFileError where nothing is, for what is no checkpoint, is cut short, or is of another
        trainer, and InputError for one of more steps; then nothing has changed.
        """
        with self._turn.once():
            self._settle()
            states = checkpoint.read(path, self._digest, self._kept_states())
            if most is not None and states[STEP] > most:
                raise InputError(f"{os.fspath(path)}: too many steps, got {int(states[STEP])}, expected at most {most}")
            self._go_on(states)

    @cached_property
    def _digest(self) -> np.ndarray:
        """What checkpoints are known by. It reads all frozen weights, so it waits for the first that asks."""
        return checkpoint.digest(self._forward, [*self._trained, *self._moving], self._settings)

    # -- inside -------------------------------------------------------------------------------------------------

    def _add_gradients(self) -> None:
        """Compiles what adds up gradients and what takes a step by them, where that is not done yet."""
        if GRADIENTS not in self._programs:
            settings = self._accumulate, self._seed, self._precision
            graph = gradient_graph(self._forward, self._loss_name, self._trained, *settings)
            self._programs.add(GRADIENTS, graph)
            self._programs.add(UPDATE, update_graph(graph, self.optimizer, self._clip))

    def _measured(self, program: str, inputs: Sequence[Any]) -> dict[str, float]:
        """The outputs of a program over a batch: means of those of its parts."""
        fed_parts = self._parts(inputs)
        with self._turn.once():
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

    def _go_on(self, states: Mapping[str, np.ndarray]) -> None:
        """Goes on from what lasted from step to step."""
        self._change = Change(states)
        self._settle()
        self._change = Change()

    def _settle(self) -> None:
        """Brings states into order after a change that was not made, be it that a call was interrupted."""
        self._programs.follow()
        self._change.settle(self._programs.states)

    def _kept_states(self) -> dict[str, np.ndarray]:
        """What lasts from step to step."""
        passing = {gradient_name(name) for name in self._trained}
        return {name: array for name, array in self._programs.states.items() if name not in passing}

    def _totals(self) -> dict[str, np.ndarray]:
        """Where gradients are added up, by parameter."""
        states = self._programs.states
        return {name: states[gradient_name(name)] for name in self._trained if gradient_name(name) in states}

    def _add_up(self, fed_parts: Sequence[list[np.ndarray]]) -> float:
        """Begins a change: adds up the gradients of the parts of a batch; their mean loss. Statistics move, for the
        change to be made or settled.
        """
        moved = {name: self._programs.states[name].copy() for name in self._moving}
        self._change = Change(moved, step=self.steps + 1)
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
        """Makes a change: what gradients that have been added up say."""
        self._programs.run(UPDATE, [self._rate()], [], self._change.codes)

    def _stepped(self, fed_parts: Sequence[list[np.ndarray]]) -> float:
        """The loss of a step."""
        if self._accumulate == 1:
            return self._taken(fed_parts[0])
        try:
            loss = self._add_up(fed_parts)
            self._update()
        finally:
            self._settle()
        return loss

    def _taken(self, fed: list[np.ndarray]) -> float:
        """The loss of a step in one run."""
        before = self._states_read()
        self._change = change = Change(step=self.steps + 1)
        self._programs.run(TRAIN, [*fed, self._rate()], [change.loss], change.codes)
        return self._number(change.loss, self.steps, fed, before)

    @cached_property
    def _way(self) -> Graph:
        """What the graph of a step computes for the loss."""
        return way_to(self.graph, LOSS)

    def _states_read(self) -> dict[str, np.ndarray]:
        """Copies of the states that the loss of the next run is of, for `_number`; none but under INGOT_CHECK."""
        if not check():
            return {}
        return {name: self._programs.states[name].copy() for name in self._way.states if self._way.users(name)}

    def _number(self, found: np.ndarray, step: int, fed: list[np.ndarray], before: dict[str, np.ndarray]) -> float:
        """The loss that a run for a step has found. Raises InputError where it is none: under INGOT_CHECK with the
        first node that made it of what was fed and of the states before.
        """
        loss = float(found)
        if math.isfinite(loss):
            return loss
        why = "INGOT_CHECK=1 says which node made it"
        if check():
            names = [name for name in self._way.inputs if name != RATE]
            own = {RATE: self._rate()} if RATE in self._way.inputs else {}
            why = first_bad(self._way, dict(zip(names, fed, strict=True)) | own | before, loss)
        raise InputError(f"step {step}: the loss is {loss}, {why}, expected a number")

    def _rate(self) -> np.ndarray:
        return np.array(self.rate, np.float64)

    def _expect_whole(self) -> None:
        self._settle()
        if fault := self._change.fault:
            raise InputError(f"trainer: a step is half done, got {fault}, expected a checkpoint to load")

    def _parts(self, inputs: Sequence[Any]) -> list[list[np.ndarray]]:
        """The arrays of each part of a batch."""
        if self._accumulate == 1:
            return [self._feed(inputs)]
        expect_parts(inputs, self._accumulate)
        return [self._feed(batch_part(inputs, i, self._accumulate)) for i in range(self._accumulate)]

    def _feed(self, inputs: Sequence[Any]) -> list[np.ndarray]:
        """The arrays of a run, in the graph's order."""
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
                raise InputError(f"input {name!r}: every label is ignored, got {self._ignored} alone, expected another")
            bad = bad[bad != self._ignored] if name == TARGET else bad
            if bad.size:
                raise InputError(f"input {name!r}: index out of range, got {bad.flat[0]}, expected {low}..{high - 1}")
        return [np.require(feeds[name], requirements=("C", "A")) for name in names]


def _expect_examples(example_inputs: Any) -> None:
    """Raises KindError for what is no list, and InputError for one without a target, with an empty one, or with what is
    no array.
    """
    if isinstance(example_inputs, str) or not isinstance(example_inputs, Sequence):
        got = type(example_inputs).__name__
        raise KindError(f"example_inputs: a list is needed, got {got}, expected the model's inputs and a target")
    if len(example_inputs) < 2:
        raise InputError(f"example_inputs: got {len(example_inputs)}, expected the model's inputs and a target")
    try:
        shapes = [np.shape(x) for x in example_inputs]
    except ValueError as error:
        raise InputError(f"example_inputs: got what is no array, {error}, expected arrays or tensors") from error
    if 0 in shapes[-1]:
        shape = list(shapes[-1])
        raise InputError(f"example_inputs: an empty batch, got a target {shape}, expected at least one element")


def _floats(name: str, gradient: Any) -> np.ndarray:
    try:
        return np.asarray(gradient, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"gradients: no numbers for {name!r}, {error}") from error


def _shapes(found: Mapping[str, np.ndarray]) -> str:
    shown = [f"{name} {list(array.shape)}" for name, array in list(found.items())[:20]]
    return ", ".join(shown) or "none"


def _classes(graph: Graph) -> int:
    """How many classes a graph's logits are of."""
    (prediction,) = graph.outputs.values()
    return graph.type(prediction).dims[-1]


_PASSED = {"cast", "checked_index"}  # on the way from an input to where its elements are indices
_INDEXED = {"gather", "gather_elements", "scatter_elements"}  # along `axis` of the first operand, by the second


def _ranges(graph: Graph) -> dict[str, tuple[int, int]]:
    """The inputs that are indices, with the least that each may be and one past the largest."""
    found: dict[str, tuple[int, int]] = {}
    for node in graph.nodes:
        if node.op.name not in _INDEXED:
            continue
        table, name, wraps = str(node.operands[0]), str(node.operands[1]), True
        while (maker := graph.producer(name)) is not None and (maker.op.view or maker.op.name in _PASSED):
            name, wraps = str(maker.operands[0]), wraps and maker.op.name != "checked_index"
        if name in graph.inputs and graph.type(name).dtype.kind == "i":
            low, high = found.get(name, (-(2**63), 2**63))
            size = graph.type(table).dims[node.axis]
            found[name] = max(low, -size if wraps else 0), min(high, size)
    return found
