"""The MODEL argument and the options that every command on a model shares."""

from __future__ import annotations

import functools
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from ingot.cli.terminal import progress
from ingot.dim import Limit, at_most
from ingot.dtype import DTYPES
from ingot.errors import InputError
from ingot.precision import PRECISIONS

if TYPE_CHECKING:
    from ingot.compile import CompiledSegment
    from ingot.ir import Graph
    from ingot.reports import Explanation
    from ingot.run.native import NativeProgram
    from ingot.session import InferenceSession

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@dataclass(frozen=True)
class Look:
    """A model to be looked at: its graph after the passes, its programs, and why each kernel is used.

    Programs, and reasons, raise InputError where dims have no values.
    """

    graph: Graph
    programs: Callable[[], Sequence[CompiledSegment | NativeProgram]]
    explain: Callable[[str | None], Explanation]


mode_option = click.option(
    "--mode", type=click.Choice(["prefill", "decode"]), help="The program of a language model; else prefill."
)


@dataclass(frozen=True)
class Model:
    """A model file and how to open it."""

    path: str
    threads: int
    executor: str
    strict: bool
    dims: dict[str, int | Limit]
    precision: str | None

    def look(self, mode: str | None) -> Look:
        """What there is to see: of a language model, of one of its modes, "prefill" unless it is named.

        Raises what opening does, and InputError for a mode of another model and for options that language models lack.
        """
        if not is_language_model(self.path):
            if mode is not None:
                raise InputError(f"{self.path}: no modes, got {mode}, expected a language model")
            session = self.open()
            return Look(session.graph, lambda: session.program.native, session.explain)
        if self.dims or self.executor != "native" or self.strict:
            raise InputError(f"{self.path}: a language model takes no --dim, --executor or --strict")
        from ingot.llm.compiled import compiled
        from ingot.reports import Explanation

        with progress(f"compiling {self.path}"):
            segment = compiled(self.path, mode or "prefill", precision=self.precision, threads=self.threads)
        return Look(segment.graph, lambda: [segment], lambda node: Explanation.of([segment], [], node=node))

    def open(self, **options: Any) -> InferenceSession:
        """A session on the model, compiled anew: a cached program has no weights but packed ones.

        Raises FileNotFoundError, LoadError, UnsupportedError.
        """
        from ingot.session import InferenceSession

        own = {name: getattr(self, name) for name in ("threads", "executor", "strict", "dims", "precision")}
        options = {"cache": False} | own | options

        with progress(f"compiling {self.path}"):
            return InferenceSession(self.path, **options)


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
    help="A symbolic dim's value, or ..limit.",
    callback=lambda context, parameter, values: dict(map(_dim, values)),
)


_PRECISION = "What products are computed in; else as a program was saved, a language model is stored, or f32."


def with_model(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command its MODEL argument and options; it receives them as one `Model`."""

    @click.argument("model", type=click.Path())
    @click.option("--threads", type=click.IntRange(0, 256), default=0, help="Threads of a run; 0: from the machine.")
    @click.option("--executor", type=click.Choice(["native", "interpret"]), default="native", show_default=True)
    @click.option("--strict", is_flag=True, help="An op without a kernel is an error, not a slow step.")
    @dim_option
    @click.option("--precision", type=click.Choice(list(PRECISIONS)), help=_PRECISION)
    @functools.wraps(command)
    def opened(
        model: str, threads: int, executor: str, strict: bool, dims: dict[str, int | Limit],
        precision: str | None,
        **options: Any,
    ) -> None:  # fmt: skip
        command(Model(model, threads, executor, strict, dims, precision), **options)

    return opened


def is_language_model(path: str) -> bool:
    """Whether a path is that of a decoder: a GGUF file, or a folder of one. Raises LoadError, UnsupportedError."""
    from ingot.load.gguf import is_gguf
    from ingot.load.hf import kind_of, read_folder

    if os.path.isfile(os.path.join(path, "config.json")):
        return kind_of(read_folder(path)) == "decoder"
    return is_gguf(path)


def read_array(path: str) -> np.ndarray:
    """The array in an .npy file; pickles are refused. Raises InputError, FileNotFoundError."""
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not an .npy file ({error})") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise InputError(f"{path}: an archive of several arrays, got .npz, expected .npy")
    return array


def random_feeds(session: InferenceSession, dims: Mapping[str, int | Limit], seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays that fit a session's inputs: floats in -1..1, integers 0 and 1, every dim without a value 1; one with a
    limit is as large as it may be.
    """
    generator = np.random.default_rng(seed)
    sizes = {name: dim.size if isinstance(dim, Limit) else dim for name, dim in dims.items()}
    feeds = {}
    for argument in session.get_inputs():
        dtype = next(d for d in DTYPES.values() if d.onnx == argument.type)
        shape = tuple(d if isinstance(d, int) else sizes.get(str(d), 1) for d in argument.shape)
        if dtype.kind == "f":
            feeds[argument.name] = generator.uniform(-1, 1, shape).astype(dtype.numpy)
        else:
            feeds[argument.name] = generator.integers(0, 2, shape).astype(dtype.numpy)
    return feeds
