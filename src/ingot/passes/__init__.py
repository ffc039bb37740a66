"""Passes: each turns a graph into an equal one, in place, and says whether it changed anything.

`PASSES` is the order. Absorption comes before folding, which would materialise transposed weights; recognition of
norms and activations before attention, which needs softmax; masks after attention, whose operand they become;
merging last, so that it sees plain matmuls only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from itertools import cycle, islice

from ingot import config, text
from ingot.errors import InputError
from ingot.ir import Graph
from ingot.passes.absorb import absorb_pad, absorb_scale, absorb_transpose
from ingot.passes.cse import merge_equal
from ingot.passes.dce import eliminate_dead
from ingot.passes.fold import fold_constants
from ingot.passes.fold_batch_norm import fold_batch_norm
from ingot.passes.fuse_activation import fuse_activations
from ingot.passes.fuse_attention import fuse_attention
from ingot.passes.fuse_norm import fuse_norms
from ingot.passes.fuse_rotary import fuse_rotary
from ingot.passes.identity import eliminate_identities
from ingot.passes.mask import recognise_masks
from ingot.passes.merge_matmul import merge_matmuls
from ingot.passes.sink import sink_reshapes
from ingot.passes.take_branch import take_known_branches
from ingot.passes.take_rows import take_rows_first

Pass = Callable[[Graph], bool]

PASSES: dict[str, Pass] = {
    "dce": eliminate_dead,
    "absorb_transpose": absorb_transpose,
    "absorb_scale": absorb_scale,
    "absorb_pad": absorb_pad,
    "sink_reshape": sink_reshapes,
    "identity": eliminate_identities,
    "cse": merge_equal,
    "fold": fold_constants,
    "take_branch": take_known_branches,
    "fuse_norm": fuse_norms,
    "fuse_activation": fuse_activations,
    "fuse_rotary": fuse_rotary,
    "fuse_attention": fuse_attention,
    "mask": recognise_masks,
    "fold_batch_norm": fold_batch_norm,
    "take_rows": take_rows_first,
    "merge_matmul": merge_matmuls,
}

_MAX_ROUNDS = 64  # far more than any chain of rewrites needs: reaching it means that two passes undo each other


def optimize(graph: Graph, passes: tuple[str, ...] | None = None) -> None:
    """Runs passes on a graph, in place, until none of them changes it: all, or those named, in the order given.

    INGOT_CHECK=1 validates the result, 2 validates and round-trips the text after each pass; INGOT_DEBUG=3 prints what
    each pass changed. Raises InputError for an unknown name.
    """
    names = tuple(PASSES) if passes is None else passes
    unknown = [name for name in names if name not in PASSES]
    if unknown:
        raise InputError(f"passes: unknown names, got {', '.join(unknown)}, expected some of {', '.join(PASSES)}")
    run_until_stable(graph, {name: PASSES[name] for name in names})
    for body in [value for node in graph.nodes for value in node.attributes.values() if isinstance(value, Graph)]:
        optimize(body, passes)
    if graph.measured:
        graph.sort()  # a pass looks at operands alone when it moves a node
    if config.check() >= 1:
        graph.validate()


def run_until_stable(graph: Graph, passes: Mapping[str, Pass]) -> bool:
    """Runs passes in order, again and again, until none changes the graph any more. True when something changed."""
    if not passes:
        return False
    idle, changed = 0, False
    for name, each in islice(cycle(passes.items()), _MAX_ROUNDS * len(passes)):
        idle = 0 if run(graph, name, each) else idle + 1
        changed |= idle == 0
        if idle == len(passes):
            return changed
    raise AssertionError(f"passes do not settle after {_MAX_ROUNDS} rounds: {', '.join(passes)}")


def run(graph: Graph, name: str, each: Pass) -> bool:
    """Runs one pass once, with the checks and prints that the INGOT_CHECK and INGOT_DEBUG levels ask for."""
    shows = config.debug() >= 3
    before = text.dump(graph) if shows else ""
    changed = each(graph)
    if changed and shows:
        print(f"pass {name}\n{text.diff(before, text.dump(graph))}", file=sys.stderr)
    if changed and config.check() >= 2:
        graph.validate()
        dumped = text.dump(graph)
        assert text.dump(text.parse(dumped)) == dumped, f"pass {name}: the text form does not round-trip"
    return changed
