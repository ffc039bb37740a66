"""Tiny models with recurrent state, for hf_models.py."""

from __future__ import annotations

from typing import Any

import torch

from hf_case import Case

_MAMBA = {"state_size": 5, "time_step_rank": 3, "conv_kernel": 3}
_MAMBA2 = {"num_heads": 8, "head_dim": 8, "state_size": 6, "n_groups": 2, "chunk_size": 16}
_HYBRID = {
    "mamba_d_state": 6, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_chunk_size": 16,
    "num_hidden_layers": 3,
}  # fmt: skip
_CONVS = {"layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3, "block_multiple_of": 16}
_WINDOWED_CONVS = {
    "layer_types": ["conv", "sliding_attention", "full_attention"], "num_hidden_layers": 3, "sliding_window": 9,
    "head_dim": 16,
}  # fmt: skip

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

_EXPERTS = {
    "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "shared_expert_intermediate_size": 24,
}  # fmt: skip
_MOE_CONVS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20, "num_dense_layers": 1}
_NEMOTRON = {
    "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp", "linear_attention"], "head_dim": 12,
    "ssm_state_size": 6, "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 2, "chunk_size": 16,
    "n_routed_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 24, "time_step_min": 0.01,
}  # fmt: skip
_ZAMBA2 = {
    "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "mamba_d_state": 6, "n_mamba_heads": 8,
    "chunk_size": 16, "adapter_rank": 4, "num_key_value_heads": 4, "num_hidden_layers": 4,
}  # fmt: skip
_OLMO = {"layer_types": ["linear_attention", "full_attention"]}
_LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 12,
    "moe_intermediate_size": 20, "n_shared_experts": 1, "num_experts_per_tok": 3, "num_hidden_layers": 3,
}  # fmt: skip
_KIMI = _LATENT | {
    "num_local_experts": 6, "linear_head_dim": 12, "linear_num_heads": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
_LING = _LATENT | {"num_local_experts": 12, "head_dim": 12, "layer_group_size": 2, "n_group": 4, "topk_group": 2}
_LARA = _DELTA | _EXPERTS | {
    "num_hidden_layers": 3, "layer_types": ["linear_attention", "sliding_attention", "full_attention"],
    "sliding_window": 9, "rms_norm_eps": 0.01,  # less amplifies the rounding of tiny results of delta rules
}  # fmt: skip
_MINIMAX = {"num_local_experts": 6, "num_experts_per_tok": 3, "num_hidden_layers": 3, "block_size": 16}


def _slow(name: str, kind: str, config: dict[str, Any], dtype: torch.dtype = torch.float32) -> Case:
    return Case(name, kind, config, dtype, is_slow=True)


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
    _slow("granitemoehybrid", "granitemoehybrid", _HYBRID | _GRANITE),
    _slow(
        "granitemoehybrid, experts",
        "granitemoehybrid",
        _HYBRID | _GRANITE | {"num_local_experts": 6, "num_experts_per_tok": 3, "time_step_limit": [0.2, 1.5]},
    ),
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
    _slow("qwen3_next", "qwen3_next", _DELTA | _EXPERTS | {"num_experts": 5}),
    _slow(
        "qwen3_next, options",
        "qwen3_next",
        _DELTA
        | _EXPERTS
        | {
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
            "linear_conv_kernel_dim": 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
        },
    ),
    _slow(
        "qwen3_next, a plain layer",
        "qwen3_next",
        _DELTA | _EXPERTS | {"mlp_only_layers": [0], "full_attention_interval": 2, "layer_types": None},
    ),
    _slow("qwen3_next, no experts", "qwen3_next", _DELTA | {"num_experts": 0, "attention_bias": True}),
    _slow("qwen3_5_moe_text", "qwen3_5_moe_text", _DELTA | _EXPERTS | {"attention_bias": True}),
    _slow("qwen3_5_moe_text, bf16", "qwen3_5_moe_text", _DELTA | _EXPERTS, torch.bfloat16),
    Case("qwen3_5_text", "qwen3_5_text", _DELTA, is_slow=True),
    Case("qwen3_5_text, bf16", "qwen3_5_text", _DELTA, torch.bfloat16, is_slow=True),
    _slow("lfm2_moe", "lfm2_moe", _CONVS | _MOE_CONVS),
    _slow(
        "lfm2_moe, options",
        "lfm2_moe",
        _CONVS
        | _MOE_CONVS
        | {
            "use_expert_bias": False,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.7,
            "num_dense_layers": 0,
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_word_embeddings": False,
        },
    ),
    _slow("nemotron_h", "nemotron_h", _NEMOTRON),
    _slow(
        "nemotron_h, options",
        "nemotron_h",
        _NEMOTRON
        | {
            "moe_latent_size": 12,
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.7,
            "mlp_bias": True,
            "use_bias": True,
            "use_conv_bias": False,
            "n_groups": 4,
            "conv_kernel": 3,
            "time_step_min": 0.3,
            "mlp_hidden_act": "silu",
            "layer_norm_epsilon": 0.01,
        },
    ),
    _slow("nemotron_h, bf16", "nemotron_h", _NEMOTRON, torch.bfloat16),
    _slow("zamba2", "zamba2", _ZAMBA2),
    _slow(
        "zamba2, options",
        "zamba2",
        _ZAMBA2
        | {
            "use_shared_attention_adapter": True,
            "use_mem_rope": True,
            "num_mem_blocks": 2,
            "adapter_rank": 5,
            "add_bias_linear": True,
            "mamba_ngroups": 2,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"],
            "rope_theta": 500.0,
            "mamba_d_conv": 3,
            "time_step_min": 0.2,
        },
    ),
    _slow("olmo_hybrid", "olmo_hybrid", _OLMO),
    _slow(
        "olmo_hybrid, options",
        "olmo_hybrid",
        _OLMO
        | {
            "linear_allow_neg_eigval": False,
            "linear_conv_kernel_dim": 3,
            "attention_bias": True,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_value_head_dim": 10,
            "linear_key_head_dim": 6,
            "rope_parameters": {"rope_type": "default", "rope_theta": None},
        },
    ),
    _slow("kimi_linear", "kimi_linear", _KIMI),
    _slow(
        "kimi_linear, options",
        "kimi_linear",
        _KIMI
        | {
            "q_lora_rank": 24,
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "linear_conv_kernel_dim": 3,
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "routed_scaling_factor": 0.7,
        },
    ),
    _slow("bailing_hybrid", "bailing_hybrid", _LING),
    _slow(
        "bailing_hybrid, options",
        "bailing_hybrid",
        _LING
        | {
            "q_lora_rank": 24,
            "kda_safe_gate": False,
            "short_conv_kernel_size": 3,
            "norm_topk_prob": False,
            "n_shared_experts": 2,
            "attention_bias": True,
            "first_k_dense_replace": 0,
            "routed_scaling_factor": 0.7,
        },
    ),
    _slow("bailing_hybrid, other bound", "bailing_hybrid", _LING | {"kda_lower_bound": -1.5}),
    _slow("minimax", "minimax", _MINIMAX),
    _slow(
        "minimax, options",
        "minimax",
        _MINIMAX
        | {
            "full_attn_alpha_factor": 0.9,
            "full_attn_beta_factor": 1.1,
            "linear_attn_alpha_factor": 1.2,
            "linear_attn_beta_factor": 0.8,
            "mlp_alpha_factor": 0.7,
            "mlp_beta_factor": 1.3,
            "sliding_window": 9,
            "head_dim": 12,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        },
    ),
    _slow("rwkv", "rwkv", {"rescale_every": 1, "num_hidden_layers": 3}),
    _slow(
        "rwkv, options",
        "rwkv",
        {
            "rescale_every": 0,
            "attention_hidden_size": 40,
            "intermediate_size": 56,
            "tie_word_embeddings": True,
            "use_cache": False,
        },
    ),
    _slow("lara_mini", "lara_mini", _LARA),
    _slow(
        "lara_mini, options",
        "lara_mini",
        _LARA
        | {
            "num_hidden_layers": 5,
            "layer_types": None,
            "norm_topk_prob": False,
            "attention_bias": True,
            "linear_conv_kernel_dim": 3,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
        },
    ),
    _slow("lfm3", "lfm3", _WINDOWED_CONVS),
    _slow(
        "lfm3, other options",
        "lfm3",
        _WINDOWED_CONVS
        | {
            "use_sandwich_norm": False,
            "use_attention_gate": False,
            "attention_bias": True,
            "conv_bias": True,
            "conv_L_cache": 4,
            "tie_word_embeddings": False,
            "norm_eps": 0.01,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    _slow("lfm3, bf16", "lfm3", _WINDOWED_CONVS, torch.bfloat16),
]
