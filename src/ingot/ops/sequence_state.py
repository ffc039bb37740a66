"""Recurrent ops over rows of several sequences, whose states a language model stores in addition to its KV cache.

A state has a slot for each sequence: sequence s uses slot `slots[s]`. Row r is at position `positions[r]` of sequence
`owners[r]`. Rows are computed in order: each one reads the state that the sequence's last row left in its slot, and
zeros at position 0, where a sequence begins. All but the slots of these rows stay unchanged.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ingot.errors import ShapeError
from ingot.ir.dim import Dim
from ingot.ir.dtype import i32
from ingot.ir.graph import Index, TensorType
from ingot.ops.define import expect_kind, expect_within, op, sample, unify


def _expect(name: str, state: TensorType, floats: dict[str, tuple[TensorType | None, str]], *addresses: TensorType):
    """Raise ShapeError unless all operands have the dtype of the state and the axes of their text; return the dims.

    floats: type and axes by operand. The axis "rows" is also that of positions and owners, addresses[:2].
    """
    expect_kind(name, state, "f")
    dims: dict[str, Dim] = {}
    for operand, (type, axes) in floats.items():
        if type is None:
            continue
        if type.dtype is not state.dtype or type.rank != len(axes.split()):
            raise ShapeError(f"{name}: bad {operand}, got {type}, expected {state.dtype} [{axes.replace(' ', ', ')}]")
        for axis, dim in zip(axes.split(), type.shape, strict=True):
            dims[axis] = unify("{}: {} of {}", dims.setdefault(axis, dim), dim, name, axis, operand)
    if any(each.dtype is not i32 or each.rank != 1 for each in addresses):
        got = ", ".join(map(str, addresses))
        raise ShapeError(f"{name}: bad positions, owners or slots, got {got}, expected i32 of rank 1")
    for each in addresses[:2]:
        unify("{}: rows", dims["rows"], each.shape[0], name)
    return dims


def _over_rows(state, like, positions, owners, slots, step: Callable[[int, np.ndarray], tuple[Any, Any]]):
    """Return the new states, and the results of rows, an array like another one.

    step: of a row's number and the state that it reads, its new state and its result. Raises InputError for an index
    out of range.
    """
    expect_within("positions", positions, range(np.iinfo(np.int32).max))
    expect_within("owners", owners, range(len(slots)))
    expect_within("slots", slots[owners], range(len(state)))
    state, out = state.copy(), np.empty_like(like)
    for row, (position, slot) in enumerate(zip(positions.tolist(), slots[owners].tolist(), strict=True)):
        before = np.zeros_like(state[slot]) if position == 0 else state[slot]
        state[slot], out[row] = step(row, before)
    return state, out


_ADDRESSES = {
    "positions": Index(lambda *_, **__: range(np.iinfo(np.int32).max)),
    "owners": Index(lambda *operands, **__: range(len(_slots_of(operands)))),
    "slots": Index(lambda state, *_, **__: range(len(state)), own=True),
}


def _slots_of(operands):
    """Return the slots: the last i32 operand."""
    return [each for each in operands if each is not None and each.dtype == np.int32][-1]


_ROWS = "p:i32<2[7] o:i32<3[7] s:i32<4[3]"
_ONE = "p:i32<2[1] o:i32<1[1] s:i32<1[1]"
_NONE = "p:i32<2[0] o:i32<1[0] s:i32<4[1]"
_TOLERANCE = {"f32": 1e-5}


def _infer_causal_conv(state, x, weight, positions, owners, slots, bias=None):
    floats = {
        "x": (x, "rows channels"), "weight": (weight, "taps channels"), "state": (state, "slots before channels"),
        "bias": (bias, "channels"),
    }  # fmt: skip
    dims = _expect("causal_conv", state, floats, positions, owners, slots)
    if dims["taps"] != dims["before"] + 1:
        raise ShapeError(f"causal_conv: bad state, got {state} for weight {weight}, expected one row less")
    return state, x


@op(
    infer=_infer_causal_conv,
    addresses=_ADDRESSES,
    outputs=2,
    inplace=(0,),
    samples=[
        sample(f"s[4,2,20] x[7,20] w[3,20] {_ROWS}"),
        sample(f"s[4,3,37] x[7,37] w[4,37] {_ROWS} b[37]"),
        sample(f"s[1,1,1] x[1,1] w[2,1] {_ONE} b[1]"),
        sample(f"s[4,3,16] x[0,16] w[4,16] {_NONE}"),
    ],
)
def causal_conv(state, x, weight, positions, owners, slots, bias=None):
    """A convolution of each channel over the rows of its sequence: the new states, and the results [rows, channels].

    state [slots, taps - 1, channels] has the rows of x before the present one, the oldest first; x [rows, channels];
    weight [taps, channels], of which the last row is for the present row; bias [channels].
    """

    def step(row, before):
        seen = np.concatenate([before, x[row][None]])
        total = np.zeros_like(x[row]) if bias is None else bias
        for tap, values in zip(weight, seen, strict=True):
            total = total + tap * values
        return seen[1:], total

    return _over_rows(state, x, positions, owners, slots, step)


def _infer_selective_scan(state, x, step, decay, b, c, positions, owners, slots, skip=None):
    floats = {
        "x": (x, "rows channels"), "step": (step, "rows channels"), "decay": (decay, "size channels"),
        "b": (b, "rows size"), "c": (c, "rows size"), "state": (state, "slots size channels"),
        "skip": (skip, "channels"),
    }  # fmt: skip
    _expect("selective_scan", state, floats, positions, owners, slots)
    return state, x


@op(
    infer=_infer_selective_scan,
    addresses=_ADDRESSES,
    outputs=2,
    inplace=(0,),
    samples=[
        sample(f"s[4,5,20] x[7,20] t>0.0<1.0[7,20] a>-2.0<0.0[5,20] b[7,5] c[7,5] {_ROWS}"),
        sample(f"s[4,16,37] x[7,37] t>0.0<1.0[7,37] a>-2.0<0.0[16,37] b[7,16] c[7,16] {_ROWS} d[37]"),
        sample(f"s[1,1,1] x[1,1] t>0.0<1.0[1,1] a>-2.0<0.0[1,1] b[1,1] c[1,1] {_ONE}"),
        sample(f"s[4,2,16] x[0,16] t[0,16] a>-2.0<0.0[2,16] b[0,2] c[0,2] {_NONE}"),
    ],
)
def selective_scan(state, x, step, decay, b, c, positions, owners, slots, skip=None):
    """A state-space layer with a state for each channel: the new states, and the results [rows, channels].

    x and step [rows, channels]; decay [size, channels], negative; b and c [rows, size]; skip [channels]. A row changes
    the state [size, channels] of its slot to exp(step * decay) * state + (step * x) * b; the result is the sum of
    c * state over `size`, plus skip * x. Gu and Dao, "Mamba", 2023.
    """

    def scanned(row, before):
        now = np.exp(step[row] * decay) * before + (step[row] * x[row]) * b[row][:, None]
        total = np.sum(now * c[row][:, None], 0)
        return now, total if skip is None else total + skip * x[row]

    return _over_rows(state, x, positions, owners, slots, scanned)


def _infer_row_attention(state, q, k, v, positions, owners, slots, decay=None, beta=None, *, scale):
    name = "linear_attention_of_rows"
    is_wide = decay is not None and decay.rank == 3
    floats = {
        "v": (v, "rows heads values"), "q": (q, "rows groups keys"), "k": (k, "rows groups keys"),
        "state": (state, "slots heads keys values"), "beta": (beta, "rows heads"),
        "decay": (decay, "rows heads keys" if is_wide else "rows heads"),
    }  # fmt: skip
    dims = _expect(name, state, floats, positions, owners, slots)
    heads, groups = dims["heads"], dims["groups"]
    if not isinstance(heads, int) or not isinstance(groups, int) or not groups or heads % groups:
        raise ShapeError(f"{name}: heads do not divide into groups, got {heads} and {groups}")
    return state, v


@op(
    infer=_infer_row_attention,
    addresses=_ADDRESSES,
    outputs=2,
    inplace=(0,),
    samples=[
        sample(f"s[4,3,8,20] q[7,3,8] k[7,3,8] v[7,3,20] {_ROWS}", scale=0.5),
        sample(f"s[4,4,16,33] q[7,2,16] k[7,2,16] v[7,4,33] {_ROWS} d>0.2<1.0[7,4]", scale=1.0),
        sample(f"s[4,2,5,16] q[7,1,5] k[7,1,5] v[7,2,16] {_ROWS} d>0.2<1.0[7,2,5]", scale=-2.0),
        sample(f"s[4,2,9,70] q[7,2,9] k>-0.4<0.4[7,2,9] v[7,2,70] {_ROWS} d>0.5<1.0[7,2] b>0.0<1.0[7,2]", scale=0.2),
        sample(f"s[1,1,1,1] q[1,1,1] k[1,1,1] v[1,1,1] {_ONE} none b>0.0<1.0[1,1]", scale=1.0),
        sample(f"s[4,2,3,5] q[0,1,3] k[0,1,3] v[0,2,5] {_NONE}", scale=1.0),
    ],
)
def linear_attention_of_rows(state, q, k, v, positions, owners, slots, decay=None, beta=None, *, scale: float):
    """Attention without softmax, as a recurrence: the new states, and the results [rows, heads, values].

    q and k [rows, groups, keys], v [rows, heads, values]; head h reads group h // (heads / groups). A row multiplies
    the state [heads, keys, values] of its slot by decay [rows, heads] or [rows, heads, keys], and adds the outer
    product of k and v; with beta [rows, heads] (the delta rule), that of k and beta * (v - state^T k). The result is
    scale * state^T q. Yang et al., "Gated Delta Networks", 2024; Dao and Gu, "Transformers are SSMs", 2024.
    """
    each = v.shape[1] // q.shape[1]

    def step(row, now):
        query, key = np.repeat(q[row], each, 0), np.repeat(k[row], each, 0)
        if decay is not None:
            now = now * decay[row].reshape(len(now), -1, 1)
        added = v[row]
        if beta is not None:
            added = beta[row][:, None] * (added - np.einsum("hkv,hk->hv", now, key))
        now = now + key[:, :, None] * added[:, None]
        return now, np.einsum("hkv,hk->hv", now, query) * v.dtype.type(scale)

    return _over_rows(state, v, positions, owners, slots, step)


def _infer_linear_recurrence(state, x, decay, positions, owners, slots):
    floats = {
        "x": (x, "rows channels"),
        "decay": (decay, "rows channels"),
        "state": (state, "slots channels"),
    }
    _expect("linear_recurrence", state, floats, positions, owners, slots)
    return state, x


@op(
    infer=_infer_linear_recurrence,
    addresses=_ADDRESSES,
    outputs=2,
    inplace=(0,),
    samples=[
        sample(f"s[4,20] x[7,20] a>0.2<1.0[7,20] {_ROWS}"),
        sample(f"s[4,37] x[7,37] a>0.2<1.0[7,37] {_ROWS}"),
        sample(f"s[1,1] x[1,1] a>0.2<1.0[1,1] {_ONE}"),
        sample(f"s[4,16] x[0,16] a[0,16] {_NONE}"),
    ],
)
def linear_recurrence(state, x, decay, positions, owners, slots):
    """The recurrence state = decay * state + x of each channel: the new states, and all of them [rows, channels].

    state [slots, channels]; x and decay [rows, channels]. De et al., "Griffin", 2024.
    """

    def step(row, before):
        now = decay[row] * before + x[row]
        return now, now

    return _over_rows(state, x, positions, owners, slots, step)


def _infer_wkv(state, k, v, decay, first, positions, owners, slots):
    floats = {
        "v": (v, "rows channels"), "k": (k, "rows channels"), "decay": (decay, "channels"),
        "first": (first, "channels"), "state": (state, "slots parts channels"),
    }  # fmt: skip
    dims = _expect("wkv", state, floats, positions, owners, slots)
    if dims["parts"] != 3:
        raise ShapeError(f"wkv: bad state, got {state}, expected [slots, 3, channels]")
    return state, v


@op(
    infer=_infer_wkv,
    addresses=_ADDRESSES,
    outputs=2,
    inplace=(0,),
    samples=[
        sample(f"s>0.1<2.0[4,3,20] k[7,20] v[7,20] a>-2.0<0.0[20] u[20] {_ROWS}"),
        sample(f"s>0.1<2.0[4,3,37] k[7,37] v[7,37] a>-2.0<0.0[37] u[37] {_ROWS}"),
        sample(f"s>0.1<2.0[1,3,1] k[1,1] v[1,1] a>-2.0<0.0[1] u[1] {_ONE}"),
        sample(f"s>0.1<2.0[4,3,16] k[0,16] v[0,16] a>-2.0<0.0[16] u[16] {_NONE}"),
    ],
)
def wkv(state, k, v, decay, first, positions, owners, slots):
    """The mean of the values of a sequence, weighted by exp of their keys: the new states, and the results.

    k and v [rows, channels]; decay and first [channels]. The weight of an earlier row is exp(k + distance * decay),
    where the last row has distance 0, and that of the present row exp(k + first). A state [3, channels] has the
    weighted sum of values and the sum of weights, both divided by the exp of its third part. Peng et al., "RWKV", 2023.
    """

    def step(row, before):
        total, weight, most = before
        most = np.where(weight > 0, most, -np.inf).astype(k.dtype)

        def with_row(kept, key):
            new_most = np.maximum(kept, key)
            old, new = np.exp(kept - new_most), np.exp(key - new_most)
            return old * total + new * v[row], old * weight + new, new_most

        mean_total, mean_weight, _ = with_row(most, k[row] + first)
        return np.stack(with_row(most + decay, k[row])), mean_total / mean_weight

    return _over_rows(state, v, positions, owners, slots, step)
