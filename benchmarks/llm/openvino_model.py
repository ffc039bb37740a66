"""The model of `benchmarks.llm.model` as OpenVINO has it: `python -m benchmarks.llm.openvino_model FOLDER int8|int4`.

optimum-intel, which exports language models for OpenVINO, refuses the version of transformers that the tests use. Its
steps are repeated here: a decoder of torch whose attention is written as transformers writes it, so that OpenVINO
recognises it, is converted; keys and values become states; and nncf compresses the weights as optimum-intel asks it to
by default: int8 with a scale and zero point for each row; int4 for groups of 128, embedding and logits in int8.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.llm.model import (
    FFN_WIDTH,
    HEAD_DIM,
    HEADS,
    KV_HEADS,
    LAYERS,
    NORM_EPS,
    ROPE_THETA,
    VOCAB_SIZE,
    WIDTH,
    openvino_path,
    paths,
)

INPUTS = ("input_ids", "position_ids", "beam_idx")
GROUP = 128


class Norm(nn.Module):
    """The root of the mean of squares becomes one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + NORM_EPS))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries or keys, rotated by their positions."""
    half = HEAD_DIM // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def repeated(x: Tensor) -> Tensor:
    """Keys or values [batch, KV_HEADS, length, HEAD_DIM], once for each head that reads them."""
    batch, heads, length, width = x.shape
    every = x[:, :, None].expand(batch, heads, HEADS // KV_HEADS, length, width)
    return every.reshape(batch, HEADS, length, width)


class Attention(nn.Module):
    """Queries of all heads over the keys so far; gives keys and values with the new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, keys: Tensor, values: Tensor) -> Any:
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, -1, HEAD_DIM).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        keys = torch.cat((keys, rotated(k, cos, sin)), 2)
        values = torch.cat((values, v), 2)
        mixed = functional.scaled_dot_product_attention(
            rotated(q, cos, sin), repeated(keys), repeated(values), attn_mask=mask
        )
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1)), keys, values


class Mlp(nn.Module):
    """A gated feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, FFN_WIDTH, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(FFN_WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and feed-forward, each with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(), Norm()
        self.self_attn, self.mlp = Attention(), Mlp()


class Decoder(nn.Module):
    """The logits [1, 1, VOCAB_SIZE] after the last token, and keys and values of all layers, alternating.

    ids, positions: [1, length]. beam: [1], whose sequence goes on, always 0. past: keys and values so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB_SIZE, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.lm_head = nn.Linear(WIDTH, VOCAB_SIZE, bias=False)
        frequencies = ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, ids: Tensor, positions: Tensor, beam: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        angles = positions[:, None, :, None].float() * self.frequencies
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos(), angles.sin()
        total = past[0].shape[2] + ids.shape[1]
        mask = torch.arange(total)[None, None, None, :] <= positions[:, None, :, None]
        x, present = self.embed_tokens(ids), []
        for number, layer in enumerate(self.layers):
            keys, values = (each.index_select(0, beam) for each in past[2 * number : 2 * number + 2])
            mixed, keys, values = layer.self_attn(layer.input_layernorm(x), cos, sin, mask, keys, values)
            x = x + mixed
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            present += [keys, values]
        return self.lm_head(self.norm(x[:, -1:])), *present


def read_decoder(folder: Path) -> Decoder:
    """The decoder with the weights of a Hugging Face folder, in f32."""
    with torch.device("meta"):
        shell = Decoder()
    tensors = {name.removeprefix("model."): t.float() for name, t in load_file(folder / "model.safetensors").items()}
    decoder = shell.to_empty(device="cpu")
    decoder.load_state_dict(tensors)
    decoder.frequencies.copy_(ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM))
    return decoder.eval()


def converted(decoder: Decoder) -> Any:
    """The decoder as OpenVINO's model, whose states are keys and values of one sequence."""
    import openvino
    from openvino.passes import MakeStateful, Manager

    past = [torch.zeros(1, KV_HEADS, 2, HEAD_DIM) for _ in range(2 * LAYERS)]
    example = (torch.zeros(1, 3, dtype=torch.long), torch.arange(2, 5)[None], torch.zeros(1, dtype=torch.int32), *past)
    with torch.no_grad():
        model = openvino.convert_model(decoder, example_input=example)
    names = [f"{kind}.{number}" for number in range(LAYERS) for kind in ("key", "value")]
    for port, name in zip(model.inputs, [*INPUTS, *(f"past.{name}" for name in names)], strict=True):
        port.get_tensor().set_names({name})
    for port, name in zip(model.outputs, ["logits", *(f"present.{name}" for name in names)], strict=True):
        port.get_tensor().set_names({name})
    sizes = {f"past.{name}": [1, KV_HEADS, -1, HEAD_DIM] for name in names}
    model.reshape({"input_ids": [1, -1], "position_ids": [1, -1], "beam_idx": [1], **sizes})
    passes = Manager()
    passes.register_pass(MakeStateful({f"past.{name}": f"present.{name}" for name in names}))
    passes.run_passes(model)
    begin_empty(model)
    return model


def begin_empty(model: Any) -> None:
    """Declare that states begin without any position, in the form that OpenVINO's attention over states is found by."""
    from openvino import opset13 as ops

    batch = ops.gather(ops.shape_of(model.input("input_ids"), "i64"), ops.constant([0]), ops.constant(0))
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            shape = ops.concat([batch, ops.constant(np.array([KV_HEADS, 0, HEAD_DIM]))], 0)
            node.set_arguments([ops.broadcast(ops.constant(np.float32(0)), shape)])
    model.validate_nodes_and_infer_types()


def write(folder: Path, precision: str) -> None:
    """The model with compressed weights; the .xml is written last and marks a complete model."""
    import nncf
    import openvino

    model = converted(read_decoder(paths(folder, "bf16")[0]))
    kinds = nncf.CompressWeightsMode
    options = {"mode": kinds.INT4_ASYM, "group_size": GROUP} if precision == "int4" else {"mode": kinds.INT8_ASYM}
    target = openvino_path(folder, precision)
    openvino.save_model(nncf.compress_weights(model, **options), target.with_stem(f"{target.stem}-part"))
    for suffix in (".bin", ".xml"):
        target.with_stem(f"{target.stem}-part").with_suffix(suffix).rename(target.with_suffix(suffix))


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
