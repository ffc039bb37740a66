"""Configurations that contradict themselves, the weights or Ingot: (change of a good one, error type, fragment).

The good one is a tiny Llama. A key that becomes "absent" is taken out.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from attacks.hostile_folders import Attack
from ingot.errors import IngotError, LimitError, LoadError, UnsupportedError

CONFIG = {
    "model_type": "llama",
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
}
_LAYER = {
    "input_layernorm": (32,),
    "self_attn.q_proj": (32, 32),
    "self_attn.k_proj": (16, 32),
    "self_attn.v_proj": (16, 32),
    "self_attn.o_proj": (32, 32),
    "post_attention_layernorm": (32,),
    "mlp.gate_proj": (48, 32),
    "mlp.up_proj": (48, 32),
    "mlp.down_proj": (32, 48),
}


def write_llama(folder: Path, config: dict[str, Any] | None = None, vocab_size: int = 99) -> Path:
    """A tiny Llama with random weights whose config is changed."""
    shapes = {"model.embed_tokens": (vocab_size, 32), "model.norm": (32,), "lm_head": (vocab_size, 32)}
    shapes |= {f"model.layers.{i}.{name}": shape for i in range(2) for name, shape in _LAYER.items()}
    rng = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    save_file(
        {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()},
        folder / "model.safetensors",
    )
    changed = CONFIG | {"vocab_size": vocab_size} | (config or {})
    (folder / "config.json").write_text(json.dumps({k: v for k, v in changed.items() if v != "absent"}))
    return folder


def rope(**parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 100.0, **parameters}}


WRONG: list[tuple[dict[str, Any], type[IngotError], str]] = [
    ({"hidden_size": 0}, LoadError, "hidden_size: out of range, got 0"),
    ({"hidden_size": -1}, LoadError, "hidden_size: out of range, got -1"),
    ({"hidden_size": 1 << 40}, LoadError, "hidden_size: out of range, got 1099511627776"),
    ({"hidden_size": 32.0}, LoadError, "hidden_size: got 32.0, expected an integer"),
    ({"hidden_size": True}, LoadError, "hidden_size: got True, expected an integer"),
    ({"hidden_size": "absent"}, LoadError, "hidden_size: missing"),
    ({"hidden_size": None}, LoadError, "hidden_size: null"),
    ({"num_attention_heads": 5, "head_dim": "absent"}, LoadError, "num_attention_heads, hidden_size: "),
    ({"num_key_value_heads": 3}, LoadError, "got 4 and 3"),
    ({"num_key_value_heads": 8}, LoadError, "got 4 and 8"),
    ({"num_key_value_heads": 0}, LoadError, "num_key_value_heads: out of range"),
    ({"head_dim": 7}, LoadError, "head_dim: bad rotary dim, got 7"),
    ({"num_hidden_layers": 10**9}, LoadError, "num_hidden_layers: out of range, got 1000000000"),
    ({"num_hidden_layers": 5000}, LimitError, "num_hidden_layers: too many, got 5000"),
    ({"rms_norm_eps": 0}, LoadError, "rms_norm_eps: got 0, expected a number above 0"),
    ({"rms_norm_eps": -1e-5}, LoadError, "rms_norm_eps: got -1e-05"),
    ({"hidden_act": "laplace"}, UnsupportedError, "hidden_act: got 'laplace', expected one of silu"),
    ({"hidden_act": 3}, LoadError, "hidden_act: got 3"),
    ({"tie_word_embeddings": "no"}, LoadError, "tie_word_embeddings: got 'no', expected true or false"),
    ({"dtype": "float4"}, LoadError, "dtype: unknown dtype, got 'float4'"),
    ({"torch_dtype": 16}, LoadError, "torch_dtype: unknown dtype, got 16"),
    ({"max_position_embeddings": 1 << 25}, LimitError, "max_position_embeddings: too long, got 33554432"),
    ({"quantization_config": {"bits": 4}}, UnsupportedError, "quantization_config"),
    ({"model_type": "no_such_type"}, UnsupportedError, "model_type: no template, got 'no_such_type', expected one of "),
    ({"model_type": "../llama"}, UnsupportedError, "model_type: no template"),
    ({"model_type": None}, LoadError, "model_type: missing"),
    ({"rope_parameters": [1]}, LoadError, "rope_parameters: wrong kind, got [1]"),
    ({"rope_parameters": {"rope_theta": 0}}, LoadError, "rope_parameters.rope_theta: got 0"),
    ({"rope_parameters": {"rope_theta": -1.0}}, LoadError, "rope_parameters.rope_theta: got -1.0"),
    ({"rope_parameters": None, "rope_theta": "10000"}, LoadError, "rope_theta: got '10000'"),
    (rope(rope_type="dynamic", factor=2.0), UnsupportedError, "rope_parameters.rope_type: 'dynamic'"),
    (rope(rope_type="spiral"), UnsupportedError, "rope_type: not supported, got 'spiral'"),
    (rope(rope_type=["linear"]), UnsupportedError, "rope_type: not supported, got ['linear']"),
    (rope(rope_type="linear", factor=0), LoadError, "rope_parameters.factor: got 0"),
    (rope(rope_type="linear"), LoadError, "rope_parameters.factor: got None"),
    (
        rope(rope_type="llama3", factor=8, low_freq_factor=4, high_freq_factor=1),
        LoadError,
        "high_freq_factor: got 1.0, expected more than low_freq_factor, 4.0",
    ),
    (rope(rope_type="yarn", factor=2, rope_theta=1), LoadError, "angles cannot be computed, float division by zero"),
    (rope(rope_type="linear", factor=5e-324), LoadError, "angles cannot be computed, overflow"),
    (rope(rope_type="longrope", short_factor=[1.0]), LoadError, "short_factor: got [1.0], expected 4 numbers"),
    (
        rope(rope_type="yarn", factor=2, original_max_position_embeddings=0),
        LoadError,
        "original_max_position_embeddings: got 0",
    ),
]


ATTACKS: list[Attack] = [
    (f"{change}"[:60], lambda folder, change=change: write_llama(folder, change), error, fragment)
    for change, error, fragment in WRONG
]
