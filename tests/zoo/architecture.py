"""What a row of the zoo is, and the parts that rows are made of: sizes, random inputs, dims that may be symbols."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch.export import Dim

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

BATCH = LENGTH = Dim.DYNAMIC  # torch says so where it cannot keep one symbolic
VOCABULARY = 99
EAGER = {"attn_implementation": "eager"}  # torch makes no ONNX of its fused attention with a bias

Inputs = Callable[[int, int], dict[str, torch.Tensor]]
Dims = Mapping[str, Mapping[int, Any]]


@dataclass(frozen=True)
class Mark:
    """Why a way does not work: whose error it is, its type and a piece of its message. A stale mark fails.

    whose: "torch" where torch itself cannot export the model, "ingot" where Ingot has no rule or no kernel.
    """

    whose: str
    error: str
    piece: str


@dataclass(frozen=True)
class Architecture:
    """A model of the zoo: how it is built, its inputs for a batch and a length, and which of their dims are symbols.

    sizes: (batch, length) as exported, and another that the symbolic program runs at too. quick: the shapes with which
    it runs in `make test`, "static" or "symbolic", if it does.
    """

    name: str
    module: Callable[[], torch.nn.Module]
    inputs: Inputs
    dims: Dims
    sizes: tuple[tuple[int, int], tuple[int, int]] = ((2, 12), (3, 17))
    quick: str = ""

    def build(self) -> torch.nn.Module:
        """The module in eval mode, no weight of which is a zero or a one that hides what it is multiplied with."""
        torch.manual_seed(zlib.crc32(self.name.encode()))
        module = self.module().eval()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.is_floating_point():
                    parameter.add_(torch.randn_like(parameter), alpha=0.05)
            for part in module.modules():
                if isinstance(part, torch.nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
                    part.running_mean.normal_(0.0, 0.1)
                    part.running_var.uniform_(0.5, 1.5)
        return module


def pretrained(model: str, config: str | None = None, **values: Any) -> Callable[[], torch.nn.Module]:
    """A model of transformers by its class names, with a config of these values."""

    def build() -> torch.nn.Module:
        name = config or re.sub(r"(Model|For[A-Z]\w+)$", "", model)
        return getattr(transformers, model)(getattr(transformers, f"{name}Config")(**values))

    return build


def tokens(batch: int, length: int) -> torch.Tensor:
    """Token numbers i64[batch, length]."""
    return torch.randint(3, VOCABULARY, (batch, length))


def padded(batch: int, length: int) -> torch.Tensor:
    """A mask i64[batch, length] of ones, whose later rows end in zeros."""
    return (torch.arange(length) < torch.tensor([length - i % 3 for i in range(batch)])[:, None]).long()


def sentences(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs of an encoder of texts: tokens and the mask of their padding."""
    return {"input_ids": tokens(batch, length), "attention_mask": padded(batch, length)}


SENTENCES: Dims = {"input_ids": {0: BATCH, 1: LENGTH}, "attention_mask": {0: BATCH, 1: LENGTH}}


def prompts(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs of a language model: tokens alone."""
    return {"input_ids": tokens(batch, length)}


PROMPTS: Dims = {"input_ids": {0: BATCH, 1: LENGTH}}


def translations(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs of an encoder and a decoder: tokens, their mask, and seven tokens of the other side."""
    return sentences(batch, length) | {"decoder_input_ids": tokens(batch, 7)}


TRANSLATIONS: Dims = {**SENTENCES, "decoder_input_ids": {0: BATCH}}


def images(size: int, channels: int = 3, name: str = "pixel_values") -> Inputs:
    """Inputs of a model of square images."""
    return lambda batch, length: {name: torch.randn(batch, channels, size, size)}


IMAGES: Dims = {"pixel_values": {0: BATCH}}


def rows(*shape: int, name: str = "x") -> Inputs:
    """One input [batch, length, *shape], or with a negative first size [batch, -size, length, ...]: channels first."""
    if shape and shape[0] < 0:
        return lambda batch, length: {name: torch.randn(batch, -shape[0], length, *shape[1:])}
    return lambda batch, length: {name: torch.randn(batch, length, *shape)}
