"""Convert the architecture in a GGUF file's metadata to the `config.json` that a template reads.

Names of keys: github.com/ggml-org/ggml, docs/gguf.md; details that it leaves open follow llama.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ingot.errors import LimitError, LoadError, UnsupportedError
from ingot.load.gguf.architecture import (
    Architecture,
    Computed,
    FromKey,
    FromTensor,
    architecture_names,
    read_architecture,
)
from ingot.load.gguf.file import GgufFile
from ingot.load.gguf.rope import scaling_of
from ingot.load.hf.settings import MAX_LAYERS, MAX_SIZE

_LAYERS = "layers"  # the name whose value is the number of layers
_BLOCKS = "block_count"  # the key of the number of layers


class Values:
    """The names of an architecture with their values in a file. Raises LoadError, UnsupportedError, LimitError."""

    def __init__(self, file: GgufFile, architecture: Architecture):
        self.file, self.architecture = file, architecture
        self.names: dict[str, Any] = {}
        for name, source in architecture.names.items():
            match source:
                case FromKey():
                    self.names[name] = self._of_key(source, MAX_LAYERS if _BLOCKS in source.keys else MAX_SIZE)
                case FromTensor():
                    self.names[name] = self._of_tensor(source)
                case Computed():
                    self.names[name] = self.computed(source)
                case _:
                    rotated = source.rotated.integer(self.names, 1, MAX_SIZE)
                    self.names[name] = scaling_of(file, architecture.name, rotated)

    def computed(self, source: Computed) -> Any:
        """Return the value of an expression, or the list of its values for each layer."""
        if not source.is_each:
            return source.value.evaluate(self.names)
        return [source.value.evaluate(self.names | {"layer": layer}) for layer in range(self.names[_LAYERS])]

    def _full(self, key: str) -> str:
        """Return the name of a key in files; one that begins with a slash is not below the architecture's name."""
        return key.removeprefix("/") if key.startswith("/") else f"{self.architecture.name}.{key}"

    def _where(self, key: str) -> str:
        return self.file.metadata.where(self._full(key))

    def _of_key(self, source: FromKey, most: int) -> Any:
        if source.when is not None and not source.when.evaluate(self.names):
            return None
        entries = self.file.metadata.entries
        key = next((key for key in source.keys if self._full(key) in entries), source.keys[0])
        if self._full(key) in entries:
            value = self._typed(key, source.type, most)
        elif source.type == "pattern":
            value = self._by_interval(self._default(source, key))
        elif source.type in ("sizes", "numbers"):
            value = [self._default(source, key)] * self.names[_LAYERS]
        else:
            value = self._default(source, key)
        if source.only is not None and value != source.only.evaluate(self.names):
            expected = source.expected or repr(source.only.evaluate(self.names))
            raise UnsupportedError(f"{self._where(key)}: not supported, got {value}, expected {expected}")
        return value

    def _default(self, source: FromKey, key: str) -> Any:
        if source.default is None:
            raise LoadError(f"{self._where(key)}: missing, expected {_MEANS[source.type]}")
        try:
            return source.default.evaluate(self.names)
        except LoadError as error:
            raise LoadError(f"{self._where(key)}: missing, and without it {error}") from error

    def _typed(self, key: str, type: str, most: int) -> Any:
        """Return the value of a key that the file has."""
        metadata, name = self.file.metadata, self._full(key)
        match type:
            case "size" | "count":
                return self._integer(key, 1 if type == "size" else 0, most)
            case "positive" | "factor" | "number":
                number = metadata.number(name)
                if number == 0 and type == "factor":
                    return None
                if number is None or (number <= 0 and type != "number"):
                    raise LoadError(f"{self._where(key)}: got {number}, expected above 0")
                return number
            case "flag":
                return metadata.flag(name)
            case "sizes" | "numbers":
                return self._of_layers(key, type)
        return self._pattern(key)

    def _integer(self, key: str, least: int, most: int) -> int:
        """Return an integer that all layers share."""
        name = self._full(key)
        if self.file.metadata.entries[name].is_array:
            values = self.file.metadata.integers(name)
            if values is None or len(values) == 0 or (values != values[0]).any():
                raise UnsupportedError(f"{self._where(key)}: differs by layer, expected one number for all layers")
            value = int(values[0])
        else:
            value = int(self.file.metadata.integer(name) or 0)
        if value > most and most < MAX_SIZE:
            raise LimitError(f"{self._where(key)}: too many, got {value}, expected at most {most}")
        if not least <= value <= most:
            raise LoadError(f"{self._where(key)}: out of range, got {value}, expected {least}..{most}")
        return value

    def _of_layers(self, key: str, type: str) -> list[Any]:
        """Return one number for each layer; a file may have one for all."""
        metadata, name, layers = self.file.metadata, self._full(key), self.names[_LAYERS]
        if not metadata.entries[name].is_array:
            return [self._typed(key, "count" if type == "sizes" else "number", MAX_SIZE)] * layers
        values = metadata.integers(name) if type == "sizes" else metadata.numbers(name)
        if values is None or len(values) != layers:
            raise LoadError(
                f"{self._where(key)}: got {0 if values is None else len(values)} numbers, expected {layers}"
            )
        found: list[Any] = values.tolist()
        least = 0 if type == "sizes" else -math.inf
        if not all(least <= value <= MAX_SIZE for value in found):
            raise LoadError(f"{self._where(key)}: out of range, expected numbers of {least}..{MAX_SIZE}")
        return found

    def _pattern(self, key: str) -> list[bool]:
        """Return whether each layer has a window: a truth value of each, or the interval of those without."""
        layers, entry = self.names[_LAYERS], self.file.metadata.entries[self._full(key)]
        if not entry.is_array:
            return self._by_interval(self._integer(key, 1, MAX_SIZE))
        if len(entry.value) != layers or entry.type == "string":
            raise LoadError(f"{self._where(key)}: expected {layers} truth values")
        return [bool(value) for value in entry.value]

    def _by_interval(self, interval: int) -> list[bool]:
        return [(layer + 1) % interval != 0 for layer in range(self.names[_LAYERS])]

    def _of_tensor(self, source: FromTensor) -> Any:
        if "{layer}" not in source.tensor:
            return self._size(source.tensor, source.dim)
        names = (source.tensor.replace("{layer}", str(layer)) for layer in range(self.names[_LAYERS]))
        return [self._size(name, source.dim) for name in names]

    def _size(self, name: str, dim: int | None) -> bool | int:
        tensor = self.file.tensors.get(name)
        if dim is None:
            return tensor is not None
        return 0 if tensor is None or dim >= len(tensor.shape) else tensor.shape[dim]


_MEANS = {
    "size": f"an integer of 1..{MAX_SIZE}",
    "count": f"an integer of 0..{MAX_SIZE}",
    "positive": "a number above 0",
    "factor": "a number above 0",
    "number": "a number",
    "flag": "true or false",
    "sizes": "an integer for each layer",
    "numbers": "a number for each layer",
    "pattern": "a truth value for each layer",
}


def architecture_of(file: GgufFile) -> Architecture:
    """Return the architecture of a file. Raises LoadError for none, UnsupportedError for another."""
    where, name = file.metadata.where("general.architecture"), file.metadata.text("general.architecture")
    if name is None:
        raise LoadError(f"{where}: missing, expected a string")
    if name not in architecture_names():
        expected = ", ".join(architecture_names())
        raise UnsupportedError(f"{where}: not supported, got {name!r}, expected one of {expected}")
    return read_architecture(name)


def config_of(file: GgufFile, values: Values) -> dict[str, Any]:
    """Return the config. Raises LoadError or UnsupportedError that names the key."""
    config: dict[str, Any] = {"vocab_size": _vocabulary(file)}
    for path, source in values.architecture.config.items():
        if source.when is None or source.when.evaluate(values.names):
            _set(config, path, values.computed(source))
    config["model_type"] = values.architecture.model_type.evaluate(values.names)
    return config


def _set(config: dict[str, Any], path: str, value: Any) -> None:
    """Set a field of a config, which may be in an object of it: `rope_parameters.full_attention`."""
    *outer, last = path.split(".")
    for part in outer:
        inner = config.get(part)
        config[part] = dict(inner) if isinstance(inner, Mapping) else {}
        config = config[part]
    config[last] = value


def _vocabulary(file: GgufFile) -> int:
    """Return the number of rows of the embedding, at least the number of tokens."""
    table = file.tensors.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise LoadError(f"{file.path}: no tensor 'token_embd.weight' of two dims, expected [vocabulary, width]")
    return table.shape[0]
