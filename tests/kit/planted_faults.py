"""Faults that are planted in a graph or a program, each with the node that a comparison must name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ingot.compile import Compiled, compile_mode
from ingot.inspect.comparison.prepared import Prepared, executed_side
from ingot.inspect.comparison.sides import Planned
from ingot.ir.dtype import f32, from_numpy, i8
from ingot.ir.graph import Graph, Node, TensorType
from ingot.lower.lowered import Pointer
from ingot.passes import optimize
from ingot.passes.precision import F32
from ingot.session.source import target_of

RNG = np.random.default_rng(45)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: `plant` changes the graph after the passes, or `break_program` the compiled program.

    build: returns the sound graph and its feeds. node: the value that a comparison must name.
    """

    name: str
    build: Callable[[], tuple[Graph, dict[str, np.ndarray]]]
    node: str
    plant: Callable[[Graph], None] = lambda graph: None
    break_program: Callable[[Compiled], None] = lambda compiled: None

    def __str__(self) -> str:
        return self.name


def _floats(*shape: int) -> np.ndarray:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def _graph(**inputs: np.ndarray) -> tuple[Graph, dict[str, np.ndarray]]:
    graph = Graph("planted")
    for name, array in inputs.items():
        graph.add_input(name, TensorType(from_numpy(array.dtype), array.shape))
    return graph, dict(inputs)


def _node(graph: Graph, name: str) -> Node:
    node = graph.producer(name)
    assert node is not None
    return node


def mlp() -> tuple[Graph, dict[str, np.ndarray]]:
    """A gated block with a residual: products, gate, norm, softmax."""
    graph, feeds = _graph(x=_floats(4, 32))
    weights = {name: graph.add_weight(name, _floats(32, 32) / 4) for name in ("w_gate", "w_up", "w_down")}
    graph.add_weight("norm.weight", 1 + _floats(32) / 2)
    graph.add_weight("bias", _floats(32))
    graph.add("layer_norm", ["x", "norm.weight", "bias"], "normed", eps=0.05)
    graph.add("matmul", ["normed", weights["w_gate"]], "gate")
    graph.add("silu", ["gate"], "gated")
    graph.add("matmul", ["normed", weights["w_up"]], "up")
    graph.add("mul", ["gated", "up"], "product")
    graph.add("matmul", ["product", weights["w_down"]], "down")
    graph.add("add", ["down", "x"], "residual")
    graph.add("softmax", ["residual"], "probabilities", axis=1)
    graph.set_output("y", "probabilities")
    return graph, feeds


def attention() -> tuple[Graph, dict[str, np.ndarray]]:
    """Rotated queries and keys, and causal attention."""
    graph, feeds = _graph(q=_floats(1, 2, 6, 8), k=_floats(1, 2, 6, 8) * 2, v=_floats(1, 2, 6, 8))
    angles = np.outer(np.arange(6), 0.7 ** np.arange(4))
    angles = np.concatenate([angles, angles], 1)
    graph.add_constant("cos", np.cos(angles).astype(np.float32))
    graph.add_constant("sin", np.sin(angles).astype(np.float32))
    graph.add("rotary", ["q", "cos", "sin"], "q_rotated")
    graph.add("rotary", ["k", "cos", "sin"], "k_rotated")
    graph.add("attention", ["q_rotated", "k_rotated", "v"], "attended", scale=0.35, causal=True)
    graph.add("tanh", ["attended"], "bounded")
    graph.add("softmax", ["bounded"], "probabilities", axis=3)
    graph.set_output("y", "probabilities")
    return graph, feeds


def cache() -> tuple[Graph, dict[str, np.ndarray]]:
    """New keys and values in a paged cache, and attention over it."""
    feeds = {
        "q": _floats(3, 2, 8), "k": _floats(3, 2, 8), "v": _floats(3, 2, 8),
        "keys": _floats(4, 2, 8, 64), "values": _floats(4, 2, 64, 8),
        "positions": np.array([3, 4, 70], np.int32), "owners": np.array([0, 0, 1], np.int32),
        "blocks": np.array([[0, 1], [2, 3]], np.int32),
    }  # fmt: skip
    graph, feeds = _graph(**feeds)
    where = ["positions", "owners", "blocks"]
    graph.add("append_keys", ["keys", "k", *where], "new_keys")
    graph.add("append_values", ["values", "v", *where], "new_values")
    graph.add("cached_attention", ["q", "new_keys", "new_values", *where], "attended", scale=0.35)
    graph.add("softmax", ["attended"], "probabilities", axis=2)
    graph.set_output("y", "probabilities")
    graph.set_output("keys_after", "new_keys")
    return graph, feeds


def image() -> tuple[Graph, dict[str, np.ndarray]]:
    """Padding, a grouped convolution, a group norm, pooling."""
    graph, feeds = _graph(x=_floats(1, 8, 7, 7))
    graph.add_weight("w", _floats(8, 4, 3, 3) / 3)
    graph.add_weight("b", _floats(8))
    graph.add("pad", ["x"], "padded", low=(0, 0, 1, 1), high=(0, 0, 1, 1), value=-0.5)
    graph.add("conv", ["padded", "w", "b"], "convolved", strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=2)
    graph.add("group_norm", ["convolved", None, None], "normed", groups=4, eps=1e-5)
    graph.add("max_pool", ["normed"], "pooled", kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0), dilations=(1, 1))
    graph.add("softmax", ["pooled"], "probabilities", axis=3)
    graph.set_output("y", "probabilities")
    return graph, feeds


def quantized() -> tuple[Graph, dict[str, np.ndarray]]:
    """Rounding to integers and back, and a square to which axes matter."""
    graph, feeds = _graph(x=_floats(16, 16) * 40)
    graph.add_constant("scale", np.float32(0.75))
    graph.add_constant("zero", np.int8(3))
    graph.add_weight("offset", _floats(1, 16))
    options = {"axis": 0, "block": 0}
    graph.add("quantize", ["x", "scale", "zero"], "codes", dtype=i8, precision=f32, **options)
    graph.add("dequantize", ["codes", "scale", "zero"], "restored", dtype=f32, **options)
    graph.add("add", ["restored", "offset"], "moved")
    graph.add("round", ["moved"], "rounded")
    graph.add("tanh", ["rounded"], "bounded")
    graph.add("softmax", ["bounded"], "probabilities", axis=1)
    for name in ("codes", "moved", "rounded", "probabilities"):
        graph.set_output(f"out.{name}", name)
    return graph, feeds


def _with(name: str, **attributes: object) -> Callable[[Graph], None]:
    """Set attributes of a node."""

    def plant(graph: Graph) -> None:
        _node(graph, name).attributes.update(attributes)

    return plant


def _reading(name: str, *operands: str | None) -> Callable[[Graph], None]:
    """Set the operands of a node."""
    return lambda graph: graph.set_operands(_node(graph, name), operands)


def _instead(name: str, op: str, operands: list[str], **attributes: object) -> Callable[[Graph], None]:
    """Compute a value by another op."""

    def plant(graph: Graph) -> None:
        node = _node(graph, name)
        new = graph.add(op, operands, f"{name}.wrong", before=node, **attributes).outputs[0]
        graph.replace(node, new)
        graph.rename(new, name)

    return plant


def _data(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Graph], None]:
    """Change a weight or constant."""

    def plant(graph: Graph) -> None:
        value = graph.values[name]
        assert value.data is not None
        value.data = change(value.data.copy())

    return plant


def _truncated(array: np.ndarray) -> np.ndarray:
    array[len(array) // 2 :] = 0
    return array


def _broken(node: str, number: int = -1, **fields: object) -> Callable[[Compiled], None]:
    """Change the arguments of a step of a node. A field that is text is the memory of the value of this name."""

    def break_program(compiled: Compiled) -> None:
        (segment,) = compiled.segments
        step = [step for step in segment.plan.steps if step.node == node][number]
        assert fields.keys() <= step.fields.keys(), step.fields
        views = segment.lowered.views
        for field, value in fields.items():
            step.fields[field] = Pointer(views[value].tensor) if isinstance(value, str) else value  # type: ignore[assignment]

    return break_program


def _shifted(graph: Graph) -> None:
    """Write keys one position later."""
    one = graph.add_constant("one", np.ones(3, np.int32))
    node = _node(graph, "new_keys")
    later = graph.add("add", ["positions", one], "later", before=node).output
    cache, x, _, *others = node.operands
    graph.set_operands(node, (cache, x, later, *others))


def _other_block(graph: Graph) -> None:
    """Read the blocks of a sequence in another order."""
    node = _node(graph, "attended")
    swapped = graph.add_constant("swapped", np.array([[1, 0], [2, 3]], np.int32))
    graph.set_operands(node, (*node.operands[:5], swapped))


def _transposed(graph: Graph) -> None:
    """Give a square value the layout of its transpose."""
    node = _node(graph, "moved")
    turned = graph.add("permute", ["moved"], "turned", axes=(1, 0)).output
    for user in graph.users("moved"):
        if turned not in user.outputs:
            graph.set_operands(user, [turned if name == "moved" else name for name in user.operands])
    graph.outputs["out.moved"] = turned
    graph.rename("moved", "straight")
    graph.rename(turned, "moved")
    graph.sort()
    assert node


def _swapped(graph: Graph) -> None:
    """Apply the activation to the other product."""
    graph.set_operands(_node(graph, "gated"), ["up"])
    graph.set_operands(_node(graph, "product"), ["gated", "gate"])
    graph.sort()


FAULTS = [
    Fault("transposed flag", mlp, "down", _with("down", transpose_b=True)),
    Fault("eps", mlp, "normed", _with("normed", eps=1e-5)),
    Fault("wrong scale", attention, "attended", _with("attended", scale=0.5)),
    Fault("off-by-one cache position", cache, "new_keys", _shifted),
    Fault("mask", attention, "attended", _with("attended", causal=False)),
    Fault("mask by one", attention, "attended", _with("attended", causal_offset=1)),
    Fault("wrong bias axis", quantized, "moved", _data("offset", lambda array: array[:, ::-1])),
    Fault("truncated weight", mlp, "down", _data("w_down", _truncated)),
    Fault("wrong rotary half", attention, "k_rotated", _reading("k_rotated", "k", "sin", "cos")),
    Fault("swapped gate", mlp, "gated", _swapped),
    Fault("dropped residual", mlp, "residual", _reading("residual", "down", "down")),
    Fault("wrong rounding", quantized, "rounded", _instead("rounded", "floor", ["moved"])),
    Fault("wrong pad value", image, "padded", _with("padded", value=0.5)),
    Fault("wrong group", image, "normed", _with("normed", groups=2)),
    Fault("wrong zero point", quantized, "restored", _reading("restored", "codes", "scale")),
    Fault("wrong KV block", cache, "attended", _other_block),
    Fault("layout", quantized, "moved", _transposed),
]

# Of the arguments of kernels on the CPU; no step leaves its memory.
PROGRAM_FAULTS = [
    Fault("eps", mlp, "normed", break_program=_broken("normed", eps=1e-5)),
    Fault("scale", attention, "attended", break_program=_broken("attended", scale=0.5)),
    Fault("mask", attention, "attended", break_program=_broken("attended", causal=0)),
    Fault("mask by one", attention, "attended", break_program=_broken("attended", causal_offset=1)),
    Fault("rotary half", attention, "k_rotated", break_program=_broken("k_rotated", cos="sin", sin="cos")),
    Fault("stale buffer", mlp, "residual", break_program=_broken("residual", a="normed")),
    Fault("dropped residual", mlp, "residual", break_program=_broken("residual", residual=None)),
    Fault("truncated sum", mlp, "residual", break_program=_broken("residual", k=16)),
    Fault("activation", mlp, "product", break_program=_broken("product", activation=1)),
    Fault("stale cache", cache, "attended", break_program=_broken("attended", keys="keys")),
    Fault("cache row", cache, "new_keys", break_program=_broken("new_keys", rows=2)),
    Fault(
        "group",
        image,
        "normed",
        break_program=_broken("normed.layer_norm", rows=8, cols=49, x_stride=49, out_stride=49),
    ),
    Fault("bias of another", mlp, "normed", break_program=_broken("normed", bias="norm.weight")),
    Fault("padding by one", image, "padded", break_program=_broken("padded", 3, rank=0)),
]


def planted_sides(fault: Fault) -> Prepared:
    """The native side with a fault wherever its node is, and the float64 reference without it."""
    graph, feeds = fault.build()

    def after_passes(optimized: Graph, feeds: dict[str, np.ndarray]) -> Planned:
        planted = optimized.copy()
        try:
            fault.plant(planted)
        except (AssertionError, KeyError):  # a part without the node
            planted = optimized.copy()
        compiled = compile_mode(planted, target_of("native", 2, F32), passes=())
        with contextlib.suppress(AssertionError, IndexError, KeyError):
            fault.break_program(compiled)
        return Planned(compiled, feeds, 2)

    def part(graph: Graph, feeds: dict[str, np.ndarray]) -> Planned:
        optimized = graph.copy()
        optimize(optimized)
        return after_passes(optimized, feeds)

    exact = partial(executed_side, "float64")
    return Prepared(
        fault.name, graph, graph, feeds, partial(part, graph, feeds), partial(exact, graph, feeds), part, exact,
        after_passes, False, "native", F32, 2,
    )  # fmt: skip
