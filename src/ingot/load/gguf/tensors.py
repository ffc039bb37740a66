"""Tensors of a GGUF file under their names in templates, decoded by ops of the graph."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ingot.errors import LoadError, UnsupportedError
from ingot.ir.dtype import DTYPES, f32
from ingot.ir.graph import Graph
from ingot.load.gguf.config import ROPE_TENSORS
from ingot.load.gguf.file import DECODED, SIZES, GgufFile, GgufTensor
from ingot.load.hf.safetensors import StoredTensor, listed
from ingot.load.hf.strict_json import shown
from ingot.ops.blocks import BLOCKS, decode_blocks
from ingot.support.files import release

_PIECE_BYTES = 1 << 20  # of blocks that are decoded at a time to inspect their elements
_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,4})\.([a-z_]+)\.(weight|bias)")

_OUTSIDE_LAYERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYERS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS_OF_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_NAMES = {
    "gemma2": _IN_LAYERS | _NORMS_OF_GEMMA,
    "gemma3": _IN_LAYERS | _NORMS_OF_GEMMA,
    "phi3": _IN_LAYERS | {"ffn_up": "mlp.gate_up_proj"},
}


@dataclass(frozen=True, slots=True, eq=False)
class BlockTensor(StoredTensor):
    """A tensor of f32, bf16, f16 or of blocks, which are decoded to f32.

    type: the name of its GGUF type. pairs: 0; or the number of heads of a matrix of queries or keys in which the two
    rows of a rotated pair are adjacent, instead of at a distance of half a head.
    """

    type: str
    pairs: int

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        elements, nbytes = SIZES[self.type]
        return math.prod(self.shape) // elements * nbytes

    @property
    def is_quantized(self) -> bool:
        """Whether it consists of quantized blocks."""
        return self.type in BLOCKS

    def add_to(self, graph: Graph, name: str) -> str:
        """Add the elements to a graph, with pairs reordered: a weight, or the decoded value of blocks."""
        if self.type not in BLOCKS:
            return self._in_order(graph, graph.add_weight(name, self.array()))
        blocks = self._in_order(graph, graph.add_weight(name, self._blocks()))
        return graph.add("decode_blocks", [blocks], f"{name}.decoded", type=self.type, dtype=f32).output

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the elements, some megabytes at a time; blocks are decoded."""
        if self.type not in BLOCKS:
            yield from super(BlockTensor, self).pieces()
            return
        rows = self._blocks()
        flat = rows.reshape(-1, rows.shape[-1])
        step = max(1, _PIECE_BYTES // max(1, rows.shape[-1]))
        for row in range(0, len(flat), step):
            yield decode_blocks(flat[row : row + step], type=self.type, dtype=f32).reshape(-1)
            release(flat[row : row + step])

    def _blocks(self) -> np.ndarray:
        """Return the blocks as u8 [..., bytes], a view of the mapped file."""
        elements, nbytes = SIZES[self.type]
        shape = (*self.shape[:-1], self.shape[-1] // elements * nbytes)
        if not self.nbytes:
            return np.empty(shape, np.uint8)
        return np.frombuffer(self.content, np.uint8, self.nbytes, self.offset).reshape(shape)

    def _in_order(self, graph: Graph, stored: str) -> str:
        if not self.pairs:
            return stored
        rows, *rest = graph.type(stored).dims
        pairs_shape = (self.pairs, rows // (2 * self.pairs), 2, *rest)
        axes = (0, 2, 1, *range(3, len(pairs_shape)))
        found = graph.add("reshape", [stored], f"{stored}.pairs", shape=pairs_shape).output
        found = graph.add("permute", [found], f"{stored}.halves", axes=axes).output
        return graph.add("reshape", [found], f"{stored}.ordered", shape=(rows, *rest)).output


def tensors_of(file: GgufFile, heads: int, kv_heads: int) -> dict[str, BlockTensor]:
    """Return the tensors of a language model by their names in templates, without those of rotary angles.

    Raises UnsupportedError for types that no op decodes, LoadError for duplicate names and invalid heads.
    """
    architecture = file.metadata.text("general.architecture")
    interleaved = {"attn_q": heads, "attn_k": kv_heads} if architecture == "llama" else {}
    tensors: dict[str, BlockTensor] = {}
    unsupported: list[str] = []
    for tensor in file.tensors.values():
        if tensor.name in ROPE_TENSORS:
            continue
        if tensor.type not in DECODED:
            unsupported.append(f"tensor {shown(tensor.name)} is {tensor.type}")
            continue
        name, part = _named(tensor.name, _NAMES.get(architecture or "", _IN_LAYERS))
        if name in tensors:
            raise LoadError(f"{file.path}: tensors {shown(tensors[name].name)} and {shown(tensor.name)} mean the same")
        pairs = interleaved.get(part, 0)
        if pairs and (not tensor.shape or tensor.shape[0] % (2 * pairs)):
            raise LoadError(f"{file.path}: tensor {shown(tensor.name)}: got {list(tensor.shape)} for {pairs} heads")
        tensors[name] = _stored(tensor, file, pairs)
    if unsupported:
        raise UnsupportedError(f"{file.path}: {listed(unsupported)}; types are {', '.join(DECODED)}")
    return tensors


def _stored(tensor: GgufTensor, file: GgufFile, pairs: int) -> BlockTensor:
    dtype = DTYPES.get(tensor.type, f32)
    return BlockTensor(tensor.name, dtype, tensor.shape, file.path, tensor.offset, file.content, tensor.type, pairs)


def _named(name: str, in_layers: dict[str, str]) -> tuple[str, str]:
    """Return a tensor's name in templates, and its part of a layer; an unknown name is returned unchanged."""
    found = _LAYER.fullmatch(name)
    if found is not None and found[2] in in_layers:
        return f"model.layers.{found[1]}.{in_layers[found[2]]}.{found[3]}", found[2]
    path, _, last = name.rpartition(".")
    return (f"{_OUTSIDE_LAYERS[path]}.{last}", "") if path in _OUTSIDE_LAYERS else (name, "")
