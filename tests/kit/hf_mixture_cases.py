"""Tiny models with mixtures of experts, latent attention or attention sinks."""

from __future__ import annotations

from typing import Any

import torch

from hf_case import Case

_EXPERTS = {"num_experts_per_tok": 3, "moe_intermediate_size": 20}
_SIZES = {**_EXPERTS, "num_experts": 6}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
_ROUTED = {**_EXPERTS, "n_routed_experts": 12, "n_shared_experts": 2, "first_k_dense_replace": 1}
_GROUPS = {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.7}
_WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
_LAYER_BASES = {**_WINDOWS, "layer_rope_theta": [0, 77.0]}
_INDEX = {"index_topk": 120, "index_head_dim": 16, "index_n_heads": 2}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.7,
    "logits_scaling": 4.0,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
}


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **parameters}}


_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.7, mscale_all_dim=1.3)

_OSS = {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 9}
_LLAMA4 = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "num_local_experts": 5,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 40,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 24,
    "floor_scale": 20,
}
_DBRX = {
    "d_model": 32,
    "n_layers": 2,
    "n_heads": 4,
    "max_seq_len": 128,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 0.6, "rope_theta": 10000.0},
    "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 20, "moe_num_experts": 6, "moe_top_k": 3},
}
_LONGCAT = {
    **_LATENT,
    "head_dim": 8,
    "num_layers": 2,
    "ffn_hidden_size": 40,
    "moe_topk": 3,
    "n_routed_experts": 5,
    "zero_expert_num": 3,
    "expert_ffn_hidden_size": 20,
}
_MIMO = {
    "num_key_value_heads": 1,
    "head_dim": 12,
    "v_head_dim": 10,
    "sliding_window": 9,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
}
_COHERE = {"num_experts": 6, "num_experts_per_tok": 3, "head_dim": 8}
_PHI = {"num_local_experts": 6, "num_experts_per_tok": 2}
_ERNIE = {"moe_num_experts": 6, "moe_k": 3, "moe_intermediate_size": 20, "head_dim": 8}


def _slow(name: str, kind: str, config: dict[str, Any], dtype: torch.dtype = torch.float32) -> Case:
    return Case(name, kind, config, dtype, is_slow=True)


MIXTURE_CASES = [
    _slow("qwen2_moe", "qwen2_moe", {**_SIZES, "shared_expert_intermediate_size": 24}),
    _slow(
        "qwen2_moe, options",
        "qwen2_moe",
        {
            **_SIZES,
            "shared_expert_intermediate_size": 24,
            "num_hidden_layers": 4,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
    ),
    _slow("olmoe", "olmoe", _SIZES),
    _slow("olmoe, options", "olmoe", {**_SIZES, "clip_qkv": 0.9, "norm_topk_prob": True, "attention_bias": True}),
    _slow("granitemoe", "granitemoe", _GRANITE),
    _slow("granitemoe, bf16", "granitemoe", _GRANITE, torch.bfloat16),
    _slow("granitemoeshared", "granitemoeshared", {**_GRANITE, "shared_intermediate_size": 24}),
    _slow("granitemoeshared, no shared mlp", "granitemoeshared", {**_GRANITE, "attention_bias": True}),
    Case("deepseek_v3", "deepseek_v3", {**_LATENT, **_ROUTED, **_GROUPS}),
    _slow("deepseek_v3, bf16", "deepseek_v3", {**_LATENT, **_ROUTED, **_GROUPS}, torch.bfloat16),
    _slow(
        "deepseek_v3, options",
        "deepseek_v3",
        {
            **_LATENT,
            **_ROUTED,
            **_GROUPS,
            **_YARN,
            "q_lora_rank": None,
            "norm_topk_prob": False,
            "rope_interleave": False,
            "attention_bias": True,
        },
    ),
    _slow("deepseek_v2", "deepseek_v2", {**_LATENT, **_ROUTED}),
    _slow(
        "deepseek_v2, groups",
        "deepseek_v2",
        {**_LATENT, **_ROUTED, **_GROUPS, **_YARN, "topk_method": "group_limited_greedy", "attention_bias": True},
    ),
    _slow("deepseek_v2, mlp biases", "deepseek_v2", {**_LATENT, **_ROUTED, "q_lora_rank": None, "mlp_bias": True}),
    _slow("glm4_moe_lite", "glm4_moe_lite", {**_LATENT, **_ROUTED, **_GROUPS}),
    _slow("youtu", "youtu", {**_LATENT, "pad_token_id": None}),
    _slow("glm4_moe", "glm4_moe", {**_ROUTED, **_GROUPS, "head_dim": 16}),
    _slow(
        "glm4_moe, options",
        "glm4_moe",
        {**_ROUTED, "use_qk_norm": True, "attention_bias": True, **_rope("default", partial_rotary_factor=0.25)},
    ),
    _slow("dots1", "dots1", {**_ROUTED, **_GROUPS, **_WINDOWS, "norm_topk_prob": True}),
    _slow("dots1, biases", "dots1", {**_ROUTED, "attention_bias": True, "head_dim": 16}),
    _slow("solar_open", "solar_open", {**_ROUTED, **_GROUPS, "head_dim": 16}),
    _slow("exaone_moe", "exaone_moe", {**_SIZES, "num_experts": 12, **_GROUPS, **_WINDOWS, "num_shared_experts": 2}),
    _slow(
        "exaone_moe, 4 layers",
        "exaone_moe",
        {**_SIZES, "num_hidden_layers": 4, "sliding_window": 9, "norm_topk_prob": False},
    ),
    _slow("minimax_m2", "minimax_m2", {"num_local_experts": 6, "num_experts_per_tok": 3, "head_dim": 16}),
    _slow(
        "minimax_m2, partial",
        "minimax_m2",
        {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "head_dim": 16,
            **_rope("default", partial_rotary_factor=0.5),
        },
    ),
    Case("gpt_oss", "gpt_oss", {**_OSS, **_rope("default")}),
    _slow("gpt_oss, bf16", "gpt_oss", {**_OSS, **_rope("default")}, torch.bfloat16),
    _slow(
        "gpt_oss, yarn and other limits",
        "gpt_oss",
        {
            **_OSS,
            "num_key_value_heads": 1,
            "layer_types": ["full_attention", "sliding_attention"],
            "attention_bias": False,
            "swiglu_limit": 0.4,
            "swiglu_alpha": 1.1,
            **_rope("yarn", factor=4.0, original_max_position_embeddings=32, truncate=False),
        },
    ),
    Case("llama4_text", "llama4_text", _LLAMA4),
    _slow(
        "llama4_text, options",
        "llama4_text",
        {
            **_LLAMA4,
            "num_experts_per_tok": 2,
            "use_qk_norm": False,
            "moe_layers": [1],
            "no_rope_layers": [0, 1, 1, 0],
            "attention_chunk_size": 70,
            "floor_scale": 11,
            "attn_scale": 0.3,
            "attention_bias": True,
        },
    ),
    _slow(
        "llama4_text, untuned",
        "llama4_text",
        {**_LLAMA4, "attn_temperature_tuning": False, "attention_chunk_size": None},
    ),
    _slow("phimoe", "phimoe", _PHI),
    Case(
        "phimoe, longrope",
        "phimoe",
        {
            **_PHI,
            "max_position_embeddings": 256,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "original_max_position_embeddings": 64,
                "short_factor": [1.0, 1.1, 1.2, 1.5],
                "long_factor": [1.5, 2.0, 3.0, 4.0],
                "short_mscale": 1.1,
                "long_mscale": 1.2,
            },
        },
        context=64,
        is_slow=True,
    ),
    _slow(
        "phimoe, options",
        "phimoe",
        {**_PHI, "router_jitter_noise": 0.3, "lm_head_bias": True, "attention_bias": True, "sliding_window": 9},
    ),
    _slow("hunyuan_v1_moe", "hunyuan_v1_moe", {"num_experts": 6, "moe_topk": 3, "head_dim": 8}),
    _slow(
        "hunyuan_v1_moe, biases",
        "hunyuan_v1_moe",
        {"num_experts": 6, "moe_topk": 2, "head_dim": 12, "attention_bias": True},
    ),
    _slow("ernie4_5_moe", "ernie4_5_moe", _ERNIE),
    _slow(
        "ernie4_5_moe, options",
        "ernie4_5_moe",
        {
            **_ERNIE,
            "num_hidden_layers": 5,
            "moe_layer_start_index": 2,
            "moe_layer_end_index": 3,
            "moe_num_shared_experts": 0,
            "use_bias": True,
            "moe_norm_min": 0.4,
            "tie_word_embeddings": False,
        },
    ),
    _slow("flex_olmo", "flex_olmo", _SIZES),
    _slow("flex_olmo, options", "flex_olmo", {**_SIZES, "norm_topk_prob": True, "attention_bias": True}),
    _slow("aria_text", "aria_text", {"moe_num_experts": 6, "moe_topk": 3, "head_dim": 8, "mlp_bias": True}),
    _slow("minicpm3", "minicpm3", {**_LATENT, "pad_token_id": None}),
    _slow(
        "minicpm3, options",
        "minicpm3",
        {
            **_LATENT,
            **_rope(
                "longrope",
                original_max_position_embeddings=32,
                short_factor=[1.0] * 4,
                long_factor=[1.0, 2.0, 5.0, 9.0],
            ),
            "tie_word_embeddings": False,
            "scale_emb": 3,
            "scale_depth": 0.7,
            "dim_model_base": 20,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    _slow("dbrx", "dbrx", _DBRX),
    _slow(
        "dbrx, not normalised",
        "dbrx",
        {
            **_DBRX,
            "attn_config": {"kv_n_heads": 4, "clip_qkv": 8.0, "rope_theta": 10000.0},
            "ffn_config": {**_DBRX["ffn_config"], "moe_normalize_expert_weights": None},
        },
    ),
    _slow(
        "hy_v3",
        "hy_v3",
        {**_SIZES, "head_dim": 16, "num_hidden_layers": 3, "num_shared_experts": 2, "attention_bias": True},
    ),
    _slow("hy_v3, other factor", "hy_v3", {**_SIZES, "head_dim": 16, "router_scaling_factor": 0.7, "mlp_bias": True}),
    _slow("sarvam_mla", "sarvam_mla", {**_LATENT, **_ROUTED, **_GROUPS, "q_lora_rank": None}),
    _slow("sarvam_moe", "sarvam_moe", {**_ROUTED, **_GROUPS, "head_dim": 16}),
    _slow("longcat_flash", "longcat_flash", _LONGCAT),
    _slow(
        "longcat_flash, options",
        "longcat_flash",
        {**_LONGCAT, **_YARN, "zero_expert_num": 0, "attention_bias": True, "routed_scaling_factor": 1.3},
    ),
    _slow("axk1", "axk1", {**_LATENT, **_ROUTED, **_GROUPS}),
    _slow(
        "axk1, options",
        "axk1",
        {
            **_LATENT,
            **_ROUTED,
            **_GROUPS,
            **_YARN,
            "rope_interleave": False,
            "norm_topk_prob": False,
            "attention_bias": True,
            "mlp_layer_types": ["sparse", "dense"],
        },
    ),
    _slow("mimo_v2_flash", "mimo_v2_flash", _MIMO),
    _slow(
        "mimo_v2_flash, options",
        "mimo_v2_flash",
        {
            **_MIMO,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "mlp_layer_types": ["sparse", "dense", "sparse"],
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.7,
            "attention_value_scale": None,
            "attention_bias": True,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 1.0},
            },
        },
    ),
    _slow("kolibri1", "kolibri1", {**_SIZES, **_WINDOWS, "shared_expert_intermediate_size": 24, "head_dim": 16}),
    _slow(
        "kolibri1, options",
        "kolibri1",
        {
            **_SIZES,
            "shared_expert_intermediate_size": 24,
            "head_dim": 12,
            "norm_topk_prob": True,
            "layer_types": ["full_attention", "full_attention"],
        },
    ),
    _slow("cohere2_moe", "cohere2_moe", {**_COHERE, **_WINDOWS}),
    _slow(
        "cohere2_moe, options",
        "cohere2_moe",
        {
            **_COHERE,
            "num_hidden_layers": 5,
            "sliding_window": 9,
            "sliding_window_pattern": 2,
            "num_shared_experts": 2,
            "shared_expert_combination_strategy": "sum",
            "expert_selection_fn": "sigmoid",
            "first_k_dense_replace": 2,
            "prefix_dense_intermediate_size": 24,
            "rms_norm_eps": 0.001,
            "logit_scale": 0.3,
        },
    ),
    _slow(
        "cohere2_moe, average",
        "cohere2_moe",
        {
            **_COHERE,
            **_WINDOWS,
            "num_shared_experts": 1,
            "expert_selection_fn": "sigmoid",
            "norm_topk_prob": False,
            "prefix_dense_sliding_window_pattern": 2,
            "mlp_layer_types": ["sparse", "dense"],
        },
    ),
    _slow("mellum", "mellum", {**_SIZES, **_WINDOWS, "head_dim": 16}),
    _slow(
        "mellum, a plain layer",
        "mellum",
        {**_SIZES, **_WINDOWS, "head_dim": 16, "mlp_layer_types": ["dense", "sparse"], "norm_topk_prob": False},
    ),
    _slow(
        "afmoe", "afmoe", {**_SIZES, "head_dim": 16, "num_hidden_layers": 4, "sliding_window": 9, "mup_enabled": True}
    ),
    _slow(
        "afmoe, options",
        "afmoe",
        {
            **_SIZES,
            **_WINDOWS,
            "head_dim": 16,
            "num_dense_layers": 0,
            "num_shared_experts": 1,
            "route_scale": 1.7,
            "attention_bias": True,
        },
    ),
    _slow("granitemoe_swa", "granitemoe_swa", {**_GRANITE, **_LAYER_BASES}),
    _slow(
        "granitemoe_swa, options",
        "granitemoe_swa",
        {
            **_GRANITE,
            "num_hidden_layers": 5,
            "sliding_window": 9,
            "shared_intermediate_size": 24,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    _slow("flint", "flint", {**_SIZES, **_WINDOWS, "head_dim": 16, "mlp_only_layers": [0]}),
    _slow(
        "flint, options",
        "flint",
        {
            **_SIZES,
            "head_dim": 8,
            "num_hidden_layers": 4,
            "sliding_window": 9,
            "shared_expert_intermediate_size": 24,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [],
            "norm_topk_prob": False,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    _slow("deepseek_v32", "deepseek_v32", {**_LATENT, **_ROUTED, **_GROUPS, **_INDEX}),
    _slow(
        "deepseek_v32, options",
        "deepseek_v32",
        {**_LATENT, **_ROUTED, **_GROUPS, **_INDEX, **_YARN, "norm_topk_prob": False, "attention_bias": True},
    ),
    _slow("glm_moe_dsa", "glm_moe_dsa", {**_LATENT, **_ROUTED, **_INDEX}),
]
