"""States that a run overwrites: which update may use their memory, and which nodes must have read them before.

Also the values whose decoding is deferred to their readers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from ingot.ir.dtype import DType, f32
from ingot.ir.graph import Graph, Node
from ingot.lower.formats import Format

Unit = TypeVar("Unit")


def replacing(graph: Graph, state: str) -> Node | None:
    """Return the node whose result replaces a state and which may overwrite it; None if there is none."""
    update = graph.states.get(state)
    node = graph.producer(update)
    for i, operand in enumerate(node.operands if node is not None else ()):
        if operand == state and node is not None and i in node.op.inplace:
            return node if len(node.outputs) == 1 or node.outputs[i] == update else None
    return None


def overwrite_states(
    graph: Graph,
    deferred: Collection[str],
    unit_of: Mapping[Node, Unit],
    needs: dict[Unit, set[Unit]],
    position: Mapping[Unit, int],
) -> tuple[dict[str, str], dict[Unit, int]]:
    """Return updates that overwrite states, update -> state, and positions of units that wait for a state's readers.

    unit_of: the unit of each node; a unit becomes one step. needs: the units that each unit waits for. The readers of a
    state are added to the needs of the unit that overwrites it, unless they wait for that unit themselves: then the
    state is replaced by a copy. A unit with new needs is placed right after them, so that their operands are freed
    early; units of single elements come first. deferred: values that are lowered at their readers.
    """
    found: dict[str, str] = {}
    early: dict[Unit, int] = {}
    numbers = _numbers(graph, unit_of, needs, position)
    readers: dict[Unit, set[Unit]] = {unit: set() for unit in needs}
    for unit, before in needs.items():
        for other in before:
            readers[other].add(unit)
    for state, update in graph.states.items():
        node = replacing(graph, state)
        reading = None if node is None else _readers(graph, state, deferred)
        if node is None or reading is None or node not in unit_of or node.operands.count(state) > 1:
            continue
        unit = unit_of[node]
        before = {unit_of[each] for each in reading if each in unit_of} - {unit}
        waiting: set[Unit] = _after(readers, unit)
        if before & waiting:
            continue
        found[update] = state
        if before - needs[unit]:
            needs[unit] |= before
            for other in before:
                readers[other].add(unit)
            waited = needs[unit] - numbers
            early[unit] = max((position[other] for other in waited), default=-1)
    return found, early | dict.fromkeys(numbers if early else (), -1)


def _numbers(
    graph: Graph, unit_of: Mapping[Node, Unit], needs: Mapping[Unit, set[Unit]], position: Mapping[Unit, int]
) -> set[Unit]:
    """Return the units that compute single elements, only from single elements."""
    large = {unit for node, unit in unit_of.items() if any(graph.type(name).size != 1 for name in node.outputs)}
    found: set[Unit] = set()
    for unit in sorted(needs, key=position.__getitem__):
        if unit not in large and needs[unit] <= found:
            found.add(unit)
    return found


def _readers(graph: Graph, state: str, deferred: Collection[str]) -> set[Node] | None:
    """Return the nodes that read the memory of a state, also through views; None if it must exist after the run."""
    found: set[Node] = set()
    names = [state]
    while names:
        name = names.pop()
        if graph.is_output(name):
            return None
        for node in graph.users(name):
            found.add(node)
            if node.op.view or node.outputs[0] in deferred:
                names += node.outputs
    return found


def _after(readers: Mapping[Unit, set[Unit]], unit: Unit) -> set[Unit]:
    """Return all units that wait for `unit`, directly or indirectly."""
    found: set[Unit] = set()
    waiting = [unit]
    while waiting:
        for each in readers[waiting.pop()]:
            if each not in found:
                found.add(each)
                waiting.append(each)
    return found


def undecoded(graph: Graph, value: str | None, dtype: DType) -> str | None:
    """Return the value of a dtype that an f32 value is cast from; None if there is none."""
    node = graph.producer(value)
    if node is None or node.op.name != "cast" or graph.type(node.output).dtype is not f32:
        return None
    return node.operands[0] if graph.type(str(node.operands[0])).dtype is dtype else None


def deferred_values(
    graph: Graph, static: Collection[str], narrow: Collection[DType], formats: Sequence[Format]
) -> dict[str, Node]:
    """Return values that decode rounded rows, or decode and move states; each is lowered at its readers.

    Products may then read the value undecoded. narrow: the dtypes that rows are rounded to.
    """
    found: dict[str, Node] = {}
    if not (graph.states or narrow):
        return found
    ops = {op for format in formats for op in (format.decoder, *format.moves)} if graph.states else set()
    for node in graph.nodes:
        operands = [str(operand) for operand in node.operands if operand is not None]
        if any(undecoded(graph, output, dtype) for output in node.outputs for dtype in narrow):
            if operands[0] not in static:
                found[node.output] = node
            continue
        if node.op.name not in ops or all(operand in static for operand in operands):
            continue
        if all(o in graph.states or o in static or o in found for o in operands):
            found[node.output] = node
    return found
