"""Rows of the zoo: models of text."""

from __future__ import annotations

from typing import Any

from architecture import (
    BATCH,
    EAGER,
    LENGTH,
    PROMPTS,
    SENTENCES,
    TRANSLATIONS,
    VOCABULARY,
    Architecture,
    pretrained,
    prompts,
    sentences,
    tokens,
    translations,
)

_TOKENS = {"vocab_size": VOCABULARY, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_ENCODER = _TOKENS | {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 128,
}  # fmt: skip
_DECODER = _ENCODER | {"use_cache": False}
_GROUPED = _DECODER | {"num_key_value_heads": 2}
_GPT = _TOKENS | {"n_positions": 128, "n_embd": 32, "n_head": 4, "n_layer": 2, "use_cache": False}
_SEQUENCES = _TOKENS | {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128, "use_cache": False,
    "decoder_start_token_id": 2,
}  # fmt: skip


def _encoder(name: str, model: str, config: str | None = None, quick: str = "", **values: Any) -> Architecture:
    module = pretrained(model, config, **(_ENCODER | values))
    return Architecture(name, module, sentences, SENTENCES, quick=quick)


def _decoder(name: str, model: str, config: str | None = None, quick: str = "", **values: Any) -> Architecture:
    return Architecture(name, pretrained(model, config, **values), prompts, PROMPTS, quick=quick)


def _scan(name: str, model: str, **values: Any) -> Architecture:
    """A model whose own Python walks the tokens, so that the length is fixed."""
    dims = {"input_ids": {0: BATCH}}
    return Architecture(name, pretrained(model, **values), prompts, dims, sizes=((2, 12), (3, 12)))


def _translator(name: str, model: str, quick: str = "", **values: Any) -> Architecture:
    return Architecture(name, pretrained(model, **values), translations, TRANSLATIONS, quick=quick)


ENCODERS = [
    _encoder("BERT", "BertModel", quick="symbolic"),
    _encoder("RoBERTa", "RobertaModel"),
    _encoder("DistilBERT", "DistilBertModel", dim=32, n_heads=4, n_layers=2, hidden_dim=48),
    _encoder("ALBERT", "AlbertModel", embedding_size=16),
    _encoder("ELECTRA", "ElectraModel", embedding_size=16),
    _encoder("DeBERTa-v2", "DebertaV2Model", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8,
             norm_rel_ebd="layer_norm", share_att_key=True, conv_kernel_size=3),
    _encoder("MPNet", "MPNetModel"),
    _encoder("ModernBERT", "ModernBertModel", local_attention=8, global_attn_every_n_layers=2, cls_token_id=0,
             sep_token_id=2),
    _encoder("ConvBERT", "ConvBertModel", embedding_size=16, conv_kernel_size=3),
    _encoder("SqueezeBERT", "SqueezeBertModel", embedding_size=32),
    _encoder("RoFormer", "RoFormerModel", embedding_size=16),
    Architecture("Nystromformer", pretrained("NystromformerModel", **(_ENCODER | {"num_landmarks": 4,
                 "conv_kernel_size": 3, "segment_means_seq_len": 12})), prompts, {"input_ids": {0: BATCH}},
                 sizes=((2, 12), (3, 12))),
    Architecture("FNet", pretrained("FNetModel", **(_ENCODER | {"use_tpu_fourier_optimizations": False})), prompts,
                 PROMPTS),
    Architecture(
        "XLNet",
        pretrained("XLNetModel", d_model=32, n_layer=2, n_head=4, d_inner=48, **_TOKENS, use_mems_eval=False),
        sentences,
        SENTENCES,
    ),
    Architecture(
        "Funnel",
        pretrained("FunnelModel", block_sizes=[1, 1], d_model=32, n_head=4, d_head=8, d_inner=48, **_TOKENS,
                   num_decoder_layers=1),
        sentences,
        {name: {0: BATCH} for name in SENTENCES},
        sizes=((2, 12), (3, 12)),
    ),
    Architecture(
        "CANINE",
        pretrained("CanineModel", **(_ENCODER | {"num_hash_buckets": 64, "num_hash_functions": 4, "type_vocab_size": 2,
                   "downsampling_rate": 4, "local_transformer_stride": 16})),
        sentences,
        {name: {0: BATCH} for name in SENTENCES},
        sizes=((2, 32), (3, 32)),
    ),
]  # fmt: skip

DECODERS = [
    _decoder("GPT-2", "GPT2LMHeadModel", "GPT2", quick="symbolic", **_GPT),
    _decoder("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoX", **_DECODER),
    _decoder("OPT", "OPTForCausalLM", "OPT", **_TOKENS, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
             ffn_dim=48, max_position_embeddings=128, word_embed_proj_dim=32, use_cache=False),
    _decoder("Bloom", "BloomForCausalLM", **_TOKENS, hidden_size=32, n_layer=2, n_head=4, use_cache=False),
    _decoder("Llama", "LlamaForCausalLM", **_GROUPED),
    _decoder("Qwen2", "Qwen2ForCausalLM", **_GROUPED),
    _decoder("Qwen3", "Qwen3ForCausalLM", **_GROUPED, head_dim=8),
    _decoder("Gemma 3", "Gemma3ForCausalLM", "Gemma3Text", **_GROUPED, head_dim=8, sliding_window=8,
             layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=8),
    _decoder("Mistral", "MistralForCausalLM", **_GROUPED, sliding_window=8),
    _decoder("Phi-3", "Phi3ForCausalLM", **_GROUPED),
    _decoder("Mixtral", "MixtralModel", **_GROUPED, num_local_experts=4, num_experts_per_tok=2),
    _scan("Mamba", "MambaForCausalLM", **_TOKENS, hidden_size=32, num_hidden_layers=2, state_size=8,
             use_cache=False),
    _decoder("Mamba-2", "Mamba2ForCausalLM", **_TOKENS, hidden_size=32, num_hidden_layers=2, state_size=8, head_dim=8,
             num_heads=8, n_groups=1, chunk_size=8, use_cache=False),
    _scan("RWKV", "RwkvForCausalLM", **_TOKENS, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32,
             intermediate_size=48, context_length=128, use_cache=False, rescale_every=0),
]  # fmt: skip

TRANSLATORS = [
    _translator("T5", "T5Model", **_TOKENS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, use_cache=False,
                decoder_start_token_id=1, **EAGER),
    _translator("BART", "BartModel", **_SEQUENCES),
    _translator("Marian", "MarianModel", **_SEQUENCES),
]  # fmt: skip

CLIP_TEXT = Architecture(
    "CLIP text tower",
    pretrained("CLIPTextModel", "CLIPText", **(_ENCODER | {"max_position_embeddings": 77})),
    sentences,
    SENTENCES,
)
SIGLIP_TEXT = Architecture(
    "SigLIP text tower",
    pretrained("SiglipTextModel", "SiglipText", **(_ENCODER | {"max_position_embeddings": 64})),
    lambda batch, length: {"input_ids": tokens(batch, length)},
    {"input_ids": {0: BATCH, 1: LENGTH}},
)

TEXT = [*ENCODERS, *DECODERS, *TRANSLATORS, CLIP_TEXT, SIGLIP_TEXT]
