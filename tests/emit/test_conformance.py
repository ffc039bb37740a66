"""ONNX's own tests as emitted C: those that run on kernels alone, in plain C, with the bits of native."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from emitted_together import built, differing
from onnx_backend_cases import cases, listed
from onnx_backend_native import Outcome, outcome

# Cases that run on kernels alone and are not emitted, and why.
REFUSED: dict[str, str] = {}
TOGETHER = 400  # of them in one program


def native(step: int) -> Iterator[tuple[str, Outcome]]:
    """Every step-th case that passes, where kernels run all of it."""
    failing = listed()
    passing = [rest for rest in cases() if rest[0].name not in failing]
    for case, content, data in passing[::step]:
        found = outcome(case, content, data)
        if not found.steps:
            yield case.name, found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "step, least", [pytest.param(16, 100, id="some"), pytest.param(1, 1600, id="all", marks=pytest.mark.slow)]
)
def test_bits_of_native(tmp_path: Path, step: int, least: int) -> None:
    found = dict(native(step))
    refused = {name: each.refused[0].partition(",")[0] for name, each in found.items() if each.refused}
    assert refused.items() <= REFUSED.items()
    emitted = [(name, each.part) for name, each in found.items() if each.part is not None]
    assert len(emitted) >= least
    for first in range(0, len(emitted), TOGETHER):
        some, folder = emitted[first : first + TOGETHER], tmp_path / str(first)
        built([part for _, part in some], folder, "cc", "-O0", dispatch="portable")
        assert [some[number][0] for number in differing(folder)] == []
