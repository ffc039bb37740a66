"""Tiny models of the architectures whose files gguf_conversions.py writes.

Most are the first cases of their types; the others leave out the options that files cannot express.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gguf_conversions import CONVERTED
from hf_case import Case
from hf_models import CASES

# Types in the quick run: each with conversions that the others do not have.
_QUICK = (
    "deepseek_v3", "granitemoehybrid", "qwen3_5_text", "qwen3_next", "mamba", "lfm2", "falcon", "dbrx", "apertus",
    "nemotron_h", "gemma3n_text", "llama4_text",
)  # fmt: skip
_GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.7, "logits_scaling": 4.0}
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}  # fmt: skip
_ROUTED = {"num_experts_per_tok": 3, "moe_intermediate_size": 20, "n_routed_experts": 12, "n_shared_experts": 2}
_GROUPS = {"n_group": 4, "topk_group": 2, "first_k_dense_replace": 1}
_YARN = {
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32,
        "mscale": 0.7, "mscale_all_dim": 0.7,
    }
}  # fmt: skip
# Entries of the first case that have other values here; None: left out.
_OTHERS: dict[str, dict[str, Any]] = {
    "mamba": {"use_bias": False, "intermediate_size": 64},
    "mamba2": {"time_step_limit": None, "intermediate_size": 64},
    "falcon_mamba": {"mixer_rms_eps": None, "intermediate_size": 64},
    "falcon": {"num_kv_heads": 1},
    "lfm2": {"conv_bias": False},
    "bamba": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}},
    "falcon_h1": {"head_dim": 8, "mamba_norm_before_gate": False, "projectors_bias": None, "time_step_limit": None},
    "nemotron_h": {"time_step_min": None},
    "llama4_text": {"attention_chunk_size": 8192, "floor_scale": None},
    "afmoe": {"mup_enabled": True},
    "dots1": {"layer_types": ["full_attention"] * 2, "sliding_window": None},
    "bitnet": {"hidden_act": "silu", "tie_word_embeddings": True},
    "minicpm3": {"v_head_dim": 8},
    "granite_swa": {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
    "granitemoe_swa": {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}},
    "minimax": {"full_attn_alpha_factor": 1.3, "linear_attn_alpha_factor": 1.3, "mlp_alpha_factor": 1.3},
    "kimi_linear": {"linear_num_heads": 4},
    "ministral3": {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 8,
            "llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.3,
        }
    },
}  # fmt: skip


def _first(type: str) -> Case:
    case = next((case for case in CASES if case.type == type), Case(type, type))
    config = {**case.config, **_OTHERS.get(type, {})}
    if type == "llama4":
        config["text_config"] = config["text_config"] | {"attention_chunk_size": 8192}
    kept = {
        key: value for key, value in config.items() if value is not None or _OTHERS.get(type, {}).get(key, 0) != value
    }
    return replace(case, name=type, config=kept, is_slow=type not in _QUICK)


def _case(name: str, config: dict[str, Any]) -> Case:
    return Case(name, name.split(",")[0], config, is_slow=True)


CONVERTED_CASES = [
    *map(_first, CONVERTED),
    _case("deepseek_v3, yarn", {**_LATENT, **_ROUTED, **_YARN, **_GROUPS}),
    _case("deepseek_v3, no rank", {**_LATENT, **_ROUTED, "q_lora_rank": None, **_GROUPS}),
    _case(
        "glm4_moe, norms and biases",
        {**_ROUTED, "use_qk_norm": True, "attention_bias": True, "first_k_dense_replace": 1},
    ),
    _case("falcon, grouped", {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    _case(
        "falcon, grouped with one norm",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "num_ln_in_parallel_attn": 1,
            "tie_word_embeddings": False,
        },
    ),
    _case("mamba, biases and untied", {"use_bias": True, "tie_word_embeddings": False, "state_size": 5}),
    _case(
        "granitemoehybrid, experts",
        {
            **_GRANITE,
            "num_local_experts": 6,
            "num_experts_per_tok": 3,
            "shared_intermediate_size": 24,
            "mamba_d_state": 6,
            "mamba_n_heads": 8,
            "mamba_d_head": 8,
            "mamba_n_groups": 2,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "mamba_proj_bias": True,
        },
    ),
    _case(
        "nemotron_h, no experts",
        {
            "layers_block_type": ["linear_attention", "full_attention", "mlp", "linear_attention"],
            "head_dim": 12,
            "ssm_state_size": 6,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "n_groups": 2,
        },
    ),
    _case(
        "nemotron_h, latent experts",
        {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "head_dim": 12,
            "ssm_state_size": 6,
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "n_groups": 2,
            "n_routed_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 20,
            "moe_shared_expert_intermediate_size": 24,
            "moe_latent_size": 12,
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 1.7,
            "mlp_bias": True,
        },
    ),
    _case(
        "gemma4_text, values that are keys",
        {
            "head_dim": 8,
            "global_head_dim": 16,
            "num_hidden_layers": 5,
            "sliding_window": 9,
            "layer_types": [*["sliding_attention", "full_attention"] * 2, "full_attention"],
            "vocab_size_per_layer_input": 120,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 3,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 3.0,
        },
    ),
    _case("hunyuan_v1_dense, biases", {"head_dim": 16, "attention_bias": True}),
    _case("mpt, clipped", {"d_model": 32, "n_layers": 2, "n_heads": 4, "attn_config": {"clip_qkv": 0.3}}),
]
