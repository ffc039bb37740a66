"""Rules for complex numbers: each complex tensor is two real ones.

Ops that move or add elements apply to each part; the parts of products are sums of products.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._pytree import tree_map

from ingot.load.aten import index, reduce, shape  # noqa: F401  # rules of what moves elements
from ingot.load.aten.builder import AtenBuilder, Complex, Number, Tensor
from ingot.load.aten.elementwise import atan2
from ingot.load.aten.linear import product_of
from ingot.load.aten.registry import RULES, Rule, aten

Operand = Complex | Tensor | Number | complex

_MOVED = (
    "view.default", "_unsafe_view.default", "reshape.default", "view_as.default", "flatten.using_ints",
    "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "expand.default", "clone.default",
    "contiguous.default", "detach.default", "alias.default", "permute.default", "transpose.int", "t.default",
    "slice.Tensor", "select.int", "narrow.default", "split.Tensor", "split_with_sizes.default", "chunk.default",
    "unbind.int", "repeat.default", "flip.default", "roll.default", "constant_pad_nd.default", "index_select.default",
    "index.Tensor", "sum.default", "sum.dim_IntList", "mean.default", "mean.dim", "cumsum.default", "neg.default",
    "zeros.default", "zeros_like.default", "resolve_conj.default", "resolve_neg.default",
)  # fmt: skip


def _part(tree: Any, name: str) -> Any:
    return tree_map(lambda leaf: getattr(leaf, name) if isinstance(leaf, Complex) else leaf, tree)


def _of_each_part(rule: Rule) -> Rule:
    def both(b: AtenBuilder, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        real, imaginary = (rule(b, *_part(args, name), **_part(kwargs, name)) for name in ("real", "imaginary"))
        return tuple(map(Complex, real, imaginary)) if isinstance(real, tuple) else Complex(real, imaginary)

    return both


for _target in _MOVED:
    aten(_target, is_complex=True)(_of_each_part(RULES[f"aten.{_target}"]))


def _parts(b: AtenBuilder, x: Operand) -> tuple[Tensor, Tensor | None]:
    """Return the parts of an operand in the dtype of the result's parts; the second one is None for a real operand."""
    dtype = b.result.dtype
    if isinstance(x, Complex):
        return b.cast(x.real, dtype), b.cast(x.imaginary, dtype)
    if isinstance(x, complex):
        return b.scalar(x.real, dtype), b.scalar(x.imag, dtype)
    return b.tensor(x, dtype), None


def _whole(b: AtenBuilder, x: Operand) -> Complex:
    """Return an operand with both parts, of one shape."""
    real, imaginary = _parts(b, x)
    return Complex(real, b.expand(b.scalar(0, b.result.dtype), b.shape(real)) if imaginary is None else imaginary)


# -- between real and complex


@aten("view_as_real.default", is_complex=True)
def view_as_real(b: AtenBuilder, x: Complex) -> Tensor:
    return b.add("concat", *(b.reshape(part, (*b.shape(part), 1)) for part in (x.real, x.imaginary)),
                 axis=b.rank(x.real))  # fmt: skip


@aten("view_as_complex.default", is_complex=True)
def view_as_complex(b: AtenBuilder, x: Tensor) -> Complex:
    parts = (b.slice(x, b.rank(x) - 1, i, i + 1) for i in (0, 1))
    return Complex(*(b.reshape(part, b.result.shape) for part in parts))


@aten("real.default", is_complex=True)
def real(b: AtenBuilder, x: Complex) -> Tensor:
    return x.real


@aten("imag.default", is_complex=True)
def imag(b: AtenBuilder, x: Complex) -> Tensor:
    return x.imaginary


@aten("complex.default", is_complex=True)
def complex_of_parts(b: AtenBuilder, real: Tensor, imaginary: Tensor) -> Complex:
    return Complex(*(b.expand(part, b.result.shape) for part in (real, imaginary)))


@aten("polar.default", is_complex=True)
def polar(b: AtenBuilder, magnitude: Tensor, angle: Tensor) -> Complex:
    return Complex(*(b.add("mul", magnitude, b.add(op, angle)) for op in ("cos", "sin")))


@aten("to.dtype", "to.dtype_layout", "_to_copy.default", "prims.convert_element_type.default", is_complex=True)
def convert(b: AtenBuilder, x: Operand, *_: Any, **__: Any) -> Complex | Tensor:
    """Convert between dtypes; a conversion to a real dtype drops the imaginary part."""
    return _whole(b, x) if b.makes_complex else _parts(b, x)[0]


@aten("full.default", "full_like.default", is_complex=True)
def full(b: AtenBuilder, x: Any, value: complex, **_: Any) -> Complex:
    real, imaginary = (b.scalar(part, b.result.dtype) for part in (value.real, value.imag))
    return Complex(b.expand(real, b.result.shape), b.expand(imaginary, b.result.shape))


@aten("abs.default", is_complex=True)
def magnitude(b: AtenBuilder, x: Complex) -> Tensor:
    return b.add("sqrt", _square_sum(b, x.real, x.imaginary))


@aten("angle.default", is_complex=True)
def angle(b: AtenBuilder, x: Complex) -> Tensor:
    return atan2(b, x.imaginary, x.real)


# -- arithmetic


@aten("_conj.default", "_conj_physical.default", "conj_physical.default", is_complex=True)
def conj(b: AtenBuilder, x: Complex) -> Complex:
    return Complex(x.real, b.add("neg", x.imaginary))


def _sum(op: str) -> Rule:
    def rule(b: AtenBuilder, x: Operand, y: Operand, alpha: Number = 1) -> Complex:
        if alpha != 1:
            y = _product(b, y, alpha, _mul)
        (left, left_transposed), (right, right_transposed) = _parts(b, x), _parts(b, y)
        if right_transposed is None:
            transposed = left_transposed
        elif left_transposed is None:
            transposed = right_transposed if op == "add" else b.add("neg", right_transposed)
        else:
            transposed = b.add(op, left_transposed, right_transposed)
        return Complex(b.add(op, left, right), b.expand(str(transposed), b.result.shape))

    return rule


aten("add.Tensor", "add.Scalar", is_complex=True)(_sum("add"))
aten("sub.Tensor", "sub.Scalar", is_complex=True)(_sum("sub"))


def _mul(b: AtenBuilder, x: Tensor, y: Tensor) -> Tensor:
    return b.add("mul", x, y)


def _product(
    b: AtenBuilder, x: Operand, y: Operand, times: Callable[[AtenBuilder, Tensor, Tensor], Tensor]
) -> Complex:  # fmt: skip
    (left, left_transposed), (right, right_transposed) = _parts(b, x), _parts(b, y)
    if right_transposed is None:
        return Complex(times(b, left, right), times(b, str(left_transposed), right))
    if left_transposed is None:
        return Complex(times(b, left, right), times(b, left, right_transposed))
    return Complex(
        b.add("sub", times(b, left, right), times(b, left_transposed, right_transposed)),
        b.add("add", times(b, left, right_transposed), times(b, left_transposed, right)),
    )


@aten("mul.Tensor", "mul.Scalar", is_complex=True)
def mul(b: AtenBuilder, x: Operand, y: Operand) -> Complex:
    return _product(b, x, y, _mul)


@aten("matmul.default", "mm.default", "bmm.default", is_complex=True)
def matmul(b: AtenBuilder, x: Operand, y: Operand) -> Complex:
    return _product(b, x, y, product_of)


def _square_sum(b: AtenBuilder, real: Tensor, imaginary: Tensor) -> Tensor:
    return b.add("add", b.add("mul", real, real), b.add("mul", imaginary, imaginary))


@aten("div.Tensor", "div.Scalar", is_complex=True)
def div(b: AtenBuilder, x: Operand, y: Operand) -> Complex:
    """Divide by a complex number: multiply by its conjugate, and divide by its squared magnitude."""
    real, transposed = _parts(b, y)
    if transposed is None:
        parts = _whole(b, x)
        return Complex(b.add("div", parts.real, real), b.add("div", parts.imaginary, real))
    product = _product(b, x, Complex(real, b.add("neg", transposed)), _mul)
    squares = _square_sum(b, real, transposed)
    return Complex(b.add("div", product.real, squares), b.add("div", product.imaginary, squares))


@aten("exp.default", is_complex=True)
def exp(b: AtenBuilder, x: Complex) -> Complex:
    return polar(b, b.add("exp", x.real), x.imaginary)


@aten("sigmoid.default", is_complex=True)
def sigmoid(b: AtenBuilder, x: Complex) -> Complex:
    """1 / (1 + exp(-x))."""
    power = exp(b, Complex(b.add("neg", x.real), b.add("neg", x.imaginary)))
    return div(b, 1.0, Complex(b.add("add", power.real, b.scalar(1, b.result.dtype)), power.imaginary))


@aten("cat.default", is_complex=True)
def cat(b: AtenBuilder, tensors: Sequence[Complex | Tensor], dim: int = 0) -> Complex:
    return _joined(b, RULES["aten.cat.default"], tensors, dim)


@aten("stack.default", is_complex=True)
def stack(b: AtenBuilder, tensors: Sequence[Complex | Tensor], dim: int = 0) -> Complex:
    return _joined(b, RULES["aten.stack.default"], tensors, dim)


def _joined(b: AtenBuilder, rule: Rule, tensors: Sequence[Complex | Tensor], dim: int) -> Complex:
    return _of_each_part(rule)(b, [_whole(b, x) for x in tensors], dim)
