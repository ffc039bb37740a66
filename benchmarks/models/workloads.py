"""What is measured: torch modules with random weights, and their inputs, the same in every process."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

SEED = 20
HEADS = 4

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class Workload:
    """A name such as `mlp 32x512`, and a function that makes the module and its example inputs."""

    name: str
    make: Callable[[], Built]

    @property
    def family(self) -> str:
        return self.name.split()[0]

    def build(self) -> Built:
        """The module in eval mode and its inputs."""
        torch.manual_seed(SEED)
        module, inputs = self.make()
        return module.eval().requires_grad_(False), inputs


class Block(nn.Module):
    """A pre-norm transformer block, not causal: x f32[batch, seq, width] -> the same shape."""

    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, width = x.shape
        q, k, v = (
            linear(x).view(batch, seq, HEADS, width // HEADS).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-1, -2) / math.sqrt(width // HEADS)).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.relu(self.up(self.norm2(x))))


class Field(nn.Module):
    """A transformers model reduced to its main input and one field of its result."""

    def __init__(self, model: nn.Module, field: str) -> None:
        super().__init__()
        self.model, self.field = model, field

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self.model(**{self.model.main_input_name: x}), self.field)


class Recurrent(nn.Module):
    """Recurrent layers without their last states."""

    def __init__(self, layers: nn.RNNBase) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


class Attention(nn.Module):
    """Scaled dot-product attention on its inputs: q, k, v f32[batch, heads, rows, width]."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)


class Chain(nn.Module):
    """Element-wise ops around a spelled-out normalisation over rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = torch.sigmoid(x) * torch.tanh(y)
        mean = h.mean(-1, keepdim=True)
        variance = h.var(-1, unbiased=False, keepdim=True)
        normal = (h - mean) / torch.sqrt(variance + 1e-5)
        return torch.log1p(torch.exp(F.gelu(normal * self.weight + self.bias)))


def mlp(batch: int, width: int) -> Workload:
    """Three linear layers with ReLU between them."""

    def make() -> Built:
        layers = [nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)]
        return nn.Sequential(*layers), (torch.randn(batch, width),)

    return Workload(f"mlp {batch}x{width}", make)


def block(spelling: str, batch: int, seq: int, width: int) -> Workload:
    """A transformer block whose attention is spelled out (`naive`) or one call (`sdpa`)."""
    return Workload(
        f"block-{spelling} {batch}x{seq}x{width}",
        lambda: (Block(width, spelling == "sdpa"), (torch.randn(batch, seq, width),)),
    )


def matvec(k: int, n: int) -> Workload:
    """One row times a matrix."""
    return Workload(f"matvec 1x{k}x{n}", lambda: (nn.Linear(k, n, bias=False), (torch.randn(1, k),)))


def recurrent(kind: str, batch: int, steps: int, width: int) -> Workload:
    """Two layers of an LSTM, GRU or RNN, batch first."""

    def make() -> Built:
        layers = getattr(nn, kind.upper())(width, width, num_layers=2, batch_first=True)
        return Recurrent(layers), (torch.randn(batch, steps, width),)

    return Workload(f"{kind} {batch}x{steps}x{width}", make)


def chain(rows: int, cols: int) -> Workload:
    """Sigmoid, tanh, mean and variance, GELU, exp and log1p."""
    return Workload(f"chain {rows}x{cols}", lambda: (Chain(cols), (torch.randn(rows, cols), torch.randn(rows, cols))))


def gpt2(tokens: int) -> Workload:
    """GPT-2 small, from token ids to logits, without a cache."""

    def make() -> Built:
        from transformers import GPT2Config, GPT2LMHeadModel

        model = GPT2LMHeadModel(GPT2Config(use_cache=False))
        return Field(model, "logits"), (torch.randint(0, model.config.vocab_size, (1, tokens)),)

    return Workload(f"gpt2 {tokens}", make)


def bert(tokens: int) -> Workload:
    """A BERT of 6 layers, 384 wide, 12 heads."""

    def make() -> Built:
        from transformers import BertConfig, BertModel

        config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
        model = BertModel(config, add_pooling_layer=False)
        return Field(model, "last_hidden_state"), (torch.randint(0, config.vocab_size, (1, tokens)),)

    return Workload(f"bert {tokens}", make)


def bert_base(tokens: int) -> Workload:
    """BERT-base."""

    def make() -> Built:
        from transformers import BertConfig, BertModel

        model = BertModel(BertConfig(), add_pooling_layer=False)
        return Field(model, "last_hidden_state"), (torch.randint(0, model.config.vocab_size, (1, tokens)),)

    return Workload(f"bert-base {tokens}", make)


def with_statistics(model: nn.Module) -> nn.Module:
    """The model with statistics in its batch norms as if it had been trained."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean, std=0.1)
            for scale in (norm.running_var, norm.weight):
                nn.init.uniform_(scale, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.1)
    return model


def image_model(name: str, make_model: Callable[[], nn.Module], field: str) -> Workload:
    """A transformers model on one picture of 224 x 224."""
    return Workload(name, lambda: (Field(with_statistics(make_model()), field), (torch.randn(1, 3, 224, 224),)))


def vit() -> nn.Module:
    """ViT-S/16."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    return ViTModel(config, add_pooling_layer=False)


def resnet50() -> nn.Module:
    """ResNet-50 without its classifier."""
    from transformers import ResNetConfig, ResNetModel

    return ResNetModel(ResNetConfig())


def mobilenetv2() -> nn.Module:
    """MobileNetV2, width 1, without its classifier."""
    from transformers import MobileNetV2Config, MobileNetV2Model

    return MobileNetV2Model(MobileNetV2Config())


def efficientnet() -> nn.Module:
    """EfficientNet-B0 without its classifier."""
    from transformers import EfficientNetConfig, EfficientNetModel

    return EfficientNetModel(EfficientNetConfig(width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280))


def segformer() -> nn.Module:
    """The encoder of SegFormer-B0."""
    from transformers import SegformerConfig, SegformerModel

    return SegformerModel(SegformerConfig())


class UNet(nn.Module):
    """The first U-Net's shape, padded, with a quarter of its widths: x f32[batch, 3, h, w] -> f32[batch, 2, h, w]."""

    WIDTHS = (16, 32, 64, 128, 256)

    def __init__(self) -> None:
        super().__init__()
        inputs, wide, narrow = (3, *self.WIDTHS), self.WIDTHS[:0:-1], self.WIDTHS[-2::-1]
        self.down = nn.ModuleList(map(self.twice, inputs, self.WIDTHS))
        self.stretch = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in zip(wide, narrow, strict=True))
        self.up = nn.ModuleList(map(self.twice, wide, narrow))
        self.head = nn.Conv2d(self.WIDTHS[0], 2, 1)

    @staticmethod
    def twice(inputs: int, outputs: int) -> nn.Module:
        """Two 3 x 3 convolutions."""
        first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skipped = [x := self.down[0](x)]
        for layers in self.down[1:]:
            skipped.append(x := layers(F.max_pool2d(x, 2)))
        for stretch, layers, skip in zip(self.stretch, self.up, skipped[-2::-1], strict=True):
            x = layers(torch.cat([skip, stretch(x)], 1))
        return self.head(x)


def unet(size: int) -> Workload:
    """A U-Net on one picture."""
    return Workload(f"unet {size}", lambda: (UNet(), (torch.randn(1, 3, size, size),)))


def wav2vec2_features(samples: int) -> Workload:
    """The convolutions that Wav2Vec2-base has before its encoder, on a sound."""

    def make() -> Built:
        from transformers import Wav2Vec2Config, Wav2Vec2Model

        return Wav2Vec2Model(Wav2Vec2Config(num_hidden_layers=1)).feature_extractor, (torch.randn(1, samples),)

    return Workload(f"wav2vec2-features {samples}", make)


def sdpa(size: tuple[int, ...], causal: bool) -> Workload:
    """Attention alone; size: batch (1 when left out), heads, rows, width."""
    shape = (1,) * (4 - len(size)) + size
    return Workload(
        f"{'sdpa-causal' if causal else 'sdpa'} {'x'.join(map(str, size))}",
        lambda: (Attention(causal), tuple(torch.randn(shape) for _ in range(3))),
    )


def steps(count: int) -> Workload:
    """Tiny layers in a row, for the cost of a call and of a step."""
    return Workload(
        f"steps {count}", lambda: (nn.Sequential(*(nn.Linear(16, 16) for _ in range(count))), (torch.randn(1, 16),))
    )


def noop() -> Workload:
    """A graph that does next to nothing: relu on a single element."""
    return Workload("noop", lambda: (nn.ReLU(), (torch.ones(1),)))


BLOCK_SIZES = ((1, 16, 64), (4, 16, 64), (1, 64, 128), (4, 64, 128), (1, 128, 256), (4, 128, 256))
WORKLOADS = {
    workload.name: workload
    for workload in (
        *(mlp(batch, width) for batch, width in ((1, 512), (32, 512), (128, 512), (1, 2048), (32, 2048))),
        *(block(spelling, *size) for spelling in ("naive", "sdpa") for size in BLOCK_SIZES),
        *(matvec(k, n) for k, n in ((1536, 1536), (4096, 4096), (4096, 11008))),
        gpt2(16),
        gpt2(128),
        bert(32),
        bert(128),
        image_model("vit", vit, "last_hidden_state"),
        image_model("resnet50", resnet50, "pooler_output"),
        image_model("mobilenetv2", mobilenetv2, "pooler_output"),
        image_model("efficientnet-b0", efficientnet, "pooler_output"),
        image_model("segformer-b0", segformer, "last_hidden_state"),
        unet(128),
        wav2vec2_features(16000),
        sdpa((12, 512, 64), causal=False),
        sdpa((2, 8, 777, 80), causal=True),
        *(recurrent(kind, batch, 50, 256) for kind in ("lstm", "gru") for batch in (1, 8)),
        chain(300, 1000),
        noop(),
        steps(1),
        steps(21),
    )
}


# Measured in 8 bits.
QUANTIZED = {"bert-base 128": bert_base(128)} | {
    name: WORKLOADS[name] for name in ("bert 128", "vit", "resnet50", "mobilenetv2")
}
