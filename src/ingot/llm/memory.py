"""The memory of a language model in bytes: allocated, or planned from the headers of its weights."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from ingot.compile import Compiler
from ingot.errors import LimitError
from ingot.llm.engine import Engine, choose_on_device, mode_of, modes_of
from ingot.llm.options import Options, expect_range
from ingot.load.hf import Folder, longest_context
from ingot.load.language import read_model
from ingot.lower import Lowered
from ingot.ops.kv_cache import CACHE_BLOCK
from ingot.plan.memory import Plan
from ingot.support.columns import counted, table

_GROWTH = 8  # factor from a context that fits to the next one tried


@dataclass(frozen=True, slots=True)
class ModeMemory:
    """Bytes of one mode. arena: activations and scratch; scratch: the largest scratch buffer of a step; arrays: inputs
    and outputs.
    """

    arena: int
    scratch: int
    arrays: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a language model. cache: the keys, values and recurrent states of all sequences."""

    context: int
    sequences: int
    weights: int
    cache: int
    modes: dict[str, ModeMemory] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return self.weights + self.cache + sum(mode.arena + mode.arrays for mode in self.modes.values())

    def __repr__(self) -> str:
        sequences = counted(self.sequences, "sequence")
        return f"<Memory: {self.total} bytes, {sequences} of {counted(self.context, 'position')}>"

    def __str__(self) -> str:
        rows = [("weights", self.weights), ("cache", self.cache)]
        for name, mode in self.modes.items():
            rows += [(f"{name} arena", mode.arena), (f"{name} arrays", mode.arrays)]
        return table(repr(self), [(what, f"{nbytes:>15} bytes") for what, nbytes in rows])


def allocated(engine: Engine) -> Memory:
    """Return the memory that an engine has allocated so far."""
    modes = {}
    for name, mode in list(engine.modes.items()):  # a thread may add one
        native = mode.native
        modes[name] = ModeMemory(native.arena_bytes, _scratch(native.lowered), _arrays(native.plan))
    model = engine.model
    return Memory(model.context, engine.sequences.count, engine.modes.weight_bytes, engine.modes.state_bytes, modes)


def planned(folder: Folder, options: Options) -> Memory:
    """Return the memory that a folder's model would allocate. Reads only headers, no weights.

    Raises the errors of loading the model, and UnsupportedError for an op without a kernel.
    """
    model = options.load(folder, has_windows=True)
    if options.target.device == "webgpu":
        choose_on_device(model.graph)
    compiler = Compiler(model.graph, options.target)
    modes, cache = {}, 0
    for name in modes_of(options.sequences):
        mode = mode_of(name, model.context, options.sequences)
        lowered, plan = compiler.compile(mode).native
        cache = max(cache, sum(size for region, size in plan.regions.items() if region.startswith("state")))
        modes[name] = ModeMemory(plan.arena_bytes, _scratch(lowered), _arrays(plan))
    return Memory(model.context, options.sequences, compiler.placement.weight_bytes, cache, modes)


def memory_of(
    folder: str | os.PathLike[str],
    *,
    context: int | None = None,
    precision: str | None = None,
    threads: int = 0,
    cache_dtype: str | None = None,
    sequences: int = 1,
    executor: str = "native",
    cache_positions: int | None = None,
    checkpoints: int | None = None,
    budget: int | None = None,
    template: str | os.PathLike[str] | None = None,
) -> Memory:
    """Return the memory that `LLM` would allocate with the same options, exact to the byte. No weights are read.

    budget: bytes; if given, the result is for the largest context that fits, at most `context` or the model's limit.

    Raises the errors of `LLM`, and LimitError, with both numbers, if not even the smallest context fits the budget.
    """
    source = read_model(os.fspath(folder), template)
    if budget is not None:
        expect_range("budget", budget, 1, 1 << 62)
        context = longest_context(source) if context is None else context
    options = Options.of(
        source,
        context=context,
        precision=precision,
        threads=threads,
        cache_dtype=cache_dtype,
        sequences=sequences,
        executor=executor,
        cache_positions=cache_positions,
        checkpoints=checkpoints,
    )
    return planned(source, options) if budget is None else _largest(source, options, budget)


def _largest(folder: Folder, options: Options, budget: int) -> Memory:
    """Return the plan of the largest context that fits a budget: a multiple of the cache's block, or the full one."""
    low = planned(folder, replace(options, context=min(CACHE_BLOCK, options.context)))
    if low.total > budget:
        raise LimitError(
            f"memory: the model does not fit, got {budget} bytes, expected at least {low.total} for a context of"
            f" {low.context}"
        )
    high = low
    while high.total <= budget:  # grow stepwise: planning a context far beyond the budget builds large tables
        if high.context == options.context:
            return high
        low, high = high, planned(folder, replace(options, context=min(_GROWTH * high.context, options.context)))
    while high.context - low.context > CACHE_BLOCK:
        # Bytes are almost linear in the context: interpolate, but stay at least a block away from both bounds.
        share = (budget - low.total) / (high.total - low.total)
        guess = (low.context + int(share * (high.context - low.context))) // CACHE_BLOCK
        blocks = min(max(guess, low.context // CACHE_BLOCK + 1), (high.context - 1) // CACHE_BLOCK)
        middle = planned(folder, replace(options, context=blocks * CACHE_BLOCK))
        if middle.total <= budget:
            low = middle
        else:
            high = middle
    return low


def _scratch(lowered: Lowered) -> int:
    return max((t.nbytes for t in lowered.tensors.values() if t.kind == "scratch"), default=0)


def _arrays(plan: Plan) -> int:
    return sum(size for name, size in plan.regions.items() if name.startswith(("input:", "output:")))
