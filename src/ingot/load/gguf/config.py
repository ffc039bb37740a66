"""Convert the architecture in a GGUF file's metadata to the `config.json` that a template reads.

Names of keys: github.com/ggml-org/ggml, docs/gguf.md; details that it leaves open follow llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.gguf.file import GgufFile
from ingot.load.hf.settings import MAX_LAYERS, MAX_SIZE

MAX_FACTORS = 1 << 12  # of rotary angles in a file

_FREQUENCIES, _LONG, _SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
ROPE_TENSORS = (_FREQUENCIES, _LONG, _SHORT)  # tensors that become part of the config
# Number of layers of the largest Gemma 2 and 3, whose query scale is the model width divided by the heads.
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}


class _Keys:
    """The keys of an architecture, by the end of their names."""

    def __init__(self, file: GgufFile, architecture: str):
        self.metadata, self.architecture = file.metadata, architecture

    def where(self, name: str) -> str:
        return self.metadata.where(f"{self.architecture}.{name}")

    def size(self, name: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """Return an integer of 1..most that all layers share. Raises LoadError, LimitError for more than `most`
        layers.
        """
        key = f"{self.architecture}.{name}"
        entry = self.metadata.entries.get(key)
        if entry is not None and entry.is_array:
            values = self.metadata.integers(key)
            assert values is not None
            if len(values) == 0 or (values != values[0]).any():
                raise UnsupportedError(f"{self.where(name)}: differs by layer, expected one number for all layers")
            value: int | None = int(values[0])
        else:
            value = self.metadata.integer(key)
        value = default if value is None else value
        if value is None:
            raise LoadError(f"{self.where(name)}: missing, expected an integer of 1..{most}")
        if value > most and most < MAX_SIZE:
            raise LimitError(f"{self.where(name)}: too many, got {value}, expected at most {most}")
        if not 1 <= value <= most:
            raise LoadError(f"{self.where(name)}: out of range, got {value}, expected 1..{most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number above 0."""
        value = self.metadata.number(f"{self.architecture}.{name}")
        value = default if value is None else value
        if value is None or value <= 0:
            raise LoadError(f"{self.where(name)}: {'missing' if value is None else f'got {value}'}, expected above 0")
        return value

    def text(self, name: str) -> str | None:
        return self.metadata.text(f"{self.architecture}.{name}")

    def has(self, name: str) -> bool:
        return f"{self.architecture}.{name}" in self.metadata


def config_of(file: GgufFile) -> dict[str, Any]:
    """Return the config. Raises LoadError or UnsupportedError that names the key, LimitError for too many layers."""
    architecture = file.metadata.text("general.architecture")
    if architecture is None:
        raise LoadError(f"{file.metadata.where('general.architecture')}: missing, expected a string")
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f"{file.metadata.where('general.architecture')}: not supported, got {architecture!r},"
            f" expected one of {', '.join(ARCHITECTURES)}"
        )
    splits = file.metadata.integer("split.count")
    if splits is not None and splits > 1:
        raise UnsupportedError(
            f"{file.path}: one of {splits} files, expected a whole model; llama-gguf-split merges them"
        )
    keys = _Keys(file, architecture)
    if keys.has("expert_count") and keys.metadata.integer(f"{architecture}.expert_count"):
        raise UnsupportedError(f"{keys.where('expert_count')}: experts are not supported, expected none")
    return _shared(file, keys) | ARCHITECTURES[architecture](file, keys)


def _shared(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    """Return the keys that every architecture has."""
    width, heads = keys.size("embedding_length"), keys.size("attention.head_count")
    kv_heads = keys.size("attention.head_count_kv", heads)
    if not keys.has("attention.key_length") and width % heads:
        raise LoadError(f"{keys.where('attention.head_count')}: got {heads}, expected a divisor of {width}")
    head_dim = keys.size("attention.key_length", width // heads or None)
    if keys.size("attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(f"{keys.where('attention.value_length')}: differs from the key length, {head_dim}")
    return {
        "vocab_size": _vocabulary(file),
        "hidden_size": width,
        "num_hidden_layers": keys.size("block_count", most=MAX_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "intermediate_size": keys.size("feed_forward_length"),
        "max_position_embeddings": keys.size("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10000.0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
    }


def _vocabulary(file: GgufFile) -> int:
    """Return the number of rows of the embedding, at least the number of tokens."""
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise LoadError(f"{file.path}: no tensor 'token_embd.weight' of two dims, expected [vocabulary, width]")
    return table.shape[0]


def _llama(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    _expect_whole_heads(file, keys)
    config_values = {"mlp_bias": "blk.0.ffn_up.bias" in file.tensors, "rope_scaling": _scaling(file, keys)}
    if not keys.has("attention.sliding_window"):
        return config_values | {"model_type": "llama"}
    return config_values | {"model_type": "mistral", "sliding_window": keys.size("attention.sliding_window")}


def _qwen(model_type: str) -> Callable[[GgufFile, _Keys], dict[str, Any]]:
    def config(file: GgufFile, keys: _Keys) -> dict[str, Any]:
        _expect_whole_heads(file, keys)
        return {"model_type": model_type, "rope_scaling": _scaling(file, keys)}

    return config


def _phi3(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    head_dim = keys.size("attention.key_length", keys.size("embedding_length") // keys.size("attention.head_count"))
    config: dict[str, Any] = {
        "model_type": "phi3",
        "partial_rotary_factor": keys.size("rope.dimension_count", head_dim) / head_dim,
    }
    if keys.has("attention.sliding_window"):
        config["sliding_window"] = keys.size("attention.sliding_window")
    if _LONG not in file.tensors:
        return config
    original = keys.size("rope.scaling.original_context_length")
    scaling: dict[str, Any] = {"rope_type": "longrope"}
    scaling |= {"long_factor": _factors(file, _LONG), "short_factor": _factors(file, _SHORT)}
    if keys.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = keys.number("rope.scaling.attn_factor")
    return config | {"original_max_position_embeddings": original, "rope_scaling": scaling}


def _first_gemma(file: GgufFile, keys: _Keys) -> dict[str, Any]:
    _expect_whole_heads(file, keys)
    return {"model_type": "gemma", "norm_unit_offset": False, "rope_scaling": _scaling(file, keys)}


def _gemma(model_type: str) -> Callable[[GgufFile, _Keys], dict[str, Any]]:
    def config(file: GgufFile, keys: _Keys) -> dict[str, Any]:
        _expect_whole_heads(file, keys)
        width, heads = keys.size("embedding_length"), keys.size("attention.head_count")
        layers = keys.size("block_count", most=MAX_LAYERS)
        is_largest = layers == _LARGEST_GEMMA[keys.architecture]
        scalar = width / heads if is_largest else keys.size("attention.key_length", width // heads)
        config_values: dict[str, Any] = {
            "model_type": model_type,
            "norm_unit_offset": False,  # the weights of a file include the offset
            "query_pre_attn_scalar": scalar,
            "sliding_window": keys.size("attention.sliding_window"),
            "rope_scaling": _scaling(file, keys),
        }
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if keys.has(name):
                config_values[name] = keys.number(name)
        if model_type == "gemma3_text":
            config_values["rope_local_base_freq"] = keys.number("rope.freq_base_swa", 10000.0)
            config_values["rope_theta"] = keys.number("rope.freq_base", 1e6)
            pattern = keys.size("attention.sliding_window_pattern", 6)
            kinds = ["sliding_attention" if (layer + 1) % pattern else "full_attention" for layer in range(layers)]
            config_values["layer_types"] = kinds
        return config_values

    return config


ARCHITECTURES: dict[str, Callable[[GgufFile, _Keys], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen("qwen2"),
    "qwen3": _qwen("qwen3"),
    "gemma": _first_gemma,
    "gemma2": _gemma("gemma2"),
    "gemma3": _gemma("gemma3_text"),
    "phi3": _phi3,
}


def _expect_whole_heads(file: GgufFile, keys: _Keys) -> None:
    """Raise UnsupportedError if only a part of each head is rotated."""
    head_dim = keys.size("attention.key_length", keys.size("embedding_length") // keys.size("attention.head_count"))
    rotated = keys.size("rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise UnsupportedError(f"{keys.where('rope.dimension_count')}: got {rotated}, expected whole heads, {head_dim}")


def _scaling(file: GgufFile, keys: _Keys) -> dict[str, Any] | None:
    """Return the scaling of rotary angles: by frequencies in the file, or by the kind that its keys name."""
    kind = keys.text("rope.scaling.type") or "none"
    if _FREQUENCIES in file.tensors:
        if kind != "none":
            raise UnsupportedError(f"{keys.where('rope.scaling.type')}: got {kind!r} together with {_FREQUENCIES!r}")
        factors = _factors(file, _FREQUENCIES)
        return {"rope_type": "longrope", "long_factor": factors, "short_factor": factors, "attention_factor": 1.0}
    match kind:
        case "none":
            return None
        case "linear":
            return {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
        case "yarn":
            config_values: dict[str, Any] = {"rope_type": "yarn", "factor": keys.number("rope.scaling.factor")}
            config_values["original_max_position_embeddings"] = keys.size("rope.scaling.original_context_length")
            for name in ("beta_fast", "beta_slow"):
                if keys.has(f"rope.scaling.yarn_{name}"):
                    config_values[name] = keys.number(f"rope.scaling.yarn_{name}")
            return config_values
    raise UnsupportedError(f"{keys.where('rope.scaling.type')}: got {kind!r}, expected one of none, linear, yarn")


def _factors(file: GgufFile, name: str) -> list[float]:
    """Return the numbers of a tensor of factors, one for each pair of elements. Raises LoadError for an invalid
    tensor.
    """
    tensor = file.tensors.get(name)
    if tensor is None or tensor.type != "f32" or len(tensor.shape) != 1:
        raise LoadError(f"{file.path}: no tensor {name!r} of f32 and one dim")
    if tensor.shape[0] > MAX_FACTORS:
        raise LimitError(f"{file.path}: tensor {name!r}: got {tensor.shape[0]} factors, expected at most {MAX_FACTORS}")
    factors = np.frombuffer(file.content, "<f4", tensor.shape[0], tensor.offset) if tensor.nbytes else np.empty(0)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise LoadError(f"{file.path}: tensor {name!r}: not factors, expected finite numbers above 0")
    return factors.tolist()
