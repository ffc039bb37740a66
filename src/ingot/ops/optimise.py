"""Optimizer steps: the new parameter and the new optimizer state."""

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dtype import f32
from ingot.ops.define import expect_kind, op, sample


def _infer_adamw(parameter, mean, square, gradient, kept, size, root, *, beta1, beta2, eps):
    expect_kind("adamw", parameter, "f")
    tensors, numbers = (mean, square, gradient), (kept, size, root)
    if any(t != parameter for t in tensors) or any(t.dtype is not parameter.dtype or t.rank for t in numbers):
        got = ", ".join(map(str, (parameter, *tensors, *numbers)))
        raise ShapeError(f"adamw: bad operands, got {got}, expected four of one type and three numbers")
    return parameter, parameter, parameter


def _expand_adamw(g, parameter, mean, square, gradient, kept, size, root, *, beta1, beta2, eps):
    mean = g.add(mean, g.mul(g.sub(gradient, mean), 1 - beta1))
    square = g.add(g.mul(square, float(beta2)), g.mul(g.mul(gradient, gradient), 1 - beta2))
    change = g.div(g.mul(mean, size), g.add(g.mul(g.sqrt(square), root), float(eps)))
    return g.sub(g.mul(parameter, kept), change), mean, square


@op(
    infer=_infer_adamw,
    outputs=3,
    inplace=(0, 1, 2),
    expand=_expand_adamw,
    samples=[
        sample(f"p[{dims}] m[{dims}] v>0<1[{dims}] g[{dims}] k>0.9<1[] s>0.001<0.1[] r>1<2[]", **settings)
        for settings in ({"beta1": 0.9, "beta2": 0.999, "eps": 1e-3},)
        for dims in ("5,7", "67", "", "0,3", "2,1,3,2,5")
    ],
    tolerance={f32: 1e-5},
)
def adamw(
    parameter, mean, square, gradient, kept, size, root, *, beta1: float, beta2: float, eps: float
):  # fmt: skip
    """A step of AdamW: the new parameter, the mean of gradients and the mean of their squares.

    parameter * kept - size * mean / (sqrt(square) * root + eps) with the new means. kept, size and root are scalars of
    the step: 1 - rate * decay, rate / (1 - beta1^t) and 1 / sqrt(1 - beta2^t). Loshchilov and Hutter, "Decoupled Weight
    Decay Regularization", 2019.
    """
    real = parameter.dtype.type
    mean = mean + (gradient - mean) * real(1 - beta1)
    square = square * real(beta2) + gradient * gradient * real(1 - beta2)
    return parameter * kept - mean * size / (np.sqrt(square) * root + real(eps)), mean, square


def _infer_sgd(parameter, velocity, gradient, rate, *, momentum, decay):
    expect_kind("sgd", parameter, "f")
    if velocity != parameter or gradient != parameter or rate.dtype is not parameter.dtype or rate.rank:
        got = f"{parameter}, {velocity}, {gradient} and {rate}"
        raise ShapeError(f"sgd: bad operands, got {got}, expected three of one type and a number")
    return parameter, parameter


def _expand_sgd(g, parameter, velocity, gradient, rate, *, momentum, decay):
    gradient = g.add(gradient, g.mul(parameter, float(decay)))
    velocity = g.add(g.mul(velocity, float(momentum)), gradient)
    return g.sub(parameter, g.mul(velocity, rate)), velocity


@op(
    infer=_infer_sgd,
    outputs=2,
    inplace=(0, 1),
    expand=_expand_sgd,
    samples=[
        sample("p[5,7] v[5,7] g[5,7] r>0.001<0.1[]", momentum=0.9, decay=0.1),
        sample("p[67] v[67] g[67] r>0.001<0.1[]", momentum=0.5, decay=0.0),
        sample("p[] v[] g[] r>0.001<0.1[]", momentum=0.9, decay=0.0),
        sample("p[0,3] v[0,3] g[0,3] r>0.001<0.1[]", momentum=0.9, decay=0.1),
    ],
)
def sgd(parameter, velocity, gradient, rate, *, momentum: float, decay: float):
    """A step of gradient descent with momentum: the new parameter, and its velocity.

    The velocity becomes momentum * velocity + gradient + decay * parameter; rate * velocity is subtracted from the
    parameter. Sutskever and others, "On the importance of initialization and momentum in deep learning", 2013.
    """
    real = parameter.dtype.type
    velocity = velocity * real(momentum) + (gradient + parameter * real(decay))
    return parameter - velocity * rate, velocity
