"""What tests of product-sum kernels share: packed operands, epilogues and error bounds."""

import math
from typing import Any

import numpy as np

from ingot.support import abi
from kernel_calls import at_page_end

PANEL = 32
_FUNCTIONS = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu_erf": lambda x: x * (1 + np.vectorize(math.erf, otypes="d")(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "clip": lambda x: np.clip(x, -0.25, 1.5),
    "leaky_relu": lambda x: np.where(x < 0, -0.25 * x, x),
    "hard_sigmoid": lambda x: np.clip(-0.25 * x + 1.5, 0, 1),
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}
ACTIVATIONS = {name: (abi.constant(f"INGOT_ACT_{name}"), function) for name, function in _FUNCTIONS.items()}
ATTRIBUTES = {"act_alpha": -0.25, "act_beta": 1.5}


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def packed(b, scale=1.0):
    """b[k, n] in panels."""
    k, n = b.shape
    columns = -(-n // PANEL) * PANEL
    wide = np.zeros((k, columns), np.float32)
    wide[:, :n] = b * np.float32(scale)
    return np.ascontiguousarray(wide.reshape(k, columns // PANEL, PANEL).transpose(1, 0, 2))


def summed(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b in f32 with the split sums of abi.h, of numbers whose products are no denormals."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for at in range(0, b.shape[0], 32):
        chains = np.zeros((2, *total.shape), np.float32)
        for i in range(at, min(at + 32, b.shape[0])):
            chains[i % 2] += a[:, i, None].astype(np.float32) * b[i].astype(np.float32)  # a product is exact
        total += chains[0] + chains[1]
    return total


def gamma(k):
    """The relative error bound of a sum of k products in blocks of 256, and of a few roundings more."""
    return (min(k, 256) + k / 256 + 8) * 2.0**-24


def gate_packed(b):
    """b[k, 2n] in panels of 16 columns of its first half and 16 of its second."""
    k, columns = b.shape
    return np.ascontiguousarray(b.reshape(k, 2, columns // PANEL, 16).transpose(2, 0, 1, 3))


EPILOGUES = [  # activation, alpha, with bias, with residual: "last", "first" (before the activation) or not
    ("none", 1.0, False, ""),
    ("none", 1.0, True, ""),
    ("relu", 0.5, True, "last"),
    ("gelu_erf", 1.0, True, ""),
    ("gelu_tanh", 1.0, False, "last"),
    ("silu", 0.125, False, ""),
    ("sigmoid", 1.0, True, "last"),
    ("tanh", 1.0, True, ""),
    ("relu", 1.0, True, "first"),
    ("clip", 1.0, False, "last"),
    ("clip", 1.0, True, "first"),
    ("leaky_relu", 2.0, True, "first"),
    ("hard_sigmoid", 1.0, True, ""),
    ("hard_swish", 1.0, False, "first"),
]


def product_fields(index: int, shape: tuple[int, int, int]) -> dict[str, Any]:
    """Arguments of a product [m, n, k] but for b and c, whose rows are n + 5 apart; epilogues by turns of the index."""
    m, n, k = shape
    activation, alpha, with_bias, with_residual = EPILOGUES[index % len(EPILOGUES)]
    fields = {"m": m, "n": n, "k": k, "alpha": alpha, "activation": ACTIVATIONS[activation][0]} | ATTRIBUTES
    fields |= {"a": at_page_end(random(m, k), row_pad=index % 3), "a_stride": k + index % 3, "c_stride": n + 5}
    if with_bias:
        fields["bias"] = at_page_end(random(n, seed=2))
    if with_residual:
        fields |= {"residual": at_page_end(random(m, n, seed=3), 3), "residual_stride": n + 3}
        fields["residual_first"] = int(with_residual == "first")
    return fields
