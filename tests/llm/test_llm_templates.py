"""Every template through LLM, over more than one block of the cache: chunks, single steps and company change no bit."""

import json
from pathlib import Path

import numpy as np
import pytest
from test_llm import logits_one_by_one

import ingot
from hf_models import CASES, Case, expected_logits, parameters, save_model
from ingot.llm import engine

pytestmark = pytest.mark.checked

LENGTH, PROMPT = 100, 75
FIRST_OF_TYPE = {case.type: case for case in reversed(CASES) if case.context is None}


@pytest.mark.parametrize("case", parameters(FIRST_OF_TYPE.values()))
def test_same_bits(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = save_model(case, tmp_path)
    ids = np.random.default_rng(0).integers(3, 99, LENGTH).astype(np.int32)
    llm = ingot.LLM(tmp_path, precision="f32", threads=2, sequences=2)
    together = llm.logits(ids.tolist())
    np.testing.assert_allclose(together, expected_logits(model, ids), atol=1e-3)
    monkeypatch.setattr(engine, "PREFILL_ROWS", 23)
    other = ingot.LLM(tmp_path, precision="f32", threads=1, sequences=1)
    assert logits_one_by_one(other, ids.tolist(), PROMPT).tobytes() == together[PROMPT - 1 :].tobytes()

    prompts = [ids[:PROMPT].tolist(), ids[40:50].tolist(), ids[:90].tolist()]
    alone = [list(other.generate_tokens(prompt, max_tokens=12)) for prompt in prompts]
    generations = [llm.generation(prompt, max_tokens=12, temperature=0) for prompt in prompts]
    drawn: list[list[int]] = [[], [], []]
    for generation in llm.run(generations):
        drawn[generations.index(generation)].append(generation.token)
    assert drawn == alone


def test_kinds_of_layers_by_their_pattern(tmp_path: Path):
    """Folders of Gemma 3 that do not list the kinds of their layers have a full one after so many others."""
    case = Case("pattern", "gemma3_text", {"head_dim": 16, "sliding_window": 9, "num_hidden_layers": 7})
    model = save_model(case, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("layer_types").index("full_attention") == 5
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = np.random.default_rng(0).integers(3, 99, 30).astype(np.int32)
    found = ingot.LLM(tmp_path, precision="f32").logits(ids.tolist())
    np.testing.assert_allclose(found, expected_logits(model, ids), atol=1e-3)


def test_what_early_gemmas_call_gelu(tmp_path: Path):
    """It is the one by tanh."""
    model = save_model(Case("early", "gemma", {"head_dim": 16}), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu", "hidden_activation": None}))
    ids = np.random.default_rng(0).integers(3, 99, 30).astype(np.int32)
    found = ingot.LLM(tmp_path, precision="f32").logits(ids.tolist())
    np.testing.assert_allclose(found, expected_logits(model, ids), atol=1e-5)
