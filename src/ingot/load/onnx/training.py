"""Rules for the preview training ops: one step of an optimizer."""

from __future__ import annotations

from collections.abc import Callable

from ingot.ir.dtype import f64
from ingot.load.onnx.call import Call
from ingot.load.onnx.registry import TRAINING, onnx

Step = tuple[str, ...]


def _stepped(call: Call, states: int, step: Callable[..., Step]) -> Step:
    """Apply step(x, gradient, states...) to each tensor: returns all new tensors, then all first states, and so on."""
    width = states + 2
    if (len(call) - 2) % width or any(call.type(i).rank for i in range(2)):
        raise call.malformed(f"{len(call)} inputs, expected a rate, a count and a multiple of {width}")
    count = (len(call) - 2) // width
    for i in range(2, len(call)):
        first = call.type(2 + (i - 2) % count)
        if call.type(i) != first:
            raise call.malformed(f"input {i} is {call.type(i)}, expected {first}")
    updated = [step(*(call[2 + k * count + i] for k in range(width))) for i in range(count)]
    return tuple(each[k] for k in range(states + 1) for each in updated)


def _regularized(call: Call, x: str, g: str) -> str:
    return call.build.add(call.build.mul(x, call.attr_float("norm_coefficient", 0.0)), g)


@onnx("Adagrad", domain=TRAINING)
def adagrad(call: Call) -> Step:
    """Update by Adagrad. Duchi, Hazan and Singer, "Adaptive subgradient methods", 2011."""
    build = call.build
    decay = build.add(build.mul(call.cast(call[1], f64), call.attr_float("decay_factor", 0.0)), 1.0)
    rate = build.div(call.cast(call[0], f64), decay)

    def step(x: str, g: str, h: str) -> Step:
        g = _regularized(call, x, g)
        squares = build.add(h, build.mul(g, g))
        root = build.add(build.sqrt(squares), call.attr_float("epsilon", 1e-6))
        scaled = build.mul(call.cast(rate, build.type(x).dtype), g)
        return build.sub(x, build.div(scaled, root)), squares

    return _stepped(call, 1, step)


@onnx("Adam", domain=TRAINING)
def adam(call: Call) -> Step:
    """Update by Adam. Kingma and Ba, "Adam", 2015; the bias of the averages is corrected from the second update on."""
    build = call.build
    alpha, beta = call.attr_float("alpha", 0.9), call.attr_float("beta", 0.999)
    updates, given = call.cast(call[1], f64), call.cast(call[0], f64)

    def missing(coefficient: float) -> str:
        return build.add(build.neg(build.pow(build.scalar(coefficient, f64), updates)), 1.0)

    corrected = build.div(build.mul(given, build.sqrt(missing(beta))), missing(alpha))
    rate = build.where(build.greater(updates, 0.0), corrected, given)

    def step(x: str, g: str, v: str, h: str) -> Step:
        g = _regularized(call, x, g)
        average = build.add(build.mul(v, alpha), build.mul(g, 1 - alpha))
        squares = build.add(build.mul(h, beta), build.mul(build.mul(g, g), 1 - beta))
        root = build.add(build.sqrt(squares), call.attr_float("epsilon", 1e-6))
        moved = build.sub(x, build.mul(call.cast(rate, build.type(x).dtype), build.div(average, root)))
        return build.mul(moved, 1 - call.attr_float("norm_coefficient_post", 0.0)), average, squares

    return _stepped(call, 2, step)


@onnx("Momentum", domain=TRAINING)
def momentum(call: Call) -> Step:
    """Update by gradient descent with momentum, or with Nesterov's. Sutskever et al., "On the importance of momentum",
    2013.
    """
    build, mode = call.build, call.attr_text("mode")
    alpha = call.attr_float("alpha")
    if mode not in ("standard", "nesterov"):
        raise call.malformed(f"attribute 'mode' is {mode!r}, expected 'standard' or 'nesterov'")
    is_later = build.greater(call.cast(call[1], f64), 0.0)
    beta = build.where(is_later, build.scalar(call.attr_float("beta"), f64), 1.0)

    def step(x: str, g: str, v: str) -> Step:
        dtype = build.type(x).dtype
        g = _regularized(call, x, g)
        moved = build.add(build.mul(v, alpha), build.mul(call.cast(beta, dtype), g))
        direction = moved if mode == "standard" else build.add(g, build.mul(moved, alpha))
        return build.sub(x, build.mul(call.cast(call[0], dtype), direction)), moved

    return _stepped(call, 1, step)
