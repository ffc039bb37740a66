"""What the fuzzer found once, and the inputs that it keeps, are accepted or refused."""

import pytest

from fuzz import corpus, ledger
from fuzz.__main__ import replay
from fuzz.targets import TARGETS

FOUND = [target for target in TARGETS if corpus.findings(target)]


@pytest.mark.parametrize("target", FOUND)
def test_what_was_found_is_mended(target: str) -> None:
    outcomes = replay(target, most=0)
    assert not {name: outcome for name, outcome in outcomes.items() if outcome.startswith("!")}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_kept_inputs(target: str) -> None:
    outcomes = replay(target)
    assert not {name: outcome for name, outcome in outcomes.items() if outcome.startswith("!")}


def test_the_ledger_and_the_corpus_fit() -> None:
    counted = ledger.read()
    assert set(counted["targets"]) <= set(TARGETS)
    for target, row in counted["targets"].items():
        kept = corpus.kept(target)
        assert len(kept) == row["inputs"] <= corpus.MAX_INPUTS and sum(map(len, kept)) <= corpus.MAX_BYTES
        assert row["executions"] == row["accepted"] + row["refused"] + row["ended"] + row["wrong"] > 0
        assert row["accepted"] and row["refused"], f"{target} tells nothing apart"
    names = {name for target in TARGETS for name in corpus.findings(target)}
    assert names == set(counted["findings"])
