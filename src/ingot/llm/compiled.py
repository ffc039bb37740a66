"""One mode of a language model, from headers alone: what commands print that look at programs and run none."""

from __future__ import annotations

import os

from ingot.compile import CompiledSegment, Compiler
from ingot.errors import InputError
from ingot.llm.engine import mode_of
from ingot.llm.options import Options
from ingot.load.language import read_model


def compiled(path: str | os.PathLike[str], mode: str, *, precision: str | None, threads: int) -> CompiledSegment:
    """A mode ("prefill" or "decode") of a model with room for one sequence, all native. Reads no weight.

    Raises what loading raises, InputError for an encoder, and UnsupportedError for a model that has no kernel for some
    op.
    """
    folder = read_model(path)
    options = Options.of(folder, context=None, precision=precision, threads=threads, cache_dtype=None, sequences=1)
    model = options.load(folder)
    if model.kind == "encoder":
        raise InputError(f"{os.fspath(path)}: only embeds, got an encoder, expected a decoder")
    found = Compiler(model.graph, options.target).compile(mode_of(mode, model.context, 1))
    return CompiledSegment(found.segments[0].graph, found.native)
