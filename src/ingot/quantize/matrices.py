"""Which weights of a model folder are matrices of products, and how each of them is to be stored."""

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
# What a weight meets before the op that multiplies with it or takes its rows.
_PASSED = frozenset(("cast", "concat", "permute", "reshape"))


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight by its name: [n, k], a row for each output, or the other way round in the file where it is transposed.

    is_vocabulary: a row for each token. input: the value that it is multiplied with; None where its rows are taken.
    """

    name: str
    n: int
    k: int
    transposed: bool
    is_vocabulary: bool
    input: str | None


@dataclass(frozen=True, slots=True)
class Plan:
    """How matrices are stored, in the words of the command.

    format: of linear layers, int8 or int4. group: columns that share a scale; None for 32 in int4, and all in int8.
    zero_points: int4 codes are counted from one for each group. vocabulary: the format of the embedding and the logits,
    or keep. int8, keep: patterns of names that are stored so whatever they are.
    """

    format: str
    group: int | None = None
    zero_points: bool = False
    vocabulary: str = "int8"
    int8: Sequence[str] = ()
    keep: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Raises InputError."""
        for name, value, known in (
            ("format", self.format, FORMATS),
            ("vocabulary", self.vocabulary, (*FORMATS, KEEP)),
            ("group", self.group, (None, *GROUPS)),
        ):
            if value not in known:
                expected = " or ".join(str(each) for each in known if each)
                raise InputError(f"option {name}: unknown value, got {value!r}, expected {expected}")

    def coding(self, matrix: Matrix) -> Coding | None:
        """How a matrix is stored; None for as it is. Raises InputError for a group that does not divide its columns."""
        format = self._format(matrix)
        if format == KEEP:
            return None
        bits = 4 if format == "int4" else 8
        group = self.group or 32 if bits == 4 else self.group or 0
        if group and matrix.k % group:
            fitting = ", ".join(str(each) for each in GROUPS if matrix.k % each == 0) or "another format"
            raise InputError(
                f"option group: does not divide the {matrix.k} columns of {matrix.name!r}, got {group},"
                f" expected {fitting}, or to keep that matrix"
            )
        return Coding(bits, group, self.zero_points and bits == 4)

    def _format(self, matrix: Matrix) -> str:
        for format, patterns in ((KEEP, self.keep), ("int8", self.int8)):
            if any(fnmatchcase(matrix.name, pattern) for pattern in patterns):
                return format
        return self.vocabulary if matrix.is_vocabulary else self.format


def matrices_of(folder: Folder, model: LanguageModel) -> Mapping[str, Matrix]:
    """The matrices that a model's products and its embedding read, by name, in the order of the model.

    Left out are what routes rows to experts, and tables of positions and types: little memory, and much to lose.
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
    """Each node that reads a matrix, and whether it is the matrix's columns that are outputs there."""
    for node in graph.users(name):
        if node.op.name in _PASSED:
            yield from _uses(graph, node.output, is_transposed ^ (node.op.name == "permute"))
        else:
            yield node, (is_transposed if node.op.name != "matmul" else not node.transpose_b)


def _routes(graph: Graph, product: Node) -> bool:
    """Whether a product's results are shares of which the largest are chosen."""
    shares = [node for node in graph.users(product.output) if node.op.name == "softmax"]
    return any(user.op.name == "topk" for node in shares for user in graph.users(node.output))
