"""One engine that trains, in a process of its own: it follows the protocol of `benchmarks.harness.serve`.

A build returns the seconds until a step can run and to the end of the first one, the losses of the first steps, of
Ingot the bytes that it planned, and the most memory that the process has had.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness.serve import serve

STEPS = 5  # whose losses are compared
BATCHES = 2  # that steps alternate between

Step = Callable[[int], float]


def by_torch(engine: str, training: Any, module: Any) -> Step:
    """A step of torch: the number of a batch -> its loss."""
    import torch

    from benchmarks.train.models import LEARNING_RATE, WEIGHT_DECAY, loss_of

    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)

    def loss(x: Any, y: Any) -> Any:
        return loss_of(module(x), y)

    compute = torch.compile(loss) if engine == "compile" else loss
    batches = [training.batch(number) for number in range(BATCHES)]

    def step(number: int) -> float:
        optimizer.zero_grad(set_to_none=True)
        value = compute(*batches[number])
        value.backward()
        optimizer.step()
        return float(value.detach())

    return step


def by_ingot(training: Any, module: Any, threads: int) -> tuple[Step, int]:
    """A step of Ingot, and the bytes that it planned."""
    import ingot
    from benchmarks.train.models import LEARNING_RATE, WEIGHT_DECAY

    batches = [training.batch(number) for number in range(BATCHES)]
    optimizer = ingot.AdamW(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    trainer = ingot.Trainer(module, example_inputs=batches[0], optimizer=optimizer, threads=threads)
    _, plan = trainer.compiled.native
    return lambda number: trainer.step(*batches[number]), sum(plan.regions.values())


def build(engine: str, name: str, folder: Path, threads: int, precision: str) -> tuple[Any, dict[str, Any]]:
    """A call that takes a step, and what is known of the first steps."""
    import torch

    from benchmarks.train.models import TRAININGS

    torch.set_num_threads(threads)
    training = TRAININGS[name]
    module, planned = training.build(), 0
    start = time.perf_counter()
    if engine == "ingot":
        step, planned = by_ingot(training, module, threads)
        del module
    else:
        step = by_torch(engine, training, module)
    ready = time.perf_counter() - start
    losses = [step(0)]
    first = time.perf_counter() - start
    losses += [step(number % BATCHES) for number in range(1, STEPS)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return lambda: step(0), {"ready": ready, "first": first, "losses": losses, "planned": planned, "peak": peak}


if __name__ == "__main__":
    serve(build)
