"""Logits of a model of Llama's kind in float64, by nothing but numpy: what errors of engines are measured from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Weights = Mapping[str, np.ndarray]
Rounding = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Roundings:
    """What an engine does to the rows of products with matrices, and to keys and values that it keeps."""

    rows: Rounding = lambda x: x
    cache: Rounding = lambda x: x


def logits(weights: Weights, config: Mapping[str, Any], ids: list[int], to: Roundings = Roundings()) -> np.ndarray:
    """After each of some ids: f64[ids, vocabulary]. weights, config: as in a Hugging Face folder."""

    def multiply(rows: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        return to.rows(rows) @ matrix.astype(np.float64).T

    x = weights["model.embed_tokens.weight"][ids].astype(np.float64)
    for number in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{number}."
        layer = {name.removeprefix(prefix): data for name, data in weights.items() if name.startswith(prefix)}
        x = x + _attention(layer, config, _normed(x, layer["input_layernorm.weight"], config), multiply, to.cache)
        rows = _normed(x, layer["post_attention_layernorm.weight"], config)
        gate, up = (multiply(rows, layer[f"mlp.{name}_proj.weight"]) for name in ("gate", "up"))
        x = x + multiply(gate / (1 + np.exp(-gate)) * up, layer["mlp.down_proj.weight"])
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return multiply(_normed(x, weights["model.norm.weight"], config), head)


def _normed(x: np.ndarray, weight: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weight.astype(np.float64)


def _attention(
    layer: Weights, config: Mapping[str, Any], rows: np.ndarray, multiply: Callable[..., np.ndarray], cache: Rounding
) -> np.ndarray:
    count, heads, shared = len(rows), config["num_attention_heads"], config["num_key_value_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    q, k, v = (
        multiply(rows, layer[f"self_attn.{name}_proj.weight"]).reshape(count, -1, width).swapaxes(0, 1)
        for name in "qkv"
    )
    theta = (config.get("rope_parameters") or config)["rope_theta"]
    angles = np.arange(count)[:, None] * theta ** (-np.arange(0, width, 2) / width)
    q, k = _rotated(q, angles), _rotated(k, angles)
    k, v = (np.repeat(cache(each), heads // shared, 0) for each in (k, v))
    scores = q @ k.swapaxes(1, 2) / np.sqrt(width) + np.triu(np.full((count, count), -np.inf), 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = weights / weights.sum(-1, keepdims=True) @ v
    return multiply(mixed.swapaxes(0, 1).reshape(count, -1), layer["self_attn.o_proj.weight"])


def _rotated(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """x [heads, rows, width]: rotate pairs at a distance of half a width."""
    first, second = np.split(x, 2, -1)
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)
