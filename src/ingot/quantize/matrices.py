"""The matrices of a model folder that can be quantized, and the plan of their formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ingot.errors import InputError
from ingot.ir.graph import Graph, Node
from ingot.load.hf import Folder, LanguageModel
from ingot.load.hf.quantized import GROUPS
from ingot.quantize.weights import Coding

FORMATS = ("int8", "int4")
KEEP = "keep"
# Ops that are allowed between a weight and the product or gather that reads it.
_PASSED = frozenset(("cast", "concat", "permute", "reshape"))
_SCORES = ("softmax", "sigmoid", "add", "reshape", "where", "sub")  # ops of a router between its product and its topk


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight [n, k] with a row for each output; transposed: it is stored [k, n].

    is_vocabulary: it has a row for each token. input: the value that is multiplied with it; None if it is gathered.
    """

    name: str
    n: int
    k: int
    transposed: bool
    is_vocabulary: bool
    input: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """The formats of matrices; the fields are options of `ingot quantize`.

    format: of linear layers, int8 or int4. group: columns per scale; None for 32 with int4 (a matrix whose columns 32
    does not divide becomes int8), and the full row with int8.
    zero_points: int4 has a zero point per group. vocabulary: the format of the embedding and the logits, or keep. int8,
    keep: patterns of names of matrices that are stored as int8, or unchanged.
    """

    format: str
    group: int | None = None
    zero_points: bool = False
    vocabulary: str = "int8"
    int8: Sequence[str] = ()
    keep: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Raise InputError for an unknown format, vocabulary or group."""
        for name, value, known in (
            ("format", self.format, FORMATS),
            ("vocabulary", self.vocabulary, (*FORMATS, KEEP)),
            ("group", self.group, (None, *GROUPS)),
        ):
            if value not in known:
                expected = " or ".join(str(each) for each in known if each)
                raise InputError(f"option {name}: unknown value, got {value!r}, expected {expected}")

    def coding(self, matrix: Matrix) -> Coding | None:
        """Return a matrix's format; None if it stays unchanged. Raises InputError if the group does not divide k."""
        format = self._format(matrix)
        if format == KEEP:
            return None
        bits = 4 if format == "int4" and not self.is_widened(matrix) else 8
        group = self.group or 32 if bits == 4 else self.group or 0
        if group and matrix.k % group:
            fitting = ", ".join(str(each) for each in GROUPS if matrix.k % each == 0) or "another format"
            raise InputError(
                f"option group: does not divide the {matrix.k} columns of {matrix.name!r}, got {group},"
                f" expected {fitting}, or --keep for this matrix"
            )
        return Coding(bits, group, self.zero_points and bits == 4)

    def is_widened(self, matrix: Matrix) -> bool:
        """Return whether a matrix becomes int8 in place of int4, because no group was given and 32 divides no row."""
        return self._format(matrix) == "int4" and self.group is None and matrix.k % GROUPS[0] != 0

    def _format(self, matrix: Matrix) -> str:
        for format, patterns in ((KEEP, self.keep), ("int8", self.int8)):
            if any(fnmatchcase(matrix.name, pattern) for pattern in patterns):
                return format
        return self.vocabulary if matrix.is_vocabulary else self.format


def matrices_of(folder: Folder, model: LanguageModel) -> Mapping[str, Matrix]:
    """Return the matrices of a model's products and its embedding, by name, in the order of the folder's tensors.

    Routers of experts and tables of positions and token types are left out: they are small and sensitive to errors.
    """
    graph, found = model.graph, dict[str, Matrix]()
    for name, tensor in folder.tensors.items():
        if name not in graph.values or len(tensor.shape) != 2 or tensor.dtype.kind != "f":
            continue
        uses = list(_uses(graph, name))
        readers = [node for node, _ in uses]
        transposed = any(is_transposed for _, is_transposed in uses)
        n, k = tensor.shape[::-1] if transposed else tensor.shape
        products = [node for node in readers if node.op.name in ("matmul", "expert_matmul")]
        is_vocabulary = n == model.vocab_size and not transposed
        if any(_routes(graph, node) for node in products) or not (products or is_vocabulary):
            continue
        is_table = any(node.op.name == "gather" for node in readers)
        input = products[0].operands[0] if products and not is_table else None
        found[name] = Matrix(name, n, k, transposed, is_vocabulary, input)
    return found


def _uses(graph: Graph, name: str, is_transposed: bool = False) -> Iterator[tuple[Node, bool]]:
    """Yield each node that reads a matrix, and whether the matrix's columns are the outputs of that node."""
    for node in graph.users(name):
        if node.op.name in _PASSED:
            yield from _uses(graph, node.output, is_transposed ^ (node.op.name == "permute"))
        else:
            yield node, (is_transposed if node.op.name != "matmul" else not node.transpose_b)


def _routes(graph: Graph, product: Node) -> bool:
    """Return whether a product is a router: its result goes to a topk, as scores or after ops of _SCORES."""
    waiting, seen = [product.output], {product.output}
    while waiting:
        for node in graph.users(waiting.pop()):
            if node.op.name == "topk":
                return True
            if node.op.name in _SCORES and node.output not in seen:
                seen.add(node.output)
                waiting.append(node.output)
    return False
