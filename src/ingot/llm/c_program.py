"""`ingot emit-c FOLDER`: a language model as a program in C that prints what `LLM` gives."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from ingot.compile import Compiler
from ingot.emit.c import WeightSource
from ingot.emit.interface import check_prefix
from ingot.emit.kernels import check_precision
from ingot.emit.language.model import MODES, Programs, language_header, language_source
from ingot.emit.language.program import ChatFormat, program_files
from ingot.errors import UnsupportedError, bounded
from ingot.files import make_folder, written
from ingot.llm.c_chat import chat_format, known_tokens
from ingot.llm.c_tokenizer import c_tokenizer
from ingot.llm.chat import ChatTemplate, has_template
from ingot.llm.engine import PREFILL_ROWS, mode_of
from ingot.llm.options import Options
from ingot.llm.sampling import sampling_defaults
from ingot.llm.tokenizer import Tokenizer, end_ids
from ingot.load.hf import Folder, LanguageModel
from ingot.load.language import read_model
from ingot.lower import Target
from ingot.precision import precision_of
from ingot.run.store import WeightStore


def emit_language_model(
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    context: int | None = None,
    precision: str | None = None,
    cache_dtype: str | None = None,
    prefix: str = "model",
) -> list[str]:
    """Writes a folder's or GGUF file's language model as C; returns the paths.

    Options as `LLM` takes them. Raises what `LLM` raises, and UnsupportedError for an encoder, for a kernel, a
    tokenizer or a chat template that C does not have; InputError for a prefix that C cannot have.
    """
    check_prefix(prefix)
    with bounded(os.fspath(path)):
        source = read_model(os.fspath(path))
        options = Options.of(
            source, context=context, precision=precision, threads=1, cache_dtype=cache_dtype, sequences=1
        )
        check_precision(precision_of(options.precision))
        # Kernels and places depend on no instruction set; what is rounded is what `LLM` rounds on this machine.
        options = replace(options, target=Target("scalar", threads=1, rounded=options.target.rounded))
        model = options.load(source)
        if model.kind != "decoder":
            raise UnsupportedError(f"emit: a language model that only embeds, got an {model.kind}, expected a decoder")
        programs = _compiled(model, options, prefix)
        files = _files(source, model, programs)
    _write(os.fspath(folder), files)
    weights = os.path.join(folder, "weights.bin")
    _write_weights(weights, programs, WeightStore())
    return [os.path.join(folder, name) for name in files] + [weights]


def _compiled(model: LanguageModel, options: Options, prefix: str) -> Programs:
    compiler = Compiler(model.graph, options.target)
    modes = {name: compiler.compile(mode_of(name, model.context, 1)).native for name in MODES}
    rows = min(PREFILL_ROWS, model.context)
    return Programs(prefix, modes, model.vocab_size, model.context, model.blocks_per_sequence, rows)


def _files(source: Folder, model: LanguageModel, programs: Programs) -> dict[str, bytes]:
    tokenizer = Tokenizer.read(source)
    chat, known = _chat(source, tokenizer)
    ends = end_ids(source, model.vocab_size).eos or tokenizer.eos
    texts = {
        f"{programs.prefix}.c": language_source(programs),
        f"{programs.prefix}.h": language_header(programs),
        **program_files(programs.prefix, ends, sampling_defaults(source), chat),
    }
    files = {name: text.encode() for name, text in texts.items()}
    return files | {"tokenizer.bin": c_tokenizer(tokenizer, known, source.where("tokenizer.json"))}


def _chat(source: Folder, tokenizer: Tokenizer) -> tuple[ChatFormat | None, Collection[str]]:
    """How a conversation is written, and the tokens that only the template writes; nothing where there is none."""
    if not has_template(source):
        return None, ()
    template = ChatTemplate.read(source)
    try:
        return chat_format(template, source.path), known_tokens(template, tokenizer)
    finally:
        template.close()


def _write(folder: str, files: Mapping[str, bytes]) -> None:
    make_folder(folder)
    for name, content in files.items():
        with written(os.path.join(folder, name)) as file:
            file.write(content)


def _write_weights(path: str, programs: Programs, weights: WeightSource) -> None:
    """Each weight once, where both modes read it."""
    places = {
        planned.addresses[id].offset: tensor.recipe
        for lowered, planned in programs.modes.values()
        for id, tensor in lowered.tensors.items()
        if tensor.recipe is not None
    }
    with written(path) as file:
        for offset, recipe in sorted(places.items(), key=lambda place: place[0]):
            file.seek(offset)
            file.write(np.ascontiguousarray(weights.array(recipe)).view(np.uint8).data)
        file.truncate(programs.region("weights"))
