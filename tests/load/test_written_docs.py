"""The documents that a program writes are what it writes."""

import pytest

from fuzz import ledger
from written_docs import DOCS, REWRITE, SOURCE, conformance, described, described_in, limits, limits_of


def test_limits() -> None:
    assert (DOCS / "limits.md").read_text(encoding="utf-8") == limits(), REWRITE


def test_every_limit_has_an_explanation() -> None:
    silent = [f"{path.name}: {name}" for path in SOURCE.rglob("*.py") for name, _, of in limits_of(path) if not of]
    assert not silent


def test_conformance_has_every_op() -> None:
    assert described_in((DOCS / "conformance.md").read_text(encoding="utf-8")) == described(), REWRITE


def test_reliability() -> None:
    assert (DOCS / "reliability.md").read_text(encoding="utf-8") == ledger.page(), REWRITE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_conformance() -> None:
    assert (DOCS / "conformance.md").read_text(encoding="utf-8") == conformance(), REWRITE
