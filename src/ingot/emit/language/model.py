"""`ingot emit-c FOLDER`: emit a language model as a C program that prints the answers of `LLM`."""

from __future__ import annotations

import os
from dataclasses import replace

from ingot.compile import Compiler
from ingot.emit.c import HOSTED, Emission, emit_entries
from ingot.emit.interface import Interface, check_prefix
from ingot.emit.kernels import check_precision
from ingot.emit.language.chat import chat_of
from ingot.emit.language.program import Continuation, program_files
from ingot.emit.language.sampler import sampler
from ingot.emit.language.vocabulary import c_tokenizer
from ingot.emit.platform import Platform
from ingot.errors import UnsupportedError, bounded
from ingot.llm.engine import PREFILL_ROWS, mode_of, modes_of
from ingot.llm.model import LLM
from ingot.llm.options import Options
from ingot.llm.sampling import sampling_defaults
from ingot.llm.tokenizer import Tokenizer
from ingot.load.hf import Folder, LanguageModel
from ingot.load.language import read_model
from ingot.lower import Target
from ingot.passes.precision import precision_of
from ingot.run.store import WeightStore

_PROMPT, _TOKENS = "Once upon a time", 16  # of the test vector; the context may shorten it


def emit_language_model(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    context: int | None = None,
    precision: str | None = None,
    cache_dtype: str | None = None,
    threads: int = 1,
    prefix: str = "model",
    template: str | os.PathLike[str] | None = None,
    has_vector: bool = False,
    platform: Platform = HOSTED,
    force: bool = False,
) -> Emission:
    """Write a folder's or GGUF file's language model as C; return the paths.

    threads: the most that a run can use; has_vector: whether to write a test vector for `make check`, computed by
    `LLM`; force: as for `emit`; other options as for `LLM`.

    Raises the errors of `LLM`; UnsupportedError for an encoder, for a kernel, tokenizer or chat template that emitted C
    does not support, and for weights that cannot have the platform's byte order; InputError for a prefix that is no C
    name; OutputError as `emit`.
    """
    check_prefix(prefix)
    with bounded(os.fspath(path)):
        source = read_model(os.fspath(path), template)
        options = Options.of(
            source, context=context, precision=precision, threads=threads, cache_dtype=cache_dtype, sequences=1
        )
        check_precision(precision_of(options.precision))
        # Kernels and addresses depend on no instruction set; rounding is that of `LLM` on this machine.
        options = replace(options, target=Target("scalar", threads=threads, rounded=options.target.rounded))
        model = options.load(source)
        if model.kind != "decoder":
            raise UnsupportedError(f"emit: a language model that only embeds, got an {model.kind}, expected a decoder")
        _expect_no_state(model)
        compiler = Compiler(model.graph, options.target)
        entries = {name: compiler.compile(mode_of(name, model.context, 1)) for name in modes_of(1)}
        program = _Program(source, model, platform)
    if has_vector:
        llm = LLM(path, context=context, precision=precision, cache_dtype=cache_dtype, sequences=1, template=template)
        program.vector = _continuation(llm)
    companion = sampler(
        prefix,
        vocab=model.vocab_size,
        context=model.context,
        blocks=model.blocks_per_sequence,
        rows=min(PREFILL_ROWS, model.context),
    )
    return emit_entries(
        entries,
        WeightStore(),
        folder,
        prefix=prefix,
        can_stop=True,
        companion=companion,
        programs=program.files,
        platform=platform,
        force=force,
    )


def expect_c(source: Folder, model: LanguageModel, precision: str) -> None:
    """Raise UnsupportedError for a tokenizer, a chat template or a precision that emitted C does not support, before
    anything is written; LoadError for damaged files of the folder."""
    check_precision(precision_of(precision))
    _expect_no_state(model)
    _Program(source, model, HOSTED)


def _expect_no_state(model: LanguageModel) -> None:
    if model.has_recurrent_state:
        raise UnsupportedError("emit: a language model with recurrent state, expected one with keys and values only")


def _continuation(llm: LLM) -> Continuation:
    """Return a prompt and the model's greedy continuation."""
    prompt = _PROMPT
    while len(llm.tokenizer.prefix) + len(llm.tokenizer.encode(prompt)) > llm.context:
        prompt = prompt[:-1]
    return Continuation(prompt, llm.complete(prompt, max_tokens=_TOKENS, temperature=0).tokens)


class _Program:
    """The program around a model: its tokenizer and chat format, read before anything is written.

    vector: its test vector.
    """

    vector: Continuation | None = None

    def __init__(self, source: Folder, model: LanguageModel, platform: Platform):
        tokenizer = Tokenizer.read(source)
        self._chat, known = chat_of(source, tokenizer)
        self._ends = frozenset(index for index in tokenizer.eos if index < model.vocab_size)
        self._sampling = sampling_defaults(source)
        self._tokenizer = c_tokenizer(tokenizer, known, source.where("tokenizer.json"), platform)

    def files(self, face: Interface) -> dict[str, str | bytes]:
        """Return the files by name."""
        texts = program_files(face, self._ends, self._sampling, self._chat, self.vector)
        return {**texts, face.file("tokenizer.bin"): self._tokenizer}
