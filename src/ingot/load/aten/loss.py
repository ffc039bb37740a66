"""Rules for losses that torch computes in parts of a batch."""

from __future__ import annotations

from typing import Any

from ingot.errors import UnsupportedError
from ingot.load.aten.builder import AtenBuilder, Tensor
from ingot.load.aten.registry import aten


@aten("torch_nn._linear_cross_entropy_batch_chunked.default")
def linear_cross_entropy(
    b: AtenBuilder, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, class_weight: Tensor | None,
    reduction: str, ignore_index: int, label_smoothing: float, *_: Any,
) -> tuple[Tensor, None, None, None]:  # fmt: skip
    """Return the sum or the mean of the losses; torch's additional gradients only serve its backward op."""
    if label_smoothing:
        raise UnsupportedError(f"torch node {b.hint!r}: label smoothing, got {label_smoothing}, expected 0")
    losses, shares = _losses(b, x, weight, target, bias, class_weight, ignore_index)
    total = b.add("reduce_sum", losses, axes=(0,), keepdims=False)
    if reduction == "mean":
        total = b.add("div", total, b.add("reduce_sum", shares, axes=(0,), keepdims=False))
    return total, None, None, None


@aten("torch_nn._linear_cross_entropy_batch_chunked_no_reduction.default")
def linear_cross_entropies(
    b: AtenBuilder, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, class_weight: Tensor | None,
    ignore_index: int, *_: Any,
) -> Tensor:  # fmt: skip
    return _losses(b, x, weight, target, bias, class_weight, ignore_index)[0]


def _losses(
    b: AtenBuilder, x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, class_weight: Tensor | None,
    ignored: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the loss of each row times the weight of its class, and that weight, which is 0 for ignored rows."""
    dtype, (rows,) = b.dtype(x), b.shape(target)
    logits = b.add("matmul", x, b.cast(weight, dtype), transpose_b=True)
    logits = logits if bias is None else b.add("add", logits, b.cast(bias, dtype))
    counts = b.add("not_equal", target, b.scalar(ignored, b.dtype(target)))
    zero = b.scalar(0, dtype)
    label = b.add("where", counts, target, b.scalar(0, b.dtype(target)))
    gathered = b.add("gather_elements", b.add("log_softmax", logits, axis=1), b.reshape(label, (rows, 1)), axis=1)
    share = b.scalar(1, dtype) if class_weight is None else b.add("gather", b.cast(class_weight, dtype), label, axis=0)
    share = b.add("where", counts, share, zero)
    loss = b.add("where", counts, b.add("neg", b.reshape(gathered, (rows,))), zero)
    return b.add("mul", loss, share), share
