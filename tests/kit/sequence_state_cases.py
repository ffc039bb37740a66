"""Cases of the recurrent ops whose states have slots; in torch, the rows of each slot are computed by themselves."""

import numpy as np
import torch
from torch.nn import functional as F


def by_slots(step):
    """The rows of a slot one after the other: step(state, *operands of the row) -> (state, result)."""

    def run(state, rows, shared, positions, owners, slots, **attributes):
        state, out = state.clone(), [None] * len(positions)
        found = slots.long()[owners.long()].tolist()
        for slot in set(found):
            mine = state[slot]
            for row in (r for r in range(len(found)) if found[r] == slot):
                mine = torch.zeros_like(mine) if positions[row] == 0 else mine
                each = [None if operand is None else operand[row] for operand in rows]
                mine, out[row] = step(mine, *each, *shared, **attributes)
            state[slot] = mine
        return state, torch.stack(out) if out else rows[-1]

    return run


@by_slots
def _conv(state, x, weight, bias):
    seen = torch.cat([state, x[None]])
    return seen[1:], F.conv1d(seen.T[None], weight.T[:, None], bias, groups=len(x))[0, :, 0]


@by_slots
def _scan(state, b, c, step, x, decay, skip):
    state = torch.exp(step * decay) * state + torch.outer(b, step * x)
    return state, c @ state + (0 if skip is None else skip * x)


@by_slots
def _attend(state, q, k, decay, beta, v, *, scale):
    heads = len(v)
    q, k = (each.repeat_interleave(heads // len(each), 0) for each in (q, k))
    if decay is not None:
        state = state * decay.view(heads, -1, 1)
    if beta is not None:
        v = beta[:, None] * (v - torch.bmm(k[:, None], state)[:, 0])
    state = state + torch.bmm(k[:, :, None], v[:, None])
    return state, scale * torch.bmm(q[:, None], state)[:, 0]


@by_slots
def _decayed(state, decay, x):
    state = state * decay + x
    return state, state


@by_slots
def _wkv(state, k, v, decay, first):
    """The sums themselves, without the exp that the state divides them by."""
    total, weight = state[0] * torch.exp(state[2]), state[1] * torch.exp(state[2])
    now = torch.exp(k + first)
    mean = (total + now * v) / (weight + now)
    most = torch.where(weight > 0, torch.maximum(state[2] + decay, k), k)
    total, weight = (old * torch.exp(decay) + new for old, new in ((total, torch.exp(k) * v), (weight, torch.exp(k))))
    return torch.stack([total / torch.exp(most), weight / torch.exp(most), most]), mean


ORACLE = {
    "causal_conv": lambda state, x, weight, p, o, s, bias=None: _conv(state, [x], [weight, bias], p, o, s),
    "selective_scan": lambda state, x, step, decay, b, c, p, o, s, skip=None: _scan(
        state, [b, c, step, x], [decay, skip], p, o, s
    ),
    "linear_attention_of_rows": lambda state, q, k, v, p, o, s, decay=None, beta=None, *, scale: _attend(
        state, [q, k, decay, beta, v], [], p, o, s, scale=scale
    ),
    "wkv": lambda state, k, v, decay, first, p, o, s: _wkv(state, [k, v], [decay, first], p, o, s),
    "linear_recurrence": lambda state, x, decay, p, o, s: _decayed(state, [decay, x], [], p, o, s),
}
ROWS = "p:i32[5] o:i32[5] s:i32[2]"
REFUSED = [
    ("causal_conv", f"s[3,2,8] x[5,8] w[4,8] {ROWS}", {}, r"bad state, got .*, expected one row less"),
    ("causal_conv", f"s[3,2,8] x[5,7] w[3,8] {ROWS}", {}, r"channels of weight: dims differ, got 7 and 8"),
    ("causal_conv", "s[3,2,8] x[5,8] w[3,8] p:i64[5] o:i32[5] s:i32[2]", {}, r"expected i32 of rank 1"),
    ("causal_conv", "s[3,2,8] x[4,8] w[3,8] p:i32[5] o:i32[5] s:i32[2]", {}, r"rows: dims differ, got 4 and 5"),
    ("selective_scan", f"s[3,4,8] x[5,8] t[5,8] a[3,8] b[5,3] c[5,3] {ROWS}", {}, r"size of state: dims differ"),
    ("selective_scan", f"s[3,4,8] x[5,8] t:f64[5,8] a[4,8] b[5,4] c[5,4] {ROWS}", {}, r"bad step, got f64"),
    ("linear_attention_of_rows", f"s[3,4,8,9] q[5,3,8] k[5,3,8] v[5,4,9] {ROWS}", {"scale": 1.0}, r"got 4 and 3"),
    ("linear_attention_of_rows", f"s[3,4,8,9] q[5,4,8] k[5,2,8] v[5,4,9] {ROWS}", {"scale": 1.0}, r"groups of k"),
    ("linear_recurrence", f"s[3,8] x[5,8] a[8] {ROWS}", {}, r"bad decay, got f32\[8\]"),
    ("wkv", f"s[3,2,8] k[5,8] v[5,8] a[8] u[8] {ROWS}", {}, r"bad state, got .*, expected \[slots, 3, channels\]"),
]


def _rows(positions, owners, slots):
    """Operands of a recurrence over a state of two slots."""
    x = np.ones((len(positions), 3), np.float32)
    return [np.zeros((2, 3), np.float32), x, x, *(np.array(a, np.int32) for a in (positions, owners, slots))]


BAD_DATA = [
    ("linear_recurrence", _rows([-1], [0], [0]), {}, r"positions: index out of range, got -1"),
    ("linear_recurrence", _rows([1], [2], [0, 1]), {}, r"owners: index out of range, got 2, expected 0..1"),
    ("linear_recurrence", _rows([1], [1], [0, 2]), {}, r"slots: index out of range, got 2, expected 0..1"),
]
# Sizes of the weights, and numbers of heads.
FIXED = {"causal_conv": {1, 2, 3, 4}, "wkv": {3}, "linear_attention_of_rows": {1, 2, 3, 4}}
