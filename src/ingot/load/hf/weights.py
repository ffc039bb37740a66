"""The weights of a folder under the names of a template; all mismatches are reported together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ingot.errors import LoadError, UnsupportedError
from ingot.ir.dtype import DType, bf16, f8e4m3fn, f16, f32, i8
from ingot.ir.graph import Graph, TensorType
from ingot.load.hf.folder import Folder
from ingot.load.hf.quantization import quantized_tensors
from ingot.load.hf.template import Template
from ingot.load.quantized import GROUPS, quantized
from ingot.ops.blocks import BLOCKS

MIN_BITS = min(dtype.bits for dtype in GROUPS)  # of quantized values
TABLE_BITS = 8  # the minimum for tables and heads: 4 bits lose as much accuracy there as in all other matrices together
_MAX_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Misfit:
    """A mismatch between a template and a tensor of a folder. kind: "missing", "shape" or "unexpected".

    got: its shape in the folder; expected: its shape by the template, whose line is `where`.
    """

    kind: str
    name: str
    got: tuple[int, ...] | None
    expected: tuple[int, ...] | None
    where: str

    def __str__(self) -> str:
        if self.kind == "unexpected" or self.expected is None:
            return f"unexpected {self.name!r}"
        got = f"missing {self.name!r}" if self.got is None else f"shape of {self.name!r}: got {list(self.got)}"
        return f"{got}, expected {list(self.expected)} ({self.where})"


class Weights:
    """Add weights to a graph as f32 values; a missing or mis-shaped weight is recorded and replaced by a
    placeholder.

    A stored dtype other than f32 is followed by a cast, quantized values by dequantization. matrices: the dtype that
    float matrices are rounded to first, if any; for an integer dtype, they are quantized, in groups of each row, which
    is one output. min_bits: the minimum number of bits of a quantized matrix; if no dtype has as many, the matrix
    stays float. Raises LoadError, UnsupportedError for a folder's quantization.
    """

    def __init__(self, graph: Graph, folder: Folder, template: Template, matrices: DType | None):
        self._graph = graph
        self._folder = folder
        self._matrices = matrices
        self._stored: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._problems: list[Misfit] = []
        self._renamed = template.renamed
        self._same: dict[str, str] = {}
        self._quantized = quantized_tensors(graph, folder)
        probe = f"{template.embedding.tokens}.weight"
        self.prefix = next((p for p in template.prefixes if self.has(p + probe)), template.prefixes[0])

    def has(self, name: str) -> bool:
        """Return whether the folder has a weight."""
        return name in self._folder.tensors or self._is_quantized(name)

    def matrix(
        self, name: str, inputs: int, outputs: int, transposed: bool, where: str, *, min_bits: int = MIN_BITS
    ) -> tuple[str, bool]:
        """Return the f32 value of a linear layer's weight, and whether it is [inputs, outputs].

        transposed: whether the stored matrix is [inputs, outputs], unless it is quantized.
        """
        is_transposed = transposed and not self._is_quantized(name) and not self._folder.has_rows_of_outputs
        if is_transposed and (quant := self._qweight(min_bits)):
            return self._transposed(name, (inputs, outputs), where, quant), False
        shape = (inputs, outputs) if is_transposed else (outputs, inputs)
        return self.value(name, shape, where, min_bits=min_bits), is_transposed

    def tie(self, table: str, head: str) -> bool:
        """Use one matrix for the weights `table` and `head`; return False if the folder stores two that differ.

        As transformers does, a head that the folder stores is kept if it differs, and is the table if there is no
        other.
        """
        if not self.has(head):
            return True
        if not self.has(table):
            self._same[table] = head
            return True
        first, second = self._folder.tensors.get(table), self._folder.tensors.get(head)
        return first is not None and second is not None and first.equals(second)

    def value(
        self, name: str, shape: tuple[int, ...], where: str, *, min_bits: int = MIN_BITS, is_exact: bool = False
    ) -> str:
        """Return the f32 value of a weight, built on the first call. where: the line of the template that
        requires it; is_exact: whether it stays as it is stored.
        """
        name = self._found(name)
        if name not in self._values:
            value = self._cast(self._load(name, shape, where), rounds=not is_exact)
            quant = None if is_exact else self._qweight(min_bits)
            if quant and len(shape) == 2 and not self._is_of_quant(value):
                value = quantized(self._graph, value, quant)
            self._values[name] = value
        return self._values[name]

    def first_of(self, names: Sequence[str]) -> str:
        """Return the first of several names that the folder has; the first of all if it has none."""
        return next(filter(self.has, names), names[0])

    def number(self, name: str, where: str) -> str:
        """Return the f32 value of one number, [], which is stored as [] or as [1]."""
        stored = self._folder.tensors.get(name)
        if stored is None or stored.shape != (1,):
            return self.value(name, (), where)
        if f"{name}.number" not in self._values:
            found = self.value(name, (1,), where)
            self._values[f"{name}.number"] = self._graph.add("reshape", [found], f"{name}.number", shape=()).output
        return self._values[f"{name}.number"]

    def rows_of(self, names: Sequence[str], sizes: Sequence[int]) -> list[int]:
        """Return the numbers of rows of weights that are read one below the other, of these sizes.

        Some files are cut elsewhere: if all rows together are as many, those of the folder are returned.
        """
        stored = [self._folder.tensors.get(self._found(name)) for name in names]
        found = [0 if each is None or not each.shape else each.shape[0] for each in stored]
        return found if sum(found) == sum(sizes) else [*sizes]

    def vector(self, name: str, size: int, where: str) -> str:
        """Return the f32 value [size] of a weight that is stored with any axes of size 1, and never rounded."""
        stored = self._folder.tensors.get(name)
        if stored is None or stored.shape == (size,) or [dim for dim in stored.shape if dim != 1] != [size]:
            return self.value(name, (size,), where, is_exact=True)
        if f"{name}.vector" not in self._values:
            found = self.value(name, stored.shape, where, is_exact=True)
            self._values[f"{name}.vector"] = self._graph.add("reshape", [found], f"{name}.vector", shape=(size,)).output
        return self._values[f"{name}.vector"]

    def below(self, names: Sequence[str], shape: tuple[int, int], where: str) -> str:
        """Stack several matrices [rows, columns] as one f32 value: [len(names) * rows, columns].

        If all are stored in one float dtype, the number of nodes is small.
        """
        begin, _, end = names[0].rpartition(".0.")
        together = f"{begin}.{{expert}}.{end}"
        if self.has(together):  # of a GGUF file, or of MLX
            return self.value(together, (len(names) * shape[0], shape[1]), where)
        if any(map(self._is_quantized, names)):
            decoded = [self.value(name, shape, where) for name in names]
            return self._graph.add("concat", decoded, f"{names[0]}.all", axis=0).output
        parts = [self._load(self._found(name), shape, where) for name in names]
        if len({self._graph.type(part).dtype for part in parts}) > 1:
            parts = [self._cast(part) for part in parts]
        value = self._cast(self._graph.add("concat", parts, f"{parts[0]}.all", axis=0).output)
        quant = self._qweight(MIN_BITS)
        return quantized(self._graph, value, quant) if quant else value

    def stack(self, name: str, shape: tuple[int, int, int], where: str, transposed: bool, is_flat: bool) -> str:
        """Return the matrices in one tensor as an f32 value [count, outputs, inputs].

        shape: of the tensor; transposed: whether each matrix is [inputs, outputs]; is_flat: whether the tensor's first
        two dims are one. In a folder whose matrices all have rows of outputs, each is [outputs, inputs], and flat if it
        has two dims.
        """
        count, rows, columns = shape
        if self._folder.has_rows_of_outputs:
            rows, columns = (columns, rows) if transposed else (rows, columns)
            stored = self._folder.tensors.get(name)
            shape, transposed, is_flat = (count, rows, columns), False, stored is not None and len(stored.shape) == 2
        if self._is_quantized(name):
            rows, columns = (columns, rows) if transposed else (rows, columns)
            value = self.value(name, (count * rows, columns), where)
            return self._graph.add("reshape", [value], f"{name}.all", shape=(count, rows, columns)).output
        value = self._load(name, (count * rows, columns) if is_flat else shape, where)
        if transposed:
            value = self._graph.add("reshape", [value], f"{name}.each", shape=shape).output if is_flat else value
            value = self._graph.add("permute", [value], f"{name}.transposed", axes=(0, 2, 1)).output
            rows, columns = columns, rows
        if not is_flat or transposed:
            value = self._graph.add("reshape", [value], f"{name}.below", shape=(count * rows, columns)).output
        value = self._cast(value)
        quant = self._qweight(MIN_BITS)
        value = quantized(self._graph, value, quant) if quant else value
        return self._graph.add("reshape", [value], f"{name}.all", shape=(count, rows, columns)).output

    def _qweight(self, min_bits: int) -> DType | None:
        """Return the dtype that a float matrix is quantized to; None to leave it as it is."""
        if self._matrices is None or self._matrices not in GROUPS:
            return None
        return next((dtype for dtype in (self._matrices, i8) if dtype.bits >= min_bits), None)

    def _transposed(self, name: str, shape: tuple[int, int], where: str, quant: DType) -> str:
        """Quantize a matrix that is stored as [inputs, outputs], as [outputs, inputs]."""
        key = f"{name}.transposed"
        if key not in self._values:
            stored = self._cast(self._load(self._found(name), shape, where))
            permuted = self._graph.add("permute", [stored], key, axes=(1, 0)).output
            self._values[key] = quantized(self._graph, permuted, quant)
        return self._values[key]

    def misfits(self, ignored: Sequence[str]) -> list[Misfit]:
        """Return all missing, mis-shaped and unused tensors; `ignored` are patterns of names."""
        found = list(self._problems)
        for name, stored in self._folder.tensors.items():
            is_used = name in self._stored or (self._quantized is not None and name in self._quantized.used)
            if not is_used and not any(fnmatchcase(name, pattern) for pattern in ignored):
                found.append(Misfit("unexpected", name, stored.shape, None, ""))
        return found

    def finish(self, ignored: Sequence[str]) -> None:
        """Raise LoadError with all mismatches that `misfits` finds."""
        found = [str(each) for each in self.misfits(ignored)]
        if found:
            rest = len(found) - _MAX_SHOWN
            lines = [*found[:_MAX_SHOWN], *([f"and {rest} more"] if rest > 0 else [])]
            raise LoadError(
                f"{self._folder.path}: {len(found)} weights do not fit the template\n  " + "\n  ".join(lines)
            )

    def _is_of_quant(self, value: str) -> bool:
        """Return whether a matrix is already dequantized from stored values, which stay as they are."""
        node = self._graph.producer(value)
        if node is not None and node.op.name == "gather":  # which restores the order of columns
            node = self._graph.producer(node.operands[0])
        if node is None or node.op.name not in ("decode_blocks", "dequantize"):
            return False
        if node.op.name == "decode_blocks":
            return node.type in BLOCKS  # others become floats
        return self._graph.type(str(node.operands[0])).dtype is not f8e4m3fn

    def _is_quantized(self, name: str) -> bool:
        return self._quantized is not None and self._quantized.has(name)

    def _found(self, name: str) -> str:
        """Return the name of a weight in this folder."""
        name = self._same.get(name, name)
        if name in self._folder.tensors or not self._renamed:
            return name
        other = ".".join(self._renamed.get(part, part) for part in name.split("."))
        return other if self.has(other) else name

    def _load(self, name: str, shape: tuple[int, ...], where: str) -> str:
        """Return the weight in its stored dtype, added on the first call."""
        if name not in self._stored:
            self._stored[name] = self._add(name, shape, where)
        return self._stored[name]

    def _add(self, name: str, shape: tuple[int, ...], where: str) -> str:
        if self._quantized is not None and len(shape) == 2 and self._quantized.has(name):
            return self._quantized.value(name, *shape)
        stored = self._folder.tensors.get(name)
        if stored is None or stored.shape != shape:
            kind, got = ("missing", None) if stored is None else ("shape", stored.shape)
            self._problems.append(Misfit(kind, name, got, shape, where))
            return self._graph.add_weight(name, None, TensorType(f32, shape))
        if stored.dtype not in (f32, f16, bf16):
            raise UnsupportedError(f"{stored.path}: weight {name!r} is {stored.dtype}, expected f32, f16 or bf16")
        return stored.add_to(self._graph, name)

    def _cast(self, stored: str, *, rounds: bool = True) -> str:
        """Return the f32 value of one or more weights; matrices are rounded first, if `rounds`."""
        value, type = stored, self._graph.type(stored)
        if rounds and type.rank >= 2 and self._matrices is bf16 and type.dtype is not bf16:
            value = self._graph.add("cast", [value], f"{stored}.{self._matrices}", dtype=self._matrices).output
        if self._graph.type(value).dtype is not f32:
            value = self._graph.add("cast", [value], f"{stored}.f32", dtype=f32).output
        return value
