"""The zoo: networks people run, from torch.export and from torch.onnx.export, on native steps alone, beside torch.

`python tests/zoo/test_zoo.py [NAME...]` prints what becomes of each way, and how many there are of each outcome.
"""

import collections
import sys
from pathlib import Path

import numpy as np
import pytest
from architecture import Architecture
from marks import EACH, MARKS
from sound_models import SERIES_MODELS, SOUND
from text_models import TEXT
from torch_models import PLAIN
from vision_models import VISION
from ways import SHAPES, WAYS, export, inputs_of, under_limits, why_not

import ingot
from emitted_together import Part, built, differing

ZOO = [*TEXT, *VISION, *SOUND, *SERIES_MODELS, *PLAIN]
ROWS = [
    pytest.param(row, shapes, id=f"{row.name} {shapes}", marks=() if row.quick == shapes else pytest.mark.slow)
    for row in ZOO
    for shapes in SHAPES
]


@pytest.mark.parametrize(("row", "shapes"), ROWS)
def test_native_and_as_torch_computes_it(row: Architecture, shapes: str) -> None:
    """Through both doors: torch's numbers without a reference step, or the error that the table names."""
    for way, found in why_not(row, shapes).items():
        expected = MARKS.get(row.name, {}).get(way)
        if expected is None or found is None:
            assert found == expected, f"{way}: {found or 'works'}"
            continue
        assert (found.whose, found.error) == (expected.whose, expected.error), f"{way}: {found}"
        assert expected.piece in found.piece, f"{way}: {found}"


# In `make test`: encoders of texts, images and sounds, and a decoder.
LIMITED = ("BERT", "DistilBERT", "MPNet", "ViT", "Wav2Vec2", "Whisper encoder", "GPT-2", "Conv1d net")


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, id=row.name, marks=() if row.name in LIMITED else pytest.mark.slow)
        for row in ZOO
        if row.dims and not MARKS.get(row.name, {}).get("symbolic torch")
    ],
)
def test_one_program_under_limits(row: Architecture) -> None:
    """One program has the bits of each batch and length; or each has its own, for the reason of the table."""
    different, why = under_limits(export(row, row.build(), symbolic=True), row)
    assert different == ""
    expected = EACH.get(row.name, "")
    assert expected in why and bool(expected) == bool(why), why


# In `make test`: a decoder, and a net of convolutions.
EMITTED = ("GPT-2", "Conv1d net")
TOGETHER = 8  # of the others in one program


def emitted() -> list[list[Architecture]]:
    """Every network that runs natively, in groups of those that are much alike."""
    rows = [row for row in ZOO if not MARKS.get(row.name, {}).get("static torch")]
    others = [row for row in rows if row.name not in EMITTED]
    groups = [others[first : first + TOGETHER] for first in range(0, len(others), TOGETHER)]
    return [[row for row in rows if row.name in EMITTED], *groups]


def part_of(row: Architecture) -> Part:
    """What is emitted of a network, and what native makes of its inputs."""
    session = ingot.InferenceSession(export(row, row.build(), symbolic=False), threads=1, strict=True)
    feeds = {name: np.ascontiguousarray(x.numpy()) for name, x in inputs_of(row, 0).items()}
    expected = dict(zip(session.graph.outputs, session.run(None, feeds), strict=True))
    return Part(session.graph, {name: feeds[name] for name in session.graph.inputs}, expected)


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(rows, id=rows[0].name, marks=() if rows[0].name in EMITTED else pytest.mark.slow)
        for rows in emitted()
    ],
)
def test_emitted(rows: list[Architecture], tmp_path: Path) -> None:
    """Every network that runs natively is C, with the same bits."""
    # Plain C with the one instruction that its sums want.
    built([part_of(row) for row in rows], tmp_path, "cc", "-O1", "-mfma", dispatch="portable")
    assert [rows[number].name for number in differing(tmp_path)] == []


def test_the_table_is_whole() -> None:
    names = [row.name for row in ZOO]
    assert len(names) == len(set(names)) >= 60
    assert set(MARKS) <= set(names) and set(EACH) <= set(names)
    assert {way for ways in MARKS.values() for way in ways} <= set(WAYS)
    assert len([row for row in ZOO if row.quick in SHAPES]) >= 12


def main(names: list[str]) -> None:
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    for row in ZOO:
        for shapes in SHAPES if not names or row.name in names else ():
            for way, found in why_not(row, shapes).items():
                counts[way, "works" if found is None else found.whose] += 1
                print(f"{row.name}, {way}: {found or 'works'}", flush=True)
    for (way, outcome), count in sorted(counts.items()):
        print(f"{way:16} {outcome:6} {count:4}")


if __name__ == "__main__":
    main(sys.argv[1:])
