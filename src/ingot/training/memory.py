"""The memory of fine-tuning a language model, planned from the headers of its weights."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from ingot.ir.dtype import i64
from ingot.passes.precision import F32
from ingot.support.machine import byte_number
from ingot.training.adapters import Lora
from ingot.training.budget import EVALUATE, StepBytes, step_bytes, step_target, training_graphs
from ingot.training.graph import loss_graph
from ingot.training.optimizers import AdamW
from ingot.training.recompute import Trade
from ingot.training.sources import batch_part, expect_parts, expect_windows, load_trained, trained_weights

_LOSS = "cross_entropy"


@dataclass(frozen=True, slots=True)
class TrainingMemory(StepBytes):
    """Bytes of fine-tuning. parameters: the number of trainable elements. trade: the choice for a budget."""

    context: int
    batch: int
    parameters: int
    trade: Trade | None


def training_memory_of(
    folder: str | os.PathLike[str],
    *,
    adapters: Lora | None,
    context: int = 256,
    batch: int = 4,
    accumulate: int = 1,
    clip: float | None = 1.0,
    memory: str | int | None = None,
    precision: str = F32.name,
    threads: int = 0,
) -> TrainingMemory:
    """Return the memory that `FineTuning` with the same options allocates, exact to the byte. No weights are read.

    Raises the errors of `Trainer`.
    """
    expect_windows(context, batch)
    windows = (np.zeros((batch, context), i64.numpy),)
    expect_parts(windows, accumulate)
    forward, candidates = load_trained(os.fspath(folder), tuple(batch_part(windows, 0, accumulate)))
    trained, _ = trained_weights(forward, candidates, adapters)
    target, rounding = step_target(precision, threads)
    budget = None if memory is None else byte_number(memory)
    graphs, trade = training_graphs(
        forward, _LOSS, AdamW(), trained, clip, accumulate, target, budget, precision=rounding
    )
    planned = step_bytes(graphs | {EVALUATE: loss_graph(forward, _LOSS, trained)}, target)
    count = sum(math.prod(forward.type(name).dims) for name in trained)
    return TrainingMemory(planned.weights, planned.states, planned.arena, planned.arrays, context, batch, count, trade)
