"""Tiny models with mixtures of experts, latent attention or attention sinks."""

from __future__ import annotations

from typing import Any

import torch

from hf_case import Case

_SIZES = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20}

MIXTURE_CASES = [
    Case("qwen2_moe", "qwen2_moe", {**_SIZES, "shared_expert_intermediate_size": 24}),
    Case(
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
        is_slow=True,
    ),
]
