"""Read the names that a template uses from config.json, each checked when it is read.

An error names the field, its value, the expected values, and the line of the template that requires them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.hf.activations import ACTIVATIONS
from ingot.load.hf.config import INFINITE
from ingot.load.hf.expression import Expression
from ingot.load.hf.template import Key, Template

MAX_SIZE = 1 << 26  # of one dim: the largest vocabularies have 2**18 rows
MAX_LAYERS = 1024  # of a language model
_NEEDED = ("vocab", "width", "layers", "heads", "kv_heads", "head_dim", "context")  # sizes that every template defines
_STORED = ("float32", "float16", "bfloat16", "torch.float32", "torch.float16", "torch.bfloat16")


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of a template's names; `where` is the config file, `keys` the HF field of each name.

    config: the file's, with `rope_scaling` moved to the first of the paths that the template reads it from; `moved`:
    its path in the file, by that path.
    """

    where: str
    config: Mapping[str, Any]
    values: dict[str, Any]
    keys: Mapping[str, str]
    moved: Mapping[str, str]

    def field(self, *names: str) -> str:
        """Return the HF fields of names, for errors: `config.json: num_attention_heads, hidden_size`."""
        return f"{self.where}: {', '.join(self.keys.get(name, name) for name in names)}"


def layer_names(template: Template, settings: Settings, layer: int) -> dict[str, Any]:
    """Return the values of a template's names in a layer. Raises LoadError."""
    names = settings.values | {"layer": layer}
    for name, value in settings.values.items():
        key = template.config.get(name)
        if key is not None and key.type in ("per_layer", "cycle"):
            names[name] = value[layer]
    for name, expression in template.layer_let.items():
        names[name] = expression.evaluate(names)
    return names


def read_settings(template: Template, config: Mapping[str, Any], where: str) -> Settings:
    """Read the names of a template from a folder's config.

    Raises LoadError for a missing field or an invalid value, LimitError for too many layers, UnsupportedError for an
    option that the template does not support.
    """
    if template.config_in is not None:
        inner = config.get(template.config_in)
        if not isinstance(inner, dict):
            raise LoadError(f"{where}: {template.config_in}: missing or no object, got {inner!r}")
        config, where = inner, f"{where}: {template.config_in}"
        if config.get("quantization_config") is not None:
            raise UnsupportedError(f"{where}: quantization_config: got one, expected it next to {template.config_in}")
    for key in ("dtype", "torch_dtype"):
        if config.get(key) is not None and config[key] not in _STORED:
            raise LoadError(f"{where}: {key}: unknown dtype, got {config[key]!r}, expected one of {', '.join(_STORED)}")
    config, moved = _with_scaling(template, config)
    values: dict[str, Any] = {name: name for name in template.ropes}
    keys: dict[str, str] = {}
    for name, row in template.config.items():
        keys[name] = row.paths[0]
        values[name] = _read(row, config, where, values, keys)
        if name == "layers":
            _expect_few_layers(values[name], f"{where}: {row.paths[0]}")
    for name, expression in template.let.items():
        values[name] = _computed(expression, values, keys, where)
        if name == "layers":
            _expect_few_layers(values[name], f"{where}: layers")
    for name in _NEEDED:
        if not _is("size", values.get(name), values):
            source = f"{where}: {keys[name]}: " if name in keys else ""
            raise LoadError(f"{source}{template.file}: {name}: got {values.get(name)!r}, expected {_MEANS['size']}")
    return Settings(where, config, values, keys, moved)


def _expect_few_layers(count: Any, field_path: str) -> None:
    """Raise LimitError if a number of layers is too large to build a graph, before anything of each is computed."""
    if _is("size", count, {}) and count > MAX_LAYERS:
        raise LimitError(f"{field_path}: too many, got {count}, expected at most {MAX_LAYERS}")


def _with_scaling(template: Template, config: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return a config in which `rope_scaling` replaces `rope_parameters`, and the path of it in the file, by the new
    one.

    Users add it by hand, also to files of transformers 5, which have `rope_parameters`. As in transformers, it replaces
    the one set of parameters, and updates the set of the full layers where there are two.
    """
    scaling = config.get("rope_scaling")
    if not scaling or not isinstance(scaling, Mapping):
        return config, {}
    paths = {rope.scaling[0] for rope in template.ropes.values() if "rope_scaling" in rope.scaling}
    for path in sorted(paths):
        outer, _, inner = path.partition(".")
        if inner:
            found = config.get(outer)
            sets = found if isinstance(found, Mapping) else {}
            own = sets.get(inner)
            config = {**config, outer: {**sets, inner: {**(own if isinstance(own, Mapping) else {}), **scaling}}}
        else:
            config = {**config, outer: scaling}
    return config, dict.fromkeys(paths, "rope_scaling")


def lookup(config: Mapping[str, Any], path: str, where: str) -> tuple[bool, Any]:
    """Return whether a dotted path leads to a value, and the value. Raises LoadError if an inner element is no
    object.

    A `*` in a path means all names of an object, under which the rest of the path leads to one value.
    """
    found: Any = config
    before, star, after = path.partition(".*.")
    if star:
        _, found = lookup(config, before, where)
        values = [lookup(each, after, where) for each in found.values()] if isinstance(found, Mapping) else []
        distinct = {repr(value): value for is_there, value in values if is_there}
        if len(distinct) > 1:
            raise LoadError(f"{where}: {path}: several values, got {', '.join(distinct)}, expected one")
        return bool(distinct), next(iter(distinct.values()), None)
    for i, part in enumerate(path.split(".")):
        if found is None and i:
            return False, None
        if not isinstance(found, Mapping):
            raise LoadError(f"{where}: {'.'.join(path.split('.')[:i])}: wrong kind, got {found!r}, expected an object")
        if part not in found:
            return False, None
        found = found[part]
    return True, found


def _computed(expression: Expression, values: Mapping[str, Any], keys: Mapping[str, str], where: str) -> Any:
    """Evaluate an expression over fields that were read before; an error names the fields."""
    try:
        return expression.evaluate(values)
    except LoadError as error:
        fields = ", ".join(keys[name] for name in expression.names if name in keys)
        raise LoadError(f"{where}: {fields}: {error}") from error


def _read(key: Key, config: Mapping[str, Any], where: str, values: dict[str, Any], keys: Mapping[str, str]) -> Any:
    for path in key.paths:
        is_there, value = lookup(config, path, where)
        if is_there:
            field_path = f"{where}: {path}"
            break
    else:
        is_there, value, field_path = False, None, f"{where}: {key.paths[0]}"
    if key.type == "per_layer" and value == []:
        is_there, value = False, None  # some files list no layers for the default
    if value is None:
        fallback = key.if_null if is_there else key.default
        if fallback is None:
            raise LoadError(
                f"{field_path}: {'null' if is_there else 'missing'}, expected {_MEANS[key.type]} ({key.where})"
            )
        words = {word: word for word in (*ACTIVATIONS, *key.options)}
        if key.type in ("per_layer", "cycle"):
            if not _is("size", values.get("layers"), values):
                raise LoadError(f"{key.where}: a list for each layer, expected 'layers' first")
            return [_computed(fallback, words | values | {"layer": i}, keys, where) for i in range(values["layers"])]
        found = _computed(fallback, words | values, keys, where)
        _expect_supported(key, found, f"{field_path}: {'null' if is_there else 'missing'}", values)
        return found
    if key.type == "cycle" and not _is("size", values.get("layers"), values):
        raise LoadError(f"{key.where}: a list for each layer, expected 'layers' first")
    if key.type == "per_layer" and not isinstance(value, list) and _is("size", values.get("layers"), values):
        value = [value] * values["layers"]
    if key.type == "words" and isinstance(value, str):
        value = list(value)
    _check(key, value, field_path, values)
    if key.type == "cycle":
        return [value[i % len(value)] for i in range(values["layers"])]
    return [None if each == INFINITE else each for each in value] if key.type == "numbers" else value


_MEANS = {
    "size": f"an integer of 1..{MAX_SIZE}",
    "count": f"an integer of 0..{MAX_SIZE}",
    "positive": "a number above 0",
    "number": "a number",
    "flag": "true or false",
    "word": "a word",
    "activation": f"one of {', '.join(ACTIVATIONS)}",
    "per_layer": "a list with one entry for each layer, or one entry for all",
    "cycle": "a list of words",
    "words": "a list of words, or a word of which each letter is one",
    "layers": "a list of layers",
    "numbers": "a list of numbers",
}


def _check(key: Key, value: Any, field_path: str, values: Mapping[str, Any]) -> None:
    """Raise LoadError or UnsupportedError for a value that is not of the key's type."""
    if not _is(key.type, value, values):
        error = UnsupportedError if key.type == "activation" and isinstance(value, str) else LoadError
        expected = f"{_MEANS[key.type]} ({key.where})"
        if key.type in ("size", "count") and isinstance(value, int) and not isinstance(value, bool):
            raise LoadError(f"{field_path}: out of range, got {value}, expected {expected}")
        raise error(f"{field_path}: got {value!r}, expected {expected}")
    if key.options:
        for each in value if isinstance(value, list) else [value]:
            if each not in key.options:
                expected = f"one of {', '.join(key.options)} ({key.where})"
                raise UnsupportedError(f"{field_path}: got {each!r}, expected {expected}")
    _expect_supported(key, value, field_path, values)


def _expect_supported(key: Key, value: Any, field_path: str, values: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for a value that the template does not support."""
    allowed = [expression.evaluate(values) for expression in key.only]
    if allowed and value not in allowed:
        expected = f"{' or '.join(map(repr, allowed))} ({key.where})"
        raise UnsupportedError(f"{field_path}: not supported, got {value!r}, expected {expected}")


def _is(type: str, value: Any, values: Mapping[str, Any]) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    is_number = is_integer or (isinstance(value, float) and math.isfinite(value))
    match type:
        case "size":
            return is_integer and 1 <= value <= MAX_SIZE
        case "count":
            return is_integer and 0 <= value <= MAX_SIZE
        case "positive":
            return is_number and value > 0
        case "number":
            return is_number
        case "flag":
            return isinstance(value, bool)
        case "word":
            return isinstance(value, str)
        case "activation":
            return isinstance(value, str) and value in ACTIVATIONS
        case "per_layer":
            return isinstance(value, list) and len(value) == values.get("layers") and all(map(_is_entry, value))
        case "cycle" | "words":
            return isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value)
        case "numbers":
            return isinstance(value, list) and all(each == INFINITE or _is("number", each, values) for each in value)
        case "layers":
            return isinstance(value, list) and all(_is("count", each, values) for each in value)
    raise AssertionError(type)


def _is_entry(value: Any) -> bool:
    return isinstance(value, (str, int, float))
