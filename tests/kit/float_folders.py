"""Folders whose matrices are decoded to floats or to blocks, written as the formats' documentation has it, and what the
numbers stand for: an oracle that shares nothing with the loader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from quantized_folders import SIZES, linear_names, plain_model

Tensors = dict[str, torch.Tensor]
Write = Callable[[str, tuple[int, int], np.random.Generator], tuple[Tensors, np.ndarray]]
# Of QLoRA, appendix E, and of FP4 as bitsandbytes has it.
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
FP4 = [sign * number / 12 for sign in (1, -1) for number in (0, 0.0625, 8, 12, 4, 6, 2, 3)]


@dataclass(frozen=True)
class FloatCase:
    """A folder of one format: keys of its config.json, and the tensors of a matrix with what they stand for."""

    name: str
    config: Mapping[str, Any]
    write: Write = field(repr=False)
    tables: bool = False  # whether the table of tokens and the head are in the format, too
    blocks: str = ""  # the type of the blocks that matrices become


def fp8(suffix: str, kind: str, block: tuple[int, int] = (128, 128), scale: torch.dtype = torch.float32) -> Write:
    """Floats of 8 bits of any value, and scales of the matrix, of rows or of blocks."""

    def write(path: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        bits = rng.integers(0, 256, shape, np.uint8)
        bits[bits & 127 == 127] = 0  # NaN
        values = torch.from_numpy(bits).view(torch.float8_e4m3fn)
        counts = {"tensor": (1,), "number": (), "rows": (shape[0], 1)}.get(
            kind, tuple(-(-n // b) for n, b in zip(shape, block, strict=True))
        )
        scales = torch.from_numpy(rng.uniform(1e-4, 2e-3, counts).astype(np.float32)).to(scale)
        wide = scales.float().numpy().reshape(counts if len(counts) == 2 else (1, 1))
        if kind == "blocks":
            rows, columns = (np.arange(n) // b for n, b in zip(shape, block, strict=True))
            wide = wide[rows][:, columns]
        return {f"{path}.weight": values, f"{path}.{suffix}": scales}, values.float().numpy() * wide

    return write


def four_bits(kind: str, table: Sequence[float], nested: bool, block: int = 32) -> Write:
    """Indices into a table, as bitsandbytes writes them."""

    def write(path: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        indices = rng.integers(0, 16, shape[0] * shape[1], np.uint8)
        numbers = np.array(table, np.float32)
        count = indices.size // block
        state: dict[str, Any] = {"quant_type": kind, "blocksize": block, "dtype": "float32", "shape": list(shape)}
        name = f"{path}.weight"
        made = {name: indices[::2] << 4 | indices[1::2], f"{name}.quant_map": numbers}
        largest = rng.uniform(0.01, 0.2, count).astype(np.float32)
        if nested:
            codes, size = rng.integers(0, 256, count, np.uint8), 24
            second = np.sort(rng.uniform(-1, 1, 256)).astype(np.float32)
            factors = rng.uniform(0.01, 0.1, -(-count // size)).astype(np.float32)
            offset = np.float32(0.125)
            largest = second[codes] * np.repeat(factors, size)[:count] + offset
            state |= {"nested_blocksize": size, "nested_dtype": "float32", "nested_offset": float(offset)}
            made |= {f"{name}.nested_absmax": factors, f"{name}.nested_quant_map": second}
        made |= {f"{name}.absmax": codes if nested else largest}
        made[name] = made[name][:, None]
        made[f"{name}.quant_state.bitsandbytes__{kind}"] = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
        matrix = (numbers[indices].reshape(count, block) * largest[:, None]).reshape(shape)
        return {key: torch.from_numpy(np.ascontiguousarray(array)) for key, array in made.items()}, matrix

    return write


def mlx(bits: int, group: int, scale: torch.dtype = torch.float16) -> Write:
    """Integers without gaps in words of 32 bits."""

    def write(path: str, shape: tuple[int, int], rng: np.random.Generator) -> tuple[Tensors, np.ndarray]:
        n, k = shape
        values = rng.integers(0, 1 << bits, shape)
        words = np.zeros((n, k * bits // 32), np.uint32)
        for row, numbers in enumerate(values):
            whole = sum(int(number) << bits * place for place, number in enumerate(numbers))
            words[row] = np.frombuffer(whole.to_bytes(k * bits // 8, "little"), "<u4")
        counts = (n, k // group)
        scales = torch.from_numpy(rng.uniform(-0.02, 0.02, counts).astype(np.float32)).to(scale)
        biases = torch.from_numpy(rng.uniform(-0.3, 0.3, counts).astype(np.float32)).to(scale)
        wide, low = (np.repeat(each.float().numpy(), group, 1) for each in (scales, biases))
        made = {f"{path}.weight": torch.from_numpy(words), f"{path}.scales": scales, f"{path}.biases": biases}
        return made, values.astype(np.float32) * wide + low

    return write


def _fp8_config(block: list[int] | None) -> dict[str, Any]:
    method = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": block}
    return {"quantization_config": method}


def _compressed(strategy: str, **others: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "strategy": strategy, **others}
    inputs = {"num_bits": 8, "type": "float", "dynamic": True, "strategy": "token"}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    method = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"]}
    return {"quantization_config": method | {"config_groups": {"group_0": scheme}}}


def _bnb_config(kind: str) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}}


def mlx_config(bits: int, group: int, **layers: Any) -> dict[str, Any]:
    """The keys that mlx-lm writes: the same object twice, the second time without a method."""
    own = {"group_size": group, "bits": bits, **layers}
    return {"quantization": own, "quantization_config": own}


_BF16 = torch.bfloat16
FLOAT_CASES = [
    FloatCase("fp8 blocks", _fp8_config([48, 40]), fp8("weight_scale_inv", "blocks", (48, 40))),
    FloatCase("fp8 large blocks", _fp8_config([128, 128]), fp8("weight_scale_inv", "blocks", scale=_BF16)),
    FloatCase("fp8 number", _fp8_config(None), fp8("weight_scale_inv", "number", scale=_BF16)),
    FloatCase("compressed float tensor", _compressed("tensor"), fp8("weight_scale", "tensor")),
    FloatCase("compressed float rows", _compressed("channel"), fp8("weight_scale", "rows", scale=_BF16)),
    FloatCase("compressed float blocks", _compressed("block", block_structure=[32, 32]),
              fp8("weight_scale", "blocks", (32, 32))),
    FloatCase("nf4", _bnb_config("nf4"), four_bits("nf4", NF4, False)),
    FloatCase("nf4 nested", _bnb_config("nf4"), four_bits("nf4", NF4, True)),
    FloatCase("fp4 nested", _bnb_config("fp4"), four_bits("fp4", FP4, True, 64)),
    *(FloatCase(f"mlx {bits}", mlx_config(bits, 32), mlx(bits, 32), True, "q4_1" if bits < 5 else "q5_1")
      for bits in (2, 3, 4, 5)),
    *(FloatCase(f"mlx {bits}", mlx_config(bits, 32), mlx(bits, 32), True) for bits in (6, 8)),
    FloatCase("mlx 4 bf16", mlx_config(4, 64), mlx(4, 64, _BF16), True, "q4_1"),
    FloatCase("mlx 4 f32", mlx_config(4, 64), mlx(4, 64, torch.float32), True),
    FloatCase("mlx 4 groups of 16", mlx_config(4, 16), mlx(4, 16), True),
]  # fmt: skip


def write_float_case(
    case: FloatCase,
    folder: Path,
    rng: np.random.Generator,
    change: Sequence[Callable[[Tensors], Any]] = (),
    config: Mapping[str, Any] | None = None,
    own: Mapping[str, Write] | None = None,
) -> dict[str, np.ndarray]:
    """Writes a folder of a random model in a format. Returns its matrices by path, f32[n, k].

    change: functions of the tensors, which may change them, before they are written. config: more of config.json's
    keys. own: how the matrices of some paths are written instead.
    """
    plain, settings = plain_model()
    tensors = {name: torch.from_numpy(array) for name, array in plain.items()}
    paths = [*linear_names(tensors), *(["model.embed_tokens", "lm_head"] if case.tables else [])]
    matrices = {}
    for path in paths:
        shape = tuple(tensors.pop(f"{path}.weight").shape)
        made, matrices[path] = (own or {}).get(path, case.write)(path, shape, rng)
        tensors |= made
    for each in change:
        each(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(settings | {**case.config, **(config or {})}))
    return matrices


assert SIZES["hidden_size"] == 64, "groups of 64 are the largest that the sizes allow"
