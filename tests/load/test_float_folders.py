"""Folders whose matrices are decoded to floats or to blocks: fp8, bitsandbytes, MLX. Every number as the format's
documentation defines it.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import ingot
from float_folders import FLOAT_CASES, FloatCase, Tensors, mlx, mlx_config, write_float_case
from ingot.errors import IngotError, LoadError, UnsupportedError
from ingot.ir.dtype import f32
from ingot.load.hf import load_language_model, read_folder
from ingot.load.hf.contents import nonfinite_tensors
from ingot.lower.weight_expr import weight_expr
from ingot.run.slices import Slices, is_divisible

BY_NAME = {case.name: case for case in FLOAT_CASES}
every_case = pytest.mark.parametrize("case", FLOAT_CASES, ids=[case.name for case in FLOAT_CASES])


def cases(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", [BY_NAME[name] for name in names], ids=names)


def matrices_of(folder: Path) -> dict[str, tuple[object, bool]]:
    """The weight expressions of a folder's linear layers and head by path, and whether they are [n, k]."""
    graph = load_language_model(read_folder(folder), context=None).graph
    found = {}
    for node in graph.nodes:
        if node.op.name == "matmul" and ("_proj" in node.output or "lm_head" in node.output):
            value = weight_expr(graph, str(node.operands[1]))
            found[node.output.removesuffix(".1")] = value, node.transpose_b
    return found


@every_case
def test_matrices_are_exactly_those(case: FloatCase, tmp_path: Path, rng: np.random.Generator) -> None:
    """Evaluated whole, and by rows, which packing does."""
    expected = write_float_case(case, tmp_path, rng)
    found = matrices_of(tmp_path)
    assert len(set(expected) & set(found)) == 7 + case.tables
    for path in set(expected) & set(found):
        value, is_rows = found[path]
        whole = value.evaluate() if is_rows else value.evaluate().T
        assert whole.dtype == np.float32
        np.testing.assert_array_equal(whole, expected[path])
        axis = 0 if is_rows else 1
        assert is_divisible(value, axis)
        part = Slices().take(value, 8, 24, axis)
        np.testing.assert_array_equal(part if is_rows else part.T, expected[path][8:24])


@cases("fp8 blocks", "nf4 nested", "mlx 4 bf16")
def test_logits_are_those_of_transformers(case: FloatCase, tmp_path: Path, rng: np.random.Generator) -> None:
    """Of a model with the decoded matrices in the place of its own."""
    expected = write_float_case(case, tmp_path, rng)
    config = transformers.LlamaConfig(**json.loads((tmp_path / "config.json").read_text()))
    config.quantization_config = config.quantization = None
    model = transformers.LlamaForCausalLM(config).eval()
    stored = read_folder(tmp_path).tensors
    state = {name: torch.from_numpy(tensor.array().copy()) for name, tensor in stored.items() if tensor.dtype is f32}
    state |= {f"{path}.weight": torch.from_numpy(matrix) for path, matrix in expected.items()}
    model.load_state_dict({name: state[name] for name in model.state_dict()})
    ids = rng.integers(0, config.vocab_size, 40).tolist()
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].numpy()
    found = ingot.LLM(tmp_path, precision="f32").logits(ids)
    np.testing.assert_allclose(found, logits, atol=2e-4 * np.abs(logits).max(), rtol=0)
    llm = ingot.LLM(tmp_path)
    assert llm.options.precision == ("int8" if case.config.get("quantization", {}).get("bits", 8) <= 5 else "bf16")
    assert np.linalg.norm(llm.logits(ids) - logits) < 0.05 * np.linalg.norm(logits)


@cases("fp8 blocks", "mlx 4 bf16", "mlx 4 f32", "mlx 8")
def test_what_is_packed(case: FloatCase, tmp_path: Path, rng: np.random.Generator) -> None:
    """Blocks where they have the same numbers, else floats of the precision, which may be quantized again."""

    def formats(**options: str) -> set[str]:
        lowered = ingot.LLM(tmp_path, **options).engine.mode("decode").native.lowered
        packed = [tensor.packed_weight for tensor in lowered.tensors.values() if tensor.packed_weight]
        return {str(weight.format) for weight in packed if weight.format is not None}

    write_float_case(case, tmp_path, rng)
    assert formats(precision="f32") >= {"f32"}
    if case.blocks:
        assert formats() == formats(precision="int4") == {case.blocks}
    else:
        assert "bf16" in formats(precision="bf16")
        assert "int8_row" in formats(precision="int8") or "mlx 4" in case.name  # whose matrices may all be blocks


def test_layers_of_mlx_with_their_own_widths(tmp_path: Path, rng: np.random.Generator) -> None:
    """A layer that is not quantized has no scales, whatever the config has for it."""
    path = "model.layers.0.mlp.down_proj"
    case = BY_NAME["mlx 4 bf16"]
    layers = {path: {"bits": 8, "group_size": 32}, "lm_head": {"bits": 3, "group_size": 32}, "model.norm": False}
    own = {path: mlx(8, 32), "lm_head": mlx(3, 32)}
    expected = write_float_case(case, tmp_path, rng, config=mlx_config(4, 64, **layers), own=own)
    found = matrices_of(tmp_path)
    for name in (path, "lm_head", "model.layers.0.mlp.up_proj"):
        value, is_rows = found[name]
        np.testing.assert_array_equal(value.evaluate() if is_rows else value.evaluate().T, expected[name])


def test_scales_of_activations_are_not_used(tmp_path: Path, rng: np.random.Generator) -> None:
    """Products have floats as activations, so that a scale for integers has no place."""

    def with_scale(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            tensors[f"{name.removesuffix('.weight')}.activation_scale"] = torch.tensor(3.0)

    expected = write_float_case(BY_NAME["fp8 number"], tmp_path, rng, [with_scale])
    value, is_rows = matrices_of(tmp_path)["model.layers.0.mlp.up_proj"]
    found = value.evaluate() if is_rows else value.evaluate().T
    np.testing.assert_array_equal(found, expected["model.layers.0.mlp.up_proj"])


def test_numbers_that_are_none_are_found(tmp_path: Path, rng: np.random.Generator) -> None:
    def with_nan(tensors: Tensors) -> None:
        bits = tensors[f"{PATH}.weight"].view(torch.uint8)
        bits[0, :4] = torch.tensor([0x7F, 0xFF, 0x7E, 0xFE], dtype=torch.uint8)  # two NaN, and the largest numbers

    write_float_case(BY_NAME["fp8 blocks"], tmp_path, rng, [with_nan])
    (found,) = nonfinite_tensors(read_folder(tmp_path))
    assert (found.name, found.nans, found.infinities) == (f"{PATH}.weight", 2, 0)


# -- bad input --------------------------------------------------------------------------------------------------

PATH = "model.layers.0.self_attn.q_proj"
Change = Callable[[torch.Tensor], torch.Tensor] | None


def changed(name: str, change: Change) -> Callable[[Tensors], None]:
    """Changes a tensor of one layer; None takes it away."""

    def apply(tensors: Tensors) -> None:
        tensor = tensors.pop(f"{PATH}.{name}")
        if change is not None:
            tensors[f"{PATH}.{name}"] = change(tensor)

    return apply


def state(**keys: object) -> Change:
    """The description of a matrix with other keys; one that is None is left out."""

    def change(tensor: torch.Tensor) -> torch.Tensor:
        found = json.loads(bytes(tensor.tolist())) | keys
        text = json.dumps({key: value for key, value in found.items() if value is not None})
        return torch.tensor(list(text.encode()), dtype=torch.uint8)

    return change


STATE = "weight.quant_state.bitsandbytes__nf4"
BROKEN: list[tuple[str, str, Change, str]] = [
    ("fp8 blocks", "weight_scale_inv", None, "is missing, expected f16 or bf16 or f32[2, 2]"),
    ("fp8 blocks", "weight_scale_inv", lambda a: a[:, :1], "is f32[2, 1], expected f16 or bf16 or f32[2, 2]"),
    ("fp8 blocks", "weight_scale_inv", lambda a: a.double(), "is f64[2, 2], expected f16 or bf16 or f32[2, 2]"),
    ("fp8 blocks", "weight", lambda a: a[:, :60].contiguous(), "is f8e4m3fn[64, 60], expected f8e4m3fn[64, 64]"),
    ("fp8 blocks", "weight", lambda a: a.view(torch.int8), "is i8, expected f32, f16 or bf16"),
    ("fp8 number", "weight_scale_inv", lambda a: torch.ones(3), "is f32[3], expected f16 or bf16 or f32[64, 1]"),
    ("compressed float rows", "weight_scale", lambda a: a.T.contiguous(), "is bf16[1, 64], expected"),
    ("nf4", "weight", lambda a: a[:-1], "is u8[2047, 1], expected u8[2048, 1]"),
    ("nf4", "weight", lambda a: a.view(torch.int8), "is i8[2048, 1], expected u8[2048, 1]"),
    ("nf4", "weight.absmax", None, "is missing, expected f32[128]"),
    ("nf4", "weight.absmax", lambda a: a[1:], "is f32[127], expected f32[128]"),
    ("nf4", "weight.quant_map", None, "is missing, expected f32[16]"),
    ("nf4", "weight.quant_map", lambda a: a[:15], "is f32[15], expected f32[16]"),
    ("nf4", STATE, None, "is quantized without a state, expected"),
    ("nf4", STATE, lambda a: a[:-1], "not JSON"),
    ("nf4", STATE, lambda a: torch.zeros(1 << 17, dtype=torch.uint8), "too large, got 131072 bytes"),
    ("nf4", STATE, lambda a: a.float(), "expected u8"),
    ("nf4", STATE, state(shape=[64, 65]), "shape: got [64, 65], expected [64, 64]"),
    ("nf4", STATE, state(blocksize=0), "blocksize: got 0, expected 1.."),
    ("nf4", STATE, state(blocksize=1 << 60), "blocksize: got 1152921504606846976, expected 1.."),
    ("nf4", STATE, state(blocksize=None), "blocksize: got None, expected 1.."),
    ("nf4", STATE, state(blocksize=True), "blocksize: got True, expected 1.."),
    ("nf4 nested", "weight.nested_absmax", lambda a: a[1:], "is f32[5], expected f32[6]"),
    ("nf4 nested", "weight.nested_absmax", None, "is u8[128], expected f32[128]"),
    ("nf4 nested", "weight.nested_quant_map", None, "is missing, expected f32[256]"),
    ("nf4 nested", STATE, state(nested_blocksize="24"), "nested_blocksize: got '24', expected 1.."),
    ("nf4 nested", STATE, state(nested_offset=None), "nested_offset: got None, expected a number"),
    ("mlx 4", "weight", lambda a: a[:, 1:].contiguous(), "is u32[64, 7], expected u32[64, 8]"),
    ("mlx 4", "weight", lambda a: a.view(torch.int32), "is i32[64, 8], expected u32[64, 8]"),
    ("mlx 4", "scales", lambda a: a[:, :1].contiguous(), "is f16[64, 1], expected f16 or bf16 or f32[64, 2]"),
    ("mlx 4", "scales", lambda a: a[None].repeat(3, 1, 1), "is f16[3, 64, 2], expected f16 or bf16 or f32[64, 2]"),
    ("mlx 4", "biases", None, "is missing, expected f16 or bf16 or f32[64, 2]"),
    ("mlx 4", "biases", lambda a: a.double(), "is f64[64, 2], expected f16 or bf16 or f32[64, 2]"),
    ("mlx 4", "scales", None, "is missing, expected f16 or bf16 or f32[64, 2]"),
]


@pytest.mark.parametrize(("name", "tensor", "change", "fragment"), BROKEN)
def test_broken_tensor(
    name: str, tensor: str, change: Change, fragment: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    """One error that names the folder and the tensor."""
    write_float_case(BY_NAME[name], tmp_path, rng, [changed(tensor, change)])
    with pytest.raises(IngotError) as caught:
        ingot.LLM(tmp_path)
    message = str(caught.value)
    expected = UnsupportedError if "expected f32, f16 or bf16" in fragment else LoadError
    assert type(caught.value) is expected and fragment in message and message.startswith(str(tmp_path)), message
    assert "q_proj" in message


def test_rows_of_partial_blocks_are_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    write_float_case(BY_NAME["nf4"], tmp_path, rng, [changed(STATE, state(blocksize=4096))])
    with pytest.raises(UnsupportedError, match="blocksize: got 4096, expected an even divisor of the 64 columns"):
        ingot.LLM(tmp_path)


def with_method(**keys: object) -> dict[str, object]:
    return {"quantization_config": keys}


def compressed(**weights: object) -> dict[str, object]:
    group = {"weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]} | weights}
    method = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"g": group}}
    return {"quantization_config": method}


CONFIGS = [
    (with_method(quant_method="fp8", weight_block_size=128), LoadError, ".weight_block_size: got 128, expected two"),
    (with_method(quant_method="fp8", weight_block_size=[0, 128]), LoadError, ".weight_block_size: got [0, 128]"),
    (with_method(quant_method="fp8", weight_block_size=[1 << 60, 1]), LoadError, "expected two integers of 1.."),
    (with_method(quant_method="fp8", weight_block_size=[True, 8]), LoadError, ".weight_block_size: got [True, 8]"),
    (with_method(quant_method="hqq"), UnsupportedError, ".quant_method: got 'hqq', expected ingot, compressed-tensors"),
    (with_method(quant_method="bitsandbytes", load_in_8bit=True), UnsupportedError, ".load_in_4bit: got None"),
    (compressed(num_bits=4), UnsupportedError, ".g.weights.num_bits: got 4, expected 8"),
    (compressed(type="int"), UnsupportedError, ".g.weights.type: got 'int', expected float"),
    (compressed(strategy="group"), UnsupportedError, ".g.weights.strategy: got 'group'"),
    (compressed(block_structure=None), LoadError, ".g.weights.block_structure: got None"),
    (compressed(block_structure="128x128"), LoadError, ".g.weights.block_structure: got '128x128'"),
    (mlx_config(7, 32), UnsupportedError, ".bits: got 7, expected one of 2, 3, 4, 5, 6, 8"),
    (mlx_config(True, 32), UnsupportedError, ".bits: got True"),
    (mlx_config(4, 0), LoadError, ".group_size: got 0, expected 1.."),
    (mlx_config(4, 1 << 62), LoadError, ".group_size: got 4611686018427387904, expected 1.."),
    (mlx_config(4, 32, mode="mxfp4"), UnsupportedError, ".mode: got 'mxfp4', expected affine"),
]


@pytest.mark.parametrize(("config", "error", "fragment"), CONFIGS)
def test_refused_config(
    config: dict[str, object], error: type[IngotError], fragment: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    write_float_case(BY_NAME["mlx 4" if "quantization" in config else "fp8 blocks"], tmp_path, rng, config=config)
    with pytest.raises(IngotError) as caught:
        ingot.LLM(tmp_path)
    assert type(caught.value) is error and fragment in str(caught.value), caught.value
    assert str(caught.value).startswith(f"{tmp_path}/config.json: quantization")


def test_groups_that_do_not_divide_the_columns(tmp_path: Path, rng: np.random.Generator) -> None:
    write_float_case(BY_NAME["mlx 4"], tmp_path, rng, config=mlx_config(4, 96))
    with pytest.raises(LoadError, match=r"is \[\d+, 64\], expected rows of groups of 96"):
        ingot.LLM(tmp_path)
