"""The third artefact: live ranges, an address for each root tensor, and barriers.

It makes no choice of kernels or views.

Tensors are placed one by one, each in the smallest gap between the tensors alive at the same time. Several orders are
tried (largest first, longest-lived first, ...), and the smallest arena wins. If none reaches the lower bound, tensors
placed above the bound go first in another attempt. Greedy by size is from Pisarchyk and Lee, "Efficient Memory
Management for Deep Neural Net Inference", 2020.
"""

from __future__ import annotations

from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ingot.errors import LimitError, UnsupportedError
from ingot.lower.lowered import Lowered, Step, Tensor
from ingot.lower.target import Target
from ingot.lower.view import View
from ingot.plan.schedule import order_steps
from ingot.support.record import record

CANARY_BYTES = 64
_EPOCH_STEPS = 64
_RETRIES = 4  # retries of each placement order


@record()
class Address:
    """The address of a root tensor: a byte offset in a region."""

    region: str
    offset: int


@record()
class Allocation:
    """A range of bytes: its offset, its size, and its region."""

    offset: int
    nbytes: int
    region: str

    @property
    def end(self) -> int:
        return self.offset + self.nbytes


@dataclass(slots=True)
class Placement:
    """The location of weights and states that several plans share: weights by packed-weight key, states by name.

    Tensors that do not fit in the region "weights" or "state" go to "weights1", "weights2", ...
    """

    weights: dict[str, Allocation] = field(default_factory=dict)
    states: dict[str, Allocation] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, without the gaps between them."""
        return sum(allocation.nbytes for allocation in self.weights.values())

    def add(self, tensor: Tensor, target: Target) -> tuple[Address, int]:
        """Return the address of a weight or state, the same for every plan; and the size of its region up to its end.

        Raises UnsupportedError for a state of another size in an earlier plan: its contents could not be carried over.
        """
        if tensor.packed_weight is not None:
            region, key, allocations = "weights", tensor.packed_weight.key, self.weights
        else:
            region, key, allocations = "state", tensor.name, self.states
        if key not in allocations:
            last = next(reversed(allocations.values()), Allocation(0, 0, region))
            offset, where = _round_up(last.end, target.alignment), last.region
            if offset and offset + tensor.nbytes > target.region_bytes:
                offset, where = 0, f"{region}{int(where.removeprefix(region) or 0) + 1}"
            allocations[key] = Allocation(offset, tensor.nbytes, where)
        allocation = allocations[key]
        if allocation.nbytes != tensor.nbytes:
            raise UnsupportedError(
                f"state {key!r}: changes its size, got {tensor.nbytes} bytes, expected {allocation.nbytes}"
            )
        return Address(allocation.region, allocation.offset), _round_up(allocation.end, target.alignment)


@dataclass(slots=True)
class Plan:
    """Addresses and sizes of all memory that a run touches.

    steps: those of the lowering, in execution order. regions: bytes by name ("arena0", ..., "weights", "state",
    "input:x", "output:y"). live: first and last step that touches an arena tensor. lower_bound_bytes: the largest sum
    of live bytes over the order; no plan can be smaller. activation_bytes: the sum of all activations and scratch, as
    if nothing shared memory. canary_bytes: the gap after each tensor.
    """

    steps: list[Step] = field(default_factory=list)
    addresses: dict[str, Address] = field(default_factory=dict)
    regions: dict[str, int] = field(default_factory=dict)
    live: dict[str, tuple[int, int]] = field(default_factory=dict)
    barriers: list[bool] = field(default_factory=list)
    lower_bound_bytes: int = 0
    activation_bytes: int = 0
    canary_bytes: int = 0

    @property
    def arena_bytes(self) -> int:
        """Bytes of activations and scratch together."""
        return sum(size for name, size in self.regions.items() if name.startswith("arena"))


@dataclass(slots=True)
class _Block:
    """Tensors at one address, each overwriting the one before: size, first and last step."""

    tensors: list[Tensor]
    nbytes: int
    birth: int
    death: int


def plan(lowered: Lowered, placement: Placement | None = None, *, canaries: bool = False) -> Plan:
    """Assign an address to every root tensor of a lowering. Deterministic.

    placement: the weights and states of earlier plans; new ones are added.

    Raises LimitError when a tensor is larger than the target's largest region, UnsupportedError for a state that has
    another size in an earlier plan.
    """
    result = Plan(order_steps(lowered), canary_bytes=CANARY_BYTES if canaries else 0)
    alignment = lowered.target.alignment
    result.live = _live_ranges(lowered, result.steps)
    blocks = _merge_inplace(lowered, result)
    result.lower_bound_bytes = _lower_bound(blocks, len(result.steps), alignment, result.canary_bytes)
    arena = [t for t in lowered.tensors.values() if t.id in result.live]
    result.activation_bytes = sum(_round_up(t.nbytes + result.canary_bytes, alignment) for t in arena)
    _place_blocks(lowered, result, blocks)
    _place_rest(lowered, result, Placement() if placement is None else placement)
    for region, size in result.regions.items():
        if size > lowered.target.region_bytes:
            raise LimitError(f"{region}: too large, got {size} bytes, expected at most {lowered.target.region_bytes}")
    result.barriers = _barriers(lowered, result)
    return result


def _round_up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


def _live_ranges(lowered: Lowered, steps: list[Step]) -> dict[str, tuple[int, int]]:
    """Return the first and last step that touches each tensor of the arena."""
    live: dict[str, tuple[int, int]] = {}
    for i, step in enumerate(steps):
        touched = [v.tensor for v in (*step.reads, *step.writes)] + ([step.scratch] if step.scratch else [])
        for tensor in touched:
            if lowered.tensors[tensor].kind in ("activation", "scratch"):
                live[tensor] = (live.get(tensor, (i, i))[0], i)
    return live


def _merge_inplace(lowered: Lowered, result: Plan) -> list[_Block]:
    """Return blocks after every in-place permission that the live ranges allow has been used."""
    blocks = {t: _Block([lowered.tensors[t]], lowered.tensors[t].nbytes, *live) for t, live in result.live.items()}
    if not (lowered.target.inplace and lowered.target.reuse):
        return list(blocks.values())
    for i, step in enumerate(result.steps):
        for operand in step.inplace:
            source, target = step.reads[operand].tensor, step.writes[0].tensor
            if source in blocks and target in blocks and _may_share(step, operand, i, blocks):
                merged, absorbed = blocks[source], blocks[target]
                merged.tensors += absorbed.tensors
                merged.death = absorbed.death
                for tensor in absorbed.tensors:
                    blocks[tensor.id] = merged
                break
    return list({id(block): block for block in blocks.values()}.values())


def _may_share(step: Step, operand: int, index: int, blocks: Mapping[str, _Block]) -> bool:
    """Return whether a result may overwrite an operand that dies: both have one layout, and only the step reads it."""
    read, write = step.reads[operand], step.writes[0]
    source, target = blocks[read.tensor], blocks[write.tensor]
    others = [v for i, v in enumerate(step.reads) if i != operand and blocks.get(v.tensor) is source]
    return (
        source is not target
        and source.death == index == target.birth
        and source.nbytes == target.nbytes
        and read.offset == write.offset
        and read.shape == write.shape
        and read.strides == write.strides
        and not others
    )


def _lower_bound(blocks: list[_Block], steps: int, alignment: int, canary_bytes: int) -> int:
    change = [0] * (steps + 1)
    for block in blocks:
        size = _round_up(block.nbytes + canary_bytes, alignment)
        change[block.birth] += size
        change[block.death + 1] -= size
    total = peak = 0
    for delta in change:
        total += delta
        peak = max(peak, total)
    return peak


def _place_blocks(lowered: Lowered, result: Plan, blocks: list[_Block]) -> None:
    """Allocate blocks in several orders and return the smallest arena; the first on a tie.

    No arena is smaller than the lower bound. If none reaches it, each order is repaired: blocks placed above the bound
    are placed first.
    """
    orders: tuple[Callable[[_Block], tuple[int, ...]], ...] = (
        lambda b: (-b.nbytes, b.birth),
        lambda b: (-(b.death - b.birth), -b.nbytes),
        lambda b: (b.birth, -b.nbytes),
        lambda b: (-b.nbytes * (b.death - b.birth + 1), b.birth),
    )
    bound = result.lower_bound_bytes
    best: list[_Region] = []
    tried = [sorted(blocks, key=order) for order in orders]
    for attempt in range(len(orders) * (1 + _RETRIES)):
        if best and sum(r.nbytes for r in best) == bound:
            break
        order = tried[attempt % len(orders)]
        placed = _place(lowered, order, result.canary_bytes)
        if not best or sum(r.nbytes for r in placed) < sum(r.nbytes for r in best):
            best = placed
        above = {id(block) for region in placed for _, end, block in region.placed if end > bound}
        tried[attempt % len(orders)] = sorted(order, key=lambda block: id(block) not in above)
    for number, region in enumerate(best):
        name = f"arena{number}"
        if region.placed:
            result.regions[name] = region.nbytes
        for offset, _, block in region.placed:
            for tensor in block.tensors:
                result.addresses[tensor.id] = Address(name, offset)


class _Region:
    """Placed blocks of a region: first byte, one past the last, block.

    For each epoch of steps, also the blocks alive in it, sorted by address: first byte, one past the last, first and
    last step.
    """

    def __init__(self, reuse: bool):
        self.placed: list[tuple[int, int, _Block]] = []
        self.nbytes = 0
        self._reuse = reuse
        self._living: defaultdict[int, list[tuple[int, int, int, int]]] = defaultdict(list)

    def put(self, block: _Block, offset: int, size: int) -> None:
        """Assign an offset to a block."""
        for epoch in self._epochs(block):
            insort(self._living[epoch], (offset, offset + size, block.birth, block.death))
        self.placed.append((offset, offset + size, block))
        self.nbytes = max(self.nbytes, offset + size)

    def lowest_gap(self, block: _Block, size: int) -> int:
        """Return the offset of the smallest gap between the blocks alive at the same time; the lowest on a tie."""
        first, last, epochs = block.birth, block.death, self._epochs(block)
        near = self._living[epochs[0]] if len(epochs) == 1 else sorted({p for e in epochs for p in self._living[e]})
        best, best_gap, edge = -1, 0, 0
        for begin, end, birth, death in near:
            if self._reuse and (death < first or last < birth):
                continue
            gap = begin - edge
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = edge, gap
            edge = end if end > edge else edge
        return best if best >= 0 else edge

    def _epochs(self, block: _Block) -> range:
        return range(block.birth // _EPOCH_STEPS, block.death // _EPOCH_STEPS + 1) if self._reuse else range(1)


def _place(lowered: Lowered, blocks: list[_Block], canary_bytes: int) -> list[_Region]:
    target = lowered.target
    regions = [_Region(target.reuse)]
    for block in blocks:
        size = _round_up(block.nbytes + canary_bytes, target.alignment)
        if size > target.region_bytes:
            raise LimitError(
                f"tensor {block.tensors[0].name!r}: too large, got {size} bytes, expected at most {target.region_bytes}"
            )
        for region in regions:
            offset = region.lowest_gap(block, size)
            if offset + size <= target.region_bytes:
                break
        else:
            region, offset = _Region(target.reuse), 0
            regions.append(region)
        region.put(block, offset, size)
    return regions


def _place_rest(lowered: Lowered, result: Plan, placement: Placement) -> None:
    """Assign addresses to weights and states by the placement; each input and output gets a region, bound at run
    time.
    """
    for tensor in lowered.tensors.values():
        if tensor.kind in ("input", "output"):
            address, end = Address(f"{tensor.kind}:{tensor.name}", 0), tensor.nbytes
        elif tensor.replaces is not None:
            result.addresses[tensor.id] = result.addresses[tensor.replaces]
            continue
        elif tensor.kind in ("weight", "state"):
            address, end = placement.add(tensor, lowered.target)
        else:
            continue
        result.addresses[tensor.id] = address
        result.regions[address.region] = max(result.regions.get(address.region, 0), end)


# A range of memory: region, first byte, one past the last.
_Range = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Touched:
    """The memory that a step reads and writes, including scratch; without inputs and weights, which no step writes."""

    reads: list[_Range]
    writes: list[_Range]

    @staticmethod
    def by(step: Step, lowered: Lowered, plan: Plan) -> Touched:
        """Return the memory that a step of a plan touches, except inputs and weights."""
        tensors = lowered.tensors
        reads = [_byte_range(plan, v) for v in step.reads if tensors[v.tensor].kind not in ("input", "weight")]
        writes = [_byte_range(plan, v) for v in step.writes]
        if step.scratch is not None:
            address = plan.addresses[step.scratch]
            writes.append((address.region, address.offset, address.offset + tensors[step.scratch].nbytes))
        return Touched(reads, writes)

    def waits_for(self, other: Touched) -> bool:
        """Return whether one of two steps touches memory that the other writes."""
        return (
            _overlap(self.reads, other.writes)
            or _overlap(self.writes, other.writes)
            or _overlap(self.writes, other.reads)
        )


def _barriers(lowered: Lowered, result: Plan) -> list[bool]:
    """Return, for each step, whether it needs a barrier before it.

    It does if it touches memory written since the last barrier, or writes memory read since then. Two steps of one task
    each run on the same thread, in order, and need no barrier in between.
    """
    if all(step.parts == 1 for step in result.steps):
        return [False] * len(result.steps)
    barriers: list[bool] = []
    alone: list[Touched] = []  # by steps of one task, since the last barrier
    shared: list[Touched] = []  # by other steps, since the last barrier
    for step in result.steps:
        touched = Touched.by(step, lowered, result)
        needed = any(touched.waits_for(other) for other in (shared if step.parts == 1 else chain(shared, alone)))
        if needed:
            alone.clear()
            shared.clear()
        barriers.append(needed)
        (alone if step.parts == 1 else shared).append(touched)
    return barriers


def _byte_range(result: Plan, view: View) -> _Range:
    address = result.addresses[view.tensor]
    low, high = view.dtype.span(*view.extent)
    return address.region, address.offset + low, address.offset + high


def _overlap(a: list[_Range], b: list[_Range]) -> bool:
    return any(x[0] == y[0] and x[1] < y[2] and y[1] < x[2] for x in a for y in b)


def canaries(lowered: Lowered, plan: Plan) -> list[tuple[str, int]]:
    """Return the location of canaries, region and byte: after every arena tensor whose gap no other tensor covers."""
    covered = [
        (a.region, a.offset, a.offset + lowered.tensors[t].nbytes) for t, a in plan.addresses.items() if t in plan.live
    ]
    canary_locations = []
    for region, _, end in covered:
        gap_end = end + plan.canary_bytes
        if not any(r == region and low < gap_end and end < high for r, low, high in covered):
            canary_locations.append((region, end))
    return canary_locations


def layout(lowered: Lowered, result: Plan) -> dict[str, Any]:
    """Return `layout.json`: every byte of a run, with the source model's names."""
    return {
        "regions": dict(result.regions),
        "arena_bytes": result.arena_bytes,
        "lower_bound_bytes": result.lower_bound_bytes,
        "activation_bytes": result.activation_bytes,
        "tensors": list(_layout_tensors(lowered, result)),
    }


def _layout_tensors(lowered: Lowered, result: Plan) -> Iterator[dict[str, Any]]:
    for tensor in lowered.tensors.values():
        if tensor.id not in result.addresses:
            continue
        address = result.addresses[tensor.id]
        row: dict[str, Any] = {
            "id": tensor.id, "name": tensor.name, "kind": tensor.kind, "dtype": tensor.dtype.name,
            "shape": list(tensor.shape), "region": address.region, "offset": address.offset, "bytes": tensor.nbytes,
        }  # fmt: skip
        if tensor.id in result.live:
            row["birth"], row["death"] = result.live[tensor.id]
        if tensor.packed_weight is not None:
            row["packed_weight"] = tensor.packed_weight.key
        yield row
