"""The bytes that fine-tuning a language model takes, from headers alone."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from ingot.dtype import i64
from ingot.precision import F32
from ingot.training.adapters import Lora
from ingot.training.budget import StepBytes, step_bytes, step_target, training_graphs
from ingot.training.optimizers import AdamW
from ingot.training.recompute import Trade
from ingot.training.sources import batch_part, expect_parts, load_trained, trained_weights


@dataclass(frozen=True, slots=True)
class TrainingMemory(StepBytes):
    """Bytes of a trainer of windows. parameters: how many numbers are trained. trade: what a budget made of it."""

    context: int
    batch: int
    parameters: int
    trade: Trade | None


def fit_training(
    folder: str | os.PathLike[str],
    *,
    adapters: Lora | None,
    context: int = 256,
    batch: int = 4,
    accumulate: int = 1,
    clip: float | None = 1.0,
    memory: int | None = None,
    precision: str = F32.name,
    threads: int = 0,
) -> TrainingMemory:
    """What `FineTuning` with the same options allocates for steps, to the byte; no weight is read.

    Raises what `Trainer` raises.
    """
    windows = (np.zeros((batch, context), i64.numpy),)
    expect_parts(windows, accumulate)
    forward, candidates = load_trained(os.fspath(folder), tuple(batch_part(windows, 0, accumulate)))
    trained, _ = trained_weights(forward, candidates, adapters)
    target, rounding = step_target(precision, threads)
    graphs, trade = training_graphs(
        forward, "cross_entropy", AdamW(), trained, clip, accumulate, target, memory, precision=rounding
    )
    planned = step_bytes(graphs, target)
    count = sum(math.prod(forward.type(name).dims) for name in trained)
    return TrainingMemory(planned.weights, planned.states, planned.arena, planned.arrays, context, batch, count, trade)
