"""`ingot train`: fine-tune a language model on a text."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingot.cli.fetch import with_path
from ingot.cli.model import as_json, expect_none, template_option
from ingot.cli.output import Output
from ingot.cli.terminal import print_json, print_text, progress
from ingot.cli.text import read_text
from ingot.errors import OutputError
from ingot.passes.precision import F32, STEP_PRECISIONS
from ingot.support.files import expect_writable

if TYPE_CHECKING:
    from ingot.training.adapters import Lora
    from ingot.training.finetune import FineTuning, Progress

_PRECISION = "Precision of products in a step; trainable weights stay f32."
_LINES = 20  # progress lines printed if stderr is not a terminal


@click.command(epilog="Example: seq 200 | ingot train tiny-lm - --steps 4 --context 32 --merge counting-lm")
@with_path("folder")
@click.argument("text", type=click.Path(readable=False))
@click.option(
    "--lora",
    "r",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    help="Rank of the LoRA adapters; 0: train all weights.",
)
@click.option("--alpha", type=float, help="Adapters are scaled by ALPHA / rank.  [default: twice the rank]")
@click.option("--target", "targets", multiple=True, metavar="PATTERN", help="Weights with an adapter.  [default: all]")
@click.option("--steps", type=click.IntRange(1), default=500, show_default=True, help="Number of training steps.")
@click.option("--context", type=click.IntRange(1), default=256, show_default=True, help="Tokens in a window.")
@click.option("--batch", type=click.IntRange(1), default=4, show_default=True, help="Windows in a step.")
@click.option(
    "--accumulate",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Parts a batch is split into, to save memory.",
)
@click.option("--rate", type=float, help="Peak learning rate.  [default: 0.002 with adapters, 0.0001 without]")
@click.option("--clip", type=float, default=1.0, show_default=True, help="Maximum norm of the gradients.")
@click.option("--memory", metavar="BYTES", help="The most that steps may take, as in 2GB; see `ingot memory --train`.")
@click.option("--precision", type=click.Choice(STEP_PRECISIONS), default=F32.name, show_default=True, help=_PRECISION)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
@click.option("--every", type=click.IntRange(1), default=100, show_default=True, help="Steps between checkpoints.")
@click.option("-o", "--output", type=Output(), help="Folder of checkpoints and adapters.  [default: FOLDER-tuned]")
@click.option("--resume", is_flag=True, help="Continue from the checkpoint in the output folder.")
@click.option(
    "--merge",
    type=click.Path(readable=False),
    help="Also write a model folder with the trained weights; it must not exist.",
)
@click.option(
    "--threads", type=click.IntRange(0, 256), default=0, help="Number of threads; 0: choose for this machine."
)
@template_option
@as_json
def train(
    folder: str,
    text: str,
    r: int,
    alpha: float | None,
    targets: tuple[str, ...],
    steps: int,
    context: int,
    batch: int,
    accumulate: int,
    rate: float | None,
    clip: float,
    memory: str | None,
    precision: str,
    seed: int,
    every: int,
    output: str | None,
    resume: bool,
    merge: str | None,
    threads: int,
    template: str | None,
    as_json: bool,
) -> None:
    """Fine-tune a language model on a text.

    Trains LoRA adapters of the model in FOLDER, or all its weights, on the file TEXT; - reads the text from stdin.

    FOLDER is a model folder, or a name: tiny-lm (shipped with Ingot) or OWNER/NAME[@REVISION] of the hub.
    """
    from ingot.training.finetune import CHECKPOINT, FineTuning

    adapters = _adapters(r, alpha, targets, seed)
    target = Path(output or f"{os.path.basename(os.path.normpath(folder))}-tuned")
    _expect_free(target / CHECKPOINT, merge, resume)
    content = read_text(text)
    with progress(f"preparing {folder}"):
        tuning = FineTuning(
            folder,
            content,
            steps=steps,
            adapters=adapters,
            context=context,
            batch=batch,
            accumulate=accumulate,
            rate=rate,
            clip=clip,
            memory=memory,
            precision=precision,
            seed=seed,
            threads=threads,
            template=template,
        )
        if merge is not None:
            tuning.expect_mergeable()
        if resume:
            tuning.resume(target)
    for written in (target, *([] if merge is None else [Path(merge).absolute().parent])):
        expect_writable(written)
    before = tuning.held_out_loss()
    if not as_json:
        if tuning.trainer.trade is not None:
            print_text(str(tuning.trainer.trade))
        left = "" if tuning.trainer.steps < steps else "; all steps are done"
        print_text(f"step {tuning.trainer.steps} of {steps}, held-out loss {before:.4f}{left}")
    _run(tuning, target, every, as_json)
    if merge is not None:
        tuning.merge(merge)
    _report(tuning, before, target, merge, as_json)


def _expect_free(checkpoint: Path, merge: str | None, resume: bool) -> None:
    """Raise OutputError for a checkpoint that is not to be resumed, and for a merged folder that exists."""
    if not resume and checkpoint.exists():
        raise OutputError(f"{checkpoint}: exists, expected another --output, or --resume")
    if merge is not None and os.path.lexists(merge):
        raise OutputError(f"{merge}: exists, expected a free name")


def _adapters(r: int, alpha: float | None, targets: tuple[str, ...], seed: int) -> Lora | None:
    """Return the adapters of the options, None for rank 0. Raises click.UsageError for adapter options with rank 0."""
    from ingot.training.adapters import lora

    if r:
        return lora(r, alpha=alpha, targets=targets or None, seed=seed)
    expect_none("--lora 0", {"--alpha": alpha, "--target": targets})
    return None


def _run(tuning: FineTuning, target: Path, every: int, as_json: bool) -> None:
    try:
        with _shown(tuning.steps, as_json) as show:
            tuning.run(target, every=every, on_progress=show)
    except KeyboardInterrupt:
        click.echo(f"{target}: stopped at step {tuning.trainer.steps} of {tuning.steps}, --resume continues", err=True)
        raise


@contextlib.contextmanager
def _shown(steps: int, is_quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Yield a callback that shows progress: a bar if stderr is a terminal, else lines on stdout, nothing if quiet."""
    if is_quiet or not sys.stderr.isatty():
        interval = max(1, steps // _LINES)

        def tell(found: Progress) -> None:
            if not is_quiet and ((found.point.step + 1) % interval == 0 or found.point.held_out is not None):
                click.echo(_line(found))

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (BarColumn(), TextColumn("{task.description}"))
    with Bars(*columns, console=Console(stderr=True, markup=False), transient=True) as bars:
        task = bars.add_task("", total=steps)
        yield lambda found: bars.update(task, completed=found.point.step + 1, description=_line(found))


def _line(found: Progress) -> str:
    point, left = found.point, round(found.seconds_left)
    held_out = "" if point.held_out is None else f", held out {point.held_out:.4f}"
    return (
        f"step {point.step + 1} of {found.steps}, loss {point.loss:.4f}{held_out},"
        f" {found.tokens_per_second:,.0f} tok/s, {left // 60}:{left % 60:02d} left"
    )


def _report(tuning: FineTuning, before: float, target: Path, merge: str | None, as_json: bool) -> None:
    from ingot.training.curve import drawn

    if as_json:
        points = [asdict(point) for point in tuning.curve]
        print_json({"output": str(target), "merged": merge, "adapters": len(tuning.trainer.adapters), "curve": points})
        return
    for line in drawn(tuning.curve):
        click.echo(line)
    after = tuning.curve[-1].held_out if tuning.curve else None
    if after is not None:
        print_text(f"held-out loss {before:.4f} before, {after:.4f} after")
    print_text(f"{target}: checkpoint, adapters and loss.svg" if tuning.adapters else f"{target}: checkpoint, loss.svg")
    if merge is not None:
        print_text(f"{merge}: a model folder; try: ingot chat {merge}")


COMMANDS = [train]
