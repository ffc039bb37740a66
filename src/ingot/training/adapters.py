"""Adapters of low rank beside frozen matrices: W x + alpha / r * B (A x), of which A [r, k] and B [n, r] are trained.

Hu et al., "LoRA", 2021; over matrices of few bits Dettmers et al., "QLoRA", 2023. Names, scale and files are those of
the package peft.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from reprlib import repr as shortened

import numpy as np

from ingot.errors import InputError, KindError
from ingot.ir.graph import Graph, Node
from ingot.support.files import written
from ingot.training.ranges import expect_positive, expect_whole

MAX_RANK = 1024  # of an adapter
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_A, _B = "lora_A.weight", "lora_B.weight"
# What a stored matrix meets before a product.
_PASSED = frozenset(("cast", "permute", "reshape", "dequantize", "decode_blocks", "unpack", "bitcast", "bitwise_xor"))


@dataclass(frozen=True, slots=True)
class Lora:
    """How a model gets adapters; see `lora`."""

    r: int
    alpha: float
    targets: tuple[str, ...] | None
    seed: int

    @property
    def scale(self) -> float:
        """What the product of an adapter is multiplied with."""
        return self.alpha / self.r


def lora(r: int = 8, *, alpha: float | None = None, targets: Sequence[str] | None = None, seed: int = 0) -> Lora:
    """Adapters to train in the place of a model's own weights: `Trainer(trainable=ingot.lora(r=8))`.

    r: the rank. alpha: r times what their product is multiplied with; None for 2 r. targets: names, or patterns of
    names, of the matrices that get one; None for all that rows are multiplied with, but for what makes the logits.
    seed: of the numbers that A begins with; B begins with zeros.

    Raises InputError for numbers out of range, and KindError for what is no number and no list of names.
    """
    expect_whole("lora r", r, 1, MAX_RANK)
    alpha = 2.0 * r if alpha is None else alpha
    expect_positive("lora alpha", alpha)
    expect_whole("lora seed", seed, 0)
    return Lora(int(r), float(alpha), None if targets is None else patterns("lora targets", targets), int(seed))


def patterns(what: str, given: Iterable[str]) -> tuple[str, ...]:
    """Names, or patterns of names. Raises KindError for what is no list of such."""
    found = None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if found is None or not all(isinstance(pattern, str) for pattern in found):
        raise KindError(f"{what}: a list of patterns is needed, got {shortened(given)}, expected such as ['head.*']")
    return found


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapter of one matrix. matrix: the weight's name; name: that without what it ends in. transposed: the matrix
    is stored [k, n].
    """

    name: str
    matrix: str
    transposed: bool

    @property
    def a(self) -> str:
        """The name of A."""
        return f"{self.name}.{_A}"

    @property
    def b(self) -> str:
        """The name of B."""
        return f"{self.name}.{_B}"


def adapt(graph: Graph, wanted: Lora) -> list[Adapter]:
    """Gives products with stored matrices adapters, in place, and names these.

    Raises InputError for a pattern that matches no such matrix.
    """
    following = dict(pairwise([*graph.nodes, None]))
    products = {node: source for node in graph.nodes if (source := _matrix_of(graph, node))}
    heads = _heads(graph)
    names = [name for node, (name, _) in products.items() if node not in heads]
    if wanted.targets is not None:
        names = [name for name, _ in products.values()]
        for pattern in wanted.targets:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise InputError(f"lora targets: no such matrix, got {pattern!r}, expected some of {names[:20]}")
        names = [name for name in names if any(fnmatchcase(name, pattern) for pattern in wanted.targets)]
    if not names:
        raise InputError(f"lora: nothing to train, got a graph {graph.name!r} without products of stored matrices")
    chosen, adapters = set(names), dict[str, Adapter]()
    rng = np.random.default_rng(wanted.seed)
    for node, (name, is_transposed) in products.items():
        if name not in chosen:
            continue
        adapter = adapters.get(name)
        if adapter is None:
            adapter = adapters[name] = Adapter(_path(name), name, is_transposed)
            _add_factors(graph, node, adapter, wanted.r, rng)
        _add_product(graph, node, following[node], adapter, wanted.scale)
    return list(adapters.values())


def _add_factors(graph: Graph, node: Node, adapter: Adapter, r: int, rng: np.random.Generator) -> None:
    """A as torch.nn.Linear begins, uniform up to 1 / sqrt(k), and B of zeros."""
    k, n = graph.type(str(node.operands[0])).dims[-1], graph.type(node.output).dims[-1]
    bound = k**-0.5
    graph.add_weight(adapter.a, rng.uniform(-bound, bound, (r, k)).astype(np.float32))
    graph.add_weight(adapter.b, np.zeros((n, r), np.float32))


def _add_product(graph: Graph, node: Node, before: Node | None, adapter: Adapter, scale: float) -> None:
    down = graph.add("matmul", [node.operands[0], adapter.a], f"{adapter.name}.down", before=before, transpose_b=True)
    up = graph.add(
        "matmul", [down.output, adapter.b], f"{adapter.name}.up", before=before, transpose_b=True, scale=scale
    )
    result = node.output
    added = graph.add("add", [result, up.output], f"{adapter.name}.adapted", before=before)
    graph.replace_uses(result, added.output)
    graph.set_operands(added, [result, up.output])


def _matrix_of(graph: Graph, node: Node) -> tuple[str, bool] | None:
    """The stored matrix that a node multiplies rows with, and whether it is stored [k, n]; None where there is none."""
    if node.op.name != "matmul" or node.transpose_a or graph.type(str(node.operands[1])).rank != 2:
        return None
    name, is_transposed = str(node.operands[1]), not node.transpose_b
    order: np.ndarray | None = None  # of its columns there
    while (maker := graph.producer(name)) is not None:
        if maker.op.name == "gather":
            indices = graph.data(maker.operands[1])
            if indices is None or maker.axis != 1 or indices.shape != graph.type(str(maker.operands[0])).shape[1:]:
                return None
            order = indices if order is None else indices[order]
        elif maker.op.name not in _PASSED:
            return None
        is_transposed ^= maker.op.name == "permute"
        name = str(maker.operands[0])
    is_in_order = order is None or np.array_equal(order, np.arange(len(order)))
    return (name, is_transposed) if is_in_order and graph.values[name].kind == "weight" else None


def _heads(graph: Graph) -> set[Node]:
    """The products whose results are an output, as they are or after a bias and a cap."""
    found, names = set[Node](), list(graph.outputs.values())
    while names:
        maker = graph.producer(names.pop())
        if maker is None:
            continue
        if maker.op.name == "matmul":
            found.add(maker)
        elif maker.op.name in ("add", "mul", "tanh", "reshape", "permute", "cast"):
            names += [str(operand) for operand in maker.operands]
    return found


def _path(name: str) -> str:
    """`layers.0.q` of "layers.0.q.weight", "layers.0.q.weight.codes" and "layers.0.q.qweight"."""
    path, _, last = name.removesuffix(".codes").rpartition(".")
    return path if path and "weight" in last else name


def write_adapters(
    folder: Path, wanted: Lora, adapters: Sequence[Adapter], arrays: Mapping[str, np.ndarray], of: str
) -> None:
    """Writes the two files that peft reads into a folder, each whole or not at all; of: the folder of the model.

    Raises OutputError.
    """
    from safetensors.numpy import save

    names = [name for adapter in adapters for name in (adapter.a, adapter.b)]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": of,
        "r": wanted.r,
        "lora_alpha": wanted.alpha,
        "target_modules": [adapter.name for adapter in adapters],
        # One for all: where modules of both kinds are adapted, peft goes by the class of each.
        "fan_in_fan_out": all(adapter.transposed for adapter in adapters),
        "bias": "none",
        "inference_mode": True,
    }
    with written(folder / WEIGHTS) as file:
        file.write(save({f"base_model.model.{name}": np.ascontiguousarray(arrays[name]) for name in names}))
    with written(folder / CONFIG) as file:
        file.write(json.dumps(config, indent=2).encode() + b"\n")
