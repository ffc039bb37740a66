"""Steps of models with several streams: x is [.., count * width], one stream after the other.

Baykal et al., "Alternating Updates for Efficient Transformers", 2023; the release of Gemma 3n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, Protocol

from ingot.ir.dim import Known
from ingot.load.hf.layers import Linear, Norm
from ingot.load.hf.template import Merge, Spread, Step, Streams

_MAX_STREAMS = 64
_LEAST_SQUARE = 1e-5  # of the magnitude that a stream is divided by


class Builder(Protocol):
    """What adds the nodes of a layer: LayerBuilder."""

    names: Mapping[str, Any]
    rows: tuple[Known, ...]

    def add(self, op: str, *operands: str, hint: str = "", **attributes: Any) -> str: ...

    def apply(self, steps: Sequence[Step], x: str) -> str: ...

    def columns(self, x: str, start: int, stop: int) -> str: ...

    def constant(self, value: float) -> str: ...

    def linear(self, linear: Linear, x: str, inputs: int, outputs: int) -> str: ...

    def norm(self, norm: Norm, x: str) -> str: ...


def apply_streams(builder: Builder, step: Spread | Merge | Streams, x: str) -> str:
    """Apply a step that begins, ends or updates streams."""
    match step:
        case Spread():
            return _spread(builder, step, x)
        case Merge():
            return _merge(builder, step, x)
    return _update(builder, step, x)


def _spread(builder: Builder, step: Spread, x: str) -> str:
    target = _magnitude(builder, x, 0.0)
    others = range(step.count.integer(builder.names, 1, _MAX_STREAMS) - 1)
    streams = [x, *(_projected(builder, step.project, i, x, target) for i in others)]
    return builder.add("concat", *streams, hint="streams", axis=len(builder.rows))


def _merge(builder: Builder, step: Merge, x: str) -> str:
    count = step.count.integer(builder.names, 1, _MAX_STREAMS)
    streams = _parts(builder, x, count)
    target = _magnitude(builder, streams[0], 0.0)
    for i in range(1, count):
        streams[i] = _projected(builder, step.project, i - 1, streams[i], target)
    total = reduce(lambda a, b: builder.add("add", a, b, hint="sum"), streams)
    return builder.add("mul", total, builder.constant(1 / count), hint="mean")


def _update(builder: Builder, step: Streams, x: str) -> str:
    names, rows = builder.names, builder.rows
    width = names["width"]
    count = step.count.integer(names, 1, _MAX_STREAMS)
    active = step.active.integer(names, 0, count - 1)
    routed = _routed(builder, step, _parts(builder, x, count)[active], count)
    factors = builder.linear(step.predict, routed, count, count * count)
    factors = builder.add("reshape", factors, hint="factors", shape=(*rows, count, count))
    streams = builder.add("reshape", x, hint="streams", shape=(*rows, count, width))
    predicted = builder.add("add", builder.add("matmul", factors, streams), streams, hint="predicted")
    before = _parts(builder, builder.add("reshape", predicted, hint="flat", shape=(*rows, count * width)), count)[
        active
    ]
    after = builder.apply(step.steps, before)
    change = builder.add("sub", after, before, hint="change")
    change = builder.add("reshape", change, hint="change", shape=(*rows, 1, width))
    factors = builder.linear(step.correct, _routed(builder, step, after, count), count, count)
    factors = builder.add("add", factors, builder.constant(1.0), hint="factors")
    factors = builder.add("reshape", factors, hint="factors", shape=(*rows, count, 1))
    corrected = builder.add("add", builder.add("mul", change, factors, hint="change"), predicted, hint="corrected")
    corrected = builder.add("reshape", corrected, hint="corrected", shape=(*rows, count * width))
    first, *others = _parts(builder, corrected, count)
    added = builder.apply(step.then, [first, *others][active])
    others = [builder.add("add", other, added, hint="stream") for other in others]
    return builder.add("concat", first, *others, hint="streams", axis=len(rows))


def _routed(builder: Builder, step: Streams, x: str, count: int) -> str:
    """Return tanh(router(norm(x) / width)), [.., count]."""
    width = builder.names["width"]
    x = builder.add("mul", builder.norm(step.norm, x), builder.constant(1 / width), hint="scaled")
    return builder.add("tanh", builder.linear(step.router, x, width, count), hint="routed")


def _parts(builder: Builder, x: str, count: int) -> list[str]:
    """Return the streams of x, each [.., width]."""
    width = builder.names["width"]
    return [builder.columns(x, i * width, (i + 1) * width) for i in range(count)]


def _projected(builder: Builder, project: Linear, stream: int, x: str, target: str) -> str:
    """Return a stream's projection of x, scaled to a magnitude."""
    width = builder.names["width"]
    linear = replace(project, path=project.path.replace("{stream}", str(stream)))
    x = builder.linear(linear, x, width, width)
    scaled = builder.add("mul", x, target, hint="scaled")
    return builder.add("div", scaled, _magnitude(builder, x, _LEAST_SQUARE), hint="scaled")


def _magnitude(builder: Builder, x: str, least: float) -> str:
    """Return sqrt(max(mean(x^2), least)) of the last axis, [.., 1]."""
    square = builder.add("mul", x, x, hint="square")
    mean = builder.add("reduce_mean", square, axes=(len(builder.rows),), keepdims=True)
    if least:
        mean = builder.add("clip", mean, minimum=least)
    return builder.add("sqrt", mean, hint="magnitude")
