"""Twelve further networks of full size, besides the workloads of `make bench`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmarks.models.workloads import QUANTIZED, WORKLOADS, Built, Field, Workload, image_model, with_statistics


class Hidden(nn.Module):
    """The first result of a transformers model or of its encoder, from its one input."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, return_dict=False)[0]


def _tokens(name: str, make_model: Callable[[], nn.Module], shape: tuple[int, int], vocabulary: int) -> Workload:
    """A model of token ids i64[batch, tokens]."""
    return Workload(name, lambda: (Hidden(make_model()), (torch.randint(0, vocabulary, shape),)))


def regnet() -> nn.Module:
    """RegNet with groups of 48 channels."""
    from transformers import RegNetConfig, RegNetModel

    return RegNetModel(
        RegNetConfig(hidden_sizes=[96, 192, 432, 1008], depths=[2, 6, 15, 2], groups_width=48, layer_type="x")
    )


def convnext() -> nn.Module:
    """ConvNeXt-T."""
    from transformers import ConvNextConfig, ConvNextModel

    return ConvNextModel(ConvNextConfig())


def swin() -> nn.Module:
    """Swin-T."""
    from transformers import SwinConfig, SwinModel

    return SwinModel(SwinConfig(), add_pooling_layer=False)


def mobilevit() -> nn.Module:
    """MobileViT-S, for pictures of 224 x 224."""
    from transformers import MobileViTConfig, MobileViTModel

    return MobileViTModel(MobileViTConfig(image_size=224), expand_output=False)


def poolformer() -> nn.Module:
    """PoolFormer-S12."""
    from transformers import PoolFormerConfig, PoolFormerModel

    return PoolFormerModel(PoolFormerConfig())


def clip_text() -> nn.Module:
    """The text encoder of CLIP ViT-B/32."""
    from transformers import CLIPTextConfig, CLIPTextModel

    return CLIPTextModel(CLIPTextConfig())


def t5_encoder() -> nn.Module:
    """The encoder of T5-small."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(T5Config())


def deberta() -> nn.Module:
    """DeBERTa-v3-xsmall."""
    from transformers import DebertaV2Config, DebertaV2Model

    return DebertaV2Model(
        DebertaV2Config(hidden_size=384, num_attention_heads=6, intermediate_size=1536, num_hidden_layers=12)
    )


def bert() -> nn.Module:
    """BERT-base."""
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(), add_pooling_layer=False)


def qwen2() -> nn.Module:
    """Four layers of Qwen2 0.5B, without logits."""
    from transformers import Qwen2Config, Qwen2Model

    return Qwen2Model(
        Qwen2Config(
            hidden_size=896, intermediate_size=4864, num_hidden_layers=4, num_attention_heads=14,
            num_key_value_heads=2, vocab_size=8192, use_cache=False,
        )
    )  # fmt: skip


def whisper() -> Workload:
    """The encoder of Whisper-tiny on 30 seconds."""

    def make() -> Built:
        from transformers import WhisperConfig, WhisperModel

        config = WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
        return Hidden(WhisperModel(config).encoder), (torch.randn(1, config.num_mel_bins, 3000),)

    return Workload("whisper-encoder", make)


def resnet18(batch: int) -> Workload:
    """ResNet-18 on several pictures."""

    def make() -> Built:
        from transformers import ResNetConfig, ResNetModel

        config = ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic")
        model = with_statistics(ResNetModel(config))
        return Field(model, "pooler_output"), (torch.randn(batch, 3, 224, 224),)

    return Workload(f"resnet18 {batch}", make)


NETWORKS = {
    workload.name: workload
    for workload in (
        image_model("regnet", regnet, "pooler_output"),
        image_model("convnext-t", convnext, "last_hidden_state"),
        image_model("swin-t", swin, "last_hidden_state"),
        image_model("mobilevit-s", mobilevit, "last_hidden_state"),
        image_model("poolformer-s12", poolformer, "last_hidden_state"),
        resnet18(8),
        _tokens("clip-text 77", clip_text, (1, 77), 49408),
        _tokens("t5-encoder 96", t5_encoder, (1, 96), 32128),
        _tokens("deberta 64", deberta, (1, 64), 128100),
        _tokens("bert-base 8x64", bert, (8, 64), 30522),
        _tokens("qwen2 96", qwen2, (1, 96), 8192),
        whisper(),
    )
}


def find(name: str) -> Workload:
    """A workload, or one of these networks, by its name."""
    return (QUANTIZED | WORKLOADS | NETWORKS)[name]
