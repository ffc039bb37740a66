"""Forms of ONNX ops, made of their schemas, agree with ONNX Runtime or stand in a list, with the reason."""

import random
from fnmatch import fnmatchcase

import pytest

from onnx_forms import all_forms, calls, document, foreign_name, listed, needless, results_of, unlisted
from written_docs import DOCS, REWRITE

OPS = 8  # of a sample
MOST_FORMS = 25  # of each of them


@pytest.mark.filterwarnings("ignore")
def test_a_sample_of_forms() -> None:
    """Other ones in each run."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    names = chance.sample([foreign_name(*op) for op in calls()], OPS)
    forms = [form for name in names for form in _some(chance, all_forms(name))]
    found = unlisted(results_of(forms), listed())
    assert not found, "\n".join([f"seed {seed}", *map(str, found)])


def _some(chance: random.Random, forms: list) -> list:
    return chance.sample(forms, min(len(forms), MOST_FORMS))


def test_each_row_of_the_list_is_of_an_op_and_has_a_reason() -> None:
    names = [foreign_name(*op) for op in calls()]
    for row in listed():
        assert row.reason and any(fnmatchcase(name, row.op) for name in names), row


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore")
def test_all_forms() -> None:
    results, rows = results_of(all_forms(), jobs=2), listed()
    assert not unlisted(results, rows), "\n".join(map(str, unlisted(results, rows)))
    assert not needless(results, rows), "\n".join(map(str, needless(results, rows)))
    assert (DOCS / "onnx-forms.md").read_text(encoding="utf-8") == document(results), REWRITE
