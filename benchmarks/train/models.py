"""What is trained: torch modules with random weights, batches and the loss of each, the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files

import torch
from torch import nn
from torch.nn import functional as F

SEED = 20
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.1


class Logits(nn.Module):
    """A model of transformers that gives its logits alone."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(**{self.name: x}).logits


class Adapted(nn.Module):
    """A frozen linear layer plus a product of two narrow trained matrices.

    Hu and others, "LoRA: Low-Rank Adaptation of Large Language Models", 2022.
    """

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + x @ self.down.T @ self.up.T


def mlp() -> nn.Module:
    """Three layers of 512."""
    return nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))


def tiny() -> nn.Module:
    """The shape of the language model that Ingot comes with."""
    from transformers import AutoConfig, LlamaForCausalLM

    config = AutoConfig.from_pretrained(str(files("ingot") / "models" / "tiny-lm"), use_cache=False)
    return Logits(LlamaForCausalLM(config).float(), "input_ids")


def gpt2() -> nn.Module:
    """GPT-2 small."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return Logits(GPT2LMHeadModel(GPT2Config(use_cache=False)), "input_ids")


def resnet18() -> nn.Module:
    """ResNet-18."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic", num_labels=1000)
    return Logits(ResNetForImageClassification(config), "pixel_values")


def adapted() -> nn.Module:
    """Adapters of rank 8 at the queries and values of a model of half a billion parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from benchmarks.llm.model import CONFIG

    model = LlamaForCausalLM(LlamaConfig(**CONFIG, use_cache=False)).requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name), 8))
    return Logits(model, "input_ids")


@dataclass(frozen=True)
class Training:
    """A model, what a batch is, and the most that Ingot's step may take of the fastest other, and its plan of MiB.

    shape: of an input of floats, or of tokens and their labels. classes: that labels are of.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    goal: float
    most: int

    def build(self) -> nn.Module:
        """The module in eval mode: dropout does nothing, batch norm keeps its statistics."""
        torch.manual_seed(SEED)
        return self.make().eval()

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The inputs and labels of a step."""
        generator = torch.Generator().manual_seed(SEED + 1 + number)
        if len(self.shape) == 2 and self.make is not mlp:
            tokens = torch.randint(0, self.classes, (self.shape[0], self.shape[1] + 1), generator=generator)
            return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        labels = torch.randint(0, self.classes, self.shape[:1], generator=generator)
        return torch.randn(self.shape, generator=generator), labels


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean cross entropy."""
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


TRAININGS = {
    "mlp 128 x 3x512": Training(mlp, (128, 512), 512, 0.45, 16),
    "tiny language model 8x256": Training(tiny, (8, 256), 4096, 0.60, 200),
    "gpt2 small 4x64": Training(gpt2, (4, 64), 50257, 0.75, 1850),
    "resnet-18 8x224": Training(resnet18, (8, 3, 224, 224), 1000, 0.85, 350),
    "lora r8 0.5B 1x256": Training(adapted, (1, 256), 32000, 0.55, 2600),
}
