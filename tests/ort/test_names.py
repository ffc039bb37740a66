"""Every public name of the installed onnxruntime has a row, and behaves as the row describes."""

import onnxruntime
import pytest

import ingot
from ingot.ort.tables import ACCEPTED, REFUSED
from ort_names import PATH, REWRITE, document, scopes

ELSEWHERE = {"OrtValueVector"}  # which is in onnxruntime.capi


def test_the_document() -> None:
    assert PATH.read_text(encoding="utf-8") == document(), REWRITE


def test_the_version_is_that_of_the_table() -> None:
    assert ingot.ort.__version__ == onnxruntime.__version__


@pytest.mark.parametrize("table", [ACCEPTED, REFUSED], ids=["accepted", "refused"])
def test_tables_name_nothing_else(table: dict[str, dict[str, str]]) -> None:
    theirs = {scope: {*names, *ELSEWHERE} for scope, names in scopes()}
    assert {scope: set(names) - theirs[scope] for scope, names in table.items() if set(names) - theirs[scope]} == {}


def test_what_is_refused_raises_and_names_itself() -> None:
    for scope, names in REFUSED.items():
        for name in names:
            call = getattr(getattr(ingot.ort, scope) if scope else ingot.ort, name)
            with pytest.raises(ingot.UnsupportedError, match=name):
                call("anything", 1)


def test_what_is_accepted_takes_anything() -> None:
    for scope, names in ACCEPTED.items():
        for name in names:
            assert getattr(getattr(ingot.ort, scope) if scope else ingot.ort, name)("anything", option=1) is None


def test_dir_has_every_name() -> None:
    assert set(dict(scopes())[""]) <= set(ingot.ort.__all__)
