"""The table of durations is the only home of the constants that the work of a step is computed from."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from ingot.lower.cpu.durations import Durations

RULES = [path for path in Path(str(files("ingot.lower.cpu"))).glob("*.py") if path.name != "durations.py"]


def works(tree: ast.AST) -> Iterator[ast.expr]:
    """The expressions that a rule computes work from."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="work", value=value):
                yield value
            case ast.Assign(targets=[target], value=value) | ast.AugAssign(target=target, value=value):
                if re.search(r"\b(work|products?|fma)\b", ast.unparse(target)):
                    yield value


def test_no_rule_has_a_duration_of_its_own() -> None:
    found = {
        f"{path.name}: {ast.unparse(work)}"
        for path in RULES
        for work in works(ast.parse(path.read_text()))
        for part in ast.walk(work)
        if isinstance(part, ast.Constant) and isinstance(part.value, float)
    }
    assert found == set()


def test_every_duration_is_used() -> None:
    used = {name for path in RULES for name in re.findall(r"\bNS\.(\w+)", path.read_text())}
    assert [field.name for field in dataclasses.fields(Durations) if field.name not in used] == []
