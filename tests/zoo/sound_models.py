"""Rows of the zoo: models of sound and of time series."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from architecture import BATCH, LENGTH, Architecture, pretrained, tokens

_SIZES = ((2, 800), (3, 1111))

_LAYERS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 40,
}  # fmt: skip
_FRONT = {
    "conv_dim": [16, 16, 16], "conv_kernel": [10, 3, 3], "conv_stride": [5, 2, 2], "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
_WHISPER = {
    "vocab_size": 99, "num_mel_bins": 16, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "max_source_positions": 40, "max_target_positions": 40, "use_cache": False, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 0,
}  # fmt: skip


def _waves(batch: int, length: int) -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(batch, length)}


WAVES = {"input_values": {0: BATCH, 1: LENGTH}}


def _speech(name: str, model: str, quick: str = "", **values: Any) -> Architecture:
    module = pretrained(model, **(_LAYERS | _FRONT | values))
    return Architecture(name, module, _waves, WAVES, sizes=_SIZES, quick=quick)


def _features(bins: int) -> Any:
    return lambda batch, length: {"input_features": torch.randn(batch, bins, length)}


def _whisper_encoder() -> torch.nn.Module:
    return transformers.WhisperModel(transformers.WhisperConfig(**_WHISPER)).encoder


class _WhisperDecoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**_WHISPER))

    def forward(self, input_ids: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        decoded = self.model.model.decoder(input_ids=input_ids, encoder_hidden_states=hidden, use_cache=False)
        return self.model.proj_out(decoded.last_hidden_state)


def _captions(batch: int, length: int) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens(batch, length), "hidden": torch.randn(batch, 40, 32)}


def _speecht5() -> torch.nn.Module:
    config = transformers.SpeechT5Config(
        **_FRONT, hidden_size=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=40, use_cache=False,
    )  # fmt: skip
    return transformers.SpeechT5ForSpeechToText(config)


def _dictation(batch: int, length: int) -> dict[str, torch.Tensor]:
    return _waves(batch, length) | {"decoder_input_ids": torch.randint(3, 40, (batch, 7))}


class _Codec(torch.nn.Module):
    """A codec's way from sound to codes, or from codes to sound."""

    def __init__(self, model: torch.nn.Module, half: str) -> None:
        super().__init__()
        self.model, self.half = model, half

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.half == "encoder":
            return self.model.encoder(x)
        return self.model.decoder(x)


def _encodec(half: str) -> Any:
    config = {
        "num_filters": 4, "hidden_size": 16, "codebook_size": 16, "codebook_dim": 16, "num_lstm_layers": 1,
        "upsampling_ratios": [4, 2], "sampling_rate": 1000, "target_bandwidths": [1.5],
    }  # fmt: skip
    return lambda: _Codec(transformers.EncodecModel(transformers.EncodecConfig(**config)), half)


def _dac(half: str) -> Any:
    config = {
        "encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32, "codebook_size": 16,
        "codebook_dim": 4, "n_codebooks": 2, "upsampling_ratios": [4, 2], "hidden_size": 32,
    }  # fmt: skip
    return lambda: _Codec(transformers.DacModel(transformers.DacConfig(**config)), half)


def _series(batch: int, length: int) -> dict[str, torch.Tensor]:
    return {"past_values": torch.randn(batch, 32, 3)}


SERIES = {"past_values": {0: BATCH}}
_PATCHES = {
    "num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8, "prediction_length": 4,
    "d_model": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32, "num_layers": 2,
}  # fmt: skip

SOUND = [
    _speech("Wav2Vec2", "Wav2Vec2ForCTC", quick="static"),
    _speech("Wav2Vec2 of layer norms", "Wav2Vec2Model", feat_extract_norm="layer", do_stable_layer_norm=True),
    _speech("HuBERT", "HubertModel"),
    _speech("WavLM", "WavLMModel", num_buckets=16, max_bucket_distance=40),
    Architecture("SpeechT5", _speecht5, _dictation, {**WAVES, "decoder_input_ids": {0: BATCH}}, sizes=_SIZES),
    Architecture("Whisper encoder", _whisper_encoder, lambda b, n: {"input_features": torch.randn(b, 16, 80)},
                 {"input_features": {0: BATCH}}, sizes=((2, 0), (3, 0)), quick="static"),
    Architecture("Whisper decoder", _WhisperDecoder, _captions,
                 {"input_ids": {0: BATCH, 1: LENGTH}, "hidden": {0: BATCH}}),
    Architecture(
        "Audio Spectrogram Transformer",
        pretrained("ASTModel", **(_LAYERS | {"max_length": 48, "num_mel_bins": 16, "patch_size": 8,
                                            "frequency_stride": 8, "time_stride": 8})),
        lambda b, n: {"input_values": torch.randn(b, 48, 16)}, {"input_values": {0: BATCH}}, sizes=((2, 0), (3, 0)),
    ),
    Architecture("EnCodec encoder", _encodec("encoder"), lambda b, n: {"x": torch.randn(b, 1, n)},
                 {"x": {0: BATCH, 2: LENGTH}}, sizes=((2, 256), (3, 333))),
    Architecture("EnCodec decoder", _encodec("decoder"), lambda b, n: {"x": torch.randn(b, 16, n)},
                 {"x": {0: BATCH, 2: LENGTH}}, sizes=((2, 32), (3, 41))),
    Architecture("DAC encoder", _dac("encoder"), lambda b, n: {"x": torch.randn(b, 1, n)},
                 {"x": {0: BATCH, 2: LENGTH}}, sizes=((2, 256), (3, 333))),
    Architecture(
        "HiFi-GAN",
        pretrained("SpeechT5HifiGan", "SpeechT5HifiGan", model_in_dim=16, upsample_initial_channel=32,
                   upsample_rates=[4, 2], upsample_kernel_sizes=[8, 4], resblock_kernel_sizes=[3, 5],
                   resblock_dilation_sizes=[[1, 3], [1, 3]], normalize_before=True),
        lambda b, n: {"spectrogram": torch.randn(b, n, 16)}, {"spectrogram": {0: BATCH, 1: LENGTH}},
        sizes=((2, 32), (3, 41)),
    ),
    Architecture(
        "UnivNet",
        pretrained("UnivNetModel", model_in_channels=8, model_hidden_channels=8, num_mel_bins=16,
                   resblock_kernel_sizes=[3, 3], resblock_stride_sizes=[4, 2], resblock_dilation_sizes=[[1, 3], [1, 3]],
                   kernel_predictor_hidden_channels=8, kernel_predictor_num_blocks=1),
        lambda b, n: {"input_features": torch.randn(b, n, 16), "noise_sequence": torch.randn(b, n, 8)},
        {"input_features": {0: BATCH, 1: LENGTH}, "noise_sequence": {0: BATCH, 1: LENGTH}}, sizes=((2, 32), (3, 41)),
    ),
]  # fmt: skip

SERIES_MODELS = [
    Architecture("PatchTST", pretrained("PatchTSTForPrediction", "PatchTST", **_PATCHES), _series, SERIES,
                 sizes=((2, 0), (3, 0)), quick="static"),
    Architecture("PatchTSMixer", pretrained("PatchTSMixerForPrediction", "PatchTSMixer", **_PATCHES), _series, SERIES,
                 sizes=((2, 0), (3, 0))),
    Architecture(
        "Decision Transformer",
        pretrained("DecisionTransformerModel", state_dim=5, act_dim=3, hidden_size=32, n_layer=2, n_head=4, n_inner=48,
                   max_ep_len=64, vocab_size=1, n_positions=128),
        lambda b, n: {"states": torch.randn(b, n, 5), "actions": torch.randn(b, n, 3),
                      "rewards": torch.randn(b, n, 1), "returns_to_go": torch.randn(b, n, 1),
                      "timesteps": torch.arange(n).repeat(b, 1), "attention_mask": torch.ones(b, n)},
        {name: {0: BATCH, 1: LENGTH} for name in
         ("states", "actions", "rewards", "returns_to_go", "timesteps", "attention_mask")},
    ),
]  # fmt: skip
