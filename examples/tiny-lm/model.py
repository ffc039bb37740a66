"""A Llama-shaped model in plain torch, with Hugging Face's names for its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

BLOCK = 128  # query rows that are looked at together


@dataclass(frozen=True)
class Config:
    """Sizes of the model."""

    vocabulary: int = 4096
    width: int = 192
    layers: int = 5
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 512
    context: int = 512
    rope_base: float = 10000.0
    eps: float = 1e-6

    def hugging_face(self, end: int) -> dict[str, Any]:
        """The content of config.json; `end` is the id of the token between two files."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_base,
            "rms_norm_eps": self.eps,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": end,
            "eos_token_id": end,
            "torch_dtype": "bfloat16",
        }


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x f32[..., width] -> f32[..., width]."""
        return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A product without bias, its weight drawn with the standard deviation of Llama's."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [batch, heads, rows, dim] rotated by its position; the two halves of dim are the pairs' coordinates."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def seen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int) -> torch.Tensor:
    """Attention of the BLOCK rows from `start` to all rows up to their own.

    Spelled out, because torch's fused attention takes longer on a CPU for heads this narrow, and in blocks, because
    rows after a block are never needed. q, k, v [batch, heads, rows, dim] -> [batch, heads, BLOCK, dim].
    """
    end = min(start + BLOCK, q.shape[2])
    future = torch.ones(end - start, end, dtype=torch.bool).triu(start + 1)
    scores = (q[:, :, start:end] @ k[:, :, :end].mT).masked_fill(future, -torch.inf)
    return scores.softmax(-1) @ v[:, :, :end]


class Attention(nn.Module):
    """Causal attention with grouped key and value heads and rotary positions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.q_proj = linear(config.width, config.heads * config.head_dim)
        self.k_proj = linear(config.width, config.kv_heads * config.head_dim)
        self.v_proj = linear(config.width, config.kv_heads * config.head_dim)
        self.o_proj = linear(config.heads * config.head_dim, config.width)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x f32[batch, rows, width] -> f32[batch, rows, width]; cos and sin [rows, head_dim]."""
        batch, rows, _ = x.shape
        q, k, v = (
            project(x).view(batch, rows, -1, self.config.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        group = self.config.heads // self.config.kv_heads
        k, v = rotated(k, cos, sin).repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        q = rotated(q, cos, sin) * self.config.head_dim**-0.5
        mixed = torch.cat([seen(q, k, v, start) for start in range(0, rows, BLOCK)], 2)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, rows, -1))


class Gated(nn.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_proj = linear(config.width, config.ffn)
        self.up_proj = linear(config.width, config.ffn)
        self.down_proj = linear(config.ffn, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x f32[..., width] -> f32[..., width]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then the gated product, each on a normalised input and added to it."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.eps)
        self.mlp = Gated(config)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """x f32[batch, rows, width] -> f32[batch, rows, width]."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding, layers, last norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary, config.width)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.eps)
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        angles = torch.arange(config.context)[:, None] * config.rope_base**-half
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids i64[batch, rows] -> hidden f32[batch, rows, width]."""
        x = self.embed_tokens(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.norm(x)


class Llama(nn.Module):
    """The language model; the embedding is also the output matrix."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.model = Decoder(config)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids i64[batch, rows] -> logits f32[batch, rows, vocabulary]."""
        return F.linear(self.model(ids), self.model.embed_tokens.weight)

    def loss(self, ids: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Mean nats per token of `following` after `ids`, i64[batch, rows] each."""
        return F.cross_entropy(self(ids).flatten(0, 1), following.flatten())
