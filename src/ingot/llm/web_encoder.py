"""`ingot emit-web FOLDER` of an encoder: a page that says how alike two sentences are."""

from __future__ import annotations

import json
import os

from ingot.compile import Compiler, Mode
from ingot.dim import AtMost
from ingot.emit.web.site import Page, emit_site
from ingot.emit.web.tokenizer import word_pieces
from ingot.errors import bounded
from ingot.llm.tokenizer import Tokenizer
from ingot.load.hf import Folder, load_language_model
from ingot.lower.wgpu import webgpu_target
from ingot.precision import F32
from ingot.run.store import WeightStore

LENGTH = 256  # tokens of a text, at most


def emit_encoder(name: str, source: Folder, folder: str | os.PathLike[str]) -> list[str]:
    """Writes the encoder of a Hugging Face folder as a site; returns the paths.

    Raises what loading it raises, UnsupportedError for another tokenizer than BERT's, and what `emit_site` raises.
    """
    with bounded(source.path):
        tokenizer = Tokenizer.read(source)
        document = json.loads(tokenizer.to_json())
        words = word_pieces(document, tokenizer.prefix, tokenizer.suffix, source.where("tokenizer.json"))
        model = load_language_model(source, context=None)
    length = AtMost(min(LENGTH, model.context), "length")
    compiled = Compiler(model.graph, webgpu_target(F32)).compile(Mode("encode", {"batch": 1, "length": length}))
    page = Page("encoder", files={"tokenizer.json": json.dumps(words, separators=(",", ":"))})
    return emit_site(name, {"encode": compiled}, WeightStore(), folder, page)
