"""Files of the shapes with random weights, one tensor at a time: `python -m benchmarks.families.model FOLDER PART`.

Quantized matrices are random blocks, so that no matrix ever exists in floats. Types are those that llama.cpp's
quantizer gives to the matrices of such a model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np

from benchmarks.families.shapes import CONTEXT, SHAPES, Shape, Tensor
from gguf_models import HALVES, set_halves
from ingot.ops.blocks import BLOCKS

SEED = 44
_MIN_FACTORS = {"q4_k": (1.0, 7.5), "q5_0": (1.0,)}  # of the f16 of a block, so that its numbers have the mean 0
_SAMPLE = 4096  # blocks whose numbers are measured
_WIDE, _NARROW = 256, {"q4_k": "q5_0", "q6_k": "q8_0"}  # types of rows that are no whole blocks of 256
_FILE_TYPES = {"bf16": 32, "q4_0": 2, "q4_k_m": 15, "mxfp4": 38}  # by llama.cpp's numbers


def parts() -> list[str]:
    """Every file, as "shape precision"."""
    return [f"{name} {precision}" for name, shape in SHAPES.items() for precision in shape.precisions]


def path_of(folder: Path, part: str) -> Path:
    """The file of a part."""
    return folder / f"{part.replace(' ', '-')}.gguf"


def shape_of(part: str) -> tuple[Shape, str]:
    """The shape and the precision of a part."""
    name, precision = part.split()
    return SHAPES[name], precision


def type_of(tensor: Tensor, shape: Shape, precision: str) -> str:
    """The type of a tensor in a file."""
    if tensor.kind != "matrix":
        return "f32"
    if precision == "bf16":
        return "bf16"
    if precision == "mxfp4":
        return "mxfp4" if "_exps." in tensor.name else "q8_0"
    is_output = tensor.name == ("token_embd.weight" if shape.is_tied else "output.weight")
    if is_output:
        type = "q6_k"
    elif precision == "q4_0":
        type = "q4_0"
    else:
        has_more = any(part in tensor.name for part in ("attn_v", "ffn_down")) and _has_more_bits(tensor, shape.layers)
        type = "q6_k" if has_more or "attn_qkv" in tensor.name else "q4_k"
    return _NARROW.get(type, type) if tensor.shape[-1] % _WIDE else type


def _has_more_bits(tensor: Tensor, layers: int) -> bool:
    """Whether llama.cpp's Q4_K_M has more bits for the values and mlps of a layer."""
    layer = int(tensor.name.split(".")[1])
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def stored_shape(tensor: Tensor, type: str) -> tuple[int, ...]:
    """The shape of a tensor's bytes, or of its f32."""
    if type == "f32":
        return tensor.shape
    elements, nbytes = (1, 2) if type == "bf16" else (BLOCKS[type].elements, BLOCKS[type].nbytes)
    return (*tensor.shape[:-1], tensor.shape[-1] // elements * nbytes)


def content(random: np.random.Generator, tensor: Tensor, type: str) -> np.ndarray:
    """The numbers of a vector or a matrix, or blocks."""
    size = tensor.scale / np.sqrt(tensor.shape[-1])
    match tensor.kind:
        case "matrix" if type != "bf16":
            return blocks(random, stored_shape(tensor, type), type, size)
        case "matrix":
            numbers = random.standard_normal(tensor.shape, np.float32) * np.float32(size)
            return numbers.astype(ml_dtypes.bfloat16).view(np.uint8)
        case "router":
            return random.standard_normal(tensor.shape, np.float32) * np.float32(size)
        case "norm":
            return 1 + 0.1 * random.standard_normal(tensor.shape, np.float32)
        case "decay":
            return -np.exp(random.uniform(0, 2, tensor.shape)).astype(np.float32)
        case "step":
            return random.uniform(-5, -1, tensor.shape).astype(np.float32)
        case _:
            return 0.1 * random.standard_normal(tensor.shape, np.float32)


def blocks(random: np.random.Generator, shape: tuple[int, ...], type: str, size: float) -> np.ndarray:
    """Blocks of any bits whose numbers have a standard deviation of about `size`."""
    nbytes = BLOCKS[type].nbytes
    found = np.frombuffer(random.bytes(int(np.prod(shape))), np.uint8).copy().reshape(-1, nbytes)
    sample = found[:_SAMPLE].copy()
    _set_scales(sample, type, 1.0)
    _set_scales(found, type, size / float(BLOCKS[type].decode(sample).std()))
    return found.reshape(shape)


def _set_scales(blocks: np.ndarray, type: str, scale: float) -> None:
    if type == "mxfp4":  # powers of two
        blocks[:, 0] = 127 + round(np.log2(scale))
        return
    factors = _MIN_FACTORS.get(type, (1.0,))
    set_halves(type, blocks, np.full((len(blocks), 1), scale, np.float16))
    for start, factor in zip(HALVES[type], factors, strict=True):
        blocks[:, start : start + 2] = np.array([factor * scale], np.float16).view(np.uint8)


def write(folder: Path, part: str) -> None:
    """The file, which has its name when it is whole."""
    shape, precision = shape_of(part)
    unfinished = path_of(folder, part).with_suffix(".part")
    writer = gguf.GGUFWriter(unfinished, shape.architecture)
    write_keys(writer, shape, precision)
    tensors = [(tensor, type_of(tensor, shape, precision)) for tensor in shape.tensors(precision)]
    for tensor, type in tensors:
        stored = stored_shape(tensor, type)
        if type == "f32":
            writer.add_tensor_info(tensor.name, stored, np.dtype(np.float32), 4 * int(np.prod(stored)))
        else:
            kind = gguf.GGMLQuantizationType[type.upper()]
            writer.add_tensor_info(tensor.name, stored, np.dtype(np.uint8), int(np.prod(stored)), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(SEED)
    for tensor, type in tensors:
        writer.write_tensor_data(content(random, tensor, type))
    writer.close()
    unfinished.rename(path_of(folder, part))


def write_keys(writer: gguf.GGUFWriter, shape: Shape, precision: str) -> None:
    """The metadata. Without a tokenizer llama.cpp takes ids."""
    writer.add_block_count(shape.layers)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.ffn_width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_file_type(_FILE_TYPES[precision])
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("no_vocab")
    if shape.chosen:
        writer.add_expert_count(shape.experts_in(precision))
        writer.add_expert_used_count(shape.chosen)
    for name, value in shape.keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{shape.architecture}.{name}", value)


def read_tensors(part: str) -> Iterator[tuple[Tensor, str]]:
    """The matrices that a token reads, and their types."""
    shape, precision = shape_of(part)
    for tensor in shape.tensors(precision):
        if tensor.kind == "matrix" and (shape.is_tied or tensor.name != "token_embd.weight"):
            yield tensor, type_of(tensor, shape, precision)


def read_bytes(part: str) -> int:
    """Bytes of the matrices of a file that a token reads: of experts, the chosen ones."""
    shape, precision = shape_of(part)
    total = 0.0
    for tensor, type in read_tensors(part):
        share = shape.chosen / shape.experts_in(precision) if "_exps." in tensor.name else 1.0
        total += share * float(np.prod(stored_shape(tensor, type)))
    return int(total)


def active_parameters(part: str) -> int:
    """The numbers of these matrices."""
    shape, precision = shape_of(part)
    shares = [
        (shape.chosen / shape.experts_in(precision) if "_exps." in tensor.name else 1.0) * float(np.prod(tensor.shape))
        for tensor, _ in read_tensors(part)
    ]
    return int(sum(shares))


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
