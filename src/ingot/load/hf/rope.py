"""Rotary angles: tables of cosines and sines by position, from a config's theta and scaling.

Su et al., "RoFormer", 2021. Scalings: linear interpolation (kaiokendev, Chen et al. 2023), "llama3" (the Llama 3.1
release), YaRN (Peng et al., 2023), LongRoPE (Ding et al., 2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ingot.errors import LoadError, UnsupportedError
from ingot.load.hf.settings import MAX_SIZE, Settings, lookup
from ingot.load.hf.template import Attention, Rope, Template

KINDS = ("default", "linear", "llama3", "yarn", "longrope", "proportional")


class Rotations:
    """Cosines and sines of a model's ropes, each built once for all layers. context: the maximum number of
    positions.
    """

    def __init__(self, template: Template, settings: Settings, context: int):
        self._template, self._settings, self._context = template, settings, context
        self._tables: dict[tuple[str, Any, float], tuple[str, str]] = {}
        self._named: dict[str, int] = {}  # the number of tables of a rope

    def of(self, name: str, names: Mapping[str, Any], add_table: Callable[[str, np.ndarray], str]) -> tuple[str, str]:
        """Return the values of a rope for the names of a layer; `add_table` adds a table to the graph under a name.

        Raises the errors of `rotary_tables`.
        """
        rope = self._template.ropes[name]
        dim, theta = rope.dim.evaluate(names), rope.theta.number(names)
        if (name, dim, theta) not in self._tables:
            cos, sin = rotary_tables(rope, self._settings, self._context, dim, theta)
            count = self._named[name] = self._named.get(name, 0) + 1
            own = name if count == 1 else f"{name}.{count}"
            self._tables[name, dim, theta] = (add_table(f"{own}.cos", cos), add_table(f"{own}.sin", sin))
        return self._tables[name, dim, theta]


def rope_of(attention: Attention, names: Mapping[str, Any], template: Template) -> str | None:
    """Return the name of the angles that a layer rotates by; None for a layer without rotation. Raises LoadError."""
    value = None if attention.rope is None else attention.rope.evaluate(names)
    if value is None or (isinstance(value, str) and value in template.ropes):
        return value
    raise LoadError(f"{attention.where}: no such rope, got {value!r}, expected {list(template.ropes)}")


def scaled_context(template: Template, settings: Settings) -> int:
    """Return the positions that the linear and YaRN scalings of a model reach; its own number without any.

    Configs give the number before or after scaling; it is taken for the number before. Raises LoadError for a wrong
    factor.
    """
    own = longest = settings.values["context"]
    if template.embedding.positions is not None:
        return longest
    for rope in template.ropes.values():
        location, scaling = _scaling(rope, settings)
        kind = _kind(rope, scaling)
        if kind in ("linear", "yarn"):
            found = _Scaling(location, scaling, settings, 0, 0.0, own)
            longest = max(longest, int(min(found.reach(kind), MAX_SIZE)))
    return longest


def rotary_tables(
    rope: Rope, settings: Settings, context: int, dim: Any, theta: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin, f32 [context, dim], of angles computed in float64; both halves of a row hold the same
    angles. dim, theta: those of the rope in a layer.

    Raises LoadError for missing or impossible parameters of a scaling, UnsupportedError for an unknown scaling.
    """
    if not isinstance(dim, int) or isinstance(dim, bool) or dim < 2 or dim % 2:
        fields = settings.field(*rope.dim.names)
        raise LoadError(f"{fields}: bad rotary dim, got {dim}, expected an even number of 2 or more ({rope.where})")
    if not theta > 0:
        raise LoadError(f"{rope.where}: theta: got {theta}, expected a number above 0")
    location, scaling = _scaling(rope, settings)
    kind = _kind(rope, scaling)
    if kind == "dynamic":
        raise UnsupportedError(
            f"{location}.rope_type: 'dynamic' rotates keys again as a sequence grows, which a cache cannot; "
            f"expected one of {', '.join(rope.kinds)} ({rope.where})"
        )
    if kind not in rope.kinds:
        raise UnsupportedError(
            f"{location}.rope_type: not supported, got {kind!r}, expected one of {', '.join(rope.kinds)} ({rope.where})"
        )
    try:
        with np.errstate(over="raise", divide="raise", invalid="raise"):
            frequencies, factor = _Scaling(location, scaling, settings, dim, theta, context).frequencies(kind)
            angles = np.arange(context, dtype=np.float64)[:, None] * frequencies
            angles = np.concatenate([angles, angles], -1)
            cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
            return cos.astype(np.float32), (-sin if rope.backwards else sin).astype(np.float32)
    except ArithmeticError as error:
        raise LoadError(f"{location}: angles cannot be computed, {error} ({rope.where})") from error


def _scaling(rope: Rope, settings: Settings) -> tuple[str, Mapping[str, Any]]:
    """Return the position of the scaling's parameters in the config, and the parameters; empty for the default kind."""
    for path in rope.scaling:
        is_there, found = lookup(settings.config, path, settings.where)
        if is_there and found is not None:
            location = f"{settings.where}: {settings.moved.get(path, path)}"
            if not isinstance(found, Mapping):
                raise LoadError(f"{location}: wrong kind, got {found!r}, expected an object")
            return location, found
    return f"{settings.where}: {rope.scaling[0] if rope.scaling else 'rope'}", {}


def _kind(rope: Rope, scaling: Mapping[str, Any]) -> Any:
    """Return the kind that a scaling names; it need not be a text."""
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return rope.aliases.get(kind, kind) if isinstance(kind, str) else kind


class _Scaling:
    """The parameters of one scaling, each checked when it is read."""

    def __init__(
        self, location: str, found: Mapping[str, Any], settings: Settings, dim: int, theta: float, context: int
    ):
        self._location = location
        self._found = found
        self._settings = settings
        self._dim = dim
        self._theta = theta
        self._context = context

    def frequencies(self, kind: str) -> tuple[np.ndarray, float]:
        """Return the angle per position of each pair of elements, float64 [dim / 2], and the factor of cosines and
        sines.
        """
        plain = self._theta ** (-np.arange(0, self._dim, 2, dtype=np.float64) / self._dim)
        match kind:
            case "default":
                return plain, 1.0
            case "linear":
                return plain / self._number("factor"), 1.0
            case "llama3":
                return self._llama3(plain), 1.0
            case "yarn":
                return self._yarn(plain)
            case "longrope":
                return self._longrope(plain)
            case "proportional":
                rotated = int(self._number("partial_rotary_factor", 1.0) * self._dim // 2)
                return np.where(np.arange(len(plain)) < rotated, plain, 0) / self._number("factor", 1.0), 1.0
        raise AssertionError(kind)

    def reach(self, kind: str) -> float:
        """Return the factor times the positions of the original training, of a linear or YaRN scaling."""
        original = self._original() if kind == "yarn" else self._settings.values["context"]
        return original * self._number("factor", self._settings.values["context"] / original)

    def _llama3(self, plain: np.ndarray) -> np.ndarray:
        """Divide low frequencies by the factor, keep high ones, and blend the frequencies between."""
        factor, low, high = (self._number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
        if high <= low:
            raise LoadError(f"{self._location}.high_freq_factor: got {high}, expected more than low_freq_factor, {low}")
        rotations = self._original() * plain / (2 * math.pi)  # full rotations in the training context
        blend = np.clip((rotations - low) / (high - low), 0, 1)
        return plain * (blend + (1 - blend) / factor)

    def _yarn(self, plain: np.ndarray) -> tuple[np.ndarray, float]:
        """Keep dims of high frequency, divide those of low frequency by the factor, with a ramp between; scale the
        attention.
        """
        original = self._original()
        factor = self._number("factor", self._settings.values["context"] / original)
        fast, slow = self._number("beta_fast", 32.0), self._number("beta_slow", 1.0)

        def dim_of(rotations: float) -> float:
            return self._dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(self._theta))

        low, high = dim_of(fast), dim_of(slow)
        if self._found.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self._dim - 1)
        ramp = np.clip((np.arange(self._dim // 2) - low) / (high - low if high != low else 0.001), 0, 1)
        scale, all_dims = self._number("mscale", 0.0), self._number("mscale_all_dim", 0.0)
        attention_scale = (
            _attention_scale(factor, scale) / _attention_scale(factor, all_dims) if scale and all_dims else None
        )
        attention = self._number("attention_factor", attention_scale or _attention_scale(factor, 1.0))
        return plain / factor * ramp + plain * (1 - ramp), attention

    def _longrope(self, plain: np.ndarray) -> tuple[np.ndarray, float]:
        """Divide the frequency of each pair of dims by its own factor, from one of two lists.

        The list for long contexts is used, for all positions, if the planned context exceeds the original one: keys in
        a cache are rotated only once.
        """
        original = self._original()
        is_long = self._context > original
        key = "long_factor" if is_long else "short_factor"
        factors = self._found.get(key)
        if not isinstance(factors, list) or len(factors) != self._dim // 2 or not all(map(_is_positive, factors)):
            raise LoadError(f"{self._location}.{key}: got {factors!r}, expected {self._dim // 2} numbers above 0")
        factor = self._number("factor", self._settings.values["context"] / original)
        stretched = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        attention = self._number(
            "long_mscale" if is_long else "short_mscale", self._number("attention_factor", stretched)
        )
        return plain / np.array(factors, np.float64), attention

    def _original(self) -> float:
        """Return the context of the original training: from the config, from the scaling's parameters, or the model's
        own.
        """
        key = "original_max_position_embeddings"
        for location, found in ((self._settings.where, self._settings.config), (self._location, self._found)):
            if found.get(key) is not None:
                value = found[key]
                if not isinstance(value, int) or isinstance(value, bool) or value < 2:
                    raise LoadError(f"{location}.{key}: got {value!r}, expected an integer of 2 or more")
                return value
        return self._settings.values["context"]

    def _number(self, key: str, default: float | None = None) -> float:
        value = self._found.get(key)
        if value is None and default is not None:
            return default
        if not _is_positive(value):
            raise LoadError(f"{self._location}.{key}: got {value!r}, expected a number above 0")
        return float(value)  # type: ignore[arg-type]


def _is_positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _attention_scale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0
