"""Recurrent ops, one sequence and one step after the other in torch."""

import torch
from torch.nn import functional as F

ACTIVATIONS = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "softsign": F.softsign,
}


def _layers(activations, clip):
    limit = clip or float("inf")
    return [lambda x, f=ACTIVATIONS[name]: f(x.clamp(-limit, limit)) for name in activations]


def _scan(step, gates, states, lengths, reverse):
    """Each sequence of its own length by itself, from its end where it is reversed."""
    rows, ends = torch.zeros(*gates.shape[:2], states[0].shape[1], dtype=gates.dtype), []
    for b in range(gates.shape[1]):
        count = gates.shape[0] if lengths is None else int(lengths[b])
        state = tuple(s[b] for s in states)
        for t in sorted(range(count), reverse=reverse):
            state = step(gates[t, b], *state)
            rows[t, b] = state[0]
        ends.append(state)
    return (rows, *(torch.stack(each) for each in zip(*ends, strict=True)))


def lstm(
    gates, r, h, c, p=None, lengths=None, *, activations, alphas, betas, clip=0, input_forget=False, reverse=False
):  # fmt: skip
    (gate, cell), (out,) = _layers(activations[:2], clip), _layers(activations[2:], 0)
    p = torch.zeros(3, r.shape[1], dtype=r.dtype) if p is None else p.view(3, -1)
    weights = r.view(4, -1, r.shape[1])

    def step(row, h, c):
        i, o, f, g = row.view(4, -1) + torch.einsum("khj,j->kh", weights, h)
        i = gate(i + p[0] * c)
        f = 1 - i if input_forget else gate(f + p[2] * c)
        c = f * c + i * cell(g)
        return gate(o + p[1] * c) * out(c), c

    return _scan(step, gates, (h, c), lengths, reverse)


def gru(
    gates, r, bias, h, lengths=None, *, activations, alphas, betas, clip=0, linear_before_reset=False, reverse=False
):  # fmt: skip
    gate, hidden = _layers(activations, clip)
    wz, wr, wh = r.view(3, -1, r.shape[1])
    bz, br, bh = bias.view(3, -1)

    def step(row, h):
        xz, xr, xh = row.view(3, -1)
        z, reset = gate(xz + wz @ h + bz), gate(xr + wr @ h + br)
        seen = reset * (wh @ h + bh) if linear_before_reset else wh @ (reset * h) + bh
        return (z * h + (1 - z) * hidden(xh + seen),)

    return _scan(step, gates, (h,), lengths, reverse)


def rnn(gates, r, h, lengths=None, *, activations, alphas, betas, clip=0, reverse=False):
    (act,) = _layers(activations, clip)
    return _scan(lambda row, h: (act(row + r @ h),), gates, (h,), lengths, reverse)


ORACLE = {"lstm": lstm, "gru": gru, "rnn": rnn}
# Sizes of the weights.
FIXED = {
    "lstm": {2, 3, 5, 8, 9, 12, 15, 20, 40, 120, 160, 300, 1200},
    "gru": {2, 3, 5, 6, 9, 15, 40, 96, 120, 288},
    "rnn": {2, 3, 5, 80},
}
REFUSED = [
    ("lstm", "g[6,3,20] r[20,4] h[3,5] c[3,5]", {}, r"lstm: bad weights, got f32\[20, 4\], expected 4 square ones"),
    ("lstm", "g[6,3,20] r[20,5] h[2,5] c[3,5]", {}, r"batch: dims differ, got 3 and 2"),
    ("lstm", "g[6,3,20] r[20,5] h[3,5] c[3,5] p[5]", {}, r"bad cell or peepholes"),
    ("gru", "g[6,3,15] r[15,5] b[5] h[3,5]", {}, r"gru: bad bias, got f32\[5\], expected \[15\]"),
    ("rnn", "g[6,3,5] r[5,5] h[3,5] n[3]", {}, r"rnn: bad lengths"),
    ("rnn", "g[6,3,5] r[5,5] h[3,5] n:i64[1]", {}, r"lengths: dims differ, got 3 and 1"),
]
REFUSED = [
    (name, operands, {"activations": ("tanh",) * n, "alphas": (0.0,) * n, "betas": (0.0,) * n}, message)
    for name, operands, _, message in REFUSED
    for n in [{"lstm": 3, "gru": 2, "rnn": 1}[name]]
]
