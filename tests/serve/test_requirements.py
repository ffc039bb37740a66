"""docs/serving-requirements.md names tests that exist."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "serving-requirements.md"
ROWS = [row.split(" | ") for row in PAGE.read_text().splitlines() if re.match(r"\| \d", row)]


def test_the_page_has_forty_rows():
    assert [row[0] for row in ROWS] == [f"| {number}" for number in range(1, 41)]


@pytest.mark.parametrize("row", ROWS, ids=[row[1][:40] for row in ROWS])
def test_the_tests_of_a_row_exist(row):
    for part in row[3].split("; "):
        files, _, names = part.partition(": ")
        sources = []
        for file in re.findall(r"`([\w./]+)`", files):
            folder, name = file.rsplit("/", 1)
            own = TESTS / folder / f"test_{name}.py"
            other = TESTS.parent / file if file.endswith(".py") else TESTS / f"{file}.py"
            sources.append((own if own.exists() else other).read_text())
        assert sources or row[0] == "| 40"
        for name in re.findall(r"`(\w+)`", names):
            assert any(f"def test_{name}" in source for source in sources), name
