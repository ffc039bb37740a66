"""Trains one model on several processes: each takes its share of a batch, and torch's gloo averages the gradients.

    python examples/ray_train/average.py --workers 2 [--ray]

Each process has a trainer of its own, from the same weights. A step is `trainer.gradients` of a share of the batch, an
average over all processes, and `trainer.apply`: so parameters stay the same everywhere, to the bit. With --ray the
processes are those of Ray Train, on as many machines as its cluster has; else they are started here.
"""

import argparse
import tempfile
from datetime import timedelta
from importlib.resources import files

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import ingot

BATCH, STEPS, SEED = 64, 40, 3


def classifier() -> nn.Module:
    """Digits of 8 x 8 pixels, with the same weights in every process."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 10))


def digits() -> tuple[np.ndarray, np.ndarray]:
    """The digits that ship: images f32[n, 1, 8, 8] and labels i64[n]."""
    with np.load(str(files("ingot") / "data" / "digits.npz")) as stored:
        return stored["images"][:, None].astype(np.float32) / 16, stored["labels"].astype(np.int64)


def averaged(gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients summed over all processes in one message, over how many there are."""
    whole = torch.from_numpy(np.concatenate([array.ravel() for array in gradients.values()]))
    dist.all_reduce(whole)
    ends = np.cumsum([array.size for array in gradients.values()])
    parts = np.split(whole.numpy() / dist.get_world_size(), ends[:-1])
    return {name: part.reshape(gradients[name].shape) for name, part in zip(gradients, parts, strict=True)}


def train(steps: int) -> float:
    """What each process does, once all know of each other; the last loss, the mean over the processes."""
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels = digits()
    share = BATCH // world
    example = images[:share], labels[:share]
    trainer = ingot.Trainer(classifier(), example_inputs=example, optimizer=ingot.AdamW(lr=3e-3), threads=1)
    mean = torch.zeros(())
    for step in range(steps):
        chosen = np.random.default_rng([SEED, step]).integers(0, len(labels), share * world)[rank * share :][:share]
        loss, gradients = trainer.gradients(images[chosen], labels[chosen])
        trainer.apply(averaged(gradients))
        mean = torch.tensor(loss)
        dist.all_reduce(mean)
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}: loss {mean.item() / world:.3f}", flush=True)
    return mean.item() / world


def work(rank: int, world: int, store: str, steps: int) -> None:
    """A process that is started here; store: a file that all of them see."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=timedelta(minutes=2)
    )
    try:
        train(steps)
    finally:
        dist.destroy_process_group()


def by_ray(workers: int, steps: int) -> None:
    """The same on Ray Train, which starts processes and tells them of each other."""
    from ray.train import ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    TorchTrainer(
        lambda config: train(config["steps"]),
        train_loop_config={"steps": steps},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=workers),
    ).fit()


def main() -> None:
    """Starts the processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--ray", action="store_true")
    asked = parser.parse_args()
    if asked.ray:
        by_ray(asked.workers, asked.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(
            work, (asked.workers, f"{folder}/store", asked.steps), nprocs=asked.workers, join=True
        )


if __name__ == "__main__":
    main()
