"""Folders with quantized matrices: every number as the format's documentation defines it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import ingot
from ingot.errors import IngotError, LoadError, UnsupportedError
from ingot.ir.dtype import f16, f32, i4, i8, u4, u8
from ingot.load.hf import load_language_model, read_folder
from ingot.lower.weight_expr import weight_expr
from quantized_folders import CASES, Case, write_case

BY_NAME = {case.name: case for case in CASES}
every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def decoded(folder: Path) -> dict[str, np.ndarray]:
    """The matrices of a folder's linear layers, by path."""
    graph = load_language_model(read_folder(folder), context=None).graph
    found = {}
    for node in graph.nodes:
        if node.op.name == "matmul" and "_proj" in node.output:
            value = weight_expr(graph, str(node.operands[1]))
            found[node.output.removesuffix(".1")] = value.evaluate() if node.transpose_b else value.evaluate().T
    return found


@every_case
def test_matrices_are_exactly_those(case: Case, tmp_path: Path, rng: np.random.Generator) -> None:
    expected = write_case(case, tmp_path, rng)
    found = decoded(tmp_path)
    assert set(found) == set(expected) and len(found) == 7
    for path, matrix in expected.items():
        assert found[path].dtype == np.float32
        np.testing.assert_array_equal(found[path], matrix)


@every_case
def test_the_graph_has_the_facts_that_kernels_need(case: Case, tmp_path: Path, rng: np.random.Generator) -> None:
    """dequantize(codes [n, k], scales [n, groups] or [n], zero points of the codes' dtype), and codes nothing else."""
    write_case(case, tmp_path, rng)
    graph = load_language_model(read_folder(tmp_path), context=None).graph
    nodes = [node for node in graph.nodes if node.op.name == "dequantize"]
    assert len(nodes) == 7
    for node in nodes:
        codes, scale, *zero = (graph.type(str(operand)) for operand in node.operands)
        n, k = codes.dims
        assert codes.dtype in (i8, u8, i4, u4) and scale.dtype in (f16, f32) and node.dtype is f32
        groups = k // (case.group or k)
        per_row = (node.axis, node.block, scale.shape) == (0, 0, (n,)) and groups == 1
        assert per_row or (node.axis, node.block, scale.shape) == (1, case.group, (n, groups))
        assert [z.shape for z in zero] == [scale.shape] * len(zero) and {z.dtype for z in zero} <= {codes.dtype}
        assert bool(zero) == (case.zeros == "any")


@pytest.mark.parametrize(("name", "tensor"), [("compressed 4", "weight_scale"), ("int4", "weight.scales")])
@pytest.mark.parametrize("power", [0, 8, -4, -20, 30])
def test_scales_that_f16_represents_stay_quantized(
    name: str, tensor: str, power: int, tmp_path: Path, rng: np.random.Generator
) -> None:
    """bf16 and f32 scales keep every bit: as f16 where all of a matrix are such numbers, else as f32."""

    def scaled(tensors: dict[str, np.ndarray]) -> None:
        for path in tensors:
            if path.endswith(tensor):
                wide = tensors[path].astype(np.float32) * np.float32(2.0**power)
                tensors[path] = wide.astype(tensors[path].dtype) if name == "compressed 4" else wide

    expected = write_case(BY_NAME[name], tmp_path, rng, [scaled])
    found = decoded(tmp_path)
    for path, matrix in expected.items():
        np.testing.assert_array_equal(found[path], matrix * np.float32(2.0**power))
    graph = load_language_model(read_folder(tmp_path), context=None).graph
    fits = abs(power) <= 8
    scales = {graph.type(str(node.operands[1])).dtype for node in graph.nodes if node.op.name == "dequantize"}
    assert scales == {f16 if fits else f32}
    steps = ingot.LLM(tmp_path).engine.mode("prefill").native.lowered.steps
    products = {step.kernel for step in steps if step.kernel.startswith("gem")}
    assert any(kernel.startswith("gemm_int4_") for kernel in products) == fits
    assert any(kernel.startswith("gemm_f32_int4_") and "_f32_" in kernel[8:] for kernel in products) != fits


@pytest.mark.parametrize(
    "name", ["int8", "int4 zeros", "compressed 4", "compressed 4 order", "gptq order", "gptq orders", "awq"]
)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    """Of a model with the decoded matrices in the place of its own."""
    expected = write_case(BY_NAME[name], tmp_path, rng)
    config = transformers.LlamaConfig.from_pretrained(tmp_path)
    del config.quantization_config
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
    rounded = ingot.LLM(tmp_path).logits(ids)  # whose rows are rounded to int8, where codes are multiplied as they are
    assert np.linalg.norm(rounded - logits) < 0.05 * np.linalg.norm(logits)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("name", "plain", "kernel"),
    [
        ("compressed 4 order", "compressed 4", "int4"),
        ("gptq order", "gptq zeros", "int4_zp"),
        ("gptq orders", "gptq zeros", "int4_zp"),
        ("gptq 8 order", "gptq 8", "int8_zp"),
    ],
)
@pytest.mark.parametrize(("precision", "family"), [(None, "gemm"), ("int8", "gemm"), ("f32", "gemm_f32")])
def test_ordered_columns_stay_quantized(
    name: str, plain: str, kernel: str, precision: str | None, family: str, mode: str, tmp_path: Path, rng
) -> None:
    """They take the memory of others and of their orders; what reads the same rows in one order is one product."""

    def loaded(name: str) -> tuple[list[str], int]:
        (tmp_path / name).mkdir()
        write_case(BY_NAME[name], tmp_path / name, rng)
        model = ingot.LLM(tmp_path / name, **({} if precision is None else {"precision": precision}))
        steps = model.engine.mode(mode).native.lowered.steps
        return [step.kernel for step in steps if step.kernel.startswith("gem")], model.memory.weights

    kernels, nbytes = loaded(name)
    is_alike = BY_NAME[name].shuffled == "alike"
    kinds = ["packed", "packed", "gated", "packed"] if is_alike else ["packed"] * 7
    assert kernels[:-1] == [f"{family}_{kernel}_{kind}" for kind in kinds]
    columns = 64 * (3 if is_alike else 6) + 128
    assert nbytes - loaded(plain)[1] == columns * np.dtype(np.int32).itemsize


def test_signed_weights_with_zero_points_stay_quantized(tmp_path: Path, rng: np.random.Generator) -> None:
    """Those of `int-quantized`, which kernels know as unsigned ones; zero points that are all 0 are none."""

    def kernels(folder: str, *change: object) -> set[str]:
        (tmp_path / folder).mkdir()
        write_case(BY_NAME["compressed 8 zeros"], tmp_path / folder, rng, change)
        steps = ingot.LLM(tmp_path / folder).engine.mode("decode").native.lowered.steps
        return {step.kernel for step in steps if step.kernel.startswith("gemm_int")}

    def without_zeros(tensors: dict[str, np.ndarray]) -> None:
        tensors |= {path: np.zeros_like(tensor) for path, tensor in tensors.items() if path.endswith("_zero_point")}

    assert kernels("zeros") == {"gemm_int8_zp_packed", "gemm_int8_zp_gated"}
    assert kernels("none", without_zeros) == {"gemm_int8_packed", "gemm_int8_gated"}


# -- bad input --------------------------------------------------------------------------------------------------

PATH = "model.layers.0.self_attn.q_proj"


def changed(name: str, change: object) -> object:
    """Changes a tensor of one layer; None takes it away."""

    def apply(tensors: dict[str, np.ndarray]) -> None:
        array = tensors.pop(f"{PATH}.{name}")
        if change is not None:
            tensors[f"{PATH}.{name}"] = change(array)

    return apply


BROKEN = [
    ("int8", "weight.scales", None, "is missing, expected scales"),
    ("int8", "weight.scales", lambda a: a.astype(np.float64), "is f64[64, 1], expected f16 or bf16 or f32[64, 1]"),
    ("int8", "weight.scales", lambda a: a[:-1].copy(), "is f32[63, 1], expected f16 or bf16 or f32[64, 1]"),
    ("int8", "weight.scales", lambda a: a[:, 0].copy(), "expected two dims, and groups that divide 64 columns"),
    ("int8", "weight.scales", lambda a: np.repeat(a, 3, 1), "expected two dims, and groups that divide 64 columns"),
    ("int8", "weight.scales", lambda a: a[:, :0].copy(), "expected two dims, and groups that divide 64 columns"),
    ("int8", "weight.codes", lambda a: a[:, :-1].copy(), "is i8[64, 63], expected i8[64, 64]"),
    ("int8", "weight.codes", lambda a: a.astype(np.int16), "is i16[64, 64], expected u8[64, 32]"),
    ("int4", "weight.codes", lambda a: a[:, ::2].copy(), "is u8[64, 16], expected u8[64, 32]"),
    ("int4 zeros", "weight.zeros", lambda a: np.repeat(a, 2, 1), "is u8[64, 2], expected u8[64, 1]"),
    ("compressed 4", "weight_packed", lambda a: a.view(np.uint32), "is u32[64, 8], expected i32[64, 8]"),
    ("compressed 4", "weight_packed", lambda a: a.T.copy(), "is i32[8, 64], expected i32[64, 8]"),
    ("compressed 4", "weight_shape", lambda a: a + 1, "is [65, 65], expected [64, 64]"),
    ("compressed 4", "weight_shape", lambda a: a[:1].copy(), "is i64[1], expected i32 or i64[2]"),
    ("compressed 4 zeros", "weight_zero_point", lambda a: a[1:].copy(), "is i32[7, 2], expected i32[8, 2]"),
    ("compressed 4 order", "weight_g_idx", lambda a: a * 0, "does not put 64 columns into 2 groups of 32"),
    ("compressed 8", "weight_scale", None, "is missing, expected scales"),
    ("gptq", "qzeros", None, "is missing, expected i32[2, 8]"),
    ("gptq", "qzeros", lambda a: a[:1].copy(), "is i32[1, 8], expected i32[2, 8]"),
    ("gptq", "g_idx", lambda a: a - 1, "does not put 64 columns into 2 groups of 32"),
    ("gptq", "g_idx", lambda a: a * 1000, "does not put 64 columns into 2 groups of 32"),
    ("gptq", "g_idx", lambda a: a[1:].copy(), "is i32[63], expected i32 or i64[64]"),
    ("gptq", "bias", lambda a: a + 1, "unexpected 'model.layers.0.self_attn.q_proj.bias'"),
    ("gptq 8", "qweight", lambda a: a[::2].copy(), "is i32[8, 64], expected i32[16, 64]"),
    ("awq", "qweight", lambda a: a.T.copy(), "is i32[8, 64], expected i32[64, 8]"),
    ("awq", "scales", lambda a: a.T.copy(), "is f16[64, 2], expected f16 or bf16 or f32[64, 64]"),
    ("int8", "weight.codes", None, "missing 'model.layers.0.self_attn.q_proj.weight', expected [64, 64]"),
]


@pytest.mark.parametrize(("name", "tensor", "change", "fragment"), BROKEN)
def test_broken_tensor(
    name: str, tensor: str, change: object, fragment: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    """One error that names the folder and the tensor, the same at the second try."""
    write_case(BY_NAME[name], tmp_path, rng, [changed(tensor, change)])
    messages = []
    for _ in range(2):
        with pytest.raises(LoadError) as caught:
            ingot.LLM(tmp_path)
        messages.append(str(caught.value))
    assert fragment in messages[0] and messages[0].startswith(str(tmp_path)), messages[0]
    assert "q_proj" in messages[0] and messages[0] == messages[1]


@pytest.mark.parametrize(("name", "size"), [("gptq", 48), ("gptq order", 60), ("awq", 24)])
def test_groups_that_do_not_divide_the_columns(name: str, size: int, tmp_path: Path, rng: np.random.Generator) -> None:
    """As folders have whose last group is shorter."""
    write_case(BY_NAME[name], tmp_path, rng)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["group_size"] = size
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError) as caught:
        ingot.LLM(tmp_path)
    expected = f"group_size: got {size}, expected one that divides the 64 columns of '{PATH}'"
    assert str(caught.value) == f"{tmp_path}/config.json: quantization_config.{expected}"


CONFIGS = [
    (5, LoadError, "expected an object"),
    ({"quant_method": "hqq", "load_in_4bit": True}, UnsupportedError, ".quant_method: got 'hqq'"),
    ({"bits": 4}, UnsupportedError, ".quant_method: got None"),
    ({"quant_method": ["gptq"]}, UnsupportedError, ".quant_method: got ['gptq']"),
    ({"quant_method": "ingot"}, UnsupportedError, ".version: got None, expected 1"),
    ({"quant_method": "ingot", "version": 2}, UnsupportedError, ".version: got 2, expected 1"),
    ({"quant_method": "ingot", "version": True}, UnsupportedError, ".version: got True, expected 1"),
    ({"quant_method": "gptq", "bits": 3}, UnsupportedError, ".bits: got 3, expected 4 or 8"),
    ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, UnsupportedError, ".checkpoint_format"),
    ({"quant_method": "gptq", "bits": 4, "pack_dtype": "int8"}, UnsupportedError, ".pack_dtype: got 'int8'"),
    ({"quant_method": "gptq", "bits": 4, "dynamic": {"+:x": {"bits": 8}}}, UnsupportedError, ".dynamic: got"),
    ({"quant_method": "awq", "bits": 8}, UnsupportedError, ".bits: got 8, expected 4"),
    ({"quant_method": "awq", "bits": 4, "version": "gemv"}, UnsupportedError, ".version: got 'gemv'"),
    ({"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": False}, UnsupportedError, ".zero_point"),
    ({"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}, UnsupportedError, ".format: got 'mxfp4"),
    ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, LoadError, ".config_groups: got None"),
]
COMPRESSED = [
    ("config_groups", {"group_0": 1}, LoadError, ".group_0.weights: got None"),
    ("config_groups", {"g": {"weights": {"num_bits": 2}}}, UnsupportedError, ".g.weights.num_bits: got 2"),
    ("config_groups", {"g": {"weights": {"num_bits": 4, "type": "float"}}}, UnsupportedError, ".type: got 'float'"),
    ("config_groups", {"g": {"weights": {"num_bits": 4, "type": "int", "strategy": "block"}}}, UnsupportedError,
     ".strategy: got 'block'"),
    ("config_groups", {"g": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"},
                             "input_activations": {"dynamic": False}}}, UnsupportedError, ".g.input_activations"),
    ("kv_cache_scheme", {"num_bits": 8}, UnsupportedError, ".kv_cache_scheme: got"),
    ("transform_config", {"config_groups": {"u": 1}}, UnsupportedError, ".transform_config: got"),
    ("sparsity_config", {"format": "sparse-24-bitmask"}, UnsupportedError, ".sparsity_config: got"),
]  # fmt: skip
CONFIGS += [(BY_NAME["compressed 4"].config | {key: value}, error, text) for key, value, error, text in COMPRESSED]


@pytest.mark.parametrize(("config", "error", "fragment"), CONFIGS)
def test_refused_config(
    config: object, error: type[IngotError], fragment: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    write_case(BY_NAME["int8"], tmp_path, rng)
    whole = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    with pytest.raises(IngotError) as caught:
        ingot.LLM(tmp_path)
    assert type(caught.value) is error and fragment in str(caught.value), caught.value
    assert str(caught.value).startswith(f"{tmp_path}/config.json: quantization_config")
