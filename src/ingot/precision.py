"""What products are computed in: what fixed matrices are rounded to, and whether the rows beside them are, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ingot.dtype import DType, bf16, f32, i4, i8
from ingot.errors import InputError, UnsupportedError
from ingot.ir import Graph, Node, TensorType
from ingot.ops.define import expand_node
from ingot.passes.dce import eliminate_dead
from ingot.passes.match import is_fixed

_VIEWS = ("permute", "reshape", "slice")
_MOVES = ("concat", "max_pool", *_VIEWS)  # what makes the same of values that are rounded before
_PRODUCTS = ("conv", "matmul")
_RECURRENT = ("lstm", "gru", "rnn")  # their rows are states, which add up what is rounded
_PAIR = 2  # numbers that a dot product takes together


@dataclass(frozen=True, slots=True)
class Precision:
    """name: as options have it. weights: what fixed matrices are rounded to; None leaves them as they are. rows: what
    their other factors are rounded to, for the device's dot products; None leaves those f32.
    """

    name: str
    weights: DType | None = None
    rows: DType | None = None

    def rounded(self, dots: Collection[DType], *, required: bool = True) -> tuple[DType, ...]:
        """What `Target.rounded` is on a device that has dot products of some dtypes.

        required: raises UnsupportedError where the device lacks them; otherwise rows stay f32 there.
        """
        if self.rows is None or self.rows in dots:
            return () if self.rows is None else (self.rows,)
        if required:
            weights = ", ".join(p.name for p in PRECISIONS.values() if p.weights is self.weights and p.rows is None)
            expected = f"{weights}, which rounds weights alone, or {F32.name}"
            raise UnsupportedError(
                f"option precision: no dot products of {self.rows} here, got {self.name!r}, expected {expected}"
            )
        return ()


F32 = Precision("f32")
PRECISIONS = {each.name: each for each in (F32, Precision("bf16", bf16, bf16), Precision("bf16w", bf16))}
# Their loader makes codes with scales for groups, which no cast is; see docs/quantisation.md.
OF_LANGUAGE_MODELS = PRECISIONS | {each.name: each for each in (Precision("int8", i8, i8), Precision("int4", i4, i8))}


def precision_of(name: str, among: Mapping[str, Precision] = PRECISIONS) -> Precision:
    """The precision that an option names. Raises InputError."""
    if name not in among:
        expected = f"one of {', '.join(among)}"
        raise InputError(f"option precision: unknown value, got {name!r}, expected {expected}")
    return among[name]


def round_operands(graph: Graph, precision: Precision) -> None:
    """Rounds what a precision says of the operands of products, by casts there and back; sums stay f32.

    For a graph that has been through the passes: they would take the casts for steps of the model.
    """
    if precision.weights is None:
        return
    rounding = _Rounding(graph, precision)
    for node in list(graph.nodes):
        # As a convolution of channels and moves, through which its result and its filter are rounded.
        if node.op.name == "conv_transpose" and is_fixed(graph, node.operands[1]):
            expand_node(graph, node)
    for node in list(graph.nodes):
        if node.op.name in _PRODUCTS and rounding.takes(node):
            rounding.round(node)
        elif node.op.name == "conv" and rounding.is_depthwise(node):
            rounding.round_rows(node, 1)
        elif node.op.name == "attention" and rounding.attends(node):
            rounding.round_rows(node, 3)
        elif node.op.name in _RECURRENT and is_fixed(graph, node.operands[1]):
            rounding.round_weights(node)
    eliminate_dead(graph)  # moves of values that are moved rounded


class _Rounding:
    def __init__(self, graph: Graph, precision: Precision):
        self.graph = graph
        self.weights, self.rows = precision.weights, precision.rows
        self._made: dict[tuple[str, DType], str] = {}
        self._narrowed: dict[tuple[str, DType], str] = {}

    def takes(self, node: Node) -> bool:
        """Whether a product has a fixed f32 matrix, which its rows are multiplied with."""
        x, weight = (self.graph.values[str(operand)].type for operand in node.operands[:2])
        if not isinstance(weight, TensorType) or weight.dtype is not f32 or not isinstance(x, TensorType):
            return False
        if not self._is_matrix(str(node.operands[1])) or is_fixed(self.graph, node.operands[0]):
            return False
        # A convolution whose pairs would reach over the end of its channels gains nothing.
        return weight.rank == 2 if node.op.name == "matmul" else weight.dims[1] % _PAIR == 0

    def _is_matrix(self, value: str) -> bool:
        """Whether a value is fixed, however much it is moved about, as filters of transposed convolutions are."""
        while (maker := self.graph.producer(value)) is not None and maker.op.name in (*_VIEWS, "pad"):
            value = str(maker.operands[0])
        return is_fixed(self.graph, value)

    def is_depthwise(self, node: Node) -> bool:
        """Whether a convolution has a fixed filter for each channel: its image may be rounded, its filter gains nothing
        by it.
        """
        x, weight = (self.graph.values[str(operand)].type for operand in node.operands[:2])
        if self.rows is None or not isinstance(weight, TensorType) or not isinstance(x, TensorType):
            return False
        if x.dtype is not f32 or not is_fixed(self.graph, node.operands[1]) or is_fixed(self.graph, node.operands[0]):
            return False
        return weight.dims[1] == 1 and weight.dims[0] == node.groups > 1

    def attends(self, node: Node) -> bool:
        """Whether queries, keys and values are rounded: rows of pairs."""
        types = [self.graph.type(str(operand)) for operand in node.operands[:3]]
        width = types[0].shape[-1]
        return self.rows is not None and types[0].dtype is f32 and isinstance(width, int) and width % _PAIR == 0

    def round_rows(self, node: Node, count: int) -> None:
        """Rounds the first operands of a node to what rows are rounded to."""
        assert self.rows is not None
        rounded = [self._rounded(str(operand), self.rows, node) for operand in node.operands[:count]]
        self.graph.set_operands(node, [*rounded, *node.operands[count:]])

    def round_weights(self, node: Node) -> None:
        """Rounds the second operand of a node, where it is f32."""
        x, weight, *rest = node.operands
        if self.weights is not None and self.graph.type(str(weight)).dtype is f32:
            self.graph.set_operands(node, [x, self._rounded(str(weight), self.weights, node), *rest])

    def round(self, node: Node) -> None:
        """Gives a product its rounded operands."""
        self.round_weights(node)
        if self.rows is not None and self._is_even(node):
            self.round_rows(node, 1)

    def _is_even(self, node: Node) -> bool:
        """Whether the rows of a product are pairs of numbers."""
        if node.op.name == "conv":
            return True
        width = self.graph.type(str(node.operands[1])).dims[1 if node.transpose_b else 0]
        return not node.transpose_a and width % _PAIR == 0

    def _rounded(self, value: str, dtype: DType, user: Node) -> str:
        """The f32 value of a value rounded to a dtype, made before its first user; itself where it is of that dtype."""
        maker = self.graph.producer(value)
        if maker is not None and maker.op.name == "cast" and self.graph.type(str(maker.operands[0])).dtype is dtype:
            return value
        if (value, dtype) not in self._made:
            there = self._narrow(value, dtype, user)
            back = self.graph.add("cast", [there], f"{value}.{dtype}.f32", before=user, dtype=f32)
            self._made[value, dtype] = back.output
        return self._made[value, dtype]

    def _is_move(self, node: Node) -> bool:
        """Whether what a node makes may be rounded before it: it moves it at no cost, or for nobody but products."""
        if node.op.name in _VIEWS:
            return True
        return node.op.name in _MOVES and all(
            user.op.name in (*_PRODUCTS, *_MOVES, "cast") for user in self.graph.users(node.output)
        )

    def _narrow(self, value: str, dtype: DType, user: Node) -> str:
        """A value in a dtype: rounded before it was moved about, so that what made it may write it so."""
        if (value, dtype) not in self._narrowed:
            maker = self.graph.producer(value)
            if maker is not None and self._is_move(maker) and not is_fixed(self.graph, value):
                sources = [self._narrow(str(operand), dtype, user) for operand in maker.operands]
                moved = self.graph.add(maker.op.name, sources, f"{value}.{dtype}", before=user, **maker.attributes)
                self._narrowed[value, dtype] = moved.output
            else:
                cast = self.graph.add("cast", [value], f"{value}.{dtype}", before=user, dtype=dtype)
                self._narrowed[value, dtype] = cast.output
        return self._narrowed[value, dtype]
