"""The MODEL argument and the options that all commands on a model share."""

from __future__ import annotations

import functools
import gc
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

import click
import numpy as np

from ingot.cli.fetch import local, with_path
from ingot.cli.terminal import progress
from ingot.errors import InputError
from ingot.ir.dim import Limit, at_most
from ingot.ir.dtype import DTYPES
from ingot.passes.precision import PRECISIONS
from ingot.support.collector import uncollected

if TYPE_CHECKING:
    from ingot.inspect.model import InspectedModel
    from ingot.session.inference import InferenceSession
    from ingot.session.source import SessionKeywords

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def expect_none(kind: str, options: Mapping[str, Any]) -> None:
    """Raise click.UsageError for an option that was given (0 counts as given) but does not apply to `kind`."""
    for name, value in options.items():
        if value is not False and value not in (None, (), [], {}):
            raise click.UsageError(f"option {name}: not for {kind}, got {value}, expected none")


@dataclass(frozen=True)
class Model:
    """A model file and the options to open it with."""

    path: str
    threads: int
    executor: str
    strict: bool
    dims: dict[str, int | Limit]
    precision: str | None
    fuse: bool = True

    def open(self, **options: Unpack[SessionKeywords]) -> InferenceSession:
        """Return a session on the model; by default without the compile cache, which has packed weights only.

        Raises FileNotFoundError, LoadError, UnsupportedError.
        """
        from ingot.session.inference import InferenceSession

        own: SessionKeywords = {
            "threads": self.threads, "executor": self.executor, "strict": self.strict, "dims": self.dims,
            "precision": self.precision, "fuse": self.fuse, "cache": False,
        }  # fmt: skip
        with progress(f"compiling {self.path}"):
            return InferenceSession(self.path, **(own | options))


@dataclass(frozen=True)
class Inspection:
    """A model to inspect, and the compilation stage to show."""

    path: str
    stage: str
    options: dict[str, Any]

    def open(self) -> InspectedModel:
        """Open the model. Raises the errors of `InspectedModel`."""
        from ingot.inspect.model import InspectedModel

        with progress(f"reading {self.path}"):
            return InspectedModel(self.path, **self.options)

    def other(self, path: str | None, precision: str | None, threads: int | None) -> Inspection:
        """Return the inspection of another model, or of this one; None keeps the path or an option."""
        changed = {"precision": precision, "threads": threads}
        options = self.options | {key: value for key, value in changed.items() if value is not None}
        return replace(self, path=self.path if path is None else local(path, yes=False), options=options)


def _dim(text: str) -> tuple[str, int | Limit]:
    name, separator, value = text.partition("=")
    number = value.removeprefix("..")
    if not separator or not name or not number.isdecimal() or (number != value and not int(number)):
        raise click.BadParameter(f"got {text!r}, expected NAME=N or NAME=..N", param_hint="--dim")
    return name, int(value) if number == value else at_most(int(number))


dim_option = click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=[..]N",
    help="Set a symbolic dim to N, or limit it to N with ..N.",
    callback=lambda context, parameter, values: dict(map(_dim, values)),
)


template_option = click.option(
    "--template",
    type=click.Path(readable=False),
    metavar="FILE",
    help="Template file of a language model.  [default: ingot.yaml in its folder, or a built-in template]",
)


_PRECISION = "Precision of matrix products.  [default: that of a saved program or of stored weights, else f32]"


def with_model(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate a command with the MODEL argument and its options; the command receives one `Model`."""

    @with_options
    @click.option(
        "--executor", type=click.Choice(["native", "webgpu", "interpret"]), default="native", show_default=True
    )
    @click.option("--strict", is_flag=True, help="Fail if an op has no kernel, instead of running it on the reference.")
    @click.option("--no-fuse", is_flag=True, help="Do not fuse nodes: run each node as a separate step.")
    @functools.wraps(command)
    def opened(
        model: str, threads: int, executor: str, strict: bool, no_fuse: bool, dims: dict[str, int | Limit],
        precision: str | None,
        **options: Any,
    ) -> None:  # fmt: skip
        command(Model(model, threads, executor, strict, dims, precision, not no_fuse), **options)

    return opened


def with_inspection(
    stages: Sequence[str], default: str = "graph", modes: Sequence[str] = ("prefill", "decode", "train")
) -> Callable[..., Any]:
    """Decorate a command with the MODEL argument and the options of inspection; it receives one `Inspection`.

    stages: the stages that the command can show. --stage exists only if there are several.
    """
    means = "Mode of a language model.  [default: prefill]" + (
        " train: a training step of any model." if "train" in modes else ""
    )
    has_stage_option = len(stages) > 1
    language = "; with --mode, optimized" if default == "graph" else ""
    stage_option = click.option(
        "--stage", type=click.Choice(stages),
        help=f"Show the graph as loaded, after the passes, as kernels, or as planned.  [default: {default}{language}]",
    )  # fmt: skip

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @with_options
        @click.option("--mode", type=click.Choice(modes), help=means)
        @template_option
        @as_json
        @functools.wraps(command)
        def opened(
            model: str, threads: int, dims: dict[str, int | Limit], precision: str | None, mode: str | None,
            template: str | None, stage: str | None = None, **options: Any,
        ) -> None:  # fmt: skip
            given = {"dims": dims, "precision": precision, "threads": threads, "mode": mode, "template": template}
            shown = stage or ("optimized" if mode is not None and default == "graph" else default)
            with _nothing_collected():
                command(Inspection(model, shown, given), **options)

        return stage_option(opened) if has_stage_option else opened

    return decorate


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Turn off garbage collection, also at exit: the many objects of a graph live as long as the command."""
    with uncollected():
        try:
            yield
        finally:
            gc.freeze()


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the MODEL argument and the options of every command that opens a model."""
    for decorated in (
        click.option("--precision", type=click.Choice(list(PRECISIONS)), help=_PRECISION),
        dim_option,
        click.option(
            "--threads", type=click.IntRange(0, 256), default=0, help="Number of threads; 0: choose for this machine."
        ),
        with_path("model"),
    ):
        command = decorated(command)
    return command


_BEGINNINGS = {".npy": b"\x93NUMPY", ".npz": b"PK\3\4"}


def _expect_numpy(path: str, suffix: str) -> None:
    """Raise InputError for another file format, which numpy would read as a pickle."""
    with open(path, "rb") as file:
        begin = file.read(8)
    if not begin.startswith(tuple(_BEGINNINGS.values())):
        raise InputError(f"{path}: not an {suffix} file, it begins with {begin!r}, expected {_BEGINNINGS[suffix]!r}")


def read_array(path: str) -> np.ndarray:
    """Read the array of an .npy file; pickles are refused. Raises InputError, FileNotFoundError."""
    _expect_numpy(path, ".npy")
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not an .npy file ({error})") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError(f"{path}: an archive of several arrays, got .npz, expected .npy")
    return array


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file by name; pickles are refused. Raises InputError, FileNotFoundError."""
    _expect_numpy(path, ".npz")
    try:
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.ndarray):
            with archive:
                return dict(archive)
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not an .npz file ({error})") from error
    raise InputError(f"{path}: one array, got .npy, expected .npz")


def random_feeds(session: InferenceSession, dims: Mapping[str, int | Limit], seed: int = 0) -> dict[str, np.ndarray]:
    """Draw random arrays for a session's inputs: floats in -1..1, integers 0 or 1.

    A dim with a limit has that size; a symbolic dim without a value is 1. Raises InputError for an input that is not a
    tensor of numbers.
    """
    generator = np.random.default_rng(seed)
    sizes = {name: dim.size if isinstance(dim, Limit) else dim for name, dim in dims.items()}
    feeds = {}
    for argument in session.get_inputs():
        dtype = next((d for d in DTYPES.values() if d.onnx == argument.type and d.kind != "s"), None)
        if dtype is None:
            raise InputError(f"input {argument.name!r}: no random values, got {argument.type}, expected numbers")
        shape = tuple(d if isinstance(d, int) else sizes.get(str(d), 1) for d in argument.shape)
        if dtype.kind == "f":
            feeds[argument.name] = generator.uniform(-1, 1, shape).astype(dtype.numpy)
        else:
            feeds[argument.name] = generator.integers(0, 2, shape).astype(dtype.numpy)
    return feeds
