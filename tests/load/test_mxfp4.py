"""Folders of GPT-OSS with experts in MXFP4, against transformers with the same experts decoded by its own reader."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import ingot
from hf_case import Case
from hf_models import expected_logits, save_model

CASE = Case(
    "mxfp4",
    "gpt_oss",
    {
        "hidden_size": 64,
        "intermediate_size": 64,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    },
    torch.bfloat16,
)


def pack_experts(folder: Path, model: torch.nn.Module, exponents: range) -> None:
    """Replaces the experts of a folder by random ones in MXFP4, and those of the model by the same decoded."""
    tensors, state, generator = load_file(folder / "model.safetensors"), model.state_dict(), np.random.default_rng(0)
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        count, inputs, outputs = tensors.pop(name).shape
        shape = (count, outputs, inputs // 32)
        blocks = torch.from_numpy(generator.integers(0, 256, (*shape, 16)).astype(np.uint8))
        scales = torch.from_numpy(generator.integers(exponents.start, exponents.stop, shape).astype(np.uint8))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        state[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("exponents", [range(121, 126), range(100, 126)], ids=["f16 scales", "f32 scales"])
def test_experts_have_their_exact_values(exponents: range, tmp_path: Path):
    model = save_model(CASE, tmp_path)
    pack_experts(tmp_path, model, exponents)
    ids = np.random.default_rng(1).integers(3, 99, 40).astype(np.int32)
    expected = expected_logits(model, ids)
    for precision, tolerance in (("f32", 2e-6), ("bf16", 0.05), (None, 0.1)):
        llm = ingot.LLM(tmp_path, sequences=1, **({} if precision is None else {"precision": precision}))
        assert np.abs(llm.logits(ids.tolist()) - expected).max() <= tolerance * np.abs(expected).max(), precision


def test_blocks_that_do_not_fit(tmp_path: Path):
    model = save_model(CASE, tmp_path)
    pack_experts(tmp_path, model, range(121, 126))
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_scales"
    tensors[name] = tensors[name][:, :-1].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ingot.LoadError, match=r"down_proj_scales' is u8\[4, 63, 2\], expected u8\[4, 64, 2\]"):
        ingot.LLM(tmp_path)
