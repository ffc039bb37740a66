"""Fields that a config.json leaves out or changes: every template against the config class of transformers."""

from typing import Any

import pytest
import transformers

from ingot.load.hf.settings import Settings, read_settings
from ingot.load.hf.template import Key, Template
from ingot.load.hf.template_file import read_template, template_names

pytestmark = pytest.mark.checked

CHANGED = {"size": lambda v: 2 * v, "count": lambda v: v + 1, "positive": lambda v: 2 * v, "flag": lambda v: not v}


def class_config(template: Template, fields: dict[str, Any]) -> Any:
    """The config that transformers makes of fields; where the template reads an inner object, that one."""
    inner = template.config_in
    config = transformers.AutoConfig.for_model(template.name, **({inner: fields} if inner else fields))
    return getattr(config, inner) if inner else config


def found_at(config: Any, path: str) -> tuple[bool, Any]:
    """Whether a config of transformers has a value at a path of a template, and the value."""
    for part in path.split("."):
        if isinstance(config, dict):
            if part not in config:
                return False, None
            config = config[part]
        elif hasattr(config, part):
            config = getattr(config, part)
        else:
            return False, None
    return True, config


def value_of(config: Any, row: Key) -> tuple[bool, Any]:
    """The value of a row by transformers."""
    for path in row.paths:
        is_there, value = found_at(config, path)
        if is_there:
            return True, value
    if row.paths == ("head_dim",) and hasattr(config, "num_attention_heads"):  # as its models compute it
        return True, config.hidden_size // config.num_attention_heads
    return False, None


def nested(path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    return {first: nested(rest, value) if rest else value}


def required(template: Template, fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without a default in the template, as transformers fills them in, beside those given."""
    config = class_config(template, dict(fields))
    return {row.paths[0]: value_of(config, row)[1] for row in template.config.values() if row.default is None}


def settings_of(template: Template, fields: dict[str, Any]) -> Settings:
    return read_settings(template, {template.config_in: fields} if template.config_in else fields, template.name)


def compare(template: Template, fields: dict[str, Any]) -> None:
    """Compares all names of a template that transformers has, too; None means 0, no, or the usual size."""
    config, values = class_config(template, dict(fields)), settings_of(template, fields).values
    compared = 0
    for name, row in template.config.items():
        is_there, expected = value_of(config, row)
        if not is_there or (name == "window" and not values.get("has_window", True)):
            continue
        if expected is None and values[name] is not None:
            expected = {"head_dim": values["width"] // values["heads"], "inner": 4 * values["width"]}.get(name, 0)
        assert values[name] == expected, name
        compared += 1
    assert compared >= 8


@pytest.mark.parametrize("name", template_names())
def test_defaults(name: str):
    template = read_template(name)
    compare(template, required(template, {}))


CHANGES = [
    (name, path)
    for name in template_names()
    for row in read_template(name).config.values()
    for path in row.paths
    if row.type in CHANGED and not row.only
]


@pytest.mark.parametrize("name, path", CHANGES)
def test_one_field_that_is_given(name: str, path: str):
    """One field at one place; all others follow from it as in transformers."""
    template = read_template(name)
    row = next(row for row in template.config.values() if path in row.paths)
    values = settings_of(template, required(template, {})).values
    value = next(values[key] for key, each in template.config.items() if each is row)
    changed = nested(path, CHANGED[row.type](value or (1.0 if row.type == "positive" else 1)))
    compare(template, required(template, changed) | changed)
