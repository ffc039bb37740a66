"""Write the files of a site: a page, the runner, the plan, its shaders, and the weights in parts."""

from __future__ import annotations

import hashlib
import html
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from ingot.compile import Compiled
from ingot.emit.web.plan import WebPlan, document, web_plan
from ingot.emit.weights import WeightSource
from ingot.errors import LimitError
from ingot.plan.gpu_dispatch import device_array
from ingot.support.files import make_folder, written
from ingot.support.folders import MANIFEST, filled_folder

PART_BYTES = 8 << 20  # of a file of weights
_SITE = Path(__file__).parent / "site"
_RUNNER = ("model.js", "model.d.ts")
_FRAME = "frame.html"
_LOOKS = ("style.css", "opened.js")
_LANGUAGE = (
    "page.js", "answer.js", "language.js", "language.d.ts", "conversation.js", "sample.js", "tokenizer.js",
)  # fmt: skip
# The files of each kind of page, besides the runner and the style.
_SCRIPTS = {
    "plain": ("page.js", "plain.js"),
    "draw": ("page.js", "draw.js"),
    "encoder": ("page.js", "encoder.js", "tokenizer.js"),
    "text": (*_LANGUAGE, "text.js"),
    "chat": (*_LANGUAGE, "chat.js"),
}


@dataclass(frozen=True, slots=True)
class Page:
    """The page index.html. kind: "plain" suits any model. facts: for its script. files: further files, by name."""

    kind: str = "plain"
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def emit_site(
    name: str,
    entries: Mapping[str, Compiled],
    weights: WeightSource,
    folder: str | os.PathLike[str],
    page: Page = Page(),
    *,
    force: bool = False,
) -> list[str]:
    """Write modes of one graph, compiled for `lower.wgpu.WEBGPU` with one placement, as a site; return the paths.

    name: of the model, as the page shows it. force: replace existing files of these names that no earlier site wrote.

    Raises UnsupportedError for an op without a WGSL kernel, LimitError for a tensor that exceeds WebGPU's binding size
    and for a weight outside of 32 bits, OutputError when the folder cannot be written or has such files.
    """
    plan = web_plan(entries)
    files = {file: text for text, file in plan.shaders.items()}
    files |= {each: _asset(each) for each in (*_RUNNER, *_LOOKS, *_SCRIPTS[page.kind])}
    files |= {"index.html": _index(name, page.kind), **page.files}
    names = [*_parts(plan), *files, "plan.json"]
    with filled_folder(folder, "site", names, force=force):
        described = document(plan, name, _write_weights(folder, plan, weights), {"kind": page.kind, **page.facts})
        files["plan.json"] = json.dumps(described, separators=(",", ":")) + "\n"
        for file, text in files.items():
            _write(folder, file, text.encode())
    return [os.path.join(folder, file) for file in (*names, MANIFEST)]


def _parts(plan: WebPlan) -> list[str]:
    """Return the names of the weight files."""
    regions = dict.fromkeys(allocation.region for _, allocation in plan.weights.values())
    return [_part(number) for number in range(sum(-(-plan.regions[region] // PART_BYTES) for region in regions))]


def _part(number: int) -> str:
    return f"weights-{number:02d}.bin"


def _write(folder: str | os.PathLike[str], file: str, content: bytes | memoryview) -> None:
    path = os.path.join(folder, file)
    make_folder(os.path.dirname(path))
    with written(path, durable=False) as target:
        target.write(content)


def _write_weights(folder: str | os.PathLike[str], plan: WebPlan, weights: WeightSource) -> list[dict[str, Any]]:
    """Write the weights, region after region; return the entries of plan.json for their files."""
    parts: list[dict[str, Any]] = []
    for region in dict.fromkeys(allocation.region for _, allocation in plan.weights.values()):
        content = _content(plan, weights, region)
        for begin in range(0, content.size, PART_BYTES):
            file, part = _part(len(parts)), content[begin : begin + PART_BYTES].data
            _write(folder, file, part)
            known = {"file": file, "region": region, "offset": begin, "bytes": part.nbytes}
            parts.append({**known, "sha256": hashlib.sha256(part).hexdigest()})
    return parts


def _content(plan: WebPlan, weights: WeightSource, region: str) -> np.ndarray:
    """Return the bytes of a region of weights."""
    content = np.zeros(plan.regions[region], np.uint8)
    for tensor, allocation in plan.weights.values():
        if allocation.region == region:
            assert tensor.packed_weight is not None
            array = device_array(
                weights.array(tensor.packed_weight), tensor.dtype, f"weight {tensor.name!r}", LimitError
            )
            content[allocation.offset : allocation.offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    return content


def _asset(name: str) -> str:
    return (_SITE / name).read_text(encoding="utf-8")


def _index(name: str, kind: str) -> str:
    """Return index.html: the frame of all pages with the body of one kind."""
    own = {"title": html.escape(name), "kind": kind, "body": _asset(f"{kind}.html").strip()}
    return Template(_asset(_FRAME)).substitute(own)
