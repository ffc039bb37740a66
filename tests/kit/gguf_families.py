"""Tiny models of each architecture of GGUF files, as folders, with the keys and tensors of the file."""

from __future__ import annotations

import numpy as np

from hf_case import Case

FACTORS = np.array([1.0, 1.5, 4.0, 8.0], np.float32)
LONG = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 2.0, 5.0, 9.0]}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
EXPERTS = {
    "head_dim": 16,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 20,
    "norm_topk_prob": True,
}
YARN_AND_NONE = {
    "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 500.0, "original_max_position_embeddings": 32},
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9}


def scaled(kind: str, theta: float = 500.0, **parameters: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **parameters}}


# A folder, and the keys and tensors of the file with the same meaning, in addition to those of all files.
FAMILIES = [
    (Case("llama", "llama"), {}, {}),
    (
        Case(
            "llama, biases and tied", "llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
        ),
        {},
        {},
    ),
    (Case("llama, head_dim", "llama", {"head_dim": 12, "num_key_value_heads": 4}), {}, {}),
    (
        Case("llama, linear rope", "llama", scaled("linear", factor=4.0)),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {},
    ),
    (
        Case("llama, yarn rope", "llama", scaled("yarn", factor=4.0, original_max_position_embeddings=32)),
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32},
        {},
    ),
    (
        Case(
            "llama, frequencies",
            "llama",
            scaled(
                "longrope",
                original_max_position_embeddings=128,
                attention_factor=1.0,
                short_factor=FACTORS.tolist(),
                long_factor=FACTORS.tolist(),
            ),
        ),
        {},
        {"rope_freqs.weight": FACTORS},
    ),
    (
        Case("llama, yarn of the whole context", "llama", scaled("yarn", factor=4.0)),
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
        {},
    ),
    (
        Case(
            "llama, yarn and attention",
            "llama",
            scaled("yarn", factor=4.0, attention_factor=0.75 * (0.1 * np.log(4.0) + 1)),
        ),
        {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.attn_factor": 0.75},
        {},
    ),
    (Case("llama, older linear rope", "llama", scaled("linear", factor=4.0)), {"rope.scale_linear": 4.0}, {}),
    (
        Case("llama, linear rope without a kind", "llama", scaled("linear", factor=4.0)),
        {"rope.scaling.factor": 4.0},
        {},
    ),
    (Case("llama, no rope scaling", "llama"), {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
    (Case("llama, a factor of zero", "llama"), {"rope.scaling.type": "linear", "rope.scaling.factor": 0.0}, {}),
    (
        Case(
            "llama, attention",
            "llama",
            scaled(
                "longrope",
                attention_factor=1.5,
                original_max_position_embeddings=64,
                short_factor=[2.0] * 4,
                long_factor=[2.0] * 4,
            ),
        ),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0, "rope.scaling.attn_factor": 1.5},
        {},
    ),
    (Case("llama, no window", "llama"), {"attention.sliding_window": 0}, {}),
    (Case("phi3, no window", "phi3", {"sliding_window": None}), {"attention.sliding_window": 0}, {}),
    (Case("mistral", "mistral", {"sliding_window": 9}), {"attention.sliding_window": 9}, {}),
    (Case("qwen2", "qwen2", {"tie_word_embeddings": True}), {}, {}),
    (Case("qwen3", "qwen3", {"head_dim": 16}), {}, {}),
    (Case("gemma", "gemma", {"head_dim": 16}), {}, {}),
    (Case("mixtral", "mixtral", {"num_local_experts": 5}), {}, {}),
    (Case("qwen3_moe", "qwen3_moe", EXPERTS), {}, {}),
    (
        Case("granite", "granite", {"embedding_multiplier": 3.0, "attention_multiplier": 0.25, "logits_scaling": 4.0}),
        {},
        {},
    ),
    (Case("smollm3", "smollm3", {"num_hidden_layers": 4, "num_attention_heads": 4}), {}, {}),
    (Case("olmo2", "olmo2"), {}, {}),
    (
        Case("olmo3", "olmo3", SLIDING | {"rope_parameters": YARN_AND_NONE}),
        {
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, False],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
        {},
    ),
    (
        Case("exaone4", "exaone4", SLIDING | scaled("default")),
        {"attention.sliding_window": 9, "attention.sliding_window_pattern": [True, False]},
        {},
    ),
    (Case("exaone4, no window", "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}), {}, {}),
    (Case("starcoder2", "starcoder2", {"sliding_window": 9}), {"attention.sliding_window": 9}, {}),
    (Case("stablelm", "stablelm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}), {}, {}),
    (Case("stablelm, parallel", "stablelm", {"use_parallel_residual": True}), {}, {}),
    (Case("stablelm, normalised", "stablelm", {"use_parallel_residual": True, "qk_layernorm": True}), {}, {}),
    (Case("gpt_neox", "gpt_neox", {"rotary_pct": 0.5}), {}, {}),
    (Case("gpt_neox, one after the other", "gpt_neox", {"use_parallel_residual": False}), {}, {}),
    (Case("gpt2", "gpt2", {"n_positions": 128, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 40}), {}, {}),
    (
        Case(
            "gpt_bigcode", "gpt_bigcode", {"n_positions": 128, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_inner": 48}
        ),
        {},
        {},
    ),
    (Case("cohere", "cohere", {"logit_scale": 0.3, "tie_word_embeddings": True}), {}, {}),
    (Case("cohere, normalised", "cohere", {"use_qk_norm": True, "logit_scale": 0.3}), {}, {}),
    (
        Case("cohere2", "cohere2", {**SLIDING, "logit_scale": 0.3}),
        {"attention.sliding_window": 9, "attention.sliding_window_pattern": [True, False]},
        {},
    ),
    (Case("olmo", "olmo"), {}, {}),
    (Case("olmo, clipped", "olmo", {"clip_qkv": 0.5}), {"attention.clamp_kqv": 0.5}, {}),
    (Case("olmoe", "olmoe", {"num_experts": 6, "num_experts_per_tok": 3}), {}, {}),
    (
        Case("qwen2_moe", "qwen2_moe", {**EXPERTS, "norm_topk_prob": False, "shared_expert_intermediate_size": 28}),
        {},
        {},
    ),
    (
        Case(
            "gpt_oss",
            "gpt_oss",
            {
                "head_dim": 16,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "sliding_window": 9,
                "layer_types": SLIDING["layer_types"],
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 500.0,
                    "original_max_position_embeddings": 32,
                    "truncate": False,
                },
            },
        ),
        {
            "attention.sliding_window": 9,
            "expert_feed_forward_length": 48,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
        {},
    ),
    (Case("phi", "phi", scaled("default", partial_rotary_factor=0.5)), {}, {}),
    (Case("glm4", "glm4", {"head_dim": 16, **scaled("default", partial_rotary_factor=0.5)}), {}, {}),
    (Case("glm", "glm", {"head_dim": 16, **scaled("default", partial_rotary_factor=0.5)}), {}, {}),
    (Case("nemotron", "nemotron", scaled("default", partial_rotary_factor=0.5)), {}, {}),
    (Case("arcee", "arcee"), {}, {}),
    (Case("seed_oss", "seed_oss", {"head_dim": 16, "attention_out_bias": True}), {}, {}),
    (Case("ernie4_5", "ernie4_5", {"head_dim": 16}), {}, {}),
    (Case("ernie4_5, biases", "ernie4_5", {"head_dim": 16, "use_bias": True}), {}, {}),
    (Case("exaone", "exaone"), {}, {}),
    (
        Case("gemma2", "gemma2", GEMMA),
        {"attention.sliding_window": 9, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        {},
    ),
    (
        Case("gemma3", "gemma3_text", GEMMA | {"layer_types": ["sliding_attention", "full_attention"]}),
        {"attention.sliding_window": 9, "attention.sliding_window_pattern": 2},
        {},
    ),
    (Case("phi3", "phi3", {"sliding_window": 9}), {"attention.sliding_window": 9}, {}),
    (Case("phi3, partial", "phi3", scaled("default", partial_rotary_factor=0.75)), {}, {}),
    (
        Case(
            "phi3, long",
            "phi3",
            {"original_max_position_embeddings": 16, **scaled("longrope", attention_factor=1.25, **LONG)},
        ),
        {"rope.scaling.original_context_length": 16, "rope.scaling.attn_factor": 1.25},
        {f"rope_factors_{name}.weight": np.array(LONG[f"{name}_factor"], np.float32) for name in ("long", "short")},
    ),
]
