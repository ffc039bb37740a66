"""Files of more architectures, as llama.cpp's converter writes them: the logits of transformers, and of the folder."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

import ingot
from gguf_conversions import CONVERTED, write_converted
from gguf_converted_cases import CONVERTED_CASES
from gguf_models import ARCHITECTURES, stored_as
from hf_models import Case, expected_logits, parameters, save_model
from ingot.errors import LoadError
from ingot.load.gguf.architecture import architecture_names, read_architecture

LENGTH = 24
TOLERANCE = 2e-6  # of the largest logit, to the folder
TO_TRANSFORMERS = 5e-6
IDS = np.random.default_rng(0).integers(3, 99, LENGTH).astype(np.int32)
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64}
LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32,
    "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2,
    "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("case", parameters(CONVERTED_CASES))
def test_logits(case: Case, tmp_path: Path) -> None:
    model = save_model(case, tmp_path / "folder")
    write_converted(tmp_path / "folder", tmp_path / "model.gguf")
    options = {"precision": "f32", "context": case.context, "threads": 1}
    folder = ingot.LLM(tmp_path / "folder", **options).logits(IDS.tolist())
    found = ingot.LLM(tmp_path / "model.gguf", **options).logits(IDS.tolist())
    assert distance(found, folder) <= TOLERANCE
    assert distance(found, expected_logits(model, IDS)) <= TO_TRANSFORMERS


def decoded(name: str, tensor: np.ndarray) -> tuple[np.ndarray, GGMLQuantizationType]:
    """Numbers that the blocks of Q8_0 have."""
    data, kind = stored_as("q8_0")(name, tensor)
    return gguf.quants.dequantize(data, kind).reshape(tensor.shape), GGMLQuantizationType.F32


@pytest.mark.parametrize("case", [Case("joined", "granitemoe", EXPERTS), Case("transposed", "deepseek_v3", LATENT)])
def test_parts_in_blocks(case: Case, tmp_path: Path) -> None:
    """Joined weights have the numbers of their blocks, and run on them unless a part is transposed."""
    save_model(case, tmp_path / "folder")
    write_converted(tmp_path / "folder", tmp_path / "blocks.gguf", stored_as("q8_0"))
    write_converted(tmp_path / "folder", tmp_path / "floats.gguf", decoded)
    options = {"precision": "f32", "threads": 1}
    blocks, floats = (ingot.LLM(tmp_path / f"{name}.gguf", **options) for name in ("blocks", "floats"))
    expected = floats.logits(IDS.tolist())
    np.testing.assert_array_equal(blocks.logits(IDS.tolist()), expected)
    rounded = ingot.LLM(tmp_path / "blocks.gguf", precision="int8", threads=1).logits(IDS.tolist())
    errors = np.linalg.norm(rounded - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert 0 < np.median(errors) < 0.05  # single tokens may have other experts


def test_a_missing_part(tmp_path: Path) -> None:
    save_model(Case("granitemoe", "granitemoe", EXPERTS), tmp_path / "folder")
    write_converted(tmp_path / "folder", tmp_path / "model.gguf", without=["blk.1.ffn_up_exps.weight"])
    with pytest.raises(LoadError, match=r"no tensor 'blk\.1\.ffn_up_exps\.weight', expected one for block_sparse_moe"):
        ingot.LLM(tmp_path / "model.gguf")


def test_parts_that_do_not_fit(tmp_path: Path) -> None:
    save_model(Case("granitemoe", "granitemoe", EXPERTS), tmp_path / "folder")

    def encode(name: str, tensor: np.ndarray) -> tuple[np.ndarray, GGMLQuantizationType]:
        cut = tensor[:, :, :-1] if name == "blk.0.ffn_up_exps.weight" else tensor
        return np.ascontiguousarray(cut), GGMLQuantizationType.F32

    write_converted(tmp_path / "folder", tmp_path / "model.gguf", encode)
    with pytest.raises(LoadError, match="expected the same number of columns"):
        ingot.LLM(tmp_path / "model.gguf")


def test_a_list_of_another_length(tmp_path: Path) -> None:
    """Numbers of layers are one for each layer."""
    case = next(case for case in CONVERTED_CASES if case.type == "lfm2")
    save_model(case, tmp_path / "folder")
    write_converted(tmp_path / "folder", tmp_path / "model.gguf", keys={"attention.head_count_kv": [2]})
    with pytest.raises(LoadError, match=r"head_count_kv': got 1 numbers, expected 3"):
        ingot.LLM(tmp_path / "model.gguf")


def test_every_architecture_is_tested() -> None:
    tested = {*ARCHITECTURES.values(), *CONVERTED.values(), "nemotron_h"}
    assert tested == set(architecture_names())
    assert all(read_architecture(name).name == name for name in tested)
