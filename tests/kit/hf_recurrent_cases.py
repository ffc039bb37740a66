"""Tiny models with recurrent state, for hf_models.py."""

from __future__ import annotations

import torch

from hf_case import Case

_MAMBA = {"state_size": 5, "time_step_rank": 3, "conv_kernel": 3}
_MAMBA2 = {"num_heads": 8, "head_dim": 8, "state_size": 6, "n_groups": 2, "chunk_size": 16}
_HYBRID = {
    "mamba_d_state": 6, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_chunk_size": 16,
    "num_hidden_layers": 3,
}  # fmt: skip
_CONVS = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16}

_JAMBA = {
    "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 4, "mamba_dt_rank": 3, "mamba_d_state": 5,
    "num_hidden_layers": 3,
}  # fmt: skip
_FACTORS = {
    "mamba_d_ssm": 64, "lm_head_multiplier": 0.5, "embedding_multiplier": 2.0, "mlp_multipliers": [0.7, 1.2],
    "key_multiplier": 0.6, "attention_in_multiplier": 1.3, "attention_out_multiplier": 0.8,
    "ssm_multipliers": [0.9, 1.1, 0.7, 1.2, 0.6], "ssm_in_multiplier": 0.8, "ssm_out_multiplier": 1.1,
    "time_step_limit": [0.01, 1.5],
}  # fmt: skip
_GRANITE = {
    "num_local_experts": 0, "shared_intermediate_size": 24, "embedding_multiplier": 3.0, "attention_multiplier": 0.2,
    "residual_multiplier": 0.7, "logits_scaling": 4.0,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
_DELTA = {
    "linear_key_head_dim": 8, "linear_value_head_dim": 12, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"], "head_dim": 16,
}  # fmt: skip

RECURRENT_CASES = [
    Case("lfm2", "lfm2", _CONVS | {"conv_bias": True}),
    Case("lfm2, sizes", "lfm2", _CONVS | {"conv_L_cache": 4, "block_auto_adjust_ff_dim": False}, is_slow=True),
    Case("lfm2, bf16", "lfm2", _CONVS, torch.bfloat16, is_slow=True),
    Case("mamba", "mamba", _MAMBA | {"use_bias": True}),
    Case("mamba, no bias", "mamba", {"use_conv_bias": False, "tie_word_embeddings": False, "expand": 3}, is_slow=True),
    Case("falcon_mamba", "falcon_mamba", _MAMBA | {"mixer_rms_eps": 0.01}, is_slow=True),
    Case("mamba2", "mamba2", _MAMBA2 | {"time_step_limit": [0.3, 1.5]}, is_slow=True),
    Case("mamba2, bias", "mamba2", _MAMBA2 | {"use_bias": True, "use_conv_bias": False, "n_groups": 4}, is_slow=True),
    Case("bamba", "bamba", _HYBRID | {"attn_layer_indices": [1], "mamba_proj_bias": True}, is_slow=True),
    Case("jamba", "jamba", _JAMBA | {"mamba_proj_bias": True}, is_slow=True),
    Case("jamba, one expert", "jamba", _JAMBA | {"num_experts": 1, "mamba_conv_bias": False}, is_slow=True),
    Case(
        "falcon_h1", "falcon_h1", _HYBRID | _FACTORS | {"mamba_rms_norm": True, "projectors_bias": True}, is_slow=True
    ),
    Case(
        "falcon_h1, norm after",
        "falcon_h1",
        _HYBRID | _FACTORS | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
        is_slow=True,
    ),
    Case("falcon_h1, no norm", "falcon_h1", _HYBRID | {"mamba_d_ssm": 64, "mamba_proj_bias": True}, is_slow=True),
    Case("granitemoehybrid", "granitemoehybrid", _HYBRID | _GRANITE, is_slow=True),
    Case(
        "granitemoehybrid, rope",
        "granitemoehybrid",
        _HYBRID | _GRANITE | {"position_embedding_type": "rope"},
        is_slow=True,
    ),
    Case(
        "recurrent_gemma",
        "recurrent_gemma",
        {"num_hidden_layers": 5, "attention_window_size": 9, "logits_soft_cap": 5.0},
        is_slow=True,
    ),
    Case("qwen3_next", "qwen3_next", _DELTA | {"num_experts": 0, "attention_bias": True}, is_slow=True),
    Case("qwen3_5_text", "qwen3_5_text", _DELTA, is_slow=True),
    Case("qwen3_5_text, bf16", "qwen3_5_text", _DELTA, torch.bfloat16, is_slow=True),
]
