"""Tensors of a GGUF file under their names in templates, decoded by ops of the graph."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ingot.errors import LoadError, UnsupportedError
from ingot.ir.dtype import DTYPES, f32
from ingot.ir.graph import Graph
from ingot.load.gguf.architecture import Target
from ingot.load.gguf.config import Values
from ingot.load.gguf.file import DECODED, SIZES, GgufFile, GgufTensor
from ingot.load.gguf.joined import join
from ingot.load.gguf.rewritten import REWRITTEN
from ingot.load.gguf.rope import ROPE_TENSORS
from ingot.load.hf.expression import Expression
from ingot.load.hf.safetensors import StoredTensor, listed
from ingot.load.hf.settings import MAX_SIZE
from ingot.load.hf.strict_json import shown
from ingot.ops.blocks import ALL_BLOCKS, BLOCKS, FLOAT_BLOCKS, decode_blocks
from ingot.support.files import release

_PIECE_BYTES = 1 << 20  # of blocks that are decoded at a time to inspect their elements
_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,4})\.([a-z0-9_.]+)")
_OF_EXPERT = re.compile(r"([a-z_]+)\.(0|[1-9]\d{0,4})")  # the matrix of one expert, in older files


@dataclass(frozen=True, slots=True, eq=False)
class BlockTensor(StoredTensor):
    """A tensor of f32, bf16, f16 or of blocks, which are decoded to f32.

    type: the name of its GGUF type. order: None, or (outer, i, j) for rows that are stored as [outer, i, j, rest], and
    are [outer, j, i, rest] in the template.
    """

    type: str
    order: tuple[int, int, int] | None

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        elements, nbytes = SIZES[self.type]
        return math.prod(self.shape) // elements * nbytes

    @property
    def is_quantized(self) -> bool:
        """Whether the tensor is stored in quantized blocks that kernels read."""
        return self.read_type in BLOCKS

    @property
    def becomes_floats(self) -> bool:
        """Whether the tensor is stored in blocks that no kernel reads."""
        return self.type in FLOAT_BLOCKS

    def add_to(self, graph: Graph, name: str) -> str:
        """Add the elements to a graph, with rows reordered: a weight, or the decoded value of blocks."""
        if self.read_type not in ALL_BLOCKS:
            return self._in_order(graph, graph.add_weight(name, self.array()))
        blocks = self._in_order(graph, graph.add_weight(name, self._blocks()))
        return graph.add("decode_blocks", [blocks], f"{name}.decoded", type=self.read_type, dtype=f32).output

    def pieces(self) -> Iterator[np.ndarray]:
        """Yield the elements, some megabytes at a time; blocks are decoded."""
        if self.read_type not in ALL_BLOCKS:
            yield from super(BlockTensor, self).pieces()
            return
        rows = self._blocks()
        flat = rows.reshape(-1, rows.shape[-1])
        step = max(1, _PIECE_BYTES // max(1, rows.shape[-1]))
        for row in range(0, len(flat), step):
            yield decode_blocks(flat[row : row + step], type=self.read_type, dtype=f32).reshape(-1)
            if self.type not in REWRITTEN:
                release(flat[row : row + step])

    @property
    def read_type(self) -> str:
        """The type as which it is read: f32, f16, bf16 or a type of blocks."""
        return REWRITTEN[self.type].type if self.type in REWRITTEN else self.type

    def _blocks(self) -> np.ndarray:
        """Return the blocks as u8 [..., bytes], a view of the mapped file; or what they are rewritten to."""
        elements, nbytes = SIZES[self.type]
        shape = (*self.shape[:-1], self.shape[-1] // elements * nbytes)
        if not self.nbytes:
            return np.empty(shape, np.uint8)
        blocks = np.frombuffer(self.content, np.uint8, self.nbytes, self.offset)
        if self.type not in REWRITTEN:
            return blocks.reshape(shape)
        return REWRITTEN[self.type].rewrite(blocks.reshape(-1, nbytes)).reshape(*self.shape[:-1], -1)

    def _in_order(self, graph: Graph, stored: str) -> str:
        if self.order is None:
            return stored
        rows, *rest = graph.type(stored).dims
        left = rows // math.prod(self.order)
        shape = (*self.order, *([left] if left > 1 else []), *rest)
        axes = (0, 2, 1, *range(3, len(shape)))
        found = graph.add("reshape", [stored], f"{stored}.pairs", shape=shape).output
        found = graph.add("permute", [found], f"{stored}.halves", axes=axes).output
        return graph.add("reshape", [found], f"{stored}.ordered", shape=(rows, *rest)).output


def tensors_of(file: GgufFile, values: Values) -> dict[str, StoredTensor]:
    """Return the tensors of a language model by their names in templates, without those of rotary angles.

    values: of the names of its architecture. Raises UnsupportedError for types that no op decodes, LoadError for
    duplicate names and shapes that do not fit.
    """
    layout = _Layout(file, values)
    tensors: dict[str, StoredTensor] = {}
    unsupported: list[str] = []
    for tensor in file.tensors.values():
        if tensor.name in ROPE_TENSORS:
            continue
        if tensor.type not in DECODED:
            unsupported.append(f"tensor {shown(tensor.name)} is {tensor.type}")
            continue
        for name, stored in layout.placed(tensor):
            if name in tensors:
                both = f"{shown(tensors[name].name)} and {shown(tensor.name)}"
                raise LoadError(f"{file.path}: tensors {both} mean the same")
            tensors[name] = stored
    if unsupported:
        raise UnsupportedError(f"{file.path}: {listed(unsupported)}; types are {', '.join(DECODED)}")
    return tensors | layout.joined() | layout.values()


class _Layout:
    """The mapping of a file's tensors to weights of the template, by the data of its architecture."""

    def __init__(self, file: GgufFile, values: Values):
        self._file, self._names, self._architecture = file, values.names, values.architecture
        self._parts: dict[tuple[str, str], BlockTensor] = {}  # of joined weights, by layer and name in it
        self._joined = {part.tensor for joined in self._architecture.joined for part in joined.parts}

    def placed(self, tensor: GgufTensor) -> list[tuple[str, BlockTensor]]:
        """Return a tensor with its name in the template, or with its own if the architecture does not have it.

        There are several for a tensor that is several weights, and none for a part of a joined weight, which is kept,
        and for layers that predict later tokens, which are not read.
        """
        found = _LAYER.fullmatch(tensor.name)
        layer, rest = (None, tensor.name) if found is None else (int(found[1]), found[2])
        first = self._names["layers"]
        if layer is not None and first <= layer < first + self._names["predicting"]:
            return []
        if layer is not None and rest in self._joined:
            self._parts[str(layer), rest] = self._stored(tensor, None, layer)
            return []
        targets = self._architecture.tensors if layer is None else self._architecture.layer_tensors
        (target, end), expert = _target(targets, rest), ""
        numbered = _OF_EXPERT.fullmatch(rest.rpartition(".")[0])
        if target is None and numbered is not None:
            target, end = _target(targets, f"{numbered[1]}_exps.{rest.rpartition('.')[2]}")
            expert = numbered[2]
        if target is None:
            return [(tensor.name, self._stored(tensor, None, None))]
        names = self._names if layer is None else self._names | {"layer": layer}
        is_first = target.when is None or target.when.evaluate(names)
        name = f"{'' if layer is None else self._path(str(layer))}{target.name if is_first else target.other}{end}"
        if expert:
            name = name.replace("{expert}", expert)
        stored = self._stored(tensor, target, layer)
        if "{part}" not in name:
            return [(name, stored)]
        return [(name.replace("{part}", str(i)), part) for i, part in enumerate(_apart(stored))]

    def joined(self) -> dict[str, StoredTensor]:
        """Return the weights whose parts the file has, by their names in the template. Raises LoadError."""
        found: dict[str, StoredTensor] = {}
        for layer in dict.fromkeys(layer for layer, _ in self._parts):
            for joined in self._architecture.joined:
                stored = [self._parts.get((layer, part.tensor)) for part in joined.parts]
                there = [each for each in stored if each is not None]
                if not there:
                    continue
                if len(there) < len(stored):
                    missing = joined.parts[stored.index(None)].tensor
                    raise LoadError(
                        f"{self._file.path}: no tensor 'blk.{layer}.{missing}', expected one for {joined.name}"
                    )
                found[f"{self._path(layer)}{joined.name}"] = join(there, [part.is_transposed for part in joined.parts])
        return found

    def values(self) -> dict[str, StoredTensor]:
        """Return the weights of one number that the metadata have, by their names in the template."""
        found: dict[str, StoredTensor] = {}
        for name, expression in self._architecture.layer_values.items():
            for layer in range(self._names["layers"]):
                number = np.array([expression.number(self._names | {"layer": layer})], np.float32)
                full = f"{self._path(str(layer))}{name}"
                found[full] = StoredTensor(full, f32, (1,), self._file.path, 0, number.tobytes())
        return found

    def _path(self, layer: str) -> str:
        return self._architecture.layer.replace("{layer}", layer)

    def _stored(self, tensor: GgufTensor, target: Target | None, layer: int | None) -> BlockTensor:
        file, read = self._file, REWRITTEN[tensor.type].type if tensor.type in REWRITTEN else tensor.type
        shape = tensor.shape
        order: tuple[int, int, int] | None = None
        if target is not None:
            names = self._names | {"layer": layer} if layer is not None else self._names
            if target.swap and shape:
                outer, first, second = self._fitted(tensor, target.swap, names, shape[0])
                order = outer, first, second
            if target.shape:
                shape = self._fitted(tensor, target.shape, names, math.prod(shape))
                is_cut = read in ALL_BLOCKS and shape[-1] != tensor.shape[-1]  # across blocks
                if is_cut or math.prod(shape) != math.prod(tensor.shape):
                    raise self._misfit(tensor, list(shape))
            elif "{expert}" in target.name and len(shape) == 3:  # the matrices of experts, one below the other
                shape = (shape[0] * shape[1], shape[2])
        dtype = DTYPES.get(read, f32)
        return BlockTensor(tensor.name, dtype, shape, file.path, tensor.offset, tensor.content, tensor.type, order)

    def _fitted(
        self, tensor: GgufTensor, numbers: Sequence[Expression], names: Mapping[str, Any], size: int
    ) -> tuple[int, ...]:
        """Return numbers whose product divides a size; one of them may be -1, what the others leave of the size."""
        found = [number.integer(names, -1, MAX_SIZE) for number in numbers]
        known = math.prod(number for number in found if number != -1)
        fitted = tuple(size // known if number == -1 else number for number in found) if known else ()
        if not fitted or not math.prod(fitted) or size % math.prod(fitted):
            raise self._misfit(tensor, found)
        return fitted

    def _misfit(self, tensor: GgufTensor, expected: list[int]) -> LoadError:
        got = f"got {list(tensor.shape)}, expected rows of {expected}"
        return LoadError(f"{self._file.path}: tensor {shown(tensor.name)}: {got}")


def _apart(tensor: BlockTensor) -> list[BlockTensor]:
    """Return the parts of a tensor along its first dim."""
    count, *shape = tensor.shape
    each = tensor.nbytes // count if count else 0
    return [replace(tensor, shape=tuple(shape), offset=tensor.offset + i * each) for i in range(count)]


def _target(targets: Mapping[str, Target], name: str) -> tuple[Target | None, str]:
    """Return the target of a name, and what follows it in the template: nothing, or `.weight` or `.bias`."""
    if name in targets:
        return targets[name], ""
    stem, dot, last = name.rpartition(".")
    return (targets[stem], f"{dot}{last}") if stem in targets and last in ("weight", "bias") else (None, "")
