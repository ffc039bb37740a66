"""`ingot emit-web FOLDER` of a language model: a page that goes on with a text, token by token."""

from __future__ import annotations

import json
import os

from ingot.compile import Compiler
from ingot.emit.web.site import Page, emit_site
from ingot.emit.web.tokenizer import byte_level
from ingot.errors import bounded
from ingot.llm.c_tokenizer import members
from ingot.llm.engine import choose_on_device, mode_of, modes_of
from ingot.llm.options import Options
from ingot.llm.tokenizer import Tokenizer, end_ids
from ingot.load.language import read_model
from ingot.run.store import WeightStore


def emit_text(
    name: str, path: str | os.PathLike[str], folder: str | os.PathLike[str], *, context: int | None = None
) -> list[str]:
    """Writes the language model of a Hugging Face folder or GGUF file as a site, in f32; returns the paths.

    context: positions; the model's own, at most 4096, unless it is given. Raises what `LLM` raises, UnsupportedError
    for another tokenizer than BPE over bytes, and what `emit_site` raises.
    """
    with bounded(os.fspath(path)):
        source = read_model(path)
        options = Options.of(
            source, context=context, precision=None, threads=1, cache_dtype=None, sequences=1, executor="webgpu"
        )
        model = options.load(source)
        tokenizer = Tokenizer.read(source)
        document = json.loads(tokenizer.to_json())
        words = byte_level(document, tokenizer.prefix, members, source.where("tokenizer.json"))
        ends = end_ids(source, model.vocab_size).eos or tokenizer.eos
    choose_on_device(model.graph)
    compiler = Compiler(model.graph, options.target)
    entries = {entry: compiler.compile(mode_of(entry, model.context, 1)) for entry in modes_of(1)}
    facts = {"context": model.context, "ends": sorted(ends)}
    page = Page("text", facts, {"tokenizer.json": json.dumps(words, separators=(",", ":"))})
    return emit_site(name, entries, WeightStore(), folder, page)
