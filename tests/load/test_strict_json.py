"""Unambiguous JSON; refused JSON is in `attacks/hostile_folders.py`."""

import json
import random

import pytest

from ingot.errors import IngotError, LimitError
from ingot.load.hf.strict_json import MAX_DEPTH, parse_json

ACCEPTED = [
    '{"model_max_length": 1000000000000000019884624838656}',  # what transformers writes for "no limit"
    '{"a": -0.0, "b": 1e-320, "c": 1E+30, "d": -17, "e": 0.1}',
    '{"a": "\\ud83d\\ude00 \\u0000 \\/ \\\\ é 語 😀", "é": {"é": 1}}',
    ' \n\t[1, [], {}, [[]], null, true, false, ""]\r\n ',
    '"text"',
    "0",
    '{"": {"": {"": ""}}}',
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text: str) -> None:
    assert parse_json(text.encode(), "x") == json.loads(text)


@pytest.mark.parametrize("opening, closing", [("[", "]"), ('{"a":', "}")])
def test_depth(opening: str, closing: str) -> None:
    inner = "1" if "{" in opening else ""
    text = opening * MAX_DEPTH + inner + closing * MAX_DEPTH
    assert parse_json(text.encode(), "x") == json.loads(text)
    with pytest.raises(LimitError, match="x: nested too deep, expected at most 64 levels"):
        parse_json(f"{opening}{text}{closing}".encode(), "x")


def test_changed_at_random() -> None:
    """Whatever is read equals what the standard library reads."""
    chance = random.Random(3)
    pieces = [*'{}[],:"\\0-.e', "1", "true", "null", "NaN", "\\ud800", "\\u00e9", '"a"', '"a":', " ", "1e999", "\ufeff"]
    accepted = 0
    for _ in range(20_000):
        text = list(chance.choice(ACCEPTED))
        for _ in range(chance.randrange(4)):
            text.insert(chance.randrange(len(text) + 1), chance.choice(pieces))
        try:
            value = parse_json("".join(text).encode(), "x")
        except IngotError:
            continue
        assert value == json.loads("".join(text))
        accepted += 1
    assert 5000 < accepted < 15_000
