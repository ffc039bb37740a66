"""The quantization that a folder's config.json describes, and the reader of its matrices."""

from __future__ import annotations

from typing import Any

from ingot.errors import LoadError, UnsupportedError
from ingot.ir.graph import Graph
from ingot.load.hf.bitsandbytes import BitsAndBytes
from ingot.load.hf.folder import Folder
from ingot.load.hf.fp8 import Fp8Tensors, block_of
from ingot.load.hf.mlx import MOST_BLOCK_BITS, MlxTensors, checked_widths
from ingot.load.hf.quantized import VERSION, Awq, CompressedTensors, Gptq, IngotTensors, Mxfp4, QuantizedTensors
from ingot.load.hf.strict_json import shown

MLX = "mlx"  # which config.json does not name
METHODS = ("ingot", "compressed-tensors", "gptq", "awq", "mxfp4", "fp8", "bitsandbytes", "mlx")
_FLOATS = "float-quantized"  # a format of compressed-tensors


def quantization_of(folder: Folder) -> tuple[str, dict[str, Any], str] | None:
    """Return the method, its configuration and where that is; None for a folder without one.

    Raises LoadError for a malformed config, UnsupportedError for an unknown method.
    """
    config, own = folder.config.get("quantization_config"), folder.config.get("quantization")
    where = f"{folder.path}/config.json: quantization"
    if isinstance(own, dict) and (not isinstance(config, dict) or "quant_method" not in config):
        return MLX, own, where
    where = f"{where}_config"
    if config is None:
        return None
    if not isinstance(config, dict):
        raise LoadError(f"{where}: got {shown(config)}, expected an object")
    method = config.get("quant_method")
    if method not in METHODS:
        expected = f"{', '.join(METHODS[:-1])} or {METHODS[-1]}"
        raise UnsupportedError(f"{where}.quant_method: got {shown(method)}, expected {expected}")
    return method, config, where


def becomes_floats(folder: Folder) -> bool:
    """Return whether quantized matrices of a folder are decoded to floats, not multiplied as integers.

    Raises as `quantization_of`.
    """
    match quantization_of(folder):
        case ("fp8" | "bitsandbytes", _, _):
            return True
        case ("compressed-tensors", config, _):
            return config.get("format") == _FLOATS
        case ("mlx", config, where):
            return checked_widths(config, where)[0] > MOST_BLOCK_BITS
    return False


def quantized_tensors(graph: Graph, folder: Folder) -> QuantizedTensors | None:
    """Return the reader of the matrices that a folder's config describes; None for a folder without quantization.

    Raises LoadError for a malformed config, UnsupportedError for a format that Ingot does not read.
    """
    found = quantization_of(folder)
    if found is None:
        return None
    method, config, where = found
    match method:
        case "ingot":
            _expect(where, config, "version", (VERSION,))
            return IngotTensors(graph, folder)
        case "compressed-tensors":
            return _compressed(graph, folder, config, where)
        case "gptq":
            bits = _expect(where, config, "bits", (4, 8))
            layout = _expect(where, config, "checkpoint_format", ("gptq", "gptq_v2", None))
            _expect(where, config, "pack_dtype", ("int32", None))
            if config.get("dynamic"):
                raise UnsupportedError(f"{where}.dynamic: got {shown(config['dynamic'])}, expected none")
            return Gptq(graph, folder, bits, 0 if layout == "gptq_v2" else 1)
        case "awq":
            _expect(where, config, "bits", (4,))
            _expect(where, config, "version", ("gemm", "GEMM"))
            _expect(where, config, "zero_point", (True,))
            return Awq(graph, folder)
        case "mxfp4":
            return Mxfp4(graph, folder)
        case "fp8":
            return Fp8Tensors(graph, folder, "_scale_inv", block_of(config, "weight_block_size", where))
        case "bitsandbytes":
            _expect(where, config, "load_in_4bit", (True,))
            return BitsAndBytes(graph, folder)
    checked_widths(config, where)
    return MlxTensors(graph, folder, config, where)


def _expect(where: str, config: dict[str, Any], key: str, known: tuple[Any, ...]) -> Any:
    """Return a config value that is one of the known ones, of the same type. Raises UnsupportedError."""
    value = config.get(key)
    if not any(value == each and type(value) is type(each) for each in known):
        raise UnsupportedError(f"{where}.{key}: got {shown(value)}, expected {' or '.join(map(str, known))}")
    return value


def _compressed(graph: Graph, folder: Folder, config: dict[str, Any], where: str) -> QuantizedTensors:
    """Check for integers of 4 or 8 bits or floats of 8, and no option that would change the computation."""
    format = _expect(where, config, "format", ("pack-quantized", "int-quantized", "naive-quantized", _FLOATS))
    for key in ("kv_cache_scheme", "transform_config"):
        if config.get(key):
            raise UnsupportedError(f"{where}.{key}: got {shown(config[key])}, expected none")
    sparsity = config.get("sparsity_config")
    if sparsity and not (isinstance(sparsity, dict) and sparsity.get("format") == "dense"):
        raise UnsupportedError(f"{where}.sparsity_config: got {shown(sparsity)}, expected none or dense")
    groups = config.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise LoadError(f"{where}.config_groups: got {shown(groups)}, expected an object of groups")
    blocks = set()
    for name, group in groups.items():
        here = f"{where}.config_groups.{name}"
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise LoadError(f"{here}.weights: got {shown(weights)}, expected an object")
        if format == _FLOATS:
            blocks.add(_block_of_floats(weights, f"{here}.weights"))
        else:
            _expect_integers(group, weights, here)
        if group.get("output_activations"):
            raise UnsupportedError(
                f"{here}.output_activations: got {shown(group['output_activations'])}, expected none"
            )
    if format != _FLOATS:
        return CompressedTensors(graph, folder)
    if len(blocks) > 1:
        raise UnsupportedError(f"{where}.config_groups: got blocks of {shown(sorted(map(str, blocks)))}, expected one")
    return Fp8Tensors(graph, folder, "_scale", blocks.pop())


def _block_of_floats(weights: dict[str, Any], where: str) -> tuple[int, int] | None:
    """Return the rows and columns of a block of floats of 8 bits; None for scales of rows or of the matrix."""
    _expect(where, weights, "num_bits", (8,))
    _expect(where, weights, "type", ("float",))
    strategy = _expect(where, weights, "strategy", ("tensor", "channel", "block"))
    if strategy != "block":
        return None
    block = block_of(weights, "block_structure", where)
    if block is None:
        raise LoadError(f"{where}.block_structure: got None, expected two integers")
    return block


def _expect_integers(group: dict[str, Any], weights: dict[str, Any], here: str) -> None:
    _expect(f"{here}.weights", weights, "num_bits", (4, 8))
    _expect(f"{here}.weights", weights, "type", ("int",))
    _expect(f"{here}.weights", weights, "strategy", ("group", "channel"))
    inputs = group.get("input_activations")
    if inputs and not (isinstance(inputs, dict) and inputs.get("dynamic") is True):
        raise UnsupportedError(f"{here}.input_activations: got {shown(inputs)}, expected none or dynamic ones")
