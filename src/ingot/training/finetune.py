"""Fine-tuning of a language model on a text; writes adapters in peft's format, or a merged model folder."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot.errors import InputError, KindError, LoadError
from ingot.llm.tokenizer import Tokenizer
from ingot.load import expect_exists
from ingot.load.hf.strict_json import parse_object, shown
from ingot.load.hub import located
from ingot.load.language import read_model
from ingot.passes.precision import F32
from ingot.support.files import make_folder, written
from ingot.training.adapters import Lora, lora, write_adapters
from ingot.training.curve import Point, read_points, svg
from ingot.training.merge import expect_mergeable, merge
from ingot.training.optimizers import AdamW
from ingot.training.ranges import expect_whole
from ingot.training.schedules import Cosine
from ingot.training.sources import expect_windows
from ingot.training.trainer import Trainer

HELD_OUT_SHARE = 20  # 1 / 20 of the tokens, at the end of the text, is held out
MAX_HELD_OUT_BATCHES = 8  # batches of a held-out loss
MAX_CURVE_BYTES = 64 << 20  # of a curve file that is read
MAX_SETTINGS_BYTES = 1 << 16  # of a settings file that is read
CHECKPOINT, SETTINGS, CURVE, DRAWING = "checkpoint.safetensors", "settings.json", "curve.json", "loss.svg"
_ADAPTERS = lora()
_WARMUP_SHARE = 20  # 1 / 20 of the steps is the warm-up
_RATE, _LORA_RATE = 1e-4, 2e-3  # default rates of all weights and of adapters


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of training. point: the last step; steps: the total number; seconds_left: an estimate."""

    point: Point
    steps: int
    tokens_per_second: float
    seconds_left: float


class Windows:
    """A text as batches of windows i64[batch, context] with the next ids as targets, for training and held out.

    Raises InputError for a text of fewer tokens than one window of each.
    """

    def __init__(self, ids: np.ndarray, context: int, batch: int, seed: int):
        least = 2 * (context + 1)
        if len(ids) < least:
            raise InputError(
                f"text: too short, got {len(ids)} tokens, expected at least {least}: a window of {context} to train on,"
                " and one that is held out"
            )
        count = max(context + 1, len(ids) // HELD_OUT_SHARE)
        self._training, self._held_out = ids[:-count], ids[-count:]
        self._context, self._batch, self._seed = context, batch, seed

    def training(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the batch of a step, which depends only on the seed and the number of the step."""
        rng = np.random.default_rng([self._seed, step])
        return self._cut(self._training, rng.integers(0, len(self._training) - self._context, self._batch))

    def held_out(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the held-out batches, the same at each call: windows spread evenly over the held-out ids."""
        count = -(-(len(self._held_out) - 1) // self._context)
        batches = min(max(-(-count // self._batch), 1), MAX_HELD_OUT_BATCHES)
        starts = np.linspace(0, len(self._held_out) - 1 - self._context, batches * self._batch).astype(np.int64)
        return [self._cut(self._held_out, part) for part in starts.reshape(batches, -1)]

    def _cut(self, ids: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cut = ids[starts[:, None] + np.arange(self._context + 1)]
        return np.ascontiguousarray(cut[:, :-1]), np.ascontiguousarray(cut[:, 1:])


class FineTuning:
    """Fine-tuning of a language model on a text, with its progress stored in a folder.

    folder: of a decoder, or the name of a model. adapters: the options of the adapters to train; None trains all
    weights. context: tokens in a window; batch: windows in a step, split into `accumulate` parts. rate: the peak
    learning rate, reached after a warm-up and followed by a cosine to 0; None for the default. seed: of the choice of
    windows. memory, precision: as in `Trainer`. template: see `Folder`; a merged folder keeps it.

    Raises the errors of `Trainer` and of reading a folder, InputError for a text that is too short and for numbers out
    of range, and KindError for arguments of another type.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        text: str,
        *,
        steps: int,
        adapters: Lora | None = _ADAPTERS,
        context: int = 256,
        batch: int = 4,
        accumulate: int = 1,
        rate: float | None = None,
        clip: float | None = 1.0,
        memory: str | int | None = None,
        seed: int = 0,
        precision: str = F32.name,
        threads: int = 0,
        template: str | os.PathLike[str] | None = None,
    ):
        if not isinstance(text, str):
            raise KindError(f"text: got {type(text).__name__}, expected a text")
        if adapters is not None and not isinstance(adapters, Lora):
            raise KindError(f"option adapters: got {type(adapters).__name__}, expected ingot.lora(...) or None")
        expect_whole("option steps", steps, 1)
        expect_windows(context, batch)
        expect_whole("option seed", seed, 0)
        self.name = os.fspath(folder)
        self.folder = read_model(located(self.name), template)
        self.steps, self.adapters = steps, adapters
        self.tokens_per_step = batch * context
        ids = np.array(Tokenizer.read(self.folder).encode(text), np.int64)
        self._windows = Windows(ids, context, batch, seed)
        highest = (_RATE if adapters is None else _LORA_RATE) if rate is None else rate
        schedule = Cosine(lr=highest, steps=steps, warmup=steps // _WARMUP_SHARE)
        self.trainer = Trainer(
            self.folder,
            example_inputs=self._windows.training(0),
            optimizer=AdamW(lr=schedule, weight_decay=0.0),
            trainable=adapters,
            clip=clip,
            accumulate=accumulate,
            memory=memory,
            precision=precision,
            threads=threads,
        )
        # Settings that must not change on resuming: those of batches and rates, except `steps`. The trainer's own
        # digest covers the others.
        numbers = {"context": context, "batch": batch, "accumulate": accumulate, "seed": seed}
        text_hash = hashlib.sha256(ids.tobytes()).hexdigest()
        self.settings = {"text": text_hash, "rate": float(highest)} | {name: int(n) for name, n in numbers.items()}
        self.curve: list[Point] = []

    def held_out_loss(self) -> float:
        """Return the mean loss of the held-out windows, in nats per token. Raises InputError if it is not finite."""
        loss = float(np.mean([self.trainer.evaluate(*batch) for batch in self._windows.held_out()]))
        if not np.isfinite(loss):
            raise InputError(f"step {self.trainer.steps}: the held-out loss is {loss}, expected a number")
        return loss

    def run(self, output: str | os.PathLike[str], *, every: int = 100, on_progress: Callable[[Progress], None]) -> None:
        """Run the remaining steps; save a checkpoint and the curve to a folder every `every` steps.

        A KeyboardInterrupt is raised again after a save. Raises InputError for a loss that is not finite; OutputError.
        """
        expect_whole("option every", every, 1)
        target = Path(output)
        make_folder(target)
        try:
            self._take_steps(target, every, on_progress)
        except KeyboardInterrupt:
            self.save(target)
            raise

    def _take_steps(self, target: Path, every: int, on_progress: Callable[[Progress], None]) -> None:
        begun, first = time.monotonic(), self.trainer.steps
        for step in range(first, self.steps):
            rate = self.trainer.rate
            loss = self.trainer.step(*self._windows.training(step))
            is_saved = (step + 1) % every == 0 or step + 1 == self.steps
            held_out = self.held_out_loss() if is_saved else None
            seconds = time.monotonic() - begun
            self.curve.append(Point(step, loss, held_out, rate, seconds))
            pace = seconds / (step + 1 - first)
            on_progress(
                Progress(self.curve[-1], self.steps, self.tokens_per_step / pace, pace * (self.steps - step - 1))
            )
            if is_saved:
                self.save(target)

    def save(self, target: Path) -> None:
        """Write checkpoint, settings, curve and adapters to a folder, each file atomically. Raises OutputError."""
        self.trainer.save(target / CHECKPOINT)
        with written(target / SETTINGS) as file:
            file.write(json.dumps(self.settings, indent=2).encode() + b"\n")
        with written(target / CURVE) as file:
            file.write(json.dumps([asdict(point) for point in self.curve]).encode())
        if self.curve:
            with written(target / DRAWING) as file:
                file.write(svg(self.curve, f"{os.path.basename(os.path.normpath(self.name))}: nats a token").encode())
        if self.adapters is not None:
            arrays = self.trainer.state_dict()
            write_adapters(target, self.adapters, self.trainer.adapters, arrays, self.folder.path)

    def expect_mergeable(self) -> None:
        """Raise InputError if `merge` is not possible for this model and these adapters."""
        expect_mergeable(self.folder, self.trainer.adapters)

    def merge(self, target: str | os.PathLike[str]) -> None:
        """Write a copy of the model's folder with the trained weights. Raises the errors of `merge.merge`."""
        trainer, scale = self.trainer, 1.0 if self.adapters is None else self.adapters.scale
        merge(self.folder, target, trainer.state_dict(), trainer.adapters, scale)

    def resume(self, output: str | os.PathLike[str]) -> None:
        """Continue from the checkpoint in a folder; it may already contain all steps.

        Raises InputError for a setting or text that differs from that of the checkpoint, LoadError, LimitError,
        MissingFileError; then nothing has changed.
        """
        target = Path(output)
        expect_exists(os.fspath(target / CHECKPOINT))
        self._expect_same(target / SETTINGS)
        path = target / CURVE
        points = read_points(_content(path, MAX_CURVE_BYTES), str(path)) if path.exists() else []
        self.trainer.load(target / CHECKPOINT, most=self.steps)
        self.curve = [point for point in points if point.step < self.trainer.steps]

    def _expect_same(self, path: Path) -> None:
        expect_exists(os.fspath(path))
        stored: dict[str, Any] = parse_object(_content(path, MAX_SETTINGS_BYTES), str(path))
        for name, value in self.settings.items():
            if stored.get(name) != value:
                raise InputError(f"{path}: different {name}, got {shown(value)}, expected {shown(stored.get(name))}")


def _content(path: Path, most: int) -> bytes:
    """Read a file. Raises LoadError for more than `most` bytes."""
    if (size := path.stat().st_size) > most:
        raise LoadError(f"{path}: too large, got {size} bytes, expected at most {most}")
    return path.read_bytes()
