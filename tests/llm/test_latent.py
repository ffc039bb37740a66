"""Latent attention caches short vectors: their bytes, and logits that stay as exact as with the keys of all heads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from hf_models import CASES, Case, expected_logits, save_model
from ingot.load.hf import load_dense, load_language_model, read_folder

QUICK = next(case for case in CASES if case.name == "deepseek_v3")
LATENT = [case for case in CASES if "kv_lora_rank" in case.config and case.name != QUICK.name]
RANK, ROTATED = 16, 8
IDS = np.random.default_rng(2).integers(3, 99, 100)


def language_model(folder: Path, **options: Any) -> ingot.LLM:
    return ingot.LLM(folder, **{"precision": "f32", "threads": 1, "sequences": 1} | options)


@pytest.mark.parametrize("case", [pytest.param(QUICK, id=QUICK.name), *(
    pytest.param(case, id=case.name, marks=pytest.mark.slow) for case in LATENT
)])  # fmt: skip
def test_exact(case: Case, tmp_path: Path) -> None:
    """Logits in f32 are those of transformers, which computes the keys and values of every head."""
    expected = expected_logits(save_model(case, tmp_path), IDS)
    llm = language_model(tmp_path, context=case.context)
    assert np.abs(llm.logits(IDS.tolist()) - expected).max() <= 2e-6 * np.abs(expected).max()
    positions = -(-llm.context // 64) * 64
    assert llm.memory.cache == llm.model.config["num_hidden_layers"] * positions * (ROTATED + 2 * RANK) * 4


def test_keys_of_all_heads_where_they_are_smaller(tmp_path: Path) -> None:
    """One head of few elements takes less than the vector; whole sequences, which are trained, have no cache."""
    config = QUICK.config | {"kv_lora_rank": 64}
    expected = expected_logits(save_model(Case("wide", "deepseek_v3", config), tmp_path), IDS)
    graph = load_language_model(read_folder(tmp_path), context=None).graph
    assert graph.type("keys.0").dims == (2, 4, 18, 64) and graph.type("values.0").dims == (2, 4, 64, 12)
    assert not load_dense(read_folder(tmp_path), 64).graph.states
    found = language_model(tmp_path).logits(IDS.tolist())
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


def test_only_wanted_rows_of_the_last_layer(tmp_path: Path) -> None:
    """Prefill computes the attention of one row there, as without latent attention."""
    save_model(next(case for case in LATENT if case.name == "youtu"), tmp_path)
    graph = language_model(tmp_path).engine.modes["prefill"].native.graph
    attended = [node for node in graph.nodes if node.op.name == "cached_attention"]
    assert [int(graph.type(node.output).dims[0]) for node in attended] == [128, 1]
