"""The reports of a session: kernels and reasons, times, memory. Each prints, and converts to plain data for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.compile import CompiledSegment
from ingot.errors import InputError, some
from ingot.ir.dtype import bf16, i4, i8, u4, u8
from ingot.ir.graph import Graph, Source
from ingot.ir.liveness import Liveness
from ingot.ir.node import shown_sources
from ingot.lower import step_cost
from ingot.lower.cost import Cost
from ingot.lower.lowered import Choice, Step
from ingot.plan.memory import Plan, layout
from ingot.run.native import NativeProgram
from ingot.support import html
from ingot.support.columns import counted

if TYPE_CHECKING:
    from ingot.run.webgpu import WebgpuProgram

_ROUNDED = (bf16, i8, i4, u8, u4)  # the dtypes of a precision's operands


@dataclass(frozen=True, slots=True)
class Explanation:
    """For each node with a kernel: the candidates, the chosen one and why the others were refused.

    sizes: for each dim with a limit, whether one program covers all its sizes, and why not. rounded: name, kind and
    dtype of each bf16 or quantized tensor, of weights and of data between steps; empty for a single node. fused: the
    values whose kernels also compute the explained node, if it has no separate kernel. trades: the decisions of passes
    between memory and time, by the values concerned; for a single node only its own. sources: the named nodes of the
    loaded model that each node computes.
    """

    isa: str
    threads: int
    sizes: tuple[str, ...]
    rounded: tuple[tuple[str, str, str], ...]
    choices: tuple[Choice, ...]
    fallback: tuple[str, ...]
    detailed: bool
    fused: tuple[str, ...] = ()
    trades: tuple[tuple[tuple[str, ...], str], ...] = ()
    sources: Mapping[str, tuple[Source, ...]] = field(default_factory=dict)

    @staticmethod
    def of(
        programs: Sequence[CompiledSegment | NativeProgram | WebgpuProgram],
        fallback: Sequence[str],
        sizes: Sequence[str] = (),
        node: str | None = None,
        external: Sequence[Choice] = (),
    ) -> Explanation:
        """Explain compiled programs. Raises InputError when neither a step nor the reference computes the node.

        node: the name of one value, or of a node of the loaded model.

        external: choices of kernels of shared libraries.
        """
        choices = [*(choice for program in programs for choice in program.lowered.choices), *external]
        sources = {name: each for program in programs for name, each in program.lowered.sources.items()}
        fused: tuple[str, ...] = ()
        if node is not None:
            chosen = {choice.node for choice in choices}
            fused = () if node in chosen else _computed_in(node, [program.graph for program in programs], chosen)
            named = {name for name, each in sources.items() if any(source.name == node for source in each)}
            wanted = {node, *fused} if node in chosen or fused else named
            choices = [choice for choice in choices if choice.node in wanted]
            if not choices:
                fallback = [text for text in fallback if repr(node) in text.partition(" ")[2]]
            if not choices and not fallback:
                raise InputError(f"explain: no such node, got {node!r}, expected a value that `list-nodes` prints")
        target = programs[0].lowered.target if programs else None
        isa, threads = (target.isa, target.threads) if target else ("", 0)
        tensors = (tensor for program in programs for tensor in program.lowered.tensors.values())
        kept = (t for t in tensors if t.dtype in _ROUNDED and t.kind in ("weight", "activation"))
        rounded = () if node else tuple((t.name, t.kind, t.dtype.name) for t in kept)
        chosen_for = {values: text for program in programs for values, text in program.graph.trades.items()}
        trades = tuple((values, text) for values, text in chosen_for.items() if node is None or node in values)
        return Explanation(
            isa, threads, tuple(sizes), rounded, tuple(choices), tuple(fallback), node is not None, fused, trades,
            {choice.node: sources[choice.node] for choice in choices if choice.node in sources},
        )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        nodes = [
            {
                "node": choice.node,
                "op": choice.op,
                "kernel": choice.candidates[-1][0],
                "refused": [{"kernel": kernel, "reason": reason} for kernel, reason in choice.candidates[:-1]],
                "sources": sources_document(self.sources.get(choice.node, ())),
            }
            for choice in self.choices
        ]
        rest = {"nodes": nodes, "fallback": list(self.fallback)}
        rest["rounded"] = [{"name": name, "kind": kind, "dtype": dtype} for name, kind, dtype in self.rounded]
        rest["trades"] = [{"values": list(values), "choice": text} for values, text in self.trades]
        if self.fused:
            rest["fused_into"] = list(self.fused)
        return {"isa": self.isa, "threads": self.threads, "sizes": list(self.sizes), **rest}

    def __repr__(self) -> str:
        kernels = counted(len(self.choices), "node")
        return f"<Explanation: {kernels} with a kernel, {len(self.fallback)} on the reference>"

    def __str__(self) -> str:
        lines = [*([f"{self.isa}, {self.threads} threads"] if self.isa else []), *self.sizes]
        if self.fused:
            lines.append(f"fused into {some(self.fused)}")
        lines += [f"{some(values)}: {text}" for values, text in self.trades]
        lines += [f"{name}: {kind} in {dtype}" for name, kind, dtype in self.rounded]
        for choice in self.choices:
            from_ = shown_sources(self.sources.get(choice.node, ()), choice.node)
            lines.append(f"{choice.node}: {choice.op} -> {choice.candidates[-1][0]}{from_}")
            if self.detailed:
                lines += [f"  {line}" for line in refusals(choice.candidates[:-1])]
        lines += [f"on the reference: {text}" for text in self.fallback]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = []
        for choice in self.choices:
            refused = refusals(choice.candidates[:-1])
            others = "; ".join(refused) if self.detailed else counted(len(choice.candidates) - 1, "kernel")
            rows.append((choice.node, choice.op, choice.candidates[-1][0], others))
        rows += [(text, "", "the reference", "") for text in self.fallback]
        return html.table(repr(self), ("node", "op", "kernel", "refused"), rows)


def sources_document(sources: Iterable[Source]) -> list[dict[str, str]]:
    """Return nodes of the loaded model as plain data."""
    return [{"name": s.name, "op": s.op, "domain": s.domain, "module": s.module} for s in sources]


def refusals(refused: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line for each reason of a refusal, with the refused kernels."""
    found: dict[str, list[str]] = {}
    for kernel, reason in refused:
        found.setdefault(reason, []).append(kernel)
    return [f"not {some(kernels)}: {reason}" for reason, kernels in found.items()]


def _computed_in(node: str, graphs: Sequence[Graph], chosen: set[str]) -> tuple[str, ...]:
    """Return the nearest values with separate kernels on the paths from a value to its readers; () if unknown."""
    found: dict[str, None] = {}
    for graph in graphs:
        waiting = [node] if node in graph.values and graph.producer(node) is not None else []
        for value in waiting:
            if value in chosen:
                found[value] = None
            else:
                waiting += [output for user in graph.users(value) for output in user.outputs if output not in waiting]
    return tuple(found)


@dataclass(frozen=True, slots=True)
class BindingReport:
    """The cached programs for sizes of symbolic dims.

    limits: of dims with a limit, given or found as sizes changed. unplanned: why no single program covers all sizes up
    to given limits; "" if one does. refusal: why sizes beyond found limits have separate programs; "" if none do. hits,
    misses: runs with a cached program, and compiled programs. kept: cached programs, at most `most`. arena_bytes:
    memory that all of them share. weight_bytes: packed weights of all of them.
    """

    limits: dict[str, int]
    unplanned: str
    refusal: str
    hits: int
    misses: int
    kept: int
    most: int
    arena_bytes: int
    weight_bytes: int

    def plans(self) -> tuple[str, ...]:
        """Return a line for each dim with a limit, and one for sizes beyond."""
        each = f"a program for each size, at most {self.most} cached, because "
        what = f"{each}{self.unplanned}" if self.unplanned else "one program for every size"
        lines = [f"dim {name}, at most {limit}: {what}" for name, limit in self.limits.items()]
        return tuple([*lines, f"{'beyond: ' if lines else ''}{each}{self.refusal}"] if self.refusal else lines)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)

    def __repr__(self) -> str:
        counts = f"{counted(self.hits, 'hit')}, {counted(self.misses, 'miss', 'misses')}"
        return f"<BindingReport: {self.kept} of {self.most} programs, {counts}>"

    def __str__(self) -> str:
        counts = f"{self.hits} hits, {self.misses} misses, {self.kept} of {self.most} programs kept"
        memory = f"arena {self.arena_bytes} bytes, weights {self.weight_bytes} bytes"
        return "\n".join([*self.plans(), f"{counts}, {memory}"])


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of a profiled run, with its minimum cost.

    product: for a product, its sizes m x k x n, as text. sources: the named nodes of the loaded model that it computes.
    """

    kernel: str
    node: str
    parts: int
    nanoseconds: int
    cost: Cost
    product: str = ""
    sources: tuple[Source, ...] = ()

    def __repr__(self) -> str:
        return f"<StepTime {self.kernel} {self.node!r}: {self.nanoseconds / 1000:.1f} us>"

    @property
    def title(self) -> str:
        """The node, with its sources in the loaded model."""
        return f"{self.node}{shown_sources(self.sources, self.node)}"

    @property
    def bytes_touched(self) -> int:
        """Bytes read and written."""
        return self.cost.weight_bytes + self.cost.other_bytes

    @property
    def gflops(self) -> float:
        """10^9 operations of multiply-adds per second."""
        return self.cost.flops / max(self.nanoseconds, 1)

    @property
    def gigabytes_per_second(self) -> float:
        """10^9 bytes read and written per second."""
        return self.bytes_touched / max(self.nanoseconds, 1)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "kernel": self.kernel, "node": self.node, "parts": self.parts, "microseconds": self.nanoseconds / 1000,
            "gflops": self.gflops, "gigabytes_per_second": self.gigabytes_per_second,
            "sources": sources_document(self.sources),
        }  # fmt: skip


@dataclass(slots=True)
class StepTotal:
    """The sum of equal steps."""

    count: int = 0
    nanoseconds: int = 0
    flops: int = 0
    nbytes: int = 0

    def add(self, step: StepTime) -> None:
        """Add a step."""
        self.count += 1
        self.nanoseconds += step.nanoseconds
        self.flops += step.cost.flops
        self.nbytes += step.bytes_touched


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of the steps of a run, with a barrier after each."""

    steps: tuple[StepTime, ...]

    @staticmethod
    def of(program: NativeProgram | WebgpuProgram, nanoseconds: np.ndarray) -> Profile:
        """Combine measured times, int64[runs, steps], with their steps; the run with the median total counts."""
        lowered = program.lowered
        medians = np.median(nanoseconds, axis=0).astype(int)
        return Profile(
            tuple(
                StepTime(
                    step.kernel, step.node, step.parts, int(time), step_cost(lowered, step), _product(step),
                    lowered.sources.get(step.node, ()),
                )
                for step, time in zip(program.plan.steps, medians, strict=True)
            )
        )  # fmt: skip

    def totals(self) -> dict[str, StepTotal]:
        """Return sums of equal steps, by kernel, tasks and sizes of products."""
        found: dict[str, StepTotal] = {}
        for step in self.steps:
            found.setdefault(f"{step.kernel} x{step.parts} {step.product}".strip(), StepTotal()).add(step)
        return found

    @property
    def microseconds(self) -> float:
        """The time of all steps."""
        return sum(step.nanoseconds for step in self.steps) / 1000

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"microseconds": self.microseconds, "steps": [step.to_json() for step in self.steps]}

    def __repr__(self) -> str:
        return f"<Profile: {counted(len(self.steps), 'step')}, {self.microseconds:.1f} us>"

    def __str__(self) -> str:
        lines = [f"{'us':>10} {'GFLOP/s':>8} {'GB/s':>7}  kernel"]
        for s in self.steps:
            rates = f"{s.gflops:8.1f} {s.gigabytes_per_second:7.1f}"
            lines.append(
                f"{s.nanoseconds / 1000:10.1f} {rates}  {s.kernel} x{s.parts}  {s.node}{shown_sources(s.sources)}"
            )
        lines.append(f"{self.microseconds:10.1f} {'':16}  all {len(self.steps)} steps")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        total = max(1, sum(step.nanoseconds for step in self.steps))
        rows = [
            (step.kernel, f"{step.nanoseconds / 1000:.1f}", f"{step.nanoseconds / total:.1%}", step.title)
            for step in sorted(self.steps, key=lambda step: -step.nanoseconds)
        ]
        return html.table(repr(self), ("kernel", "us", "share", "node"), rows)


def _product(step: Step) -> str:
    return "x".join(str(step.fields[axis]) for axis in ("m", "k", "n") if axis in step.fields)


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Memory of a compiled program; with several native segments, sums over them.

    unfused_bytes: the peak of live bytes if each node of the loaded graph were a step without scratch; None if a shape
    is unknown. A plan with much more trades memory for time.
    """

    programs: Sequence[CompiledSegment | NativeProgram | WebgpuProgram]
    unfused_bytes: int | None

    @staticmethod
    def of(
        programs: Sequence[CompiledSegment | NativeProgram | WebgpuProgram],
        unfused: Liveness | None,
        sizes: Mapping[str, int],
    ) -> PlanReport:
        """Return the report of programs.

        unfused: the liveness of their graph as it was loaded. sizes: of its symbols.
        """
        return PlanReport(programs, None if unfused is None else unfused.least(sizes))

    @property
    def _plans(self) -> list[Plan]:
        return [program.plan for program in self.programs]

    @property
    def arena_bytes(self) -> int:
        """Bytes of activations and scratch; all segments share one arena."""
        return max((p.arena_bytes for p in self._plans), default=0)

    @property
    def lower_bound_bytes(self) -> int:
        """The peak of live bytes."""
        return max((p.lower_bound_bytes for p in self._plans), default=0)

    @property
    def activation_bytes(self) -> int:
        """Bytes of activations and scratch if no tensors shared memory."""
        return sum(p.activation_bytes for p in self._plans)

    def layout(self) -> dict[str, Any]:
        """Return `layout.json`: every region and tensor, for each segment."""
        segments = [layout(program.lowered, program.plan) for program in self.programs]
        found = segments[0] if len(segments) == 1 else {"segments": segments}
        return found | {"unfused_bytes": self.unfused_bytes}

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return self.layout()

    def __repr__(self) -> str:
        return f"<PlanReport: arena {self.arena_bytes} bytes, lower bound {self.lower_bound_bytes} bytes>"

    def __str__(self) -> str:
        ratio = self.arena_bytes / max(self.lower_bound_bytes, 1)
        unfused = "" if self.unfused_bytes is None else f", one node at a time {self.unfused_bytes} bytes"
        return (
            f"arena {self.arena_bytes} bytes, lower bound {self.lower_bound_bytes} bytes ({ratio:.3f}x), "
            f"all activations and scratch {self.activation_bytes} bytes{unfused}"
        )

    def _repr_html_(self) -> str:
        layout = self.layout()
        return "".join(_arena_map(repr(self), each) for each in layout.get("segments", [layout]))


def _arena_map(title: str, layout: dict[str, Any], height: int = 240) -> str:
    """Draw an arena: steps from left to right, addresses upwards, a rectangle for each tensor. height: in pixels."""
    tensors = [each for each in layout["tensors"] if each["region"].startswith("arena") and "birth" in each]
    steps = max((each["death"] for each in tensors), default=0) + 1
    nbytes = max(1, layout["arena_bytes"])
    x, y = html.WIDTH / steps, (height - 20) / nbytes
    parts = [
        html.rectangle(
            each["birth"] * x, (nbytes - each["offset"] - each["bytes"]) * y,
            (each["death"] - each["birth"] + 1) * x, each["bytes"] * y, number,
            f"{each['name']}: {each['dtype']}{each['shape']}, {each['bytes']} bytes at {each['offset']}, "
            f"steps {each['birth']} to {each['death']}", each["name"],
        )
        for number, each in enumerate(tensors)
    ]  # fmt: skip
    caption = html.text(0, height - 5, f"steps 0 to {steps - 1}; addresses 0 to {nbytes} bytes upwards")
    return html.drawing(title, [*parts, caption], height)
