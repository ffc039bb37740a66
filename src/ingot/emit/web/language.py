"""`ingot emit-web FOLDER` of a language model: a chat page, or a page that continues a text."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from ingot.compile import Compiler
from ingot.emit.language.chat import chat_of
from ingot.emit.language.program import ChatFormat
from ingot.emit.language.vocabulary import members
from ingot.emit.web.site import Page, emit_site
from ingot.emit.web.tokenizer import byte_level
from ingot.errors import InputError, UnsupportedError, bounded
from ingot.llm.engine import choose_on_device, mode_of, modes_of
from ingot.llm.options import Options
from ingot.llm.tokenizer import Tokenizer
from ingot.load.hf import Folder
from ingot.load.language import read_model
from ingot.run.store import WeightStore

PAGES = ("chat", "text")


def emit_text(
    name: str,
    path: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    context: int | None = None,
    precision: str | None = None,
    page: str | None = None,
    template: str | os.PathLike[str] | None = None,
    force: bool = False,
) -> list[str]:
    """Write the language model of a Hugging Face folder or GGUF file as a site; return the paths.

    context: positions; by default the model's own, at most 4096. precision: one that rounds constant weights only; by
    default f32, with weights as they are stored. page: one of PAGES; by default "chat" for a model with a chat
    template. template: see `Folder`. force: as for `emit_site`.

    Raises the errors of `LLM`, UnsupportedError for other tokenizers than byte-level BPE and for a chat template that
    pages do not support, InputError for a page that does not suit the model, and the errors of `emit_site`.
    """
    with bounded(os.fspath(path)):
        source = read_model(path, template)
        options = Options.of(
            source, context=context, precision=precision, threads=1, cache_dtype=None, sequences=1, executor="webgpu"
        )
        model = options.load(source)
        facts, words = page_files(source, page)
        facts |= {"context": model.context}
    choose_on_device(model.graph)
    compiler = Compiler(model.graph, options.target)
    entries = {entry: compiler.compile(mode_of(entry, model.context, 1)) for entry in modes_of(1)}
    files = {"tokenizer.json": json.dumps(words, separators=(",", ":"))}
    site = Page("chat" if "chat" in facts else "text", facts, files)
    return emit_site(name, entries, WeightStore(), folder, site, force=force)


def page_files(source: Folder, page: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the facts for a page, and the tokenizer. page: as for `emit_text`, whose errors these are."""
    tokenizer = Tokenizer.read(source)
    document, where = json.loads(tokenizer.to_json()), source.where("tokenizer.json")
    chat, known = (None, ()) if page == "text" else _chat(source, tokenizer)
    if page == "chat" and chat is None:
        raise InputError(f"option page: the model has no chat template, got {page!r}, expected 'text'")
    texts = [text for text in asdict(chat).values() if isinstance(text, str)] if chat else []
    facts: dict[str, Any] = {"ends": sorted(tokenizer.eos)}
    if chat:
        facts["chat"] = asdict(chat) | {"trims": sorted(chat.trims)}
    return facts, byte_level(document, tokenizer.prefix, members, where, "".join(texts), known)


def expect_page(source: Folder) -> None:
    """Raise UnsupportedError for a tokenizer or chat template that pages do not support, LoadError for damage."""
    page_files(source, None)


def _chat(source: Folder, tokenizer: Tokenizer) -> tuple[ChatFormat | None, Collection[str]]:
    try:
        return chat_of(source, tokenizer)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}; the page 'text' needs none") from error
