"""Small files of every kind of content, damaged: no signal, no error but typed ones, little time and memory."""

import pytest

from onnx_damage import files, places, survive
from onnx_survival import load_and_run

STRIDE = 41  # a prime, so that bytes are tried at every bit


@pytest.mark.parametrize("name", files())
def test_some_damages(name: str) -> None:
    content = files()[name]
    assert len(content) < 450 and load_and_run(content, lambda state: None) == "ran"
    expect_survival(name, range(0, places(content), STRIDE))


@pytest.mark.slow
@pytest.mark.parametrize("name", files())
def test_every_damage(name: str) -> None:
    expect_survival(name, range(places(files()[name])))


def expect_survival(name: str, chosen: range) -> None:
    outcomes = survive(name, chosen)
    assert set(outcomes) == set(chosen)
    assert not [f"{place}: {outcome}" for place, outcome in outcomes.items() if outcome.startswith("!")]
