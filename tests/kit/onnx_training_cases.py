"""Cases of the previews of training: steps of optimisers as nodes, gradients as models."""

from collections.abc import Callable

import numpy as np
import torch
from onnx import parser

from onnx_models import case

F = np.float32
TRAINING = "ai.onnx.preview.training"


def step(op: str, operands: str, outputs: int, count: int, **attributes: object):
    """One step at a rate of 0.1; the count of updates is known."""
    return case(op, f"@r @t {operands}", outputs, domain=TRAINING, oracle="reference", r=np.array(0.1, F),
                t=np.array(count), **attributes)  # fmt: skip


PREVIEWS = [
    *(
        step("Adagrad", "x[2,3] g[2,3] h>0<2[2,3]", 2, count, norm_coefficient=0.01, decay_factor=0.2, epsilon=1e-3)
        for count in (0, 3)
    ),
    step("Adagrad", "x[2,3] y[4] g[2,3] k[4] h>0<2[2,3] l>0<2[4]", 4, 1),
    *(
        step("Adam", "x[2,3] y[] g[2,3] k[] v[2,3] w[] h>0<2[2,3] l>0<2[]", 6, count, norm_coefficient=0.01,
             norm_coefficient_post=0.02, alpha=0.8, beta=0.7)
        for count in (0, 1, 5)
    ),
    step("Adam", "x[2] y[4] g[2] k[4] v[2] w[4] h>0<2[2] l>0<2[4]", 6, 2, epsilon=1e-2),
    *(
        step("Momentum", "x[2,3] g[2,3] v[2,3]", 2, count, norm_coefficient=0.01, alpha=0.9, beta=0.3, mode=mode)
        for count in (0, 4)
        for mode in ("standard", "nesterov")
    ),
    step("Momentum", "x[2] y[] g[2] k[] v[2] w[]", 4, 1, norm_coefficient=0.0, alpha=0.9, beta=0.3, mode="standard"),
]  # fmt: skip

# name -> the nodes from a, b [2, 3] and c [3] to y, and the same in torch.
GRADIENTS: dict[str, tuple[str, Callable[..., torch.Tensor]]] = {
    "sum of rows": ("y = Add(a, c)", lambda a, b, c: a + c),
    "value that is used twice": ("s = Add(a, b)  y = Mul(s, a)", lambda a, b, c: (a + b) * a),
    "quotient": ("s = Mul(b, b)  t = Exp(s)  y = Div(a, t)", lambda a, b, c: a / torch.exp(b * b)),
    "differences": ("s = Sub(a, c)  t = Neg(s)  y = Mul(t, b)", lambda a, b, c: -(a - c) * b),
    "of one": ("s = Tanh(a)  t = Sigmoid(s)  u = Relu(b)  y = Mul(t, u)",
               lambda a, b, c: torch.sigmoid(torch.tanh(a)) * torch.relu(b)),
    "of what is positive": ("s = Exp(a)  t = Sqrt(s)  u = Log(s)  y = Mul(t, u)",
                            lambda a, b, c: torch.sqrt(torch.exp(a)) * a),
}  # fmt: skip


def gradient_model(nodes: str, old: str = "", new: str = "") -> bytes:
    """A graph that returns a value and its gradient by a and c, b being fixed; `old` in its text replaced."""
    imports = f'"" : 18, "{TRAINING}" : 1'
    outputs = "float[2, 3] y, float[2, 3] da, float[3] dc"
    node = f'da, dc = {TRAINING}.Gradient<xs=["a", "c"], zs=["b"], y="y">(a, c, b)'
    body = f"g (float[2, 3] a, float[2, 3] b, float[3] c) => ({outputs}) {{ {nodes}  {node} }}"
    text = f"<ir_version: 8, opset_import: [{imports}]> {body}"
    return parser.parse_model(text.replace(old, new) if old else text).SerializeToString()
