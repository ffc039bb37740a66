"""Passes: each rewrites a graph in place into an equivalent one, and returns whether it changed anything.

`PASSES` is the order. Absorption comes before folding, which would materialise transposed weights; recognition of norms
and activations before attention, which needs softmax; masks after attention, whose operand they become; merging last,
so that only plain matmuls are left.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice

from ingot.errors import ExtensionError, InputError, guarded
from ingot.ir import text
from ingot.ir.graph import Graph, Type, compatible
from ingot.passes.absorb import absorb_bias, absorb_pad, absorb_scale, absorb_transpose
from ingot.passes.cse import merge_equal
from ingot.passes.dce import eliminate_dead
from ingot.passes.fold import fold_constants
from ingot.passes.fold_batch_norm import fold_batch_norm
from ingot.passes.fold_layer_scale import fold_layer_scale
from ingot.passes.fuse_activation import fuse_activations
from ingot.passes.fuse_attention import fuse_attention
from ingot.passes.fuse_norm import fuse_norms
from ingot.passes.fuse_rotary import fuse_rotary
from ingot.passes.identity import eliminate_identities
from ingot.passes.integer_products import move_integers, multiply_integers
from ingot.passes.mask import recognise_masks
from ingot.passes.merge_matmul import merge_matmuls
from ingot.passes.order_columns import order_columns
from ingot.passes.sink import sink_moves, sink_permutes, sink_reshapes
from ingot.passes.take_branch import take_known_branches
from ingot.passes.take_rows import take_rows_first
from ingot.support import config
from ingot.support.collector import uncollected
from ingot.support.spans import span

Pass = Callable[[Graph], bool]
Validator = Callable[[Graph, Graph], bool]

PASSES: dict[str, Pass] = {
    "dce": eliminate_dead,
    "absorb_transpose": absorb_transpose,
    "absorb_scale": absorb_scale,
    "absorb_pad": absorb_pad,
    "multiply_integers": multiply_integers,
    "move_integers": move_integers,
    "sink_reshape": sink_reshapes,
    "sink_permute": sink_permutes,
    "sink_move": sink_moves,
    "order_columns": order_columns,
    "identity": eliminate_identities,
    "absorb_bias": absorb_bias,
    "cse": merge_equal,
    "fold": fold_constants,
    "take_branch": take_known_branches,
    "fuse_norm": fuse_norms,
    "fuse_activation": fuse_activations,
    "fuse_rotary": fuse_rotary,
    "fuse_attention": fuse_attention,
    "mask": recognise_masks,
    "fold_batch_norm": fold_batch_norm,
    "fold_layer_scale": fold_layer_scale,
    "take_rows": take_rows_first,
    "merge_matmul": merge_matmuls,
}

REGISTERED: dict[str, Validator | None] = {}  # the passes that users added, with their validators

_MAX_ROUNDS = 64  # far more than any chain of rewrites needs: reaching it means that two passes undo each other


def register_pass(
    name: str,
    function: Pass,
    *,
    before: str | Sequence[str] = (),
    after: str | Sequence[str] = (),
    validate: Validator | None = None,
) -> None:
    """Add a pass to the order: right after the last of the passes `after`, else right before the first of the passes
    `before`, else at the end.

    function: changes a graph in place, only through its methods, and returns whether it changed anything; the graph's
    result, its inputs and its outputs must stay the same. It runs repeatedly, with the other passes, until none changes
    the graph, and on subgraphs too. After each run the graph is checked: types are inferred again, and its text is
    parsed again. validate: gets a copy of the graph before and the graph after each change, and returns whether the
    change is correct.

    Raises InputError for a name that is in use or no identifier, an unknown pass in `before` or `after`, and a pass in
    `before` that precedes a pass in `after`. An error that a pass or its validator raises gets its name. A graph that a
    pass breaks, or that its validator rejects, is an ExtensionError.
    """
    where = f"register_pass {name!r}"
    if not isinstance(name, str) or not name.isidentifier() or name in PASSES or not callable(function):
        raise InputError(f"{where}: bad or used name, or no function, expected an identifier and a function")
    if validate is not None and not callable(validate):
        raise InputError(f"{where}: bad validator, got {validate!r}, expected a function of two graphs, or None")
    order = list(PASSES)
    first, last = _places(where, "before", before), _places(where, "after", after)
    if first and last and max(last) > min(first):
        got = f"before={order[min(first)]!r} and after={order[max(last)]!r}"
        raise InputError(f"{where}: bad position, got {got}, expected passes in that order")
    rows = list(PASSES.items())
    rows.insert(max(last) + 1 if last else min(first, default=len(rows)), (name, function))
    PASSES.clear()
    PASSES.update(rows)
    REGISTERED[name] = validate


def _places(where: str, option: str, names: str | Sequence[str]) -> list[int]:
    """Return the indices of passes in the order. Raises InputError for an unknown pass."""
    order, given = list(PASSES), [names] if isinstance(names, str) else names
    if not isinstance(given, Sequence) or not all(name in order for name in given):
        raise InputError(f"{where}: bad position, got {option}={names!r}, expected some of {', '.join(order)}")
    return [order.index(name) for name in given]


def unregister_pass(name: str) -> None:
    """Remove a registered pass. Raises InputError for another name."""
    if name not in REGISTERED:
        raise InputError(f"unregister_pass: no such pass, got {name!r}, expected one of {sorted(REGISTERED)}")
    del REGISTERED[name], PASSES[name]


@uncollected()
def optimize(graph: Graph, passes: tuple[str, ...] | None = None) -> None:
    """Run passes on a graph, in place, until none of them changes it: all passes, or the named ones in the given order.

    INGOT_CHECK=1 validates the result, 2 validates and round-trips the text after each pass; INGOT_DEBUG=3 prints the
    changes of each pass. Raises InputError for an unknown name.
    """
    for _ in changes(graph, passes):
        pass


def changes(graph: Graph, passes: tuple[str, ...] | None = None) -> Iterator[str]:
    """Run passes as `optimize` does; yield the name of each pass after it changed the graph or a subgraph of it.

    An iteration that stops leaves the graph after the passes so far; one with `measured` dims may need a sort.
    """
    names = tuple(PASSES) if passes is None else passes
    unknown = [name for name in names if name not in PASSES]
    if unknown:
        raise InputError(f"passes: unknown names, got {', '.join(unknown)}, expected some of {', '.join(PASSES)}")
    with span("passes"):
        yield from until_stable(graph, {name: PASSES[name] for name in names})
    for body in graph.bodies:
        yield from changes(body, passes)
    if graph.measured:
        graph.sort()  # a pass that moves a node looks only at its operands
    if config.check() >= 1:
        graph.validate()


def until_stable(graph: Graph, passes: Mapping[str, Pass]) -> Iterator[str]:
    """Run passes in order, repeatedly, until none changes the graph; yield the name of each that changed it."""
    if not passes:
        return
    idle = 0
    for name, each in islice(cycle(passes.items()), _MAX_ROUNDS * len(passes)):
        if run(graph, name, each):
            idle = 0
            yield name
        else:
            idle += 1
        if idle == len(passes):
            return
    message = f"passes do not settle after {_MAX_ROUNDS} rounds: {', '.join(passes)}"
    if REGISTERED.keys() & passes.keys():
        raise ExtensionError(message)
    raise AssertionError(message)


def run(graph: Graph, name: str, each: Pass) -> bool:
    """Run one pass once, with the checks and prints of the INGOT_CHECK and INGOT_DEBUG levels."""
    shows = config.debug() >= 3
    before = text.dump(graph) if shows else ""
    with span(f"pass {name}"):
        changed = _run_registered(graph, name, each) if name in REGISTERED else each(graph)
    if changed and shows:
        print(f"pass {name}\n{text.diff(before, text.dump(graph))}", file=sys.stderr)
    if changed and config.check() >= 2:
        graph.validate()
        dumped = text.dump(graph)
        assert text.dump(text.parse(dumped)) == dumped, f"pass {name}: the text form does not round-trip"
    return changed


def _run_registered(graph: Graph, name: str, each: Pass) -> bool:
    """Run a user's pass, and check that it obeys the rules of passes."""
    before, validate = _interface(graph), REGISTERED[name]
    whole = None if validate is None else graph.copy()
    with guarded(f"pass {name!r}"):
        changed = each(graph)
    if not isinstance(changed, bool):
        raise ExtensionError(
            f"pass {name!r}: does not return whether it changed something, got {changed!r}, expected a bool"
        )
    with guarded(f"pass {name!r}: the graph that it leaves"):
        graph.validate()
        text.parse(text.dump(graph))  # asserts may be disabled
        after = _interface(graph)
    same = before.keys() == after.keys() and all(compatible(type, after[key]) for key, type in before.items())
    if not same:
        raise ExtensionError(f"pass {name!r}: changes inputs, outputs or states, got {after}, expected {before}")
    if changed and validate is not None and whole is not None:
        with guarded(f"validator of pass {name!r}"):
            is_right = validate(whole, graph)
        if is_right is not True:
            got = f"got {is_right!r}, expected True\n{text.diff(text.dump(whole), text.dump(graph))}"
            raise ExtensionError(f"pass {name!r}: its validator rejects its result, {got}")
    return changed


def _interface(graph: Graph) -> dict[tuple[str, int, str], Type]:
    """Return a graph's interface: the types of inputs, states and outputs, by kind, index and name."""
    named = [
        *(("input", i, name, name) for i, name in enumerate(graph.inputs)),
        *(("state", i, name, name) for i, name in enumerate(graph.states)),
        *(("output", i, external, name) for i, (external, name) in enumerate(graph.outputs.items())),
    ]
    return {(kind, i, external): graph.values[name].type for kind, i, external, name in named}
