"""`ingot emit-web FOLDER` of an encoder: a page that shows the similarity of two sentences."""

from __future__ import annotations

import json
import os
from typing import Any

from ingot.compile import Compiler, Mode
from ingot.emit.web.site import Page, emit_site
from ingot.emit.web.tokenizer import word_pieces
from ingot.errors import bounded
from ingot.ir.dim import AtMost
from ingot.llm.options import Options
from ingot.llm.tokenizer import Tokenizer
from ingot.load.hf import Folder
from ingot.run.store import WeightStore

LENGTH = 256  # tokens of a text, at most


def emit_encoder(
    name: str,
    source: Folder,
    folder: str | os.PathLike[str],
    *,
    precision: str | None = None,
    force: bool = False,
) -> list[str]:
    """Write the encoder of a Hugging Face folder as a site; return the paths.

    precision, force: as for `emit_text`. Raises the errors of loading, UnsupportedError for other tokenizers than
    BERT's, and the errors of `emit_site`.
    """
    with bounded(source.path):
        words = encoder_words(source)
        options = Options.of(
            source, context=None, precision=precision, threads=1, cache_dtype=None, sequences=1, executor="webgpu"
        )
        model = options.load(source)
    length = AtMost(min(LENGTH, model.context), "length")
    compiled = Compiler(model.graph, options.target).compile(Mode("encode", {"batch": 1, "length": length}))
    page = Page("encoder", files={"tokenizer.json": json.dumps(words, separators=(",", ":"))})
    return emit_site(name, {"encode": compiled}, WeightStore(), folder, page, force=force)


def encoder_words(source: Folder) -> dict[str, Any]:
    """Return a folder's tokenizer for the page. Raises UnsupportedError for other tokenizers than BERT's, LoadError for
    damaged files."""
    tokenizer = Tokenizer.read(source)
    document = json.loads(tokenizer.to_json())
    return word_pieces(document, tokenizer.prefix, tokenizer.suffix, source.where("tokenizer.json"))
