"""Rules: matrix products."""

from ingot.load.aten.builder import AtenBuilder, Number, Tensor
from ingot.load.aten.registry import aten


def product_of(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    """numpy's matmul: a vector on the left is a row, on the right a column, and that axis leaves the result."""
    left = b.reshape(x, (1, *b.shape(x))) if b.rank(x) == 1 else x
    right = b.reshape(y, (*b.shape(y), 1)) if b.rank(y) == 1 else y
    result = b.add("matmul", left, right)
    shape = list(b.shape(result))
    if b.rank(y) == 1:
        del shape[-1]
    if b.rank(x) == 1:
        del shape[-1 if b.rank(y) == 1 else -2]
    return b.reshape(result, shape)


@aten("matmul.default", "mm.default", "bmm.default", "mv.default", "dot.default")
def matmul(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    return product_of(b, x, y)


@aten("linear.default")
def linear(b: AtenBuilder, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    transposed = b.permute(weight, (1, 0)) if b.rank(weight) == 2 else weight
    result = product_of(b, x, transposed)
    return result if bias is None else b.add("add", result, bias)


@aten("addmm.default", "addmv.default", "baddbmm.default")
def addmm(b: AtenBuilder, bias: Tensor, x: Tensor, y: Tensor, beta: Number = 1, alpha: Number = 1) -> Tensor:
    result = product_of(b, x, y)
    if alpha != 1:
        result = b.add("mul", result, b.scalar(alpha, b.dtype(result)))
    if beta == 0:
        return result
    return b.add("add", result, bias if beta == 1 else b.add("mul", bias, b.scalar(beta, b.dtype(bias))))
