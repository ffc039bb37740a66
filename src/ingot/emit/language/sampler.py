"""Emit the additions to model.c and model.h of a language model: sizes, and the sampler."""

from __future__ import annotations

from ingot.emit.interface import LINE_BYTES, Companion
from ingot.emit.project import filled

_ARRAYS = ("scores", "weights", "tokens", "occurrences", "seen")  # of the vocabulary's size


def sampler(prefix: str, *, vocab: int, context: int, blocks: int, rows: int) -> Companion:
    """Return the sampler of a language model.

    vocab: tokens with logits. context: the most positions. blocks: of the key/value cache. rows: the most of a prefill.
    """
    facts = {
        "arrays": _ARRAYS, "array_bytes": -(-4 * vocab // LINE_BYTES) * LINE_BYTES, "vocab": vocab,
        "context": context, "blocks": blocks, "rows": rows,
    }  # fmt: skip
    return Companion(
        kernels=("sample_f32",),
        types=("ingot_sampler",),
        functions=filled("sampler.c", prefix, **facts),
        header=filled("sampler.h", prefix, **facts),
        names=tuple(f"{prefix}_{name}" for name in ("sampling", "sampler", "seen", "sample")),
    )
