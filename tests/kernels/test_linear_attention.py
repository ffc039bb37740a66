"""Linear attention: the same bits however heads and columns are divided, and however steps are cut into calls."""

from typing import Any

import numpy as np
import pytest

from ingot.ops.recurrent import linear_attention
from kernel_calls import blank, close, every, floats

pytestmark = pytest.mark.native

BATCH, HEADS = 2, 3


def operands(steps: int, keys: int, values: int, decay_dim: int, beta: bool) -> dict[str, Any]:
    """Operands by the fields of the kernel's arguments; decay_dim 0: no decay."""
    rows = (BATCH, steps, HEADS)
    made = {name: floats(i, (*rows, keys), -0.5, 0.5) for i, name in enumerate("qk")}
    made |= {"v": floats(2, (*rows, values)), "state": floats(3, (BATCH, HEADS, keys, values))}
    if decay_dim:
        made["decay"] = floats(4, (*rows, decay_dim), 0.1, 1.0)
    if beta:
        made["beta"] = floats(5, rows, 0.0, 1.0)
    return made


def computed(given: dict[str, np.ndarray], scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Both results of the kernel, which every instruction set and division into tasks gives."""
    batch, steps, heads, values = given["v"].shape
    keys = given["k"].shape[3]
    fields: dict[str, Any] = {name: np.ascontiguousarray(array) for name, array in given.items()}
    fields |= {"batch": batch, "steps": steps, "heads": heads, "k_dim": keys, "v_dim": values, "scale": scale}
    fields["decay_dim"] = given["decay"].shape[3] if "decay" in given else 1
    out, last = (batch, steps, heads, values), (batch, heads, keys, values)
    return (
        every("linear_attention_f32", fields | {"last": blank(last)}, "out", out),
        every("linear_attention_f32", fields | {"out": blank(out)}, "last", last),
    )


@pytest.mark.parametrize("values", (1, 15, 16, 33, 64, 65, 130))
@pytest.mark.parametrize("decay_dim, beta", [(0, False), (1, False), (7, False), (0, True), (1, True), (7, True)])
def test_results(values, decay_dim, beta):
    given = operands(5, 7, values, decay_dim, beta)
    found = computed(given, 0.3)
    wide = {name: array.astype(np.float64) for name, array in given.items()}
    for result, expected in zip(found, linear_attention(**wide, scale=0.3), strict=True):
        close(result, expected, 1e-5)


@pytest.mark.parametrize("cut", (0, 1, 4, 5))
def test_bits_do_not_depend_on_where_steps_are_cut(cut):
    """A prompt and the tokens after it give the bits of one call."""
    given = operands(5, 9, 40, 1, True)
    whole = computed(given, 1.0)
    first, second = (
        {name: array if name == "state" else array[:, part] for name, array in given.items()}
        for part in (slice(0, cut), slice(cut, 5))
    )
    before, state = computed(first, 1.0)
    after, last = computed(second | {"state": state}, 1.0)
    np.testing.assert_array_equal(np.concatenate([before, after], 1), whole[0])
    np.testing.assert_array_equal(last, whole[1])
