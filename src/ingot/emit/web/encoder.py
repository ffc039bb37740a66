"""`ingot emit-web FOLDER` of an encoder: a page that says how alike two sentences are."""

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
    """Writes the encoder of a Hugging Face folder as a site; returns the paths.

    precision, force: as for `web_text.emit_text`. Raises what loading it raises, UnsupportedError for another tokenizer
    than BERT's, and what `emit_site` raises.
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
    """A folder's tokenizer as a page has it. Raises UnsupportedError for another than BERT's, LoadError for a damaged
    one."""
    tokenizer = Tokenizer.read(source)
    document = json.loads(tokenizer.to_json())
    return word_pieces(document, tokenizer.prefix, tokenizer.suffix, source.where("tokenizer.json"))
