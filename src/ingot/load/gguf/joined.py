"""Weights whose rows are in several tensors of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ingot.errors import LoadError
from ingot.ir.dtype import f32
from ingot.ir.graph import Graph
from ingot.load.hf.safetensors import StoredTensor
from ingot.load.hf.strict_json import shown
from ingot.ops.blocks import ALL_BLOCKS


@dataclass(frozen=True, slots=True, eq=False)
class JoinedTensor(StoredTensor):
    """The rows of several tensors: of matrices, or with a third dim, which comes first, of one matrix for each of it.

    transposed: for each part, whether its matrices are stored transposed.
    """

    parts: tuple[StoredTensor, ...]
    transposed: tuple[bool, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return sum(part.nbytes for part in self.parts)

    @property
    def is_quantized(self) -> bool:
        """True if all parts are in blocks of one type that has kernels: the joined weight keeps these blocks."""
        return self._is_of_blocks and all(part.is_quantized for part in self.parts)

    @property
    def becomes_floats(self) -> bool:
        """True if a part is stored in blocks and the joined weight is not, so that the part must be decoded."""
        return any(part.is_quantized or part.becomes_floats for part in self.parts) and not self.is_quantized

    def add_to(self, graph: Graph, name: str) -> str:
        """Add the elements to a graph, as one value of all rows."""
        added = [part.add_to(graph, f"{name}.part{i}") for i, part in enumerate(self.parts)]
        if self._is_of_blocks:
            nodes = [graph.producer(value) for value in added]
            stored = [str(node.operands[0]) for node in nodes if node is not None]
            rows = self._together(graph, name, stored)
            return graph.add(
                "decode_blocks", [rows], f"{name}.decoded", type=_block_type(self.parts[0]), dtype=f32
            ).output
        if len({graph.type(value).dtype for value in added}) > 1:
            added = [
                value
                if graph.type(value).dtype is f32
                else graph.add("cast", [value], f"{value}.f32", dtype=f32).output
                for value in added
            ]
        return self._together(graph, name, added)

    def array(self) -> np.ndarray:
        """Return the elements, if no part is in blocks."""
        found = []
        for part, is_transposed in zip(self.parts, self.transposed, strict=True):
            rows = part.array().reshape(self._outer, -1, part.shape[-1])
            found.append(rows.swapaxes(1, 2) if is_transposed else rows)
        return np.concatenate(found, 1).reshape(self.shape)

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the elements, part by part."""
        for part in self.parts:
            yield from part.pieces()

    @property
    def _outer(self) -> int:
        first = self.parts[0].shape
        return first[0] if len(first) == 3 else 1

    @property
    def _is_of_blocks(self) -> bool:
        types = {_block_type(part) for part in self.parts}
        return len(types) == 1 and types != {""} and not any(self.transposed)

    def _together(self, graph: Graph, name: str, values: Sequence[str]) -> str:
        """Return the rows of values, each [outer, rows, columns] or [rows, columns], as [all rows, columns]."""
        found = []
        for value, is_transposed in zip(values, self.transposed, strict=True):
            rows, columns = graph.type(value).dims[-2:]
            value = graph.add("reshape", [value], f"{value}.each", shape=(self._outer, rows, columns)).output
            if is_transposed:
                value = graph.add("permute", [value], f"{value}.transposed", axes=(0, 2, 1)).output
            found.append(value)
        joined = graph.add("concat", found, f"{name}.joined", axis=1).output
        outer, rows, columns = graph.type(joined).dims
        return graph.add("reshape", [joined], f"{name}.rows", shape=(outer * rows, columns)).output


def _block_type(part: StoredTensor) -> str:
    """Return the type of the blocks that a tensor is read as; empty for floats."""
    type = getattr(part, "read_type", "")
    return type if type in ALL_BLOCKS else ""


def join(parts: Sequence[StoredTensor], transposed: Sequence[bool]) -> JoinedTensor:
    """Return the rows of several tensors as one. Raises LoadError for shapes that do not fit together."""
    shapes = []
    for part, is_transposed in zip(parts, transposed, strict=True):
        if len(part.shape) not in (2, 3):
            raise LoadError(
                f"{part.path}: tensor {shown(part.name)}: got {list(part.shape)}, expected two or three dims"
            )
        *outer, rows, columns = part.shape
        shapes.append((math.prod(outer), columns, rows) if is_transposed else (math.prod(outer), rows, columns))
    if len({(outer, columns) for outer, _, columns in shapes}) > 1:
        names = ", ".join(shown(part.name) for part in parts)
        raise LoadError(f"{parts[0].path}: tensors {names}: got {shapes}, expected the same number of columns")
    count, _, width = shapes[0]
    shape = (count * sum(rows for _, rows, _ in shapes), width)
    first = parts[0]
    dtype = first.dtype if len({part.dtype for part in parts}) == 1 else f32
    return JoinedTensor(
        first.name, dtype, shape, first.path, first.offset, first.content, tuple(parts), tuple(transposed)
    )
