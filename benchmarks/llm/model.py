"""One language model with random weights in several files: `python -m benchmarks.llm.model FOLDER PRECISION`.

Llama-shaped, of Qwen2.5-0.5B's size with a vocabulary of 32000: as a Hugging Face folder and as GGUF, the matrices in
f32 or in bf16 (those of f32, rounded), and as GGUF in Q8_0 and Q4_0, those of bf16 quantized: int8 and int4, which
Ingot computes from the folder in bf16 (Q4_0 has Ingot's quantized values, tables in Q8_0, as llama.cpp's quantizer has
logits); and as files that llama.cpp's quantizer makes and both engines read: q4_0, q4_k_m and iq4_xs, where rows that
are no whole blocks of 256 become Q5_0 and IQ4_NL. The output projection has weights of its own: were it the token
embedding, such a model would answer each token with itself.
"""

from __future__ import annotations

import ctypes
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, FFN_WIDTH, VOCAB_SIZE = 24, 896, 14, 2, 64, 4864, 32000
CONTEXT = 2048
ROPE_THETA, NORM_EPS = 1e6, 1e-6
SEED = 4
ITEMSIZE = {"f32": 4, "bf16": 2, "int8": 1, "int4": 18 / 32}  # of Ingot's panels
QUANTIZED = {"int8": "Q8_0", "int4": "Q4_0"}
MIXTURES = {"q4_0": 2, "q4_k_m": 15, "iq4_xs": 30}  # of types, by llama.cpp's numbers
FILE_TYPES = {"f32": 0, "bf16": 32, "int8": 7, "int4": 2}  # by llama.cpp's numbers
PRECISIONS = ("f32", "bf16", *QUANTIZED, *MIXTURES)

# Of a layer: Hugging Face's name, GGUF's name, shape.
MATRICES = (
    ("self_attn.q_proj", "attn_q", (HEADS * HEAD_DIM, WIDTH)),
    ("self_attn.k_proj", "attn_k", (KV_HEADS * HEAD_DIM, WIDTH)),
    ("self_attn.v_proj", "attn_v", (KV_HEADS * HEAD_DIM, WIDTH)),
    ("self_attn.o_proj", "attn_output", (WIDTH, HEADS * HEAD_DIM)),
    ("mlp.gate_proj", "ffn_gate", (FFN_WIDTH, WIDTH)),
    ("mlp.up_proj", "ffn_up", (FFN_WIDTH, WIDTH)),
    ("mlp.down_proj", "ffn_down", (WIDTH, FFN_WIDTH)),
)
NORMS = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"))
INTO_RESIDUAL = ("attn_output", "ffn_down")
LAYER_PARAMETERS = sum(rows * columns for _, _, (rows, columns) in MATRICES)
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": FFN_WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": CONTEXT,
    "hidden_act": "silu",
    "rms_norm_eps": NORM_EPS,
    "rope_theta": ROPE_THETA,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def streamed_bytes(folder: Path, precision: str) -> int:
    """Bytes of weights that a token's computation on Ingot must read: every matrix once. The rest is below 1 %."""
    if precision in MIXTURES:
        return gguf_bytes(folder, precision)
    logits = "int8" if precision == "int4" else precision
    return int(LAYERS * LAYER_PARAMETERS * ITEMSIZE[precision] + VOCAB_SIZE * WIDTH * ITEMSIZE[logits])


def gguf_bytes(folder: Path, precision: str) -> int:
    """The same on llama.cpp, which reads matrices as the file has them."""
    from ingot.load.gguf import read_gguf

    tensors = read_gguf(paths(folder, precision)[1]).tensors.values()
    return sum(tensor.nbytes for tensor in tensors if len(tensor.shape) == 2 and tensor.name != "token_embd.weight")


def weights() -> Iterator[tuple[str, str, np.ndarray]]:
    """Every tensor in f32 under Hugging Face's name and under GGUF's. Logits are about 2, and a token matters more to
    the next one than all before it, so that greedy tokens do not soon repeat."""
    random = np.random.default_rng(SEED)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> np.ndarray:
        return random.standard_normal((rows, columns), np.float32) * np.float32(scale / math.sqrt(columns))

    def norm() -> np.ndarray:
        return 1 + 0.1 * random.standard_normal(WIDTH, np.float32)

    yield "model.embed_tokens.weight", "token_embd.weight", matrix(VOCAB_SIZE, WIDTH, math.sqrt(WIDTH))
    yield "lm_head.weight", "output.weight", matrix(VOCAB_SIZE, WIDTH, 2.0)
    yield "model.norm.weight", "output_norm.weight", norm()
    for layer in range(LAYERS):
        for name, gguf_name in NORMS:
            yield f"model.layers.{layer}.{name}.weight", f"blk.{layer}.{gguf_name}.weight", norm()
        for name, gguf_name, shape in MATRICES:
            scale = 1 / math.sqrt(2 * LAYERS) if gguf_name in INTO_RESIDUAL else 1.0
            yield f"model.layers.{layer}.{name}.weight", f"blk.{layer}.{gguf_name}.weight", matrix(*shape, scale)


def interleaved(name: str, tensor: np.ndarray) -> np.ndarray:
    """Rows of queries and keys as llama.cpp rotates them: pairs are adjacent, not at a distance of half a head."""
    if ".attn_q." not in name and ".attn_k." not in name:
        return tensor
    return tensor.reshape(-1, 2, HEAD_DIM // 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)


def stored(tensor: np.ndarray, precision: str) -> np.ndarray:
    """A tensor in the model's precision."""
    return tensor if precision == "f32" else tensor.astype(ml_dtypes.bfloat16)


def paths(folder: Path, precision: str) -> tuple[Path, Path]:
    """The paths of the Hugging Face folder and of the GGUF file, which are one for a mixture."""
    if precision in MIXTURES:
        return (folder / f"llama-{precision}.gguf",) * 2
    return folder / f"llama-{'bf16' if precision in QUANTIZED else precision}", folder / f"llama-{precision}.gguf"


def openvino_path(folder: Path, precision: str) -> Path:
    """The path of OpenVINO's model, for the precisions in QUANTIZED; its weights are in the same folder."""
    return folder / f"llama-openvino-{precision}.xml"


def write_safetensors(tensors: dict[str, np.ndarray], path: Path) -> None:
    """One safetensors file."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        dtype = {"float32": "F32", "bfloat16": "BF16"}[tensor.dtype.name]
        header[name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": (offset, offset + tensor.nbytes)}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            file.write(tensor.data if tensor.dtype == np.float32 else tensor.view(np.uint16).data)


def q4_0_blocks(tensor: np.ndarray) -> np.ndarray:
    """A matrix in Ingot's quantized values, as blocks of Q4_0."""
    from ingot.ir.dtype import i4
    from ingot.ops.quantize import quantize_groups

    quantized, scales = quantize_groups(tensor.astype(np.float32), group=32, dtype=i4)
    counted = (quantized.astype(np.int8) + 8).astype(np.uint8).reshape(-1, 32)
    blocks = [scales.reshape(-1, 1).view(np.uint8), counted[:, :16] | counted[:, 16:] << 4]
    return np.concatenate(blocks, 1).reshape(len(tensor), -1)


def write_gguf(
    tensors: dict[str, np.ndarray], path: Path, precision: str, tokenizer: dict[str, Any] | None = None
) -> None:
    """One GGUF file. tokenizer: of byte pairs, the `model` of a tokenizer.json; without one llama.cpp takes ids."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN_WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_file_type(FILE_TYPES[precision])
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_THETA)
    writer.add_layer_norm_rms_eps(NORM_EPS)
    writer.add_vocab_size(VOCAB_SIZE)
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(sorted(tokenizer["vocab"], key=tokenizer["vocab"].__getitem__))
        writer.add_token_types([gguf.TokenType.NORMAL] * VOCAB_SIZE)
        writer.add_token_merges([" ".join(pair) for pair in tokenizer["merges"]])
    for name, tensor in tensors.items():
        if tensor.dtype == np.float32 or tensor.ndim == 1:  # GGUF has norms in f32
            writer.add_tensor(name, tensor.astype(np.float32))
        elif precision == "int4" and len(tensor) != VOCAB_SIZE:
            writer.add_tensor(name, q4_0_blocks(tensor), raw_dtype=gguf.GGMLQuantizationType.Q4_0)
        elif precision in QUANTIZED:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(tensor.astype(np.float32), kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, tensor.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_mixture(folder: Path, mixture: str) -> None:
    """A file that llama.cpp quantizes from the one in bf16."""
    import llama_cpp

    source, target = paths(folder, "bf16")[1], paths(folder, mixture)[1]
    if not source.exists():
        write(folder, "bf16")
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread = MIXTURES[mixture], 2
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(options)):
        sys.exit(f"llama.cpp cannot quantize to {target}")


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes, for programs that must have one and are given ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: id for id, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def write(folder: Path, precision: str) -> None:
    """Both files of one precision; the Hugging Face folder's config.json is written last and marks a complete
    folder.
    """
    if precision in MIXTURES:
        write_mixture(folder, precision)
        return
    hf, gguf = paths(folder, precision)
    hf.mkdir(parents=True, exist_ok=True)
    both = [(name, gguf_name, stored(tensor, precision)) for name, gguf_name, tensor in weights()]
    transposed = {gguf_name: np.ascontiguousarray(interleaved(gguf_name, tensor)) for _, gguf_name, tensor in both}
    write_gguf(transposed, gguf, precision)
    if precision in QUANTIZED and (hf / "config.json").exists():
        return
    write_safetensors({name: tensor for name, _, tensor in both}, hf / "model.safetensors")
    config = CONFIG | {"dtype": {"f32": "float32"}.get(precision, "bfloat16")}
    (hf / "config.json").write_text(json.dumps(config, indent=2) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
