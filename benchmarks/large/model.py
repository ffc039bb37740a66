"""A model of 3 B parameters with random weights, written one tensor at a time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN_WIDTH, VOCAB_SIZE = 28, 3072, 24, 8, 128, 8192, 128256
CONTEXT = 1024
FOLDER_TYPE, GROUP = "int4", 32
# The names of a folder's tensors, by what GGUF calls them.
_LAYER = "model.layers.{layer}."
TENSORS = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "attn_norm": f"{_LAYER}input_layernorm",
    "ffn_norm": f"{_LAYER}post_attention_layernorm", "attn_q": f"{_LAYER}self_attn.q_proj",
    "attn_k": f"{_LAYER}self_attn.k_proj", "attn_v": f"{_LAYER}self_attn.v_proj",
    "attn_output": f"{_LAYER}self_attn.o_proj", "ffn_gate": f"{_LAYER}mlp.gate_proj", "ffn_up": f"{_LAYER}mlp.up_proj",
    "ffn_down": f"{_LAYER}mlp.down_proj",
}  # fmt: skip
SCALES = {"q4_k": ((0, 1 / 945), (2, 7.5 / 945)), "q4_0": ((0, 1 / 8),), "iq4_xs": ((0, 1 / 4064),)}  # bytes, factors


def shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor; the table is the projection to the vocabulary, too."""
    yield "token_embd", (VOCAB_SIZE, WIDTH)
    yield "output_norm", (WIDTH,)
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm", (WIDTH,)
        yield f"blk.{layer}.ffn_norm", (WIDTH,)
        yield f"blk.{layer}.attn_q", (HEADS * HEAD_DIM, WIDTH)
        yield f"blk.{layer}.attn_k", (KV_HEADS * HEAD_DIM, WIDTH)
        yield f"blk.{layer}.attn_v", (KV_HEADS * HEAD_DIM, WIDTH)
        yield f"blk.{layer}.attn_output", (WIDTH, HEADS * HEAD_DIM)
        yield f"blk.{layer}.ffn_gate", (FFN_WIDTH, WIDTH)
        yield f"blk.{layer}.ffn_up", (FFN_WIDTH, WIDTH)
        yield f"blk.{layer}.ffn_down", (WIDTH, FFN_WIDTH)


def random_blocks(random: np.random.Generator, shape: tuple[int, ...], type: str) -> np.ndarray:
    """u8 [rows, bytes]: any quantized values, by scales that give them the size of a matrix's numbers."""
    from ingot.ops.blocks import BLOCKS

    rows, columns = shape
    block = BLOCKS[type]
    blocks = np.frombuffer(random.bytes(rows * columns // block.elements * block.nbytes), np.uint8).copy()
    blocks = blocks.reshape(-1, block.nbytes)
    for at, factor in SCALES[type]:
        blocks[:, at : at + 2] = np.array([2 * factor / np.sqrt(columns)], np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


def quantized_tensors(random: np.random.Generator) -> Iterator[tuple[str, str, tuple[int, ...], Callable[[], bytes]]]:
    """Every tensor of a quantized folder: name, dtype, shape, bytes. The table has 8 bits and a scale for each row."""
    for name, shape in shapes():
        path = f"{TENSORS[name.rpartition('.')[2]].format(layer=name.split('.')[1] if '.' in name else '')}.weight"
        if len(shape) == 1:
            yield path, "F32", shape, lambda count=shape[0]: np.ones(count, np.float32).tobytes()
            continue
        rows, columns = shape
        is_table = name == "token_embd"
        groups, largest = (1, 127) if is_table else (columns // GROUP, 8)
        stored = (rows, columns if is_table else columns // 2)
        scale = np.float16(2 / largest / np.sqrt(columns))
        yield (
            f"{path}.codes",
            "I8" if is_table else "U8",
            stored,
            lambda stored=stored: random.bytes(stored[0] * stored[1]),
        )
        yield f"{path}.scales", "F16", (rows, groups), lambda n=rows * groups, s=scale: np.full(n, s).tobytes()


def write_folder(folder: Path) -> None:
    """Write a quantized folder, which gets its name when it is complete."""
    part, header, begin = folder.with_suffix(".part"), {}, 0
    part.mkdir(exist_ok=True)
    for name, dtype, shape, _ in quantized_tensors(np.random.default_rng(5)):
        end = begin + int(np.prod(shape)) * {"F32": 4, "F16": 2, "I8": 1, "U8": 1}[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 64) * 64 + 56)
    with open(part / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, _, content in quantized_tensors(np.random.default_rng(5)):
            file.write(content())
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": WIDTH, "head_dim": HEAD_DIM,
        "intermediate_size": FFN_WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB_SIZE, "max_position_embeddings": 8 * CONTEXT,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": True,
        "quantization_config": {"quant_method": "ingot", "version": 1},
    }  # fmt: skip
    (part / "config.json").write_text(json.dumps(config))
    part.rename(folder)


def write(path: Path, type: str) -> None:
    """The file, which has its name when it is whole."""
    import gguf

    part, kind = path.with_suffix(".part"), gguf.GGMLQuantizationType[type.upper()]
    writer = gguf.GGUFWriter(part, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(8 * CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN_WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(5e5)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB_SIZE)
    writer.add_tokenizer_model("no_vocab")
    for name, shape in shapes():
        elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
        if len(shape) == 1:
            writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.float32), 4 * shape[0])
        else:
            stored = (shape[0], shape[1] // elements * nbytes)
            writer.add_tensor_info(f"{name}.weight", stored, np.dtype(np.uint8), stored[0] * stored[1], kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(5)
    for _, shape in shapes():
        writer.write_tensor_data(np.ones(shape, np.float32) if len(shape) == 1 else random_blocks(random, shape, type))
    writer.close()
    part.rename(path)
