"""Tiny models of dense decoders, each option of a config at a value that is not its default in some case."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from hf_case import Case


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **parameters}}


_SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9}
_YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_QUICK = ("cohere", "opt, projected", "ministral3", "bloom", "bert", "electra")  # each with other parts


def _case(name: str, config: dict[str, Any] | None = None, dtype: torch.dtype = torch.float32) -> Case:
    """The case of the type that its name begins with."""
    return Case(name, name.split(",")[0], config or {}, dtype, is_slow=name not in _QUICK)


_GEMMA4 = {
    "head_dim": 8,
    "global_head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 9,
    "vocab_size_per_layer_input": 99,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
}

_GEMMA3N = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 9,
    "vocab_size_per_layer_input": 99,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 2,
    "laurel_rank": 6,
    "activation_sparsity_pattern": [0.9, 0.0, 0.0, 0.0],
}
_TEXT = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": None,
}  # sizes of a text model within another
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
_UNIFIED = {key: value for key, value in _GEMMA4.items() if "per_layer_input" not in key}
_SHAPES = {
    "shape_vocab_size": 7,
    "shape_embed_dim": 12,
    "pronunciation_vocab_size": 5,
    "pronunciation_embed_dim": 10,
}
_LLAMA4 = {
    "intermediate_size_mlp": 40,
    "head_dim": 8,
    "num_local_experts": 4,
    "interleave_moe_layer_step": 2,
    "attention_chunk_size": 16,
    "pad_token_id": 2,
}
_TILES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 28,
    "patch_size": 14,
    "projector_input_dim": 32,
    "projector_output_dim": 32,
}
_PHI_VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
_PHI_AUDIO = {"hidden_size": 32, "intermediate_size": 48, "num_blocks": 1, "num_attention_heads": 4}
_COMPASS = {"sliding_attention": {"rope_type": "default", "rope_theta": 500.0, "mrope_section": [2, 1, 1]}}
_BART = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48}

DENSE_CASES = [
    _case("glm4", {"head_dim": 16}),
    _case(
        "glm4, options",
        {"head_dim": 12, "attention_bias": False, **_rope("linear", factor=2.0, partial_rotary_factor=1.0)},
    ),
    _case("glm", {"head_dim": 16}),
    _case("glm, options", {"head_dim": 16, "attention_bias": False, "tie_word_embeddings": True}),
    _case("arcee", _rope("yarn", **_YARN)),
    _case("arcee, options", {"attention_bias": True, "mlp_bias": True, "head_dim": 12, "tie_word_embeddings": True}),
    _case("jais2", _rope("default")),
    _case("jais2, options", {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True}),
    _case("nemotron"),
    _case(
        "nemotron, options",
        {"attention_bias": True, "mlp_bias": True, "head_dim": 16, **_rope("default", partial_rotary_factor=0.25)},
    ),
    _case("phi", _rope("default", partial_rotary_factor=0.25)),
    _case("phi, options", {"qk_layernorm": True, "num_key_value_heads": 4}),
    _case("olmo", {"clip_qkv": 0.5}),
    _case("olmo, options", {"attention_bias": True, "tie_word_embeddings": True, **_rope("linear", factor=2.0)}),
    _case("cohere", {"use_qk_norm": True, "logit_scale": 0.3}),
    _case("cohere, options", {"attention_bias": True, "tie_word_embeddings": False, "layer_norm_eps": 1e-3}),
    _case("cohere2", _SLIDING),
    _case(
        "cohere2, options", {"num_hidden_layers": 4, "sliding_window": 7, "attention_bias": True, "logit_scale": 0.3}
    ),
    _case("cohere_compass_text", _SLIDING | {"rope_parameters": _COMPASS | {"full_attention": None}}),
    _case(
        "cohere_compass_text, options",
        {
            "num_hidden_layers": 3,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            "sliding_window": 7,
            "rope_parameters": _COMPASS | {"full_attention": {"rope_type": "yarn", "rope_theta": 900.0, **_YARN}},
            "logit_scale": 0.3,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "layer_norm_eps": 1e-3,
            "hidden_act": "gelu",
        },
    ),
    _case(
        "cohere_compass_text, one kind of layers",
        {"rope_parameters": {"full_attention": _rope("linear", factor=2.0)["rope_parameters"]}},
    ),
    _case("seed_oss", {"head_dim": 16}),
    _case("seed_oss, options", {"head_dim": 16, "attention_bias": False, "attention_out_bias": True, "mlp_bias": True}),
    _case("ernie4_5", {"use_bias": True}),
    _case("ernie4_5, options", {"head_dim": 12, "tie_word_embeddings": False}),
    _case("helium", {"head_dim": 8, "attention_bias": True}),
    _case("helium, options", {"head_dim": 8, "mlp_bias": True, "tie_word_embeddings": True}),
    _case("hunyuan_v1_dense", {"head_dim": 16}),
    _case(
        "hunyuan_v1_dense, options",
        {"head_dim": 16, "attention_bias": True, **_rope("dynamic", alpha=50.0, factor=1.0)},
    ),
    _case(
        "hyperclovax",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.2,
            "residual_multiplier": 0.7,
            "logits_scaling": 0.4,
        },
    ),
    _case("hyperclovax, options", {"use_post_norm": False, "attention_bias": True, "mlp_bias": True}),
    _case("internlm3", {"head_dim": 16}),
    _case("internlm3, options", {"head_dim": 16, "qkv_bias": True, "bias": True}),
    _case("iquestcoder", {"head_dim": 16}),
    _case("ministral", {"head_dim": 16, **_SLIDING}),
    _case("ministral, options", {"head_dim": 8, "sliding_window": 5, "tie_word_embeddings": True}),
    _case("cwm", {"head_dim": 16, **_SLIDING}),
    _case("cwm, options", {"head_dim": 8, "sliding_window": 5, "mlp_bias": True, "num_hidden_layers": 5}),
    _case("apertus"),
    _case("apertus, options", {"attention_bias": True, "hidden_act": "relu2", **_rope("llama3", **_LLAMA3)}),
    _case("bitnet"),
    _case("bitnet, options", {"attention_bias": True, "hidden_act": "silu", "tie_word_embeddings": False}),
    _case("nanochat"),
    _case("nanochat, options", {"attention_bias": True, "final_logit_softcapping": None, "hidden_act": "gelu"}),
    _case("stablelm, normalised", {"qk_layernorm": True}),
    _case("stablelm, normalised and parallel", {"qk_layernorm": True, "use_parallel_residual": True}),
    _case("gptj", {"rotary_dim": 4}),
    _case(
        "gptj, options", {"rotary_dim": 8, "n_inner": 40, "activation_function": "relu", "tie_word_embeddings": True}
    ),
    _case("codegen", {"rotary_dim": 4}),
    _case("codegen, options", {"rotary_dim": 2, "n_embd": 64, "n_head": 8, "n_inner": 40}),
    _case("gpt_neo, windows", {"attention_types": [[["global", "local"], 1]], "window_size": 9}),
    _case("gpt_neo, options", {"attention_types": [[["local"], 2]], "window_size": 5, "intermediate_size": 40}),
    _case("gpt_bigcode"),
    _case(
        "gpt_bigcode, options",
        {"multi_query": False, "scale_attn_weights": False, "n_inner": 40, "tie_word_embeddings": False},
    ),
    _case("openai-gpt"),
    _case("openai-gpt, options", {"afn": "silu", "layer_norm_epsilon": 1e-3, "tie_word_embeddings": False}),
    _case("ctrl", {"dff": 48}),
    _case("ctrl, options", {"dff": 40, "tie_word_embeddings": False}),
    _case("opt", {"ffn_dim": 48}),
    _case("opt, projected", {"ffn_dim": 48, "word_embed_proj_dim": 24, "do_layer_norm_before": False}),
    _case(
        "opt, options",
        {"ffn_dim": 48, "enable_bias": False, "layer_norm_elementwise_affine": False, "activation_function": "gelu"},
    ),
    _case("biogpt"),
    _case("biogpt, options", {"scale_embedding": False, "tie_word_embeddings": False, "hidden_act": "relu"}),
    _case("xglm", {"ffn_dim": 48, "pad_token_id": 1}),
    _case("xglm, options", {"ffn_dim": 48, "pad_token_id": 1, "scale_embedding": False, "activation_function": "relu"}),
    _case("persimmon"),
    _case("persimmon, options", {"qk_layernorm": False, **_rope("default", partial_rotary_factor=0.25)}),
    _case("exaone"),
    _case("exaone, options", {"head_dim": 12, "tie_word_embeddings": True, **_rope("llama3", **_LLAMA3)}),
    _case("gpt_neox_japanese"),
    _case(
        "gpt_neox_japanese, options", {"intermediate_multiple_size": 2, **_rope("default", partial_rotary_factor=0.5)}
    ),
    _case("vaultgemma", {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 9}),
    _case(
        "ministral3",
        {"head_dim": 16, **_rope("yarn", llama_4_scaling_beta=0.3, **_YARN | {"original_max_position_embeddings": 8})},
    ),
    _case(
        "ministral3, options",
        {
            "head_dim": 8,
            "sliding_window": 9,
            **_rope("yarn", llama_4_scaling_beta=0.1, mscale=0.7, mscale_all_dim=1.3, **_YARN),
        },
    ),
    _case("gemma4_text", _GEMMA4),
    _case(
        "gemma4_text, options",
        _GEMMA4
        | {
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 3.0,
            "vocab_size_per_layer_input": 120,
            "num_kv_shared_layers": 3,
            "num_hidden_layers": 5,
            "layer_types": [*_GEMMA4["layer_types"], "full_attention"],
        },
    ),
    _case("gemma4_text, no inputs", _GEMMA4 | {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}),
    *(
        _case(type, {**_BART, **options})
        for type, options in {
            "bart": {"scale_embedding": True},
            "plbart": {"scale_embedding": False},
            "mvp": {},
            "blenderbot-small": {"scale_embedding": True},
            "blenderbot": {"tie_word_embeddings": False},
            "marian": {"scale_embedding": True},
            "mbart": {"activation_function": "relu"},
            "pegasus": {"scale_embedding": True},
            "trocr": {"layernorm_embedding": False, "scale_embedding": True},
        }.items()
    ),
    _case("falcon", {"alibi": False}),
    _case(
        "falcon, grouped",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "tie_word_embeddings": False},
    ),
    _case(
        "falcon, grouped with one norm",
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    _case(
        "falcon, one after the other",
        {"parallel_attn": False, "multi_query": False, "bias": True, "ffn_hidden_size": 40},
    ),
    _case("modernbert-decoder", {"local_attention": 18, "global_attn_every_n_layers": 2, "num_hidden_layers": 4}),
    _case(
        "modernbert-decoder, options",
        {
            "local_attention": 10,
            "layer_types": ["sliding_attention", "full_attention"],
            "attention_bias": True,
            "mlp_bias": True,
            "norm_bias": True,
            "classifier_bias": True,
            "classifier_activation": "silu",
            "decoder_bias": False,
            "tie_word_embeddings": False,
        },
    ),
    _case("apertus1p5_text"),
    _case("gemma4", {"text_config": _TEXT | _GEMMA4, "vision_config": _VISION, "audio_config": None}),
    _case("gemma4_unified", {"text_config": _TEXT | _UNIFIED, "vision_config": _VISION, "audio_config": None}),
    _case("gemma4_unified_text", _UNIFIED),
    _case(
        "got_ocr2",
        {
            "text_config": _TEXT | {"model_type": "qwen2", "tie_word_embeddings": False},
            "tie_word_embeddings": False,
            "vision_config": {
                "hidden_size": 32,
                "output_channels": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "image_size": 64,
                "mlp_dim": 48,
            },
        },
    ),
    _case("fuyu", {"text_config": _TEXT | {"model_type": "persimmon"}, "patch_size": 2}),
    _case("gemma3n_text", _GEMMA3N),
    _case(
        "gemma3n_text, options",
        _GEMMA3N
        | {
            "intermediate_size": [48, 40, 48, 40],
            "activation_sparsity_pattern": [0.9, 0.0, 0.5, 0.0],
            "altup_active_idx": 1,
            "altup_num_inputs": 3,
            "altup_correct_scale": False,
            "final_logit_softcapping": 3.0,
            "num_kv_shared_layers": 0,
            "laurel_rank": 5,
        },
    ),
]

_DECODER = {"is_decoder": True}
_OTHER_BERT = {"is_decoder": True, "hidden_act": "relu", "layer_norm_eps": 1e-3, "tie_word_embeddings": False}
_LAYER_BASES = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 9,
    "layer_rope_theta": [0, 77.0],
}
_GRANITE = {"embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.7, "logits_scaling": 4.0}

DENSE_CASES += [
    _case("bloom", {"n_layer": 2, "n_head": 4}),
    _case(
        "bloom, options",
        {
            "n_layer": 2,
            "n_head": 6,
            "hidden_size": 48,
            "layer_norm_epsilon": 1e-3,
            "apply_residual_connection_post_layernorm": True,
            "tie_word_embeddings": False,
        },
    ),
    _case("mpt", {"d_model": 32, "n_layers": 2, "n_heads": 4}),
    _case(
        "mpt, options",
        {
            "d_model": 48,
            "n_layers": 2,
            "n_heads": 6,
            "layer_norm_epsilon": 1e-3,
            "tie_word_embeddings": False,
            "max_seq_len": 150,
            "attn_config": {"clip_qkv": 0.3, "softmax_scale": 0.2},
        },
    ),
    _case("bert", _DECODER),
    _case("bert, options", _OTHER_BERT | {"type_vocab_size": 3}),
    _case("roberta", _DECODER),
    _case("roberta, options", _OTHER_BERT | {"type_vocab_size": 1, "pad_token_id": 1}),
    _case("xlm-roberta", _DECODER),
    _case("camembert", _DECODER),
    _case("data2vec-text", _DECODER),
    _case("data2vec-text, options", _OTHER_BERT),
    _case("xlm-roberta-xl", _DECODER),
    _case("xlm-roberta-xl, options", _OTHER_BERT | {"type_vocab_size": 2, "pad_token_id": 1}),
    _case("roberta-prelayernorm", _DECODER),
    _case("roberta-prelayernorm, options", _OTHER_BERT),
    _case("megatron-bert", _DECODER),
    _case("megatron-bert, options", _OTHER_BERT | {"type_vocab_size": 1}),
    _case("ernie", _DECODER),
    _case("ernie, options", _OTHER_BERT | {"use_task_id": True, "task_type_vocab_size": 5}),
    _case("bert-generation", _DECODER),
    _case("bert-generation, options", _OTHER_BERT),
    _case("electra", _DECODER | {"embedding_size": 24}),
    _case("electra, options", _OTHER_BERT | {"embedding_size": 32, "type_vocab_size": 1}),
    _case("rembert", _DECODER | {"input_embedding_size": 24, "output_embedding_size": 40}),
    _case("rembert, options", _OTHER_BERT | {"input_embedding_size": 40, "output_embedding_size": 24}),
    _case("roformer", _DECODER),
    _case("roformer, options", _OTHER_BERT | {"embedding_size": 24, "type_vocab_size": 1}),
    _case("big_bird", _DECODER | {"attention_type": "original_full"}),
    _case("big_bird, options", _OTHER_BERT | {"rescale_embeddings": True, "use_bias": False}),
    _case("roc_bert", _DECODER | _SHAPES),
    _case("roc_bert, options", _OTHER_BERT | _SHAPES | {"enable_shape": False, "type_vocab_size": 1}),
    _case("roc_bert, without sounds", _DECODER | _SHAPES | {"enable_pronunciation": False}),
    _case("roc_bert, of tokens alone", _DECODER | _SHAPES | {"concat_input": False}),
    _case("git", {"vision_config": _VISION | {"image_size": 28, "patch_size": 14}}),
    _case(
        "git, options",
        {
            "vision_config": _VISION | {"image_size": 28, "patch_size": 14},
            "hidden_act": "relu",
            "layer_norm_eps": 1e-3,
            "tie_word_embeddings": True,
        },
    ),
    _case("bigbird_pegasus", _BART),
    _case(
        "bigbird_pegasus, options",
        _BART
        | {"scale_embedding": False, "use_bias": True, "activation_function": "relu", "tie_word_embeddings": False},
    ),
    _case("whisper", _BART | {"max_target_positions": 128}),
    _case("whisper, options", _BART | {"activation_function": "relu", "tie_word_embeddings": False}),
    _case("granite_swa", _GRANITE | _LAYER_BASES),
    _case(
        "granite_swa, options",
        {"num_hidden_layers": 5, "sliding_window": 9, "tie_word_embeddings": False, "attention_bias": True}
        | {"mlp_bias": True, "rms_norm_eps": 1e-3},
    ),
    # The eager attention of transformers adds the biases twice, once as a part of the mask.
    replace(_case("falcon, alibi", {"alibi": True}), attention="sdpa"),
    replace(
        _case("falcon, alibi and options", {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True}),
        attention="sdpa",
    ),
    _case(
        "emu3",
        {
            "text_config": _TEXT | {"pad_token_id": 2},
            "vq_config": {"codebook_size": 8, "base_channels": 32, "channel_multiplier": [1, 1], "hidden_size": 32}
            | {"num_res_blocks": 1},
            "vocabulary_map": {"<|extra_200|>": 5, "<image>": 6, "<|visual token 000000|>": 7},
        },
    ),
    _case("phi4_multimodal", {"vision_config": _PHI_VISION, "audio_config": _PHI_AUDIO}),
    _case("llama4", {"text_config": _TEXT | _LLAMA4, "vision_config": _TILES | {"vision_output_dim": 32}}),
    _case(
        "mllama",
        {
            "text_config": _TEXT | {"num_hidden_layers": 3, "cross_attention_layers": [1], "pad_token_id": 2},
            "vision_config": _TILES
            | {"num_global_layers": 1, "attention_heads": 4, "vision_output_dim": 64}
            | {"intermediate_layers_indices": [0]},
        },
    ),
]

# Not among the causal language models of transformers, whose generate() differs from its logits here.
MISTRAL3 = _case(
    "mistral3",
    {
        "text_config": _TEXT
        | {"model_type": "ministral3", "head_dim": 16, "tie_word_embeddings": False}
        | _rope("yarn", llama_4_scaling_beta=0.3, **_YARN),
        "vision_config": _VISION | {"image_size": 28, "patch_size": 14},
        "tie_word_embeddings": False,
    },
)
