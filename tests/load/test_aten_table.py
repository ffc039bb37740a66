"""docs/aten.md against PyTorch's own samples: some entries of `op_db` in each run, all of them under `slow`."""

import datetime
import random

import numpy as np
import pytest

from aten_table import (
    KERNEL,
    REFERENCE,
    REFUSED,
    WRONG,
    core,
    document,
    entries,
    everything,
    is_drawn_alike,
    outcomes,
    written,
)
from written_docs import DOCS, REWRITE

TRIED = 12  # entries in one run: together they take less than 20 s of a core

ROWS, FORMS = written((DOCS / "aten.md").read_text(encoding="utf-8"))


def test_every_overload_is_supported_or_refused_and_most_are_supported() -> None:
    assert set(core()) <= ROWS.keys()
    assert set(ROWS.values()) <= {KERNEL, REFERENCE, REFUSED}
    for names in (core(), ROWS.keys()):
        supported = sum(ROWS[name] != REFUSED for name in names)
        assert supported >= 0.97 * len(names)


def test_random_numbers_are_compared_by_type_shape_and_distribution() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 100, 3, 5))
    assert is_drawn_alike(first, second) and is_drawn_alike(first[:1], second)
    for other in (second + 0.5, second * 1.5, np.abs(second), second.astype(np.float32), second.reshape(100, 15)):
        assert not is_drawn_alike(first, other)
    assert is_drawn_alike(first * 0 + 7, first * 1e-7 + 7)
    assert not is_drawn_alike(first * 0 + 7, first * 0 + 7.1)


@pytest.mark.filterwarnings("ignore")
def test_some_entries_match_the_table() -> None:
    seed = datetime.date.today().toordinal()
    print(f"seed {seed}")
    for name in random.Random(seed).sample(sorted(entries()), TRIED):
        for outcome in outcomes(name):
            assert outcome.kind != WRONG, (name, outcome.why)
            assert set(outcome.overloads) <= ROWS.keys(), (name, REWRITE)
            is_known = name in FORMS or any(ROWS[each] == REFUSED for each in outcome.overloads)
            assert outcome.kind != REFUSED or is_known, (name, outcome.why)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_the_whole_table() -> None:
    assert (DOCS / "aten.md").read_text(encoding="utf-8") == document(everything()), REWRITE
