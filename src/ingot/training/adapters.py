"""Low-rank adapters (LoRA): a frozen matrix W becomes W x + alpha / r * B (A x) with trainable A [r, k] and B [n, r].

Hu et al., "LoRA", 2021; for quantized matrices Dettmers et al., "QLoRA", 2023. Names, scale and files are those of the
package peft.
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
# Ops that are allowed between a stored matrix and its product.
_PASSED = frozenset(("cast", "permute", "reshape", "dequantize", "decode_blocks", "unpack", "bitcast", "bitwise_xor"))


@dataclass(frozen=True, slots=True)
class Lora:
    """The options of adapters; see `lora`."""

    r: int
    alpha: float
    targets: tuple[str, ...] | None
    seed: int

    @property
    def scale(self) -> float:
        """The factor of an adapter's product."""
        return self.alpha / self.r


def lora(r: int = 8, *, alpha: float | None = None, targets: Sequence[str] | None = None, seed: int = 0) -> Lora:
    """Return options to train adapters instead of a model's weights: `Trainer(trainable=ingot.lora(r=8))`.

    r: the rank. alpha: the adapter's product is scaled by alpha / r; None for 2 r. targets: names, or patterns of
    names, of the matrices that get an adapter; None for all matrices of products, except the one of the logits.
    seed: of the initial values of A; B is initialized with zeros.

    Raises InputError for numbers out of range, and KindError for values of another type.
    """
    expect_whole("lora r", r, 1, MAX_RANK)
    alpha = 2.0 * r if alpha is None else alpha
    expect_positive("lora alpha", alpha)
    expect_whole("lora seed", seed, 0)
    return Lora(int(r), float(alpha), None if targets is None else patterns("lora targets", targets), int(seed))


def patterns(what: str, given: Iterable[str]) -> tuple[str, ...]:
    """Return names, or patterns of names, as a tuple. Raises KindError for another type."""
    found = None if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if found is None or not all(isinstance(pattern, str) for pattern in found):
        raise KindError(f"{what}: not a list of patterns, got {shortened(given)}, expected a list such as ['head.*']")
    return found


@dataclass(frozen=True, slots=True)
class Adapter:
    """The adapter of one matrix. matrix: the weight's name; name: the same without the suffix, such as ".weight".
    transposed: the matrix is stored [k, n].
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
    """Add adapters to products with stored matrices, in place; return the adapters.

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
    """Add A, initialized as in torch.nn.Linear (uniform in +-1 / sqrt(k)), and B, initialized with zeros."""
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
    """Return the stored matrix of a product and whether it is stored [k, n]; None if there is no such matrix."""
    if node.op.name != "matmul" or node.transpose_a or graph.type(str(node.operands[1])).rank != 2:
        return None
    name, is_transposed = str(node.operands[1]), not node.transpose_b
    order: np.ndarray | None = None  # of the stored columns
    while (producer := graph.producer(name)) is not None:
        if producer.op.name == "gather":
            indices = graph.data(producer.operands[1])
            if (
                indices is None
                or producer.axis != 1
                or indices.shape != graph.type(str(producer.operands[0])).shape[1:]
            ):
                return None
            order = indices if order is None else indices[order]
        elif producer.op.name not in _PASSED:
            return None
        is_transposed ^= producer.op.name == "permute"
        name = str(producer.operands[0])
    is_in_order = order is None or np.array_equal(order, np.arange(len(order)))
    return (name, is_transposed) if is_in_order and graph.values[name].kind == "weight" else None


def _heads(graph: Graph) -> set[Node]:
    """Return the products whose results are outputs, directly or after a bias and a cap."""
    found, names = set[Node](), list(graph.outputs.values())
    while names:
        producer = graph.producer(names.pop())
        if producer is None:
            continue
        if producer.op.name == "matmul":
            found.add(producer)
        elif producer.op.name in ("add", "mul", "tanh", "reshape", "permute", "cast"):
            names += [str(operand) for operand in producer.operands]
    return found


def _path(name: str) -> str:
    """Return "layers.0.q" for "layers.0.q.weight", "layers.0.q.weight.codes" and "layers.0.q.qweight"."""
    path, _, last = name.removesuffix(".codes").rpartition(".")
    return path if path and "weight" in last else name


def write_adapters(
    folder: Path, wanted: Lora, adapters: Sequence[Adapter], arrays: Mapping[str, np.ndarray], of: str
) -> None:
    """Write the two files that peft reads into a folder, each atomically; of: the folder of the model.

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
        # One setting for all: if both kinds of modules are adapted, peft checks the class of each module.
        "fan_in_fan_out": all(adapter.transposed for adapter in adapters),
        "bias": "none",
        "inference_mode": True,
    }
    with written(folder / WEIGHTS) as file:
        file.write(save({f"base_model.model.{name}": np.ascontiguousarray(arrays[name]) for name in names}))
    with written(folder / CONFIG) as file:
        file.write(json.dumps(config, indent=2).encode() + b"\n")
