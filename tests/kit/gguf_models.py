"""Model folders as GGUF files, written by the `gguf` package: `python tests/kit/gguf_models.py FOLDER FILE [TYPE]`.

A converter for what tests need: llama-like decoders, tokenizers of bytes and of SentencePiece.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, TokenType
from gguf.quants import quantize
from safetensors import safe_open

from ingot.ops.blocks import ALL_BLOCKS, BLOCKS

TINY_LM = Path(__file__).parents[2] / "src" / "ingot" / "models" / "tiny-lm"
# What files call an architecture, by what folders do.
ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "qwen3_moe": "qwen3moe", "granite": "granite",
    "smollm3": "smollm3", "olmo2": "olmo2", "olmo3": "olmo2", "exaone4": "exaone4", "starcoder2": "starcoder2",
    "stablelm": "stablelm", "gpt_neox": "gptneox", "gpt2": "gpt2", "gpt_bigcode": "starcoder", "cohere": "command-r",
    "cohere2": "cohere2", "olmo": "olmo", "olmoe": "olmoe", "qwen2_moe": "qwen2moe", "phi": "phi2", "glm4": "glm4",
    "glm": "chatglm", "nemotron": "nemotron", "arcee": "arcee", "seed_oss": "seed_oss", "ernie4_5": "ernie4_5",
    "exaone": "exaone", "gpt_oss": "gpt-oss",
}  # fmt: skip
_PAIRED = (
    "llama",
    "granite",
    "smollm3",
    "olmo",
    "arcee",
)  # architectures whose rotated pairs are side by side in files
_PART = re.compile(
    r"(.*\.experts|.*_layernorm)\.(?:norms\.)?(\d+)\.(.*)"
)  # of a tensor of all experts, or of all heads

Encode = Callable[[str, np.ndarray], tuple[np.ndarray, GGMLQuantizationType]]


def stored_as(type: str) -> Encode:
    """Matrices as a type, by gguf-py's own quantizer where it has one, else random blocks; the rest as f32."""

    def encode(name: str, tensor: np.ndarray) -> tuple[np.ndarray, GGMLQuantizationType]:
        kind = GGMLQuantizationType[type.upper()]
        if tensor.ndim < 2 or tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
            return tensor, GGMLQuantizationType.F32
        try:
            return quantize(tensor, kind), kind
        except NotImplementedError:
            return random_blocks(type, tensor), kind

    return encode


def random_blocks(type: str, tensor: np.ndarray) -> np.ndarray:
    """Blocks of any bits whose numbers are about as large as a matrix's."""
    random = np.random.default_rng(tensor.size)
    block = ALL_BLOCKS[type]
    blocks = random.integers(0, 256, (tensor.size // block.elements, block.nbytes), np.uint8)
    set_halves(type, blocks, np.ones((len(blocks), 1), np.float16))
    largest = np.abs(block.decode(blocks)).max(1)
    set_halves(type, blocks, (2 * np.abs(tensor).std() / largest).astype(np.float16)[:, None])
    return blocks.reshape(tensor.shape[0], -1)


def set_halves(type: str, blocks: np.ndarray, values: np.ndarray) -> None:
    """Writes one f16 for each block, [blocks, 1], at every place where the block has a number of f16; a power of two
    near it where the block has an exponent."""
    for start in HALVES[type]:
        blocks[:, start : start + 2] = values.view(np.uint8)
    if type == "mxfp4":
        blocks[:, 0] = 127 + np.rint(np.log2(values[:, 0].astype(np.float32)))
    if type == "iq1_m":  # four bits in the upper bits of each of four words
        for place in range(4):
            bits = values[:, 0].view(np.uint16) >> 4 * place & 15
            blocks[:, 49 + 2 * place] = blocks[:, 49 + 2 * place] & 15 | bits << 4


# Where a block has its numbers of f16; a type that has none is a case of set_halves.
HALVES = dict.fromkeys(ALL_BLOCKS, (0,)) | {
    "q4_1": (0, 2), "q5_1": (0, 2), "q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,),
    "tq2_0": (64,), "iq1_m": (), "mxfp4": (),
}  # fmt: skip


def packed_bytes(type: str) -> int:
    """The bytes of a block in panels: those of the file, but four bits for each value where the file has a grid, and
    two bytes where it has one for an exponent."""
    return {"iq3_s": 134, "mxfp4": 18}.get(type, BLOCKS[type].nbytes)


def read_tensors(folder: Path) -> dict[str, np.ndarray]:
    """The weights of a folder as f32."""
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name).float().numpy() for name in file.keys()}  # noqa: SIM118


def gguf_name(name: str, architecture: str, layers: int) -> str:
    """What a file calls a tensor of a folder, by gguf-py."""
    kind = next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    found = gguf.get_tensor_name_map(kind, layers).get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def interleaved(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp turns them: pairs side by side, not half a head apart."""
    return tensor.reshape(heads, 2, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def swapped(tensor: np.ndarray, outer: int, first: int, second: int) -> np.ndarray:
    """Rows [outer, first, second, rest] as [outer, second, first, rest]."""
    return tensor.reshape(outer, first, second, -1, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


def converted(name: str, tensor: np.ndarray, config: Mapping[str, Any], architecture: str, back: bool) -> np.ndarray:
    """A tensor of a folder as llama.cpp's converter writes it; back: the other way."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    part = next((key for part, key in heads.items() if f"self_attn.{part}" in name), None)
    if part and architecture in _PAIRED:
        half = tensor.shape[0] // (2 * config[part])
        return swapped(tensor, config[part], *((half, 2) if back else (2, half)))
    if architecture == "gptneox" and "query_key_value" in name:
        heads = config["num_attention_heads"]
        return swapped(tensor, 1, *((3, heads) if back else (heads, 3)))
    if architecture == "gpt2" and ".c_" in name and tensor.ndim == 2:
        return np.ascontiguousarray(tensor.T)
    return tensor


def stacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors with those of experts as one each, [experts, rows, columns], and norms of heads as [heads, size]."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        part = _PART.fullmatch(name)
        if part is None:
            found[name] = tensor
        else:
            found.setdefault(f"{part[1]}.{part[3]}", {})[int(part[2])] = tensor
    return {
        name: np.stack([each[i] for i in range(len(each))]) if isinstance(each, dict) else each
        for name, each in found.items()
    }


def with_gates_apart(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Tensors with the alternating columns of gates and others of experts apart, and matrices as [outputs, inputs]."""
    found = {}
    for name, tensor in tensors.items():
        begin, _, end = name.partition("experts.")
        if name.endswith(".sinks"):
            found[f"{name}.weight"] = tensor
        elif end.startswith(("gate_up_proj", "down_proj")) and not end.endswith(".weight"):
            last = "bias" if end.endswith("_bias") else "weight"
            rows = tensor if last == "bias" else tensor.swapaxes(1, 2)
            parts = {"down": rows} if "down" in end else {"gate": rows[:, ::2], "up": rows[:, 1::2]}
            found |= {f"{begin}experts.{p}_proj.{last}": np.ascontiguousarray(each) for p, each in parts.items()}
        else:
            found[name] = tensor
    return found


def write_gguf(
    folder: Path,
    path: Path,
    encode: Encode,
    *,
    pre: str = "ufakzeka",
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    split: int = 0,
) -> dict[str, np.ndarray]:
    """A folder as a file. pre: the name of how words are cut. keys, tensors: more of the architecture's.
    split: how many tensors a file may have, 0 for one file.

    Gives what matrices are after they are decoded by gguf-py, and the rest, under the folder's names.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    write_config(writer, config, architecture, keys or {})
    if (folder / "tokenizer.json").exists():
        write_tokenizer(writer, folder, pre)
    decoded: dict[str, np.ndarray] = {}
    layers = config.get("num_hidden_layers") or config["n_layer"]
    for name, tensor in with_gates_apart(stacked(read_tensors(folder))).items():
        written = converted(name, tensor, config, architecture, back=False)
        has_offset = architecture.startswith("gemma") or architecture == "nemotron"
        if has_offset and name.endswith("norm.weight"):
            written = written + np.float32(1)
        data, kind = encode(name, written)
        back = gguf.quants.dequantize(data, kind).reshape(written.shape)
        back = converted(name, back, config, architecture, back=True)
        if back.ndim == 3:
            begin, _, end = name.rpartition("experts.")
            decoded |= {f"{begin}experts.{expert}.{end}": matrix for expert, matrix in enumerate(back)}
        else:
            decoded[name] = back
        writer.add_tensor(gguf_name(name, architecture, layers), data, raw_dtype=kind)
    for name, tensor in (tensors or {}).items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return decoded


def write_config(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], architecture: str, extra: Mapping[str, Any]
) -> None:
    """The keys of an architecture."""
    names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    names |= {"max_position_embeddings": "n_positions"} if architecture in ("gpt2", "starcoder") else {}
    config = {name: config[other] for name, other in names.items() if other in config} | dict(config)
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(
        config.get("intermediate_size") or config.get("n_inner") or 4 * config["hidden_size"]
    )
    writer.add_head_count(heads)
    writer.add_head_count_kv(1 if config.get("multi_query") else config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        eps = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
        writer.add_layer_norm_eps(next((config[name] for name in eps if name in config), 1e-5))
    if "use_parallel_residual" in config:
        writer.add_parallel_residual(config["use_parallel_residual"])
    experts = config.get("num_local_experts") or config.get("num_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if "logit_scale" in config:
        writer.add_logit_scale(config["logit_scale"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    rope = config.get("rope_parameters") or config
    writer.add_rope_freq_base(rope.get("full_attention", rope).get("rope_theta", 10000.0))
    writer.add_rope_dimension_count(int(head_dim * (rope.get("partial_rotary_factor") or 1)))
    if "logits_scaling" in config:
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    for key, value in extra.items():
        add = {
            bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
            list: writer.add_array,
        }  # fmt: skip
        add[type(value)](f"{architecture}.{key}", value)


def write_tokens(source: Path, path: Path, pre: str) -> Path:
    """A file that has the tokenizer of a folder and nothing else."""
    writer = gguf.GGUFWriter(path, "llama")
    write_tokenizer(writer, source, pre)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tokenizer(writer: gguf.GGUFWriter, folder: Path, pre: str) -> None:
    """The keys of a tokenizer: of bytes, or of SentencePiece, whose scores are the ranks of what merges make."""
    document = json.loads((folder / "tokenizer.json").read_text())
    model, added = document["model"], {token["id"]: token for token in document["added_tokens"]}
    ids = {**model["vocab"], **{token["content"]: index for index, token in added.items()}}
    texts = sorted(ids, key=ids.__getitem__)
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    is_bytes = not model.get("byte_fallback")
    types = [_type_of(text, added.get(ids[text]), model) for text in texts]
    writer.add_tokenizer_model("gpt2" if is_bytes else "llama")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    if is_bytes:
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges([" ".join(merge) for merge in merges])
    else:
        ranks: dict[str, int] = {}
        for rank, (left, right) in enumerate(merges):
            ranks.setdefault(left + right, rank)
        writer.add_token_scores([-float(ranks.get(text, 1e6)) for text in texts])
        writer.add_add_space_prefix("Prepend" in json.dumps(document["normalizer"]))
    around = json.dumps(document["post_processor"] or {})
    settings = folder / "tokenizer_config.json"
    named = json.loads(settings.read_text()) if settings.exists() else {}
    for key, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        if named.get(f"{key}_token") in ids:
            add(ids[named[f"{key}_token"]])
    writer.add_add_bos_token("SpecialToken" in around)
    if "chat_template" in named:
        writer.add_chat_template(named["chat_template"])


def _type_of(text: str, added: Mapping[str, Any] | None, model: Mapping[str, Any]) -> TokenType:
    if text == model.get("unk_token"):
        return TokenType.UNKNOWN
    if added is not None:
        return TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    is_byte = model.get("byte_fallback") and text.startswith("<0x") and text.endswith(">")
    return TokenType.BYTE if is_byte else TokenType.NORMAL


if __name__ == "__main__":
    write_gguf(Path(sys.argv[1]), Path(sys.argv[2]), stored_as(sys.argv[3] if len(sys.argv) > 3 else "f16"))
