"""The precision of products: the dtype of constant weights, and whether the rows of the other operand are rounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from ingot.errors import InputError, UnsupportedError
from ingot.ir.dtype import DType, bf16, f16, f32, i4, i8, i32, u4, u8
from ingot.ir.graph import Graph, Node, TensorType
from ingot.load.quantized import GROUP_MULTIPLE, GROUPS, narrowed, quantized, quantized_filter
from ingot.ops.define import expand_node
from ingot.passes.dce import eliminate_dead
from ingot.passes.fold import TOTAL_BYTES, known
from ingot.passes.match import is_fixed

_VIEWS = ("permute", "reshape", "slice")
_MOVES = ("concat", "max_pool", *_VIEWS)  # ops that give the same if values are rounded before them
_PRODUCTS = ("conv", "matmul")
_RECURRENT = ("lstm", "gru", "rnn")
_PAIR = 2  # numbers that a dot product multiplies together
_PICTURE, _LONG = 3, 64  # channels read from planes without a copy, and elements of a window from which on that pays
_CENTRED, _WITH_ZEROS = (i4, i8), (u4, u8)  # quantized dtypes of panels, without zero points and with them
_SMALL = 64  # rows or columns of a matrix that is too small to quantize
_FEW_CHANNELS = 16  # of a group, or elements of a window, of a convolution whose filter is too small to quantize
_OF_CLASSES = ("reshape", "softmax", "log_softmax")  # what follows a classifier, in addition to element-wise ops


@dataclass(frozen=True, slots=True)
class Precision:
    """The precision of products.

    name: as in options. weights: the dtype that constant weights are rounded to; None leaves them unchanged. rows: the
    dtype that their other operands are rounded to, for the device's dot products, where i32 means 24-bit integers;
    None leaves them f32. split_sums: as in `Target`.
    """

    name: str
    weights: DType | None = None
    rows: DType | None = None
    split_sums: bool = False

    def rounded(self, dots: Collection[tuple[DType, bool]], *, required: bool = True) -> tuple[DType, ...]:
        """Return `Target.rounded` for a device with dot products of some dtypes, with or without split sums.

        Rows of integers need no dot products of the device. required: raises UnsupportedError if the device lacks them;
        otherwise rows stay f32.
        """
        if self.rows is None:
            return ()
        if self.rows in (i8, i32) or (self.rows, self.split_sums) in dots:
            return (self.rows,)
        if required:
            weights = ", ".join(p.name for p in PRECISIONS.values() if p.weights is self.weights and p.rows is None)
            expected = f"{weights}, which rounds only weights, or {F32.name}"
            missing = f"no {'tiles' if self.split_sums else 'dot products'} of {self.rows} here"
            raise UnsupportedError(f"option precision: {missing}, got {self.name!r}, expected {expected}")
        return ()


F32 = Precision("f32")
_ROWS = (
    F32, Precision("bf16", bf16, bf16), Precision("bf16amx", bf16, bf16, split_sums=True), Precision("bf16w", bf16),
    Precision("int8", i8, i8), Precision("int4", i4, i8), Precision("int8w", i8, i32), Precision("int4w", i4, i32),
)  # fmt: skip
PRECISIONS = {each.name: each for each in _ROWS}
STEP_PRECISIONS = ("f32", "bf16", "bf16amx")  # for training steps


def precision_of(name: str) -> Precision:
    """Return the precision that an option names. Raises InputError."""
    if name not in PRECISIONS:
        expected = f"one of {', '.join(PRECISIONS)}"
        raise InputError(f"option precision: unknown value, got {name!r}, expected {expected}")
    return PRECISIONS[name]


def round_operands(graph: Graph, precision: Precision, kept: Collection[str] = ()) -> None:
    """Round the operands of products to a precision, by casts there and back; sums stay f32.

    With quantized weights, constant weights are replaced by quantized values and scales, and kernels round the rows.
    kept: the first results of nodes that stay f32. Run this after the passes: they would treat the casts as part of the
    model.
    """
    if precision.weights is None:
        return
    if precision.weights in GROUPS:
        _quantize_matrices(graph, precision.weights, kept)
        eliminate_dead(graph)
        return
    rounding = _Rounding(graph, precision)
    for node in list(graph.nodes):
        if node.outputs[0] in kept:
            continue
        # Expanded to a convolution of channels and moves, through which its result and its filter are rounded.
        if node.op.name == "conv_transpose" and is_fixed(graph, node.operands[1]):
            expand_node(graph, node)
    for node in list(graph.nodes):
        if node.outputs[0] in kept:
            continue
        if node.op.name in _PRODUCTS and rounding.takes(node):
            rounding.round(node)
        elif node.op.name == "conv" and rounding.is_depthwise(node):
            rounding.round_rows(node, 1)
        elif node.op.name == "attention" and rounding.attends(node):
            rounding.round_rows(node, 3)
        elif node.op.name in _RECURRENT and is_fixed(graph, node.operands[1]):
            rounding.round_recurrent(node)
    eliminate_dead(graph)  # moves of values that were rounded before the move


def round_products(graph: Graph, dtype: DType) -> None:
    """Round both operands of all f32 products to a dtype, by casts there and back; sums stay f32.

    Run this after the passes. A state is rounded separately for each product, so that no rounded copy of it stays
    alive. Products with quantized matrices stay unchanged: rounded, the weights would take more bytes.
    """
    rounding = _Rounding(graph, Precision("", dtype, dtype))
    for node in list(graph.nodes):
        if (
            node.op.name == "matmul"
            and graph.type(node.output).dtype is f32
            and not _is_quantized(graph, node.operands[1])
        ):
            rounding.round_rows(node, 2)


def _is_quantized(graph: Graph, value: str | None) -> bool:
    """Return whether a value is decoded from quantized values, possibly moved since."""
    while (producer := graph.producer(value)) is not None and producer.op.name in (*_VIEWS, "concat"):
        value = producer.operands[0]
    return producer is not None and producer.op.name in ("dequantize", "decode_blocks") and is_fixed(graph, value)


def _quantize_matrices(graph: Graph, dtype: DType, kept: Collection[str]) -> None:
    """Quantize the constant matrices of products, and filters; readers of one kind share a quantized weight."""
    built: dict[tuple[str, bool], str] = {}
    for node in list(graph.nodes):
        is_product = node.op.name == "matmul"
        if (not is_product and node.op.name != "conv") or node.outputs[0] in kept:
            continue
        if not multiplies_constant(graph, node) or (stays_f32(graph, node) if is_product else _is_narrow(graph, node)):
            continue
        x, weight, *rest = node.operands
        key = str(weight), is_product and node.transpose_b
        if key not in built:
            built[key] = (_quantized_matrix if is_product else _quantized_filter)(graph, str(weight), node, dtype)
        graph.set_operands(node, [x, built[key], *rest])


def _quantized_matrix(graph: Graph, weight: str, product: Node, dtype: DType) -> str:
    """Return the quantized matrix of a product; its groups are along the summed dim."""
    if product.transpose_b:
        return _as_quantized(graph, weight, product) or quantized(graph, weight, dtype, product)
    rows = graph.add("permute", [weight], f"{weight}.rows", before=product, axes=(1, 0)).output
    quantized_rows = quantized(graph, rows, dtype, product)
    return graph.add("permute", [quantized_rows], f"{weight}.{dtype}.columns", before=product, axes=(1, 0)).output


def _as_quantized(graph: Graph, weight: str, product: Node) -> str | None:
    """Return a matrix that is already quantized in groups, or several stacked ones; None for any other.

    Its scales become f16, as in panels for rounded rows. If a scale exceeds the range of f16, all scales stay, and rows
    stay f32.
    """
    producer = graph.producer(weight)
    is_merged = producer is not None and producer.op.name == "concat" and producer.axis == 0
    decoders = (
        [graph.producer(part) for part in producer.operands] if producer is not None and is_merged else [producer]
    )
    quantizations = [_quantization(graph, decoder) for decoder in decoders]
    if quantizations[0] is None or any(quantization != quantizations[0] for quantization in quantizations):
        return None
    parts = []
    for decoder in decoders:
        assert decoder is not None  # it has a coding
        integers, scale, *zeros = filter(None, decoder.operands)
        if graph.type(scale).dtype is not f16:
            data = known(graph, scale, TOTAL_BYTES)
            if data is None or (narrow := narrowed(data)).dtype != np.float16:
                return weight
            scale = graph.add_weight(graph.fresh(f"{scale}.{f16}"), narrow)
        parts.append((decoder, [integers, scale, *zeros]))
    if all(operands == [*filter(None, decoder.operands)] for decoder, operands in parts):
        return weight
    built = [
        graph.add("dequantize", operands, f"{decoder.output}.{f16}", before=product, **decoder.attributes).output
        for decoder, operands in parts
    ]
    return graph.add("concat", built, f"{weight}.{f16}", before=product, axis=0).output if is_merged else built[0]


def _quantization(graph: Graph, decoder: Node | None) -> tuple[DType, bool, int] | None:
    """Return the quantized dtype that a node decodes, whether it has zero points, and the group size.

    None if panels have no such format.
    """
    if decoder is None or decoder.op.name != "dequantize" or decoder.axis != 1:
        return None
    integers, _, *zeros = filter(None, decoder.operands)
    dtype = graph.type(integers).dtype
    if not decoder.block or decoder.block % GROUP_MULTIPLE or dtype not in (_WITH_ZEROS if zeros else _CENTRED):
        return None
    return dtype, bool(zeros), decoder.block


def _quantized_filter(graph: Graph, filter: str, conv: Node, dtype: DType) -> str:
    """Quantize a filter to 8 bits, whatever the precision of matrices: kernels support no other."""
    return quantized_filter(graph, filter, conv)


def _is_narrow(graph: Graph, conv: Node) -> bool:
    """Return whether a filter stays f32: it has few channels, or groups of channels that are not a multiple of four."""
    out, channels, *kernel = graph.type(str(conv.operands[1])).dims
    is_split = conv.groups > 1 and channels % 4
    return bool(is_split) or min(channels * math.prod(kernel), out // conv.groups) < _FEW_CHANNELS


def stays_f32(graph: Graph, product: Node) -> bool:
    """Return whether a matrix stays f32.

    It does if it is small, if its columns are no multiple of a group, if x is transposed, or if it is a classifier's.

    A classifier's results, one row per sample, are an output after at most biases, activations and softmax.
    """
    dims = graph.type(str(product.operands[1])).dims
    k = dims[1 if product.transpose_b else 0]
    if product.transpose_a or k % GROUP_MULTIPLE or min(dims) < _SMALL:
        return True
    last: Node | None = product
    while last is not None and not graph.is_output(last.output):
        last = graph.only_user(last.output)
        if last is not None and not _is_of_classes(graph, last):
            return False
    return last is not None and graph.type(last.output).rank == 2


def _is_of_classes(graph: Graph, node: Node) -> bool:
    """Return whether a node may follow a classifier: only one of its operands is computed."""
    if sum(not is_fixed(graph, operand) for operand in node.operands) > 1:
        return False
    return node.op.acts_on == "element" or node.op.name in _OF_CLASSES


def _is_moved_matrix(graph: Graph, value: str) -> bool:
    """Return whether a value is constant, possibly moved, as filters of transposed convolutions are."""
    while (producer := graph.producer(value)) is not None and producer.op.name in (*_VIEWS, "pad"):
        value = str(producer.operands[0])
    return is_fixed(graph, value)


def multiplies_constant(graph: Graph, node: Node, is_matrix: Callable[[Graph, str], bool] = is_fixed) -> bool:
    """Return whether a product or convolution multiplies computed rows with a constant f32 weight."""
    x, weight = (graph.values[str(operand)].type for operand in node.operands[:2])
    if not isinstance(weight, TensorType) or weight.dtype is not f32 or not isinstance(x, TensorType):
        return False
    if not is_matrix(graph, str(node.operands[1])) or is_fixed(graph, node.operands[0]):
        return False
    return weight.rank == 2 or node.op.name != "matmul"


class _Rounding:
    def __init__(self, graph: Graph, precision: Precision):
        self.graph = graph
        self.weights, self.rows = precision.weights, precision.rows
        self._rounded_values: dict[tuple[str, DType], str] = {}
        self._narrowed: dict[tuple[str, DType], str] = {}

    def takes(self, node: Node) -> bool:
        """Return whether the operands of a product with a constant weight are rounded."""
        if not multiplies_constant(self.graph, node, _is_moved_matrix):
            return False
        # With an odd number of channels, pairs would cross the end of a pixel's channels: no gain, except for long
        # windows over the planes of a picture.
        _, channels, *kernel = self.graph.type(str(node.operands[1])).dims
        is_picture = self.rows is not None and channels == _PICTURE and channels * math.prod(kernel) >= _LONG
        return node.op.name == "matmul" or channels % _PAIR == 0 or is_picture

    def is_depthwise(self, node: Node) -> bool:
        """Return whether a convolution has a constant filter per channel: rounding pays for its image only."""
        x, weight = (self.graph.values[str(operand)].type for operand in node.operands[:2])
        if self.rows is None or not isinstance(weight, TensorType) or not isinstance(x, TensorType):
            return False
        if x.dtype is not f32 or not is_fixed(self.graph, node.operands[1]) or is_fixed(self.graph, node.operands[0]):
            return False
        return weight.dims[1] == 1 and weight.dims[0] == node.groups > 1

    def attends(self, node: Node) -> bool:
        """Return whether queries, keys and values are rounded: their rows consist of pairs."""
        types = [self.graph.type(str(operand)) for operand in node.operands[:3]]
        width = types[0].shape[-1]
        return self.rows is not None and types[0].dtype is f32 and isinstance(width, int) and width % _PAIR == 0

    def round_rows(self, node: Node, count: int) -> None:
        """Round the first `count` operands of a node to the dtype of rows."""
        assert self.rows is not None
        rounded = [self._rounded(str(operand), self.rows, node) for operand in node.operands[:count]]
        self.graph.set_operands(node, [*rounded, *node.operands[count:]])

    def round_weights(self, node: Node) -> None:
        """Round the second operand of a node if it is f32."""
        x, weight, *rest = node.operands
        if self.weights is not None and self.graph.type(str(weight)).dtype is f32:
            self.graph.set_operands(node, [x, self._rounded(str(weight), self.weights, node), *rest])

    def round_recurrent(self, node: Node) -> None:
        """Round the matrix of a recurrent layer and, if its hidden states consist of pairs, the hidden states.

        Sums, gates and cell states stay f32, and so does the part of a state that a GRU keeps.
        """
        if self.graph.type(str(node.operands[1])).dtype is not f32:
            return
        self.round_weights(node)
        if self.rows is None or self.graph.type(str(node.operands[1])).dims[1] % _PAIR:
            return
        attributes = {**node.attributes, "rounded": True}
        built = self.graph.add(node.op.name, node.operands, node.outputs, before=node, **attributes)
        for old, new in zip(node.outputs, built.outputs, strict=True):
            self.graph.replace_uses(old, new)
        names = node.outputs
        self.graph.remove(node)
        for old, new in zip(names, built.outputs, strict=True):
            self.graph.rename(new, old)

    def round(self, node: Node) -> None:
        """Round the operands of a product."""
        self.round_weights(node)
        if self.rows is not None and self._is_even(node):
            self.round_rows(node, 1)

    def _is_even(self, node: Node) -> bool:
        """Return whether the rows of a product consist of pairs."""
        if node.op.name == "conv":
            return True
        width = self.graph.type(str(node.operands[1])).dims[1 if node.transpose_b else 0]
        return not node.transpose_a and width % _PAIR == 0

    def _rounded(self, value: str, dtype: DType, user: Node) -> str:
        """Return a value rounded to a dtype and cast back to f32, before its first user; unchanged if it already is."""
        producer = self.graph.producer(value)
        if (
            producer is not None
            and producer.op.name == "cast"
            and self.graph.type(str(producer.operands[0])).dtype is dtype
        ):
            return value
        if (value, dtype) not in self._rounded_values or value in self.graph.states:
            there = self._narrow(value, dtype, user)
            back = self.graph.add("cast", [there], f"{value}.{dtype}.f32", before=user, dtype=f32)
            self._rounded_values[value, dtype] = back.output
        return self._rounded_values[value, dtype]

    def _is_move(self, node: Node) -> bool:
        """Return whether rounding may move before a node: the node is a view, or a move that only products read."""
        if node.op.name in _VIEWS:
            return True
        return node.op.name in _MOVES and all(
            user.op.name in (*_PRODUCTS, *_MOVES, "cast") for user in self.graph.users(node.output)
        )

    def _narrow(self, value: str, dtype: DType, user: Node) -> str:
        """Return a value in a dtype, rounded before its moves, so that its producer may write it in that dtype."""
        if (value, dtype) not in self._narrowed or value in self.graph.states:
            producer = self.graph.producer(value)
            if producer is not None and self._is_move(producer) and not is_fixed(self.graph, value):
                sources = [self._narrow(str(operand), dtype, user) for operand in producer.operands]
                moved = self.graph.add(
                    producer.op.name, sources, f"{value}.{dtype}", before=user, **producer.attributes
                )
                self._narrowed[value, dtype] = moved.output
            else:
                cast = self.graph.add("cast", [value], f"{value}.{dtype}", before=user, dtype=dtype)
                self._narrowed[value, dtype] = cast.output
        return self._narrowed[value, dtype]
