"""The catalogue of what breaks runtimes: each of its rows has what tries it, or the reason why nothing does."""

import ast
import re
from pathlib import Path

from catalogue import ATTACKS, ROWS
from catalogue_others import NOT_COVERED, OTHERS

TESTS = Path(__file__).parents[1]
COUNTS = {"O": 40, "S": 18, "G": 8, "C": 10, "T": 11, "J": 7, "P": 14, "L": 8, "H": 21, "W": 10, "F": 22, "N": 17}
ALL = ROWS | OTHERS


def test_every_row_has_what_tries_it() -> None:
    assert not ROWS.keys() & OTHERS.keys() and not ALL.keys() & NOT_COVERED.keys()
    assert {*ALL, *NOT_COVERED} == {f"{row}{i}" for row, count in COUNTS.items() for i in range(1, count + 1)}
    assert all(row.attack_names or row.test_names for row in ALL.values())
    assert all(ROWS[f"G{i}"].attack_names for i in range(1, 8))
    assert all(OTHERS[f"S{i}"].attack_names for i in (*range(1, 11), 14, 17, 18))
    assert [name for name, count in ATTACKS.items() if count > 1] == []
    assert {name for row in ALL.values() for name in row.attack_names} <= ATTACKS.keys()


def test_the_tests_are_there() -> None:
    named = {name for row in ALL.values() for name in row.test_names}
    assert all(re.fullmatch(r"\w+/\w+ \w+", name) for name in named)
    for name in named:
        place, function = name.split()
        folder, stem = place.split("/")
        tree = ast.parse((TESTS / folder / f"test_{stem}.py").read_text())
        assert f"test_{function}" in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, name
