"""Rules for LSTM, GRU and RNN: one op per direction; the input projections of all steps are one matrix product."""

from __future__ import annotations

from typing import Any

from ingot.ir.dtype import f32, f64, i64
from ingot.load.onnx.call import Call
from ingot.load.onnx.quantize import expect_scale
from ingot.load.onnx.registry import MICROSOFT, onnx
from ingot.load.onnx.shapes import Size

_OF_QUANT = "DynamicQuantizeLSTM"
_GATES = {"LSTM": 4, _OF_QUANT: 4, "GRU": 3, "RNN": 1}
_OF_LSTM = ("Sigmoid", "Tanh", "Tanh")
_DEFAULTS = {"LSTM": _OF_LSTM, _OF_QUANT: _OF_LSTM, "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# Activation -> its name in the plain op, and the default values of its parameters.
_ACTIVATIONS = {
    "affine": ("affine", 1.0, 0.0),
    "elu": ("elu", 1.0, 0.0),
    "hardsigmoid": ("hard_sigmoid", 0.2, 0.5),
    "leakyrelu": ("leaky_relu", 0.01, 0.0),
    "relu": ("relu", 0.0, 0.0),
    "scaledtanh": ("scaled_tanh", 1.0, 1.0),
    "sigmoid": ("sigmoid", 0.0, 0.0),
    "softplus": ("softplus", 0.0, 0.0),
    "softsign": ("softsign", 0.0, 0.0),
    "tanh": ("tanh", 0.0, 0.0),
    "thresholdedrelu": ("thresholded_relu", 1.0, 0.0),
}
# Activations that read a value of the lists of alphas, and of the list of betas.
_ALPHA = ("affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu")
_BETA = ("affine", "hardsigmoid", "scaledtanh")


@onnx("LSTM", "GRU", "RNN")
def recurrent(call: Call) -> tuple[str | None, ...]:
    """Outputs: all hidden states, the last ones and, for LSTM, the last cell states."""
    directions = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(
        call.attr_text("direction", "forward")
    )
    layout = call.attr_int("layout", 0)
    if directions is None or layout not in (0, 1):
        raise call.malformed(f"direction {call.attr_text('direction')!r} or layout {layout} is unknown")
    if any(call.type(i).rank != 3 for i in range(3)):
        raise call.malformed(f"operands {', '.join(str(call.type(i)) for i in range(3))}, expected rank 3")
    hidden = call.shape(2)[2]
    call.expect_sizes(1)
    call.expect_sizes(2)
    gates = _GATES[call.op]
    if not isinstance(hidden, int) or hidden < 1 or call.attr_int("hidden_size", hidden) != hidden:
        raise call.malformed(f"attribute 'hidden_size' is {call.attr_int('hidden_size', 0)}, weights {call.type(2)}")
    for i, width in ((1, call.shape(0)[2]), (2, hidden)):
        if call.shape(i)[:2] != (len(directions), gates * hidden):
            raise call.malformed(f"weights {call.type(i)}, expected [{len(directions)}, {gates * hidden}, {width}]")
    dtype = call.type(0).dtype
    x = call.cast(call.permute(call[0], (1, 0, 2)) if layout else call[0], dtype if dtype is f64 else f32)
    results = [_direction(call, x, i, reverse, hidden) for i, reverse in enumerate(directions)]
    return tuple(call.cast(_joined(call, list(parts), layout), dtype) for parts in zip(*results, strict=True))


@onnx(_OF_QUANT, domain=MICROSOFT)
def of_quant(call: Call) -> tuple[str | None, ...]:
    """Compute an LSTM with quantized weights. Its inputs are not quantized: ONNX Runtime quantizes them with scales
    that depend on its number of threads.
    """
    w, r = _decoded(call, 1, 8, 9), _decoded(call, 2, 10, 11)
    return recurrent(call.replaced(call[0], w, r, *(call.get(i) for i in range(3, 8))))


def _decoded(call: Call, index: int, scale: int, zero: int) -> str:
    """Dequantize weights [directions, inputs, gates] to floats [directions, gates, inputs].

    scale, zero: operands with one value per direction, or per gate of a direction.
    """
    build, type = call.build, call.type(index)
    call.expect_sizes(index)
    if type.rank != 3 or call.type(scale).rank not in (1, 2):
        raise call.malformed(f"weights {type} with scales {call.type(scale)}, expected rank 3 and rank 1 or 2")
    expect_scale(call, scale)
    directions, inputs, gates = call.shape(index)

    def spread(operand: int) -> str:
        rows = call.reshape(call[operand], (directions, 1, gates if call.type(operand).rank == 2 else 1))
        return build.expand(rows, shape=(directions, 1, gates))

    zeros = spread(zero) if call.has(zero) else None
    return call.permute(build.dequantize(call[index], spread(scale), zeros, axis=1, block=inputs, dtype=f32), (0, 2, 1))


def _joined(call: Call, parts: list[str], layout: int) -> str:
    """Stack the directions as a new axis: before the batch, or after it in layout 1."""
    build, shape = call.build, call.known_shape(call.build.type(parts[0]))
    *steps, batch, hidden = shape
    parts = [call.reshape(part, (*steps, 1, batch, hidden)) for part in parts]
    joined = build.concat(*parts, axis=len(steps)) if len(parts) > 1 else parts[0]
    if not layout:
        return joined
    return call.permute(joined, (2, 0, 1, 3) if steps else (1, 0, 2))


def _direction(call: Call, x: str, index: int, reverse: bool, hidden: int) -> tuple[str, ...]:
    build, gates = call.build, _GATES[call.op]
    (_, batch, _), wide = call.known_shape(build.type(x)), build.type(x).dtype

    def part(i: int, *shape: Size) -> str:
        """Return one direction of an operand, in another shape."""
        if call.type(i).rank != len(shape) + 1:
            raise call.malformed(f"input {i} is {call.type(i)}, expected rank {len(shape) + 1}")
        return call.cast(call.reshape(call.slice(call[i], 0, index, index + 1), shape), wide)

    def state(i: int) -> str:
        if not call.has(i):
            return build.expand(build.scalar(0.0, wide), shape=(batch, hidden))
        if not call.attr_int("layout", 0):
            return part(i, batch, hidden)
        if call.type(i).rank != 3:
            raise call.malformed(f"input {i} is {call.type(i)}, expected rank 3")
        return call.cast(call.reshape(call.slice(call[i], 1, index, index + 1), (batch, hidden)), wide)

    row = build.matmul(x, part(1, gates * hidden, call.shape(1)[2]), transpose_b=True)
    r = part(2, gates * hidden, hidden)
    bias = part(3, 2 * gates * hidden) if call.has(3) else None
    halves = [] if bias is None else [call.slice(bias, 0, i * gates * hidden, (i + 1) * gates * hidden) for i in (0, 1)]
    lengths = call.cast(call[4], i64) if call.has(4) else None

    def initial_state(i: int) -> str:
        """Return the initial state. For a sequence without steps ONNX leaves the result undefined; ONNX Runtime returns
        zeros.
        """
        if lengths is None or not call.has(i):
            return state(i)
        return build.where(call.reshape(build.greater(lengths, 0), (batch, 1)), state(i), 0.0)

    options: dict[str, Any] = {**_activations(call, index), "clip": call.attr_float("clip", 0.0), "reverse": reverse}
    if call.op == "GRU":
        row = build.add(row, halves[0]) if halves else row
        own = halves[1] if halves else build.expand(build.scalar(0.0, wide), shape=(gates * hidden,))
        reset = bool(call.attr_int("linear_before_reset", 0))
        return build.add_all("gru", row, r, own, initial_state(5), lengths, linear_before_reset=reset, **options)
    row = build.add(row, build.add(*halves)) if halves else row
    if call.op == "RNN":
        return build.add_all("rnn", row, r, initial_state(5), lengths, **options)
    peepholes = part(7, 3 * hidden) if call.has(7) else None
    linked = bool(call.attr_int("input_forget", 0))
    return build.add_all(
        "lstm", row, r, initial_state(5), initial_state(6), peepholes, lengths, input_forget=linked, **options
    )


def _activations(call: Call, direction: int) -> dict[str, Any]:
    """Return the activations of a direction; parameters are only listed for activations that have some."""
    defaults = _DEFAULTS[call.op]
    total = len(defaults) * (2 if call.attr_text("direction", "forward") == "bidirectional" else 1)
    names = call.attr_texts("activations", ()) or defaults * (total // len(defaults))
    lowered = [name.lower() for name in names]
    if len(names) != total or any(name not in _ACTIVATIONS for name in lowered):
        raise call.malformed(f"attribute 'activations' is {list(names)[:8]}, expected {total} known ones")
    alphas, betas = iter(call.attr_floats("activation_alpha", ())), iter(call.attr_floats("activation_beta", ()))
    rows = []
    for name in lowered:
        label, alpha, beta = _ACTIVATIONS[name]
        rows.append(
            (label, next(alphas, alpha) if name in _ALPHA else alpha, next(betas, beta) if name in _BETA else beta)
        )
    labels, first, second = zip(*rows[direction * len(defaults) :][: len(defaults)], strict=True)
    return {"activations": labels, "alphas": first, "betas": second}
