"""Tiny models of Hugging Face architectures with random weights, as transformers makes and saves them."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hf_case import Case
from hf_dense_cases import DENSE_CASES
from hf_mixture_cases import MIXTURE_CASES
from hf_recurrent_cases import RECURRENT_CASES

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": 2,
}
# Buffers that a model computes of its config and stores all the same.
CONSTANTS = {"slope_rate", "query_decay", "key_decay", "diagonal_decay"}

COMPUTED = {"roformer.encoder.embed_positions.weight"}  # sines and cosines that files repeat
# Of text models whose config no automatic class of transformers knows.
OWN_CLASSES = {"emu3": transformers.Emu3ForCausalLM, "mllama": transformers.MllamaForCausalLM}


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **parameters}}


_LONG = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 2.0, 5.0, 9.0]}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
_EXPERTS = {"head_dim": 16, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 20}

CASES = [
    Case("llama", "llama"),
    Case("llama, bf16", "llama", dtype=torch.bfloat16),
    Case("llama, f16", "llama", dtype=torch.float16),
    Case("llama, biases and tied", "llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    Case("llama, head_dim", "llama", {"head_dim": 12, "num_key_value_heads": 4}),
    Case("llama, linear rope", "llama", _rope("linear", factor=4.0)),
    Case(
        "llama, llama3 rope",
        "llama",
        _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    Case("llama, yarn rope", "llama", _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    Case(
        "llama, yarn rope with everything",
        "llama",
        _rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            beta_fast=8.0,
            beta_slow=0.5,
            mscale=0.7,
            mscale_all_dim=1.3,
            truncate=False,
        ),
    ),
    Case("llama, longrope", "llama", _rope("longrope", original_max_position_embeddings=32, **_LONG)),
    Case("gpt2", "gpt2", {"n_positions": 128, "n_embd": 32, "n_head": 4, "n_layer": 2}),
    Case("gpt2, bf16", "gpt2", {"n_positions": 128, "n_embd": 32, "n_head": 4, "n_layer": 2}, torch.bfloat16),
    Case(
        "gpt2, untied and odd scales",
        "gpt2",
        {
            "n_positions": 128,
            "n_embd": 32,
            "n_head": 4,
            "n_layer": 2,
            "n_inner": 40,
            "tie_word_embeddings": False,
            "scale_attn_by_inverse_layer_idx": True,
            "activation_function": "relu",
        },
    ),
    Case("mistral", "mistral", {"sliding_window": 9}),
    Case("mistral, no window", "mistral", {"sliding_window": None}),
    Case("qwen2", "qwen2", {"tie_word_embeddings": True}),
    Case("qwen2, windows", "qwen2", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    Case("qwen3", "qwen3", {"head_dim": 16}),
    Case("qwen3, bf16", "qwen3", {"head_dim": 16}, torch.bfloat16),
    Case("gemma", "gemma", {"head_dim": 16}),
    Case("gemma2", "gemma2", {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 9}),
    Case("gemma2, no caps", "gemma2", {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    Case("gemma3_text", "gemma3_text", {"head_dim": 16, "query_pre_attn_scalar": 24, **_SLIDING}),
    Case(
        "gemma3_text, scaled",
        "gemma3_text",
        {
            "head_dim": 16,
            **_SLIDING,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    Case("phi3", "phi3", {"sliding_window": 9}),
    Case(
        "phi3, short longrope",
        "phi3",
        {"original_max_position_embeddings": 64, **_rope("longrope", **_LONG)},
        context=64,
    ),
    Case("phi3, long longrope", "phi3", {"original_max_position_embeddings": 16, **_rope("longrope", **_LONG)}),
    Case("phi3, partial", "phi3", _rope("default", partial_rotary_factor=0.75)),
    Case("smollm3", "smollm3", {"no_rope_layers": [1, 0]}),
    Case("smollm3, windows", "smollm3", {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 9}),
    Case("olmo2", "olmo2"),
    Case("olmo3", "olmo3", {**_SLIDING, "attention_bias": True}),
    Case(
        "olmo3, scaled",
        "olmo3",
        {
            "num_hidden_layers": 4,
            "sliding_window": 9,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 500.0,
                    "original_max_position_embeddings": 32,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    Case("exaone4", "exaone4", {**_SLIDING, "tie_word_embeddings": True, **_rope("default")}),
    Case("exaone4, no window", "exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    Case("gpt_neox", "gpt_neox"),
    Case("qwen3_moe", "qwen3_moe", _EXPERTS),
    Case("qwen3_moe, bf16", "qwen3_moe", _EXPERTS | {"norm_topk_prob": True}, torch.bfloat16),
    Case(
        "qwen3_moe, some layers plain",
        "qwen3_moe",
        _EXPERTS | {"num_hidden_layers": 4, "mlp_only_layers": [3], "decoder_sparse_step": 2, "attention_bias": True},
    ),
    Case(
        "granite",
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
        },
    ),
    Case("glm4", "glm4", {"head_dim": 16}),
    Case("mixtral", "mixtral", {"num_local_experts": 5, "sliding_window": 9}),
    Case("stablelm", "stablelm", {"use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    Case("stablelm, parallel", "stablelm", {"use_parallel_residual": True, "partial_rotary_factor": 0.25}),
    Case("starcoder2", "starcoder2", {"sliding_window": 9}),
    Case("gpt_neox, one after the other", "gpt_neox", {"use_parallel_residual": False, "attention_bias": False}),
    *DENSE_CASES,
    *RECURRENT_CASES,
    *MIXTURE_CASES,
]


def parameters(cases: Iterable[Case]) -> list[Any]:
    """The parameters of a test that takes a case."""
    return [pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.is_slow else []) for case in cases]


def config_of(case: Case) -> transformers.PretrainedConfig:
    """The config of a case; SIZES that its type calls otherwise are left out."""
    sizes = {} if case.type == "gpt2" or "text_config" in case.config else SIZES
    own = {"vocab_size": 99, "bos_token_id": 0, "eos_token_id": None, **sizes, **copy.deepcopy(case.config)}
    return transformers.AutoConfig.for_model(case.type, **own)


def save_model(case: Case, folder: Path) -> transformers.PreTrainedModel:
    """Saves a model with random weights in `folder` and returns it in f32, as transformers reads it back."""
    torch.manual_seed(0)
    kind = _class_of(case)
    model = _new(kind, config_of(case)).to(torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in COMPUTED:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, buffer in model.named_buffers():
            is_constant = name.rpartition(".")[2] in CONSTANTS
            if name in model.state_dict() and buffer.is_floating_point() and not is_constant:
                buffer.add_(torch.randn_like(buffer) * 0.1)
    model.to(case.dtype).save_pretrained(folder)
    return kind.from_pretrained(folder, dtype=torch.float32, attn_implementation=case.attention).eval()


def _new(kind: Any, config: transformers.PretrainedConfig) -> transformers.PreTrainedModel:
    """A model of a class, which may be an automatic one."""
    if hasattr(kind, "from_config"):
        return kind.from_config(config)
    return kind._from_config(config.get_text_config())


def _class_of(case: Case) -> Any:
    """The class of transformers that makes a case's model: of text, or of images and text."""
    if case.type in OWN_CLASSES:
        return OWN_CLASSES[case.type]
    is_text = case.type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return transformers.AutoModelForCausalLM if is_text else transformers.AutoModelForImageTextToText


def expected_logits(model: transformers.PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """Logits of every position, f32 [length, vocab]."""
    with torch.no_grad():
        return model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()


def exact_logits(model: transformers.PreTrainedModel, ids: np.ndarray) -> np.ndarray:
    """The same in float64, with angles in float64, too: those of transformers are f32, which changes logits by 3e-6 at
    1000 positions.
    """
    double = copy.deepcopy(model).double()
    double.set_experts_implementation("eager")  # the default one has no float64
    with patch.object(torch.Tensor, "float", torch.Tensor.double):
        return expected_logits(double, ids)
