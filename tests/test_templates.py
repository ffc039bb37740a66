"""Every template against transformers: whole prompts, chunks over a carried cache, several sequences in one call."""

from pathlib import Path

import numpy as np
import pytest
from tests.hf_models import CASES, Case, expected_logits, save_model

from ingot.ir import Graph
from ingot.load.hf.folder import read_folder
from ingot.load.hf.language_model import LanguageModel, load_language_model
from ingot.load.hf.template import template_names
from ingot.run.interpret import interpret

LENGTH = 37
TOLERANCE = 5e-5


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a case, its logits by transformers, and the prompt; made once for all tests."""
    made = {}

    def make(case: Case) -> tuple[Path, np.ndarray, np.ndarray]:
        if case.name not in made:
            folder = tmp_path_factory.mktemp("model")
            model = save_model(case, folder)
            ids = np.random.default_rng(0).integers(3, 99, LENGTH).astype(np.int32)
            made[case.name] = folder, expected_logits(model, ids), ids
        return made[case.name]

    return make


def run(graph: Graph, states: dict[str, np.ndarray], ids, positions, owners, blocks) -> np.ndarray:
    """Logits of all rows; `states` are read and replaced."""
    feeds = {"ids": ids, "positions": positions, "owners": owners, "take": np.arange(len(ids))}
    feeds = {name: np.asarray(array, np.int32) for name, array in feeds.items()}
    results = interpret(graph, feeds | {"blocks": np.asarray(blocks, np.int32)} | states)
    states.update({name: results[f"state:{name}"] for name in graph.states})
    assert results["hidden"].shape[0] == len(ids)
    return results["logits"]


def blocks_of(model: LanguageModel, sequences: int) -> np.ndarray:
    """A block table that is no identity."""
    count = sequences * model.blocks_per_sequence
    return np.random.default_rng(1).permutation(count).reshape(sequences, -1)


def test_all_templates_have_a_case():
    assert {case.type for case in CASES} | {"gemma3"} == set(template_names())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits(case: Case, saved):
    """The whole prompt at once."""
    folder, expected, ids = saved(case)
    model = load_language_model(read_folder(folder), context=case.context)
    model.graph.validate()
    got = run(model.graph, {}, ids, range(LENGTH), [0] * LENGTH, blocks_of(model, 1))
    np.testing.assert_allclose(got, expected, atol=TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_chunks_of_two_sequences(case: Case, saved):
    """The prompt in chunks, beside another sequence that starts elsewhere in it."""
    folder, expected, ids = saved(case)
    model = load_language_model(read_folder(folder), context=case.context, sequences=2)
    blocks, states, got = blocks_of(model, 2), {}, []
    for start, stop, others in ((0, 20, 1), (20, 21, 5), (21, LENGTH, 2)):
        before = sum(others for first, _, others in ((0, 0, 1), (20, 0, 5), (21, 0, 2)) if first < start)
        count = stop - start
        positions = [*range(before, before + others), *range(start, stop)]
        rows = np.concatenate([ids[before : before + others], ids[start:stop]])
        logits = run(model.graph, states, rows, positions, [1] * others + [0] * count, blocks)
        np.testing.assert_allclose(logits[:others], expected[before : before + others], atol=TOLERANCE)
        got.append(logits[others:])
    np.testing.assert_allclose(np.concatenate(got), expected, atol=TOLERANCE)
