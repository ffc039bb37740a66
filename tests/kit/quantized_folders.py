"""Folders of quantized language models, written number by number as the formats' documentation has it, and what the
numbers stand for: an oracle that shares nothing with the loader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load, save_file

from tiny_language_models import random_llama

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 96}
LINEAR = (".q_proj.", ".k_proj.", ".v_proj.", ".o_proj.", ".gate_proj.", ".up_proj.", ".down_proj.")
SHARED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "mlp", "up_proj": "mlp"}  # rows they read
AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of a column among the eight of its integer

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Numbers:
    """Codes as integers [n, k], scales and zero points [n, groups], the group of each column."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    group_of: np.ndarray

    @property
    def matrix(self) -> np.ndarray:
        """What they stand for, f32[n, k]: exact, and rounded once."""
        steps = self.codes.astype(np.float64) - self.zeros[:, self.group_of]
        return (steps * self.scales.astype(np.float64)[:, self.group_of]).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A folder of one format: its `quantization_config`, and the tensors of a matrix of so many rows and columns."""

    name: str
    config: dict[str, Any]
    bits: int
    group: int  # 0: a whole row
    zeros: str  # "middle": the same for all; "any"
    write: Callable[[str, Numbers], Tensors] = field(repr=False)
    scale: Any = np.float16
    shuffled: str = ""  # "alike": the columns of all matrices that read the same rows; "each"
    signed: bool = False  # codes around 0

    def draw(self, rng: np.random.Generator, n: int, k: int) -> Numbers:
        """Random numbers for a matrix, every code and zero point among them."""
        count, group = 1 << self.bits, self.group or k
        low = -count // 2 if self.signed else 0
        codes = rng.integers(low, low + count, (n, k))
        scales = rng.uniform(0.004, 0.02, (n, k // group)).astype(self.scale)
        zeros = np.full(scales.shape, low + count // 2)
        if self.zeros == "any":
            zeros = rng.integers(low, low + count, scales.shape)
        group_of = np.arange(k) // group
        return Numbers(codes, scales, zeros, rng.permutation(group_of) if self.shuffled else group_of)

    def readers(self, path: str) -> str:
        """What matrices have in common whose columns lie in one order."""
        layer, _, name = path.rpartition(".")
        return f"{layer}.{SHARED.get(name, name)}" if self.shuffled == "alike" else path


def in_words(numbers: Iterable[int], bits: int, word: Any) -> int:
    """Numbers in one integer, the first in its low bits, as the two's complement of a dtype."""
    total = sum((int(number) % (1 << bits)) << (bits * place) for place, number in enumerate(numbers))
    width = 8 * np.dtype(word).itemsize
    return total - (1 << width) if np.dtype(word).kind == "i" and total >> (width - 1) else total


def packed_rows(matrix: np.ndarray, bits: int, word: Any) -> np.ndarray:
    """Each row in integers, the last one filled up."""
    per = 8 * np.dtype(word).itemsize // bits
    rows = [[in_words(row[i : i + per], bits, word) for i in range(0, len(row), per)] for row in matrix]
    return np.array(rows, word)


def own(path: str, numbers: Numbers, bits: int, has_zeros: bool) -> Tensors:
    scales = numbers.scales
    if bits == 8:
        return {f"{path}.weight.codes": numbers.codes.astype(np.int8), f"{path}.weight.scales": scales}
    made = {f"{path}.weight.codes": packed_rows(numbers.codes, 4, np.uint8), f"{path}.weight.scales": scales}
    return made | ({f"{path}.weight.zeros": packed_rows(numbers.zeros, 4, np.uint8)} if has_zeros else {})


def compressed(path: str, numbers: Numbers, bits: int, has_zeros: bool, has_order: bool = False) -> Tensors:
    """Signed codes: their integers hold them and half of their range."""
    half = 1 << (bits - 1)
    made = {
        f"{path}.weight_packed": packed_rows(numbers.codes + half, bits, np.int32),
        f"{path}.weight_scale": numbers.scales,
        f"{path}.weight_shape": np.array(numbers.codes.shape),
    }
    if has_zeros:
        made[f"{path}.weight_zero_point"] = packed_rows(numbers.zeros.T + half, bits, np.int32).T.copy()
    return made | ({f"{path}.weight_g_idx": numbers.group_of.astype(np.int32)} if has_order else {})


def compressed_int8(path: str, numbers: Numbers, has_zeros: bool) -> Tensors:
    made = {f"{path}.weight": numbers.codes.astype(np.int8), f"{path}.weight_scale": numbers.scales}
    return made | ({f"{path}.weight_zero_point": numbers.zeros.astype(np.int8)} if has_zeros else {})


def gptq(path: str, numbers: Numbers, bits: int, offset: int, has_bias: bool = False) -> Tensors:
    made = {
        f"{path}.qweight": packed_rows(numbers.codes, bits, np.int32).T.copy(),
        f"{path}.qzeros": packed_rows(numbers.zeros.T - offset, bits, np.int32),
        f"{path}.scales": numbers.scales.T.copy(),
        f"{path}.g_idx": numbers.group_of.astype(np.int32),
    }
    return made | ({f"{path}.bias": np.zeros(len(numbers.codes), np.float16)} if has_bias else {})


def awq(path: str, numbers: Numbers) -> Tensors:
    def interleaved(rows: np.ndarray) -> np.ndarray:
        eights = rows.reshape(len(rows), -1, 8)
        placed = np.empty_like(eights)
        for column, place in enumerate(AWQ_PLACES):
            placed[..., place] = eights[..., column]
        return packed_rows(placed.reshape(rows.shape), 4, np.int32)

    return {
        f"{path}.qweight": interleaved(numbers.codes.T),
        f"{path}.qzeros": interleaved(numbers.zeros.T),
        f"{path}.scales": numbers.scales.T.copy(),
    }


OWN = {"quant_method": "ingot", "version": 1}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}


def compressed_config(format: str, bits: int, group: int, symmetric: bool, **others: Any) -> dict[str, Any]:
    strategy = {"strategy": "group", "group_size": group} if group else {"strategy": "channel", "group_size": None}
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "dynamic": False, **strategy}
    scheme = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": scheme | others},
    }


def gptq_config(bits: int, group: int, **others: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True} | others


_PACK, _INT = "pack-quantized", "int-quantized"
_DYNAMIC = {"num_bits": 8, "dynamic": True, "strategy": "token", "type": "int", "symmetric": True}
_V2 = {"checkpoint_format": "gptq_v2"}
_FEW_BITS = ml_dtypes.bfloat16
# What is drawn for symmetric signed codes has its zero points at 0, the middle.
CASES = [
    Case("int8", OWN, 8, 0, "middle", lambda p, w: own(p, w, 8, False), np.float32, signed=True),
    Case("int8 groups", OWN, 8, 32, "middle", lambda p, w: own(p, w, 8, False), signed=True),
    Case("int4", OWN, 4, 32, "middle", lambda p, w: own(p, w, 4, False), signed=True),
    Case("int4 zeros", OWN, 4, 32, "any", lambda p, w: own(p, w, 4, True)),
    Case("int4 zeros, odd groups", OWN, 4, 64, "any", lambda p, w: own(p, w, 4, True), np.float32),
    Case("compressed 4", compressed_config(_PACK, 4, 32, True), 4, 32, "middle",
         lambda p, w: compressed(p, w, 4, False), _FEW_BITS, signed=True),
    Case("compressed 4 zeros", compressed_config(_PACK, 4, 32, False), 4, 32, "any",
         lambda p, w: compressed(p, w, 4, True), signed=True),
    Case("compressed 4 channels", compressed_config(_PACK, 4, 0, True), 4, 0, "middle",
         lambda p, w: compressed(p, w, 4, False), signed=True),
    Case("compressed 4 order", compressed_config(_PACK, 4, 32, True), 4, 32, "middle",
         lambda p, w: compressed(p, w, 4, False, True), shuffled="alike", signed=True),
    Case("compressed packed 8", compressed_config(_PACK, 8, 32, False), 8, 32, "any",
         lambda p, w: compressed(p, w, 8, True), signed=True),
    Case("compressed 8", compressed_config(_INT, 8, 0, True, input_activations=_DYNAMIC), 8, 0, "middle",
         lambda p, w: compressed_int8(p, w, False), _FEW_BITS, signed=True),
    Case("compressed 8 zeros", compressed_config(_INT, 8, 32, False), 8, 32, "any",
         lambda p, w: compressed_int8(p, w, True), signed=True),
    Case("gptq", gptq_config(4, 32), 4, 32, "middle", lambda p, w: gptq(p, w, 4, 1, True)),
    Case("gptq zeros", gptq_config(4, 32, sym=False), 4, 32, "any", lambda p, w: gptq(p, w, 4, 1)),
    Case("gptq v2", gptq_config(4, 32, **_V2), 4, 32, "any", lambda p, w: gptq(p, w, 4, 0)),
    Case("gptq 8", gptq_config(8, 32, sym=False), 8, 32, "any", lambda p, w: gptq(p, w, 8, 1)),
    Case("gptq 8 symmetric", gptq_config(8, -1), 8, 0, "middle", lambda p, w: gptq(p, w, 8, 1)),
    Case("gptq order", gptq_config(4, 32, desc_act=True), 4, 32, "any",
         lambda p, w: gptq(p, w, 4, 1), shuffled="alike"),
    Case("gptq orders", gptq_config(4, 32, desc_act=True), 4, 32, "any",
         lambda p, w: gptq(p, w, 4, 1), shuffled="each"),
    Case("gptq 8 order", gptq_config(8, 32, desc_act=True), 8, 32, "any",
         lambda p, w: gptq(p, w, 8, 1), shuffled="alike"),
    Case("gptq order of 16", gptq_config(4, 16, desc_act=True), 4, 16, "any",
         lambda p, w: gptq(p, w, 4, 1), shuffled="alike"),
    Case("awq", AWQ, 4, 32, "any", awq),
]  # fmt: skip


def linear_names(tensors: Iterable[str]) -> list[str]:
    """The linear layers of a model, by the paths of their weights."""
    return sorted(name.removesuffix(".weight") for name in tensors if any(part in name for part in LINEAR))


def plain_model() -> tuple[Tensors, dict[str, Any]]:
    """The tensors and the configuration of a random model."""
    content, config = _saved_model()
    return load(content), json.loads(config)


@cache
def _saved_model() -> tuple[bytes, str]:
    with TemporaryDirectory() as folder:
        random_llama(Path(folder), **SIZES)
        return (Path(folder) / "model.safetensors").read_bytes(), (Path(folder) / "config.json").read_text()


def write_case(case: Case, folder: Path, rng: np.random.Generator, change: Sequence[Any] = ()) -> dict[str, np.ndarray]:
    """Writes a folder of a random model in a format. Returns its matrices by path, f32[n, k].

    change: functions of the tensors, which may change them, before they are written.
    """
    tensors, config = plain_model()
    matrices, orders = {}, dict[str, np.ndarray]()
    for path in linear_names(tensors):
        numbers = case.draw(rng, *tensors.pop(f"{path}.weight").shape)
        numbers = replace(numbers, group_of=orders.setdefault(case.readers(path), numbers.group_of))
        tensors |= case.write(path, numbers)
        matrices[path] = numbers.matrix
    for each in change:
        each(tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": case.config}))
    return matrices
