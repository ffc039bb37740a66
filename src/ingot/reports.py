"""What a session tells about itself: kernels and reasons, times, memory. Each prints, and gives plain data for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ingot.errors import InputError
from ingot.lower.lowered import Choice
from ingot.plan import Plan, layout
from ingot.run.native import NativeProgram


@dataclass(frozen=True, slots=True)
class Explanation:
    """For each node with a kernel: the candidates, the chosen one and why the others were refused."""

    isa: str
    threads: int
    choices: tuple[Choice, ...]
    fallback: tuple[str, ...]
    detailed: bool

    @staticmethod
    def of(programs: Sequence[NativeProgram], fallback: Sequence[str], node: str | None = None) -> Explanation:
        """Explains compiled programs; `node` is the name of one value. Raises InputError when no choice made it."""
        choices = [choice for program in programs for choice in program.lowered.choices]
        if node is not None:
            choices = [choice for choice in choices if choice.node == node]
            if not choices:
                raise InputError(f"explain: no such node, got {node!r}, expected a value that `list-nodes` prints")
        target = programs[0].lowered.target if programs else None
        isa, threads = (target.isa, target.threads) if target else ("", 0)
        return Explanation(isa, threads, tuple(choices), tuple(fallback), node is not None)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        nodes = [
            {
                "node": choice.node,
                "op": choice.op,
                "kernel": choice.candidates[-1][0],
                "refused": [{"kernel": kernel, "reason": reason} for kernel, reason in choice.candidates[:-1]],
            }
            for choice in self.choices
        ]
        return {"isa": self.isa, "threads": self.threads, "nodes": nodes, "fallback": list(self.fallback)}

    def __str__(self) -> str:
        lines = [f"{self.isa}, {self.threads} threads"]
        for choice in self.choices:
            lines.append(f"{choice.node}: {choice.op} -> {choice.candidates[-1][0]}")
            if self.detailed:
                lines += [f"  not {kernel}: {reason}" for kernel, reason in choice.candidates[:-1]]
        lines += [f"on the reference: {text}" for text in self.fallback]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step of a profiled run."""

    kernel: str
    node: str
    parts: int
    nanoseconds: int
    bytes_touched: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Times of one run, with a barrier after each step."""

    steps: tuple[StepTime, ...]

    @staticmethod
    def of(program: NativeProgram, nanoseconds: Sequence[int]) -> Profile:
        """Joins measured times with the steps they belong to."""
        rows = []
        for step, time in zip(program.lowered.steps, nanoseconds, strict=True):
            touched = sum(v.size * v.dtype.itemsize for v in (*step.reads, *step.writes))
            rows.append(StepTime(step.kernel, step.node, step.parts, time, touched))
        return Profile(tuple(rows))

    @property
    def microseconds(self) -> float:
        """The whole run."""
        return sum(step.nanoseconds for step in self.steps) / 1000

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        steps = [
            {
                "kernel": s.kernel, "node": s.node, "parts": s.parts,
                "microseconds": s.nanoseconds / 1000, "gigabytes_per_second": s.bytes_touched / max(s.nanoseconds, 1),
            }
            for s in self.steps
        ]  # fmt: skip
        return {"microseconds": self.microseconds, "steps": steps}

    def __str__(self) -> str:
        lines = [f"{'us':>10} {'GB/s':>7}  kernel"]
        for s in self.steps:
            rate = s.bytes_touched / max(s.nanoseconds, 1)
            lines.append(f"{s.nanoseconds / 1000:10.1f} {rate:7.1f}  {s.kernel} x{s.parts}  {s.node}")
        lines.append(f"{self.microseconds:10.1f}          all {len(self.steps)} steps")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Memory of a compiled program; with several native segments, sums over them."""

    programs: Sequence[NativeProgram]

    @property
    def _plans(self) -> list[Plan]:
        return [program.plan for program in self.programs]

    @property
    def arena_bytes(self) -> int:
        """Bytes of activations and scratch; all segments share one arena."""
        return max((p.arena_bytes for p in self._plans), default=0)

    @property
    def lower_bound_bytes(self) -> int:
        """The largest sum of bytes alive at once."""
        return max((p.lower_bound_bytes for p in self._plans), default=0)

    @property
    def activation_bytes(self) -> int:
        """What activations would take if none shared memory."""
        return sum(p.activation_bytes for p in self._plans)

    def layout(self) -> dict[str, Any]:
        """`layout.json`: every region and tensor, for each segment."""
        segments = [layout(program.lowered, program.plan) for program in self.programs]
        return segments[0] if len(segments) == 1 else {"segments": segments}

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return self.layout()

    def __str__(self) -> str:
        ratio = self.arena_bytes / max(self.lower_bound_bytes, 1)
        return (
            f"arena {self.arena_bytes} bytes, lower bound {self.lower_bound_bytes} bytes ({ratio:.3f}x), "
            f"all activations {self.activation_bytes} bytes"
        )
