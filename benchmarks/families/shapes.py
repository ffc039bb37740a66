"""The shapes of the models: their keys and tensors in GGUF files, and how many experts read a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

CONTEXT = 2048
VOCAB_SIZE = 32000  # but of Gemma 3, whose table is a third of the model


class Tensor(NamedTuple):
    """A tensor of a file, [experts, rows, columns], [rows, columns] or [columns].

    kind: "matrix" for those that are quantized, "router" for matrices in f32, "norm", "bias", "sink", "decay" and
    "step" for vectors. scale: of a matrix's numbers, relative to those that keep the size of what they multiply.
    """

    name: str
    shape: tuple[int, ...]
    kind: str = "matrix"
    scale: float = 1.0


@dataclass(frozen=True)
class Shape:
    """A model. chosen: of `experts` a token reads so many; experts may differ in bf16, whose files are larger."""

    title: str
    architecture: str
    precisions: tuple[str, ...]
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_width: int
    keys: dict[str, object]
    of_layer: Callable[[Shape, int, int], Iterator[Tensor]]  # of the shape, a layer's number and the experts
    vocabulary: int = VOCAB_SIZE
    is_tied: bool = False
    chosen: int = 0
    experts: int = 0
    bf16_experts: int = 0

    def experts_in(self, precision: str) -> int:
        """The experts of a layer in a file of a precision."""
        return self.bf16_experts if precision == "bf16" else self.experts

    def tensors(self, precision: str) -> Iterator[Tensor]:
        """Every tensor of a file."""
        yield Tensor("token_embd.weight", (self.vocabulary, self.width), scale=1.0 if self.is_tied else self.width**0.5)
        yield Tensor("output_norm.weight", (self.width,), "norm")
        if not self.is_tied:
            yield Tensor("output.weight", (self.vocabulary, self.width), scale=2.0)
        for layer in range(self.layers):
            for tensor in self.of_layer(self, layer, self.experts_in(precision)):
                yield tensor._replace(name=f"blk.{layer}.{tensor.name}")

    @property
    def into_residual(self) -> float:
        """The scale of matrices whose products are added to the rows of all layers."""
        return (2 * self.layers) ** -0.5


def _attention(shape: Shape, *, biases: bool = False, is_gated: bool = False) -> Iterator[Tensor]:
    """Queries, each with its gate where they are gated, keys, values, and the projection of their result."""
    inner, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    rows = {"attn_q": inner * (2 if is_gated else 1), "attn_k": kv, "attn_v": kv}
    for name, count in rows.items():
        yield Tensor(f"{name}.weight", (count, shape.width))
    yield Tensor("attn_output.weight", (shape.width, inner), scale=shape.into_residual)
    for name, count in ({**rows, "attn_output": shape.width} if biases else {}).items():
        yield Tensor(f"{name}.bias", (count,), "bias")


def _norms(*names: str, size: int) -> Iterator[Tensor]:
    for name in names:
        yield Tensor(f"{name}.weight", (size,), "norm")


def _experts(shape: Shape, experts: int, *, biases: bool = False) -> Iterator[Tensor]:
    """A router and the matrices of all experts."""
    width, inner = shape.width, shape.ffn_width
    yield Tensor("ffn_gate_inp.weight", (experts, width), "router")
    for name, rows, columns, scale in (
        ("ffn_gate_exps", inner, width, 1.0),
        ("ffn_up_exps", inner, width, 1.0),
        ("ffn_down_exps", width, inner, shape.into_residual),
    ):
        yield Tensor(f"{name}.weight", (experts, rows, columns), scale=scale)
        if biases:
            yield Tensor(f"{name}.bias", (experts, rows), "bias")
    if biases:
        yield Tensor("ffn_gate_inp.bias", (experts,), "bias")


def _qwen3moe(shape: Shape, layer: int, experts: int) -> Iterator[Tensor]:
    yield from _norms("attn_norm", "ffn_norm", size=shape.width)
    yield from _norms("attn_q_norm", "attn_k_norm", size=shape.head_dim)
    yield from _attention(shape)
    yield from _experts(shape, experts)


def _gpt_oss(shape: Shape, layer: int, experts: int) -> Iterator[Tensor]:
    yield from _norms("attn_norm", "post_attention_norm", size=shape.width)
    yield from _attention(shape, biases=True)
    yield Tensor("attn_sinks.weight", (shape.heads,), "sink")
    yield from _experts(shape, experts, biases=True)


# Of the delta rules of Qwen3-Next: heads of keys, heads of values, elements of a head, taps of the convolution.
KEY_HEADS, VALUE_HEADS, DELTA_DIM, TAPS, FULL_EACH = 8, 16, 128, 4, 4


def _qwen3next(shape: Shape, layer: int, experts: int) -> Iterator[Tensor]:
    yield from _norms("attn_norm", "post_attention_norm", size=shape.width)
    if (layer + 1) % FULL_EACH == 0:
        yield from _norms("attn_q_norm", "attn_k_norm", size=shape.head_dim)
        yield from _attention(shape, is_gated=True)
    else:
        keys, values = KEY_HEADS * DELTA_DIM, VALUE_HEADS * DELTA_DIM
        yield Tensor("attn_qkv.weight", (2 * keys + values, shape.width))
        yield Tensor("attn_gate.weight", (values, shape.width))
        yield Tensor("ssm_conv1d.weight", (2 * keys + values, TAPS), "router")
        yield Tensor("ssm_dt.bias", (VALUE_HEADS,), "step")
        yield Tensor("ssm_a", (VALUE_HEADS,), "decay")
        yield Tensor("ssm_ba.weight", (2 * VALUE_HEADS, shape.width))
        yield Tensor("ssm_norm.weight", (DELTA_DIM,), "norm")
        yield Tensor("ssm_out.weight", (shape.width, values), scale=shape.into_residual)
    yield from _experts(shape, experts)
    yield Tensor("ffn_gate_inp_shexp.weight", (shape.width,), "bias")
    yield Tensor("ffn_gate_shexp.weight", (shape.ffn_width, shape.width))
    yield Tensor("ffn_up_shexp.weight", (shape.ffn_width, shape.width))
    yield Tensor("ffn_down_shexp.weight", (shape.width, shape.ffn_width), scale=shape.into_residual)


def _gemma3(shape: Shape, layer: int, experts: int) -> Iterator[Tensor]:
    names = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    yield from _norms(*names, size=shape.width)
    yield from _norms("attn_q_norm", "attn_k_norm", size=shape.head_dim)
    yield from _attention(shape)
    yield Tensor("ffn_gate.weight", (shape.ffn_width, shape.width))
    yield Tensor("ffn_up.weight", (shape.ffn_width, shape.width))
    yield Tensor("ffn_down.weight", (shape.width, shape.ffn_width))


_FOUR_BITS = ("q4_0", "q4_k_m")
SHAPES = {
    "qwen3moe": Shape(
        "Qwen3-MoE with 1 B active parameters", "qwen3moe", ("bf16", *_FOUR_BITS), 16, 2048, 32, 4, 128, 768,
        {"expert_feed_forward_length": 768, "rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-6},
        _qwen3moe, chosen=8, experts=48, bf16_experts=12,
    ),
    "gpt-oss": Shape(
        "gpt-oss with 0.5 B active parameters", "gpt-oss", ("mxfp4",), 14, 1440, 32, 8, 64, 1440,
        {
            "expert_feed_forward_length": 1440, "rope.freq_base": 150000.0, "attention.sliding_window": 128,
            "attention.layer_norm_rms_epsilon": 1e-5, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
            "rope.scaling.original_context_length": 4096,
        },
        _gpt_oss, chosen=4, experts=32,
    ),
    "qwen3next": Shape(
        "Qwen3-Next with 0.5 B active parameters", "qwen3next", ("bf16", *_FOUR_BITS), 28, 1024, 8, 2, 256, 512,
        {
            "expert_feed_forward_length": 512, "expert_shared_feed_forward_length": 512, "rope.freq_base": 1e7,
            "rope.dimension_count": 64, "attention.layer_norm_rms_epsilon": 1e-6, "ssm.conv_kernel": TAPS,
            "ssm.state_size": DELTA_DIM, "ssm.group_count": KEY_HEADS, "ssm.time_step_rank": VALUE_HEADS,
            "ssm.inner_size": VALUE_HEADS * DELTA_DIM, "full_attention_interval": FULL_EACH,
        },
        _qwen3next, chosen=4, experts=32, bf16_experts=16,
    ),
    "gemma3": Shape(
        "Gemma 3 1B", "gemma3", ("bf16", *_FOUR_BITS), 26, 1152, 4, 1, 256, 6912,
        {
            "attention.sliding_window": 512, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4,
            "attention.layer_norm_rms_epsilon": 1e-6,
        },
        _gemma3, vocabulary=262144, is_tied=True,
    ),
}  # fmt: skip
