"""Cases of hf_models.py with recurrent state: types, and entries of their configs."""

from __future__ import annotations

from typing import Any

_MAMBA = {"state_size": 5, "time_step_rank": 3, "conv_kernel": 3}
_MAMBA2 = {"num_heads": 8, "head_dim": 8, "state_size": 6, "n_groups": 2, "chunk_size": 16}
_HYBRID = {
    "mamba_d_state": 6, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_chunk_size": 16,
    "num_hidden_layers": 3,
}  # fmt: skip
_CONVS = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16}

# Name, type and config of each case; the dtype is f32 unless the name ends in bf16.
ROWS: list[tuple[str, str, dict[str, Any]]] = [
    ("lfm2", "lfm2", _CONVS | {"conv_bias": True}),
    ("lfm2, sizes", "lfm2", _CONVS | {"conv_L_cache": 4, "block_auto_adjust_ff_dim": False}),
    ("lfm2, bf16", "lfm2", _CONVS),
    ("mamba", "mamba", _MAMBA | {"use_bias": True}),
    ("mamba, no bias", "mamba", {"use_conv_bias": False, "tie_word_embeddings": False, "expand": 3}),
    ("falcon_mamba", "falcon_mamba", _MAMBA | {"mixer_rms_eps": 0.01}),
    ("mamba2", "mamba2", _MAMBA2 | {"time_step_limit": [0.3, 1.5]}),
    ("mamba2, bias", "mamba2", _MAMBA2 | {"use_bias": True, "use_conv_bias": False, "n_groups": 4}),
]
