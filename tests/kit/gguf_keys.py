"""The metadata keys of GGUF files of architectures, made from the config of a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scipy.stats import norm


def keys_of(config: Mapping[str, Any], architecture: str) -> dict[str, Any]:
    """The keys of a file, without the architecture's name."""
    found: dict[str, Any] = {}
    for key, names in _SHARED.items():
        name = next((name for name in names if config.get(name) is not None), None)
        if name is not None:
            found[key] = config[name]
    heads, width = found.get("attention.head_count", 1), found["embedding_length"]
    head_dim = config.get("head_dim") or width // heads
    found["attention.head_count_kv"] = config.get("num_key_value_heads") or heads
    found["rope.dimension_count"] = _rotated(config, head_dim)
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    if full.get("rope_theta") is not None:
        found["rope.freq_base"] = float(full["rope_theta"])
    if "sliding_attention" in rope:
        found["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
    if full.get("rope_type") == "yarn":
        found["rope.scaling.type"] = "yarn"
        found["rope.scaling.factor"] = float(full["factor"])
        found["rope.scaling.original_context_length"] = full["original_max_position_embeddings"]
    if config.get("head_dim"):
        found |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    own = _KEYS.get(architecture)
    found |= {} if own is None else own(config)
    return {key: value for key, value in found.items() if value is not None}


def _rotated(config: Mapping[str, Any], head_dim: int) -> int:
    rope = config.get("rope_parameters") or {}
    full = rope.get("full_attention", rope)
    return int(head_dim * (full.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1))


# The keys of most architectures, and the fields of a config that they come from.
_SHARED = {
    "block_count": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "context_length": ("max_position_embeddings", "model_max_length", "n_positions", "max_seq_len", "seq_length"),
    "embedding_length": ("hidden_size", "n_embed", "d_model"),
    "feed_forward_length": ("intermediate_size", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads", "n_head", "n_heads"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps", "layernorm_epsilon"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "expert_count": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "expert_used_count": ("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"),
    "expert_group_count": ("n_group", "num_expert_group"),
    "expert_group_used_count": ("topk_group",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size", "shared_intermediate_size"),
    "expert_shared_count": ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
    "expert_weights_scale": ("routed_scaling_factor", "route_scale"),
    "expert_weights_norm": ("norm_topk_prob", "moe_renormalize"),
    "attention.sliding_window": ("sliding_window",),
}


def _by_layer(config: Mapping[str, Any], number: int, *kinds: str) -> list[int]:
    """A number for the layers of some kinds, 0 for the others."""
    types = config.get("layer_types") or config["layers_block_type"]
    return [number if kind in kinds else 0 for kind in types]


def _plain_layers(config: Mapping[str, Any]) -> int:
    if "mlp_layer_types" in config:
        return [*config["mlp_layer_types"], "sparse"].index("sparse")
    return config.get("first_k_dense_replace") or config.get("num_dense_layers") or 0


def _local(config: Mapping[str, Any]) -> list[bool]:
    return [kind == "sliding_attention" for kind in config["layer_types"]]


def _mamba_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention.head_count": 0,
        "attention.head_count_kv": 0,
        "feed_forward_length": 0,
        "context_length": 2**20,
        "attention.layer_norm_rms_epsilon": config["layer_norm_epsilon"],
        "ssm.conv_kernel": config["conv_kernel"],
        "ssm.inner_size": config["intermediate_size"],
        "ssm.state_size": config["state_size"],
        "ssm.time_step_rank": config["time_step_rank"],
        "ssm.dt_b_c_rms": config["model_type"] == "falcon_mamba",
    }


def _mamba2_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model with layers of Mamba 2, whatever the names of their sizes are."""

    def size(*names: str) -> int:
        return next(config[name] for name in names if config.get(name) is not None)

    heads = size("mamba_n_heads", "mamba_num_heads", "num_heads")
    return {
        "ssm.conv_kernel": size("mamba_d_conv", "conv_kernel"),
        "ssm.inner_size": heads * size("mamba_d_head", "mamba_head_dim", "head_dim"),
        "ssm.state_size": size("mamba_d_state", "ssm_state_size", "state_size"),
        "ssm.time_step_rank": heads,
        "ssm.group_count": size("mamba_n_groups", "n_groups"),
    }


def _granite_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    names = {
        "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
        "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
    }  # fmt: skip
    return {key: float(config[name]) for key, name in names.items() if name in config}


def _granite_hybrid_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    if "layer_types" in config:
        heads = _by_layer(config, config["num_key_value_heads"], "full_attention", "attention")
    else:
        layers, attention = range(config["num_hidden_layers"]), config["attn_layer_indices"]
        heads = [config["num_key_value_heads"] if layer in attention else 0 for layer in layers]
    return {
        **_granite_keys(config),
        **_mamba2_keys(config),
        "attention.head_count_kv": heads,
        "rope.scaling.finetuned": config["model_type"] == "bamba",
        "expert_count": config.get("num_local_experts") or None,
    }


def _jamba_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    period, offset = config["attn_layer_period"], config["attn_layer_offset"]
    heads, layers = config["num_key_value_heads"], range(config["num_hidden_layers"])
    return {
        "attention.head_count_kv": [heads if layer % period == offset else 0 for layer in layers],
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_expand"] * config["hidden_size"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_dt_rank"],
    }


def _nemotron_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    width = config["moe_intermediate_size"] if "moe" in config["layers_block_type"] else config["intermediate_size"]
    return {
        **_mamba2_keys(config),
        "block_count": len(config["layers_block_type"]),
        "attention.head_count_kv": _by_layer(config, config["num_key_value_heads"], "full_attention"),
        "feed_forward_length": _by_layer(config, width, "moe") if "moe" in config["layers_block_type"]
        else _by_layer(config, width, "mlp"),
        "expert_shared_feed_forward_length": config["moe_shared_expert_intermediate_size"],
        "moe_latent_size": config.get("moe_latent_size"),
    }  # fmt: skip


def _lfm_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    width = config.get("block_ff_dim") or config["intermediate_size"]
    if config.get("block_auto_adjust_ff_dim"):
        multiple = config["block_multiple_of"]
        width = int(config["block_ffn_dim_multiplier"] * int(2 * width / 3))
        width = multiple * -(-width // multiple)
    return {
        "attention.head_count_kv": _by_layer(config, config["num_key_value_heads"], "full_attention"),
        "shortconv.l_cache": config["conv_L_cache"],
        "feed_forward_length": width,
        "leading_dense_block_count": config.get("num_dense_layers"),
    }


def _latent_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    rotated, rank = config["qk_rope_head_dim"], config["kv_lora_rank"]
    rope = config.get("rope_parameters") or {}
    return {
        "attention.head_count_kv": 1,
        "leading_dense_block_count": _plain_layers(config),
        "attention.q_lora_rank": config.get("q_lora_rank"),
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "attention.key_length_mla": config["qk_nope_head_dim"] + rotated,
        "attention.value_length_mla": config["v_head_dim"],
        "rope.dimension_count": rotated,
        "rope.scaling.yarn_log_multiplier": 0.1 * rope["mscale_all_dim"] if rope.get("mscale_all_dim") else None,
        "expert_gating_func": 1 if config["model_type"] == "deepseek_v2" else 2,
    }


def _minicpm_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length": None,
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "rope.dimension_count": config["qk_rope_head_dim"],
    }


def _dsa_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return _latent_keys(config) | {
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
    }


def _kimi_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return _latent_keys(config) | {
        "attention.head_count_kv": _by_layer(config, 1, "full_attention"),
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "kda.head_dim": config["linear_head_dim"],
        "expert_group_count": None,
        "expert_group_used_count": None,
    }


def _routed_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "leading_dense_block_count": _plain_layers(config),
        "expert_gating_func": 2,
        "attention.sliding_window": None,
    }


def _windowed_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"leading_dense_block_count": _plain_layers(config), "attention.sliding_window_pattern": _local(config)}


def _mimo_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["num_key_value_heads"]
    return {
        "attention.head_count_kv": [2 * heads if is_local else heads for is_local in _local(config)],
        "attention.sliding_window_pattern": _local(config),
        "attention.value_length": config["v_head_dim"],
    }


def _delta_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    heads = config["linear_num_value_heads"]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config["linear_value_head_dim"] * heads,
    }


def _falcon_h1_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return _mamba2_keys(config) | {"ssm.inner_size": config["mamba_d_ssm"]}


def _gemma_3n_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "altup.active_idx": config["altup_active_idx"],
        "altup.num_inputs": config["altup_num_inputs"],
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "activation_sparsity_scale": [float(norm.ppf(share)) for share in config["activation_sparsity_pattern"]],
        "attention.sliding_window_pattern": _local(config),
        "final_logit_softcapping": config["final_logit_softcapping"],
    }


def _gemma_4_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, first = config["num_hidden_layers"], config["num_hidden_layers"] - config["num_kv_shared_layers"]
    width, heads = config["intermediate_size"], config["num_key_value_heads"]
    wide = config.get("use_double_wide_mlp")
    found: dict[str, Any] = {
        "attention.key_length": config["global_head_dim"],
        "attention.value_length": config["global_head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "rope.dimension_count": config["global_head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "attention.shared_kv_layers": config["num_kv_shared_layers"],
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input") or 0,
        "attention.sliding_window_pattern": _local(config),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
    }
    if config.get("num_global_key_value_heads") is not None:
        full = config["num_global_key_value_heads"]
        found["attention.head_count_kv"] = [heads if is_local else full for is_local in _local(config)]
    if wide:
        found["feed_forward_length"] = [width if layer < first else 2 * width for layer in range(layers)]
    return found


def _dbrx_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    attention, mlp = config["attn_config"], config["ffn_config"]
    return {
        "attention.head_count_kv": attention["kv_n_heads"],
        "feed_forward_length": mlp["ffn_hidden_size"],
        "rope.freq_base": float(attention["rope_theta"]),
        "attention.clamp_kqv": attention["clip_qkv"],
        "expert_count": mlp["moe_num_experts"],
        "expert_used_count": mlp["moe_top_k"],
        "attention.layer_norm_epsilon": 1e-5,
    }


def _mpt_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    attention, width = config["attn_config"], config["d_model"]
    return {
        "feed_forward_length": 4 * width, "attention.clamp_kqv": attention["clip_qkv"],
        "attention.max_alibi_bias": float(attention["alibi_bias_max"]), "attention.layer_norm_epsilon": 1e-5,
    }  # fmt: skip


def _falcon_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    groups = config["num_kv_heads"] if config["new_decoder_architecture"] else 1
    return {
        "context_length": 2048, "feed_forward_length": 4 * config["hidden_size"], "attention.head_count_kv": groups
    }  # fmt: skip


_KEYS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "mamba": _mamba_keys,
    "mamba2": lambda config: (
        _mamba_keys({**config, "intermediate_size": 0, "time_step_rank": 0}) | _mamba2_keys(config)
    ),
    "granitemoe": _granite_keys,
    "granitehybrid": _granite_hybrid_keys,
    "jamba": _jamba_keys,
    "nemotron_h": _nemotron_keys,
    "nemotron_h_moe": _nemotron_keys,
    "lfm2": _lfm_keys,
    "lfm2moe": _lfm_keys,
    "deepseek2": _latent_keys,
    "glm-dsa": _dsa_keys,
    "minicpm3": _minicpm_keys,
    "kimi-linear": _kimi_keys,
    "glm4moe": _routed_keys,
    "dots1": _routed_keys,
    "bailingmoe2": _routed_keys,
    "exaone-moe": _windowed_keys,
    "afmoe": _windowed_keys,
    "mimo2": _mimo_keys,
    "ernie4_5-moe": lambda config: {
        "leading_dense_block_count": config["moe_layer_start_index"],
        "interleave_moe_layer_step": config["moe_layer_interval"],
    },
    "minimax-m2": lambda config: {"expert_feed_forward_length": config["intermediate_size"]},
    "qwen3next": _delta_keys,
    "qwen35": _delta_keys,
    "qwen35moe": _delta_keys,
    "falcon-h1": _falcon_h1_keys,
    "gemma3n": _gemma_3n_keys,
    "gemma4": _gemma_4_keys,
    "dbrx": _dbrx_keys,
    "mpt": _mpt_keys,
    "falcon": _falcon_keys,
    "bloom": lambda config: {"feed_forward_length": 4 * config["hidden_size"], "context_length": 2048},
    "bitnet": lambda config: {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0},
    "granite_swa": lambda config: (
        _granite_keys(config)
        | {
            "attention.sliding_window_pattern": _local(config),
            "attention.rope_pattern": [bool(theta) for theta in config.get("layer_rope_theta") or []] or None,
        }
    ),
    "cohere2moe": lambda config: (
        _windowed_keys(config)
        | {
            "expert_feed_forward_length": config["intermediate_size"],
            "feed_forward_length": config["prefix_dense_intermediate_size"],
            "logit_scale": float(config["logit_scale"]),
            "expert_gating_func": 1 if config["expert_selection_fn"] == "softmax" else 2,
        }
    ),
    "hy_v3": lambda config: {
        "expert_shared_feed_forward_length": config["num_shared_experts"] * config["moe_intermediate_size"],
        "expert_weights_scale": config["router_scaling_factor"],
        "expert_weights_norm": True,
    },
    "mellum": _windowed_keys,
    "deepseek32": _dsa_keys,
    "minimax-01": lambda config: {"residual_scale": float(config["full_attn_alpha_factor"])},
    "llama4": lambda config: {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    },
    "mistral3": lambda config: {
        "rope.scaling.yarn_log_multiplier": config["rope_parameters"].get("mscale_all_dim"),
        "attention.temperature_scale": config["rope_parameters"]["llama_4_scaling_beta"],
    },
    "phimoe": lambda config: {"attention.sliding_window": config.get("sliding_window") or 0},
}
