"""`flex_attention` in plain ATen ops: its functions of one score are applied to all scores at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from ingot.errors import UnsupportedError

A = torch.ops.aten
# What a function of one score may call, in addition to ops that are element by element: they give the same of scores of
# rank 4.
_OF_ONE = {A.index.Tensor, A.new_ones.default, A.new_zeros.default, A.new_full.default, A.full.default,
           A.scalar_tensor.default, A.zeros.default, A.ones.default, A.clone.default, A.detach.default,
           A._to_copy.default, A.to.dtype, A.alias.default, A.lift_fresh_copy.default}  # fmt: skip


def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: GraphModule, block_mask: Sequence[Any],
    scale: float, kernel_options: Any, score_tensors: Sequence[Any] = (), mask_tensors: Sequence[Any] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the result, and the logarithm of each row's sum and its maximum, both to the base 2.

    Raises UnsupportedError for a function of a score that does more than element-wise computation. Dong et al., "Flex
    attention: a programming model for generating optimized attention kernels", 2024.
    """
    groups = query.size(1) // key.size(1)
    key, value = (_repeated(t, query.size(0), groups) for t in (key, value))
    scores = (query @ key.transpose(-2, -1)) * scale
    positions = []
    for axis, size in enumerate(scores.shape):
        shape = [size if i == axis else 1 for i in range(4)]
        positions.append(torch.arange(size, dtype=torch.int32).view(shape))
    scores = _of_all(score_mod)(scores, *positions, *score_tensors)
    allowed = _of_all(block_mask[-1])(*positions, *mask_tensors)
    scores = torch.where(allowed, scores, -math.inf)
    most, sums = scores.amax(-1), scores.logsumexp(-1)
    return A._safe_softmax.default(scores, -1).to(value.dtype) @ value, sums / math.log(2), most / math.log(2)


def _repeated(x: torch.Tensor, batch: Any, groups: Any) -> torch.Tensor:
    """Repeat the heads of keys or values for their groups of query heads, and for each sequence of a batch."""
    shape = (batch, x.size(1), groups, *x.shape[2:])
    return x.unsqueeze(2).expand(shape).reshape(batch, x.size(1) * groups, *x.shape[2:])


def _of_all(function: GraphModule) -> Callable[..., torch.Tensor]:
    for node in function.graph.nodes:
        is_call = node.op == "call_function"
        if is_call and node.target not in _OF_ONE and torch.Tag.pointwise not in getattr(node.target, "tags", ()):
            raise UnsupportedError(
                f"flex_attention: function of a score calls {node.target}, expected element-wise ops"
            )
    return function
