"""Tensors of a GGUF file under their names in templates, decoded by ops of the graph."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ingot.errors import LoadError, UnsupportedError
from ingot.ir.dtype import DTYPES, f32
from ingot.ir.graph import Graph
from ingot.load.gguf.config import ROPE_TENSORS
from ingot.load.gguf.file import DECODED, SIZES, GgufFile, GgufTensor
from ingot.load.gguf.rewritten import REWRITTEN
from ingot.load.hf.safetensors import StoredTensor, listed
from ingot.load.hf.strict_json import shown
from ingot.ops.blocks import ALL_BLOCKS, BLOCKS, FLOAT_BLOCKS, decode_blocks
from ingot.support.files import release

_PIECE_BYTES = 1 << 20  # of blocks that are decoded at a time to inspect their elements
_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,4})\.([a-z_]+)(?:\.(0|[1-9]\d{0,4}))?\.(weight|bias)")
_NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class _Names:
    """The names in templates of a file's tensors: the beginning of a layer's, and of other tensors and in layers, by
    the names in files.

    halves: the file has the rows of queries and keys in pairs that are rotated. qkv: the file has all queries, then all
    keys; the template has them head by head. {expert} in a name: the file has all experts in one tensor.
    """

    layer: str
    outside: dict[str, str]
    inside: dict[str, str]
    halves: bool = False
    qkv: bool = False


def _like_llama(
    more: Mapping[str, str] | None = None, others: Mapping[str, str] | None = None, *, halves: bool = False
) -> _Names:
    outside = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    inside = {
        "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    }  # fmt: skip
    return _Names("model.layers.", outside | dict(others or {}), inside | dict(more or {}), halves)


def _experts(router: str, path: str, gate: str, up: str, down: str) -> dict[str, str]:
    parts = {"gate": gate, "up": up, "down": down}
    return {"ffn_gate_inp": router} | {f"ffn_{part}_exps": f"{path}.{{expert}}.{name}" for part, name in parts.items()}


_OF_EXPERTS = _experts("mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj")
_OF_SHARED = {f"ffn_{part}_shexp": f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")}
_GPT_2 = {
    "attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj",
}  # fmt: skip
_NAMES = {
    "llama": _like_llama(
        _experts("block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"), halves=True
    ),
    "granite": _like_llama(halves=True),
    "smollm3": _like_llama(halves=True),
    **dict.fromkeys(("olmo", "arcee"), _like_llama(halves=True)),
    **dict.fromkeys(("qwen3moe", "olmoe"), _like_llama(_OF_EXPERTS)),
    "qwen2moe": _like_llama(_OF_EXPERTS | _OF_SHARED | {"ffn_gate_inp_shexp": "mlp.shared_expert_gate"}),
    "gpt-oss": _like_llama(
        _experts("mlp.router", "mlp.experts", "gate_proj", "up_proj", "down_proj")
        | {"attn_sinks": "self_attn.sinks", "post_attention_norm": "post_attention_layernorm"}
    ),
    "seed_oss": _like_llama({"post_attention_norm": "post_attention_layernorm"}),
    "chatglm": _like_llama({"ffn_up": "mlp.gate_up_proj"}),
    "glm4": _like_llama({
        "ffn_up": "mlp.gate_up_proj", "post_attention_norm": "post_self_attn_layernorm",
        "post_ffw_norm": "post_mlp_layernorm",
    }),
    "phi2": _like_llama(
        {"attn_output": "self_attn.dense", "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2"},
        {"output_norm": "model.final_layernorm"},
    ),
    "exaone": _Names(
        "transformer.h.",
        {"token_embd": "transformer.wte", "output_norm": "transformer.ln_f", "output": "lm_head"},
        {
            "attn_norm": "ln_1", "attn_output": "attn.attention.out_proj", "ffn_norm": "ln_2",
            "ffn_gate": "mlp.c_fc_0", "ffn_up": "mlp.c_fc_1", "ffn_down": "mlp.c_proj",
            **{f"attn_{part}": f"attn.attention.{part}_proj" for part in "qkv"},
        },
    ),
    **dict.fromkeys(("gemma2", "gemma3", "olmo2", "exaone4"), _like_llama(_NORMS_AFTER)),
    "phi3": _like_llama({"ffn_up": "mlp.gate_up_proj"}),
    "stablelm": _like_llama(
        {f"attn_{part}_norm": f"self_attn.{part}_layernorm.norms.{{head}}" for part in "qk"}
    ),
    "starcoder2": _like_llama({"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"}),
    **dict.fromkeys(("gpt2", "starcoder"), _Names(
        "transformer.h.",
        {
            "token_embd": "transformer.wte", "position_embd": "transformer.wpe", "output_norm": "transformer.ln_f",
            "output": "lm_head",
        },
        _GPT_2,
    )),
    "gptneox": _Names(
        "gpt_neox.layers.",
        {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
        {
            "attn_norm": "input_layernorm", "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense",
            "ffn_norm": "post_attention_layernorm", "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h",
        },
        qkv=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class BlockTensor(StoredTensor):
    """A tensor of f32, bf16, f16 or of blocks, which are decoded to f32.

    type: the name of its GGUF type. order: None, or (outer, i, j) for rows that are stored as [outer, i, j, rest], and
    are [outer, j, i, rest] in the template.
    """

    type: str
    order: tuple[int, int, int] | None

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        elements, nbytes = SIZES[self.type]
        return math.prod(self.shape) // elements * nbytes

    @property
    def is_quantized(self) -> bool:
        """Whether the tensor is stored in quantized blocks that kernels read."""
        return self._read_type in BLOCKS

    @property
    def becomes_floats(self) -> bool:
        """Whether the tensor is stored in blocks that no kernel reads."""
        return self.type in FLOAT_BLOCKS

    def add_to(self, graph: Graph, name: str) -> str:
        """Add the elements to a graph, with rows reordered: a weight, or the decoded value of blocks."""
        if self._read_type not in ALL_BLOCKS:
            return self._in_order(graph, graph.add_weight(name, self.array()))
        blocks = self._in_order(graph, graph.add_weight(name, self._blocks()))
        return graph.add("decode_blocks", [blocks], f"{name}.decoded", type=self._read_type, dtype=f32).output

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the elements, some megabytes at a time; blocks are decoded."""
        if self._read_type not in ALL_BLOCKS:
            yield from super(BlockTensor, self).pieces()
            return
        rows = self._blocks()
        flat = rows.reshape(-1, rows.shape[-1])
        step = max(1, _PIECE_BYTES // max(1, rows.shape[-1]))
        for row in range(0, len(flat), step):
            yield decode_blocks(flat[row : row + step], type=self._read_type, dtype=f32).reshape(-1)
            if self.type not in REWRITTEN:
                release(flat[row : row + step])

    @property
    def _read_type(self) -> str:
        """The type as which it is read."""
        return REWRITTEN[self.type].type if self.type in REWRITTEN else self.type

    def _blocks(self) -> np.ndarray:
        """Return the blocks as u8 [..., bytes], a view of the mapped file; or what they are rewritten to."""
        elements, nbytes = SIZES[self.type]
        shape = (*self.shape[:-1], self.shape[-1] // elements * nbytes)
        if not self.nbytes:
            return np.empty(shape, np.uint8)
        blocks = np.frombuffer(self.content, np.uint8, self.nbytes, self.offset)
        if self.type not in REWRITTEN:
            return blocks.reshape(shape)
        return REWRITTEN[self.type].rewrite(blocks.reshape(-1, nbytes)).reshape(*self.shape[:-1], -1)

    def _in_order(self, graph: Graph, stored: str) -> str:
        if self.order is None:
            return stored
        rows, *rest = graph.type(stored).dims
        left = rows // math.prod(self.order)
        shape = (*self.order, *([left] if left > 1 else []), *rest)
        axes = (0, 2, 1, *range(3, len(shape)))
        found = graph.add("reshape", [stored], f"{stored}.pairs", shape=shape).output
        found = graph.add("permute", [found], f"{stored}.halves", axes=axes).output
        return graph.add("reshape", [found], f"{stored}.ordered", shape=(rows, *rest)).output


def tensors_of(file: GgufFile, heads: int, kv_heads: int) -> dict[str, BlockTensor]:
    """Return the tensors of a language model by their names in templates, without those of rotary angles.

    Raises UnsupportedError for types that no op decodes, LoadError for duplicate names and invalid heads.
    """
    names = _NAMES.get(file.metadata.text("general.architecture") or "", _like_llama())
    tensors: dict[str, BlockTensor] = {}
    unsupported: list[str] = []
    for tensor in file.tensors.values():
        if tensor.name in ROPE_TENSORS:
            continue
        if tensor.type not in DECODED:
            unsupported.append(f"tensor {shown(tensor.name)} is {tensor.type}")
            continue
        name, part = _named(tensor.name, names)
        if name in tensors:
            raise LoadError(f"{file.path}: tensors {shown(tensors[name].name)} and {shown(tensor.name)} mean the same")
        found = {"attn_q": heads, "attn_k": kv_heads}.get(part, 0) if names.halves else 0
        order: tuple[int, int, int] | None = None
        if found and tensor.shape:
            order = (found, max(1, tensor.shape[0] // (2 * found)), 2)
        elif names.qkv and part == "attn_qkv":
            order = (1, 3, heads)
        if order and (not tensor.shape or not tensor.shape[0] or tensor.shape[0] % math.prod(order)):
            raise LoadError(f"{file.path}: tensor {shown(tensor.name)}: got {list(tensor.shape)} for {heads} heads")
        tensors[name] = _stored(tensor, file, order)
    if unsupported:
        raise UnsupportedError(f"{file.path}: {listed(unsupported)}; types are {', '.join(DECODED)}")
    return tensors


def _stored(tensor: GgufTensor, file: GgufFile, order: tuple[int, int, int] | None) -> BlockTensor:
    read = REWRITTEN[tensor.type].type if tensor.type in REWRITTEN else tensor.type
    dtype, shape = DTYPES.get(read, f32), tensor.shape
    if len(shape) == 3:  # the matrices of experts, one below the other
        shape = (shape[0] * shape[1], shape[2])
    elif tensor.name.endswith("ffn_gate_inp_shexp.weight") and len(shape) == 1:  # a matrix of one row
        shape = (1, *shape)
    return BlockTensor(tensor.name, dtype, shape, file.path, tensor.offset, tensor.content, tensor.type, order)


def _named(name: str, names: _Names) -> tuple[str, str]:
    """Return a tensor's name in templates, and its part of a layer; an unknown name is returned unchanged."""
    found = _LAYER.fullmatch(name)
    if found is not None:
        layer, part, expert, last = found.groups()
        path = names.inside.get(part if expert is None else f"{part}_exps")
        if path is not None:
            path = f"{names.layer}{layer}.{path.replace('{expert}', expert or '{expert}')}"
            return (path if part == "attn_sinks" else f"{path}.{last}"), part
    path, _, last = name.rpartition(".")
    return (f"{names.outside[path]}.{last}", "") if path in names.outside else (name, "")
