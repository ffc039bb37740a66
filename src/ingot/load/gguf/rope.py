"""The scaling of rotary angles in a GGUF file, as the object `rope_scaling` of a config."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.gguf.file import GgufFile

MAX_FACTORS = 1 << 12  # of rotary angles in a file

_FREQUENCIES, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (_FREQUENCIES, _LONG, _SHORT)  # tensors that become part of the config
_PAIRS = "rope.dimension_count"  # the key of the number of rotated elements


def scaling_of(file: GgufFile, architecture: str, rotated: int) -> dict[str, Any] | None:
    """Return the scaling: by factors in the file, or of the kind that its keys name; None for none.

    As in llama.cpp, a factor without a kind is a linear scaling, and `rope.scale_linear` is an older name of it.
    rotated: the rotated elements of a head. Raises LoadError, UnsupportedError, LimitError.
    """
    metadata = file.metadata

    def factor(name: str) -> float | None:
        """Return a number above 0; None if it is missing, or 0, which means so in llama.cpp."""
        value = metadata.number(f"{architecture}.{name}")
        if value is not None and value < 0:
            raise LoadError(f"{where(name)}: got {value}, expected above 0")
        return value or None

    def where(name: str) -> str:
        return metadata.where(f"{architecture}.{name}")

    if rotated // 2 > MAX_FACTORS:
        raise LimitError(f"{where(_PAIRS)}: too large, expected at most {2 * MAX_FACTORS}")
    attention = factor("rope.scaling.attn_factor")
    if _LONG in file.tensors:
        scaling = {
            "rope_type": "longrope",
            "long_factor": _factors(file, _LONG),
            "short_factor": _factors(file, _SHORT),
        }
        return scaling if attention is None else scaling | {"attention_factor": attention}
    kind = metadata.text(f"{architecture}.rope.scaling.type") or ("none" if _FREQUENCIES in file.tensors else "linear")
    stretch = factor("rope.scaling.factor") or factor("rope.scale_linear") or 1.0
    match kind:
        case "none" | "linear":
            divisors = [stretch if kind == "linear" else 1.0] * (rotated // 2)
        case "yarn":
            return _yarn(file, architecture, stretch, attention or 1.0)
        case _:
            raise UnsupportedError(f"{where('rope.scaling.type')}: got {kind!r}, expected one of none, linear, yarn")
    if _FREQUENCIES in file.tensors:
        if kind != "none":
            raise UnsupportedError(f"{where('rope.scaling.type')}: got {kind!r} together with {_FREQUENCIES!r}")
        divisors = _factors(file, _FREQUENCIES)
    elif attention in (None, 1.0):
        return None if divisors[:1] in ([], [1.0]) else {"rope_type": "linear", "factor": stretch}
    return {
        "rope_type": "longrope", "long_factor": divisors, "short_factor": divisors,
        "attention_factor": attention or 1.0,
    }  # fmt: skip


def _yarn(file: GgufFile, architecture: str, stretch: float, attention: float) -> dict[str, Any]:
    metadata = file.metadata
    found: dict[str, Any] = {"rope_type": "yarn", "factor": stretch}
    original = metadata.integer(f"{architecture}.rope.scaling.original_context_length")
    if original is not None:
        found["original_max_position_embeddings"] = original
    for name in ("beta_fast", "beta_slow"):
        value = metadata.number(f"{architecture}.rope.scaling.yarn_{name}")
        if value is not None:
            found[name] = value
    if attention != 1.0:
        found["attention_factor"] = attention * (0.1 * math.log(max(stretch, 1.0)) + 1.0)
    return found


def _factors(file: GgufFile, name: str) -> list[float]:
    """Return the numbers of a tensor of factors, one for each pair of elements. Raises LoadError for an invalid
    tensor.
    """
    tensor = file.tensors.get(name)
    if tensor is None or tensor.type != "f32" or len(tensor.shape) != 1:
        raise LoadError(f"{file.path}: no tensor {name!r} of f32 and one dim")
    if tensor.shape[0] > MAX_FACTORS:
        raise LimitError(f"{file.path}: tensor {name!r}: got {tensor.shape[0]} factors, expected at most {MAX_FACTORS}")
    factors = np.frombuffer(tensor.content, "<f4", tensor.shape[0], tensor.offset) if tensor.nbytes else np.empty(0)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise LoadError(f"{file.path}: tensor {name!r}: not factors, expected finite numbers above 0")
    return factors.tolist()
