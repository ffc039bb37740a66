"""Trace: when each thread computes each step of a run, as a table, a timeline of a browser, or a flame graph."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.ir.graph import Graph
from ingot.ir.node import shown_sources
from ingot.lower.cost import Cost
from ingot.run.interpret import Watch
from ingot.run.native import NativeProgram
from ingot.session.reports import Profile, StepTime, sources_document
from ingot.session.trace_formats import Format, Quantity
from ingot.support import html
from ingot.support.columns import counted
from ingot.support.files import written
from ingot.support.node_data import node_data
from ingot.support.spans import Span

if TYPE_CHECKING:
    from ingot.run.webgpu import WebgpuProgram

_COMPILING = 1_000_000  # the number of the row of compilation in a timeline, behind those of threads


@dataclass(frozen=True)
class Trace:
    """The times of the steps of traced runs, without additional barriers.

    steps: the steps, with the nanoseconds of all threads together, the median of all runs. times: int64[runs, steps,
    threads, 2], when a thread begins and ends its tasks of a step, in nanoseconds of `time.monotonic_ns`; 0 where it
    has none. compilation: spans of compilation. executor: "native", "interpret" or "webgpu"; the interpreter has a step
    for each node, and WebGPU's steps are placed one after another, since a device tells their durations alone.
    """

    executor: str
    steps: tuple[StepTime, ...]
    times: np.ndarray
    compilation: tuple[Span, ...] = ()

    @staticmethod
    def of_native(program: NativeProgram, times: np.ndarray) -> Trace:
        """Combine the times of `NativeProgram.trace` with its steps."""
        return Trace("native", Profile.of(program, (times[..., 1] - times[..., 0]).sum(axis=2)).steps, times)

    @staticmethod
    def of_webgpu(program: WebgpuProgram, inputs: Sequence[np.ndarray], runs: int, sizes: Mapping[str, int]) -> Trace:
        """Trace runs of a program on a device. Raises as `WebgpuProgram.profile`."""
        begin, durations = time.monotonic_ns(), program.profile(inputs, runs, sizes)
        ends = begin + durations.reshape(-1).cumsum().reshape(durations.shape)
        times = np.stack([ends - durations, ends], axis=-1)[:, :, np.newaxis]
        return Trace("webgpu", Profile.of(program, durations).steps, times)

    @staticmethod
    def of_interpreter(graph: Graph, runs: int, run: Callable[[Watch], object]) -> Trace:
        """Trace runs of the interpreter. run: runs the graph once with a watch."""
        first = {node.outputs[0]: index for index, node in enumerate(graph.nodes)}
        times = np.zeros((runs, len(first), 1, 2), np.int64)
        for row in times:
            last = time.monotonic_ns()

            def note(name: str, array: object, row: np.ndarray = row) -> None:
                nonlocal last
                if name in first:
                    row[first[name], 0] = last, time.monotonic_ns()
                last = time.monotonic_ns()

            run(note)
        busy = np.median(times[:, :, 0, 1] - times[:, :, 0, 0], axis=0).astype(int).tolist()
        steps = tuple(
            StepTime(node.op.name, node.outputs[0], 1, nanoseconds, Cost(0, 0, 0), sources=node.sources)
            for node, nanoseconds in zip(graph.nodes, busy, strict=True)
        )
        return Trace("interpret", steps, times)

    def compiled_in(self, spans: Sequence[Span]) -> Trace:
        """Return the trace with spans of compilation."""
        return replace(self, compilation=tuple(spans))

    @property
    def threads(self) -> int:
        """The number of threads that take part in a run."""
        return int((self.times[..., 1].max(axis=(0, 1), initial=0) > 0).sum())

    @property
    def run_nanoseconds(self) -> int:
        """From the begin of the first step to the end of the last one, the median of all runs."""
        if not self.steps:
            return 0
        begins = np.where(self.times[..., 0] > 0, self.times[..., 0], np.iinfo(np.int64).max)
        lengths = self.times[..., 1].max(axis=(1, 2), initial=0) - begins.min(axis=(1, 2))
        return int(np.median(lengths))

    @property
    def waiting(self) -> tuple[float, ...]:
        """The share of a run for which each thread has no task, the median of all runs."""
        busy = np.median((self.times[..., 1] - self.times[..., 0]).sum(axis=1), axis=0)[: self.threads]
        return tuple(float(max(0.0, 1 - each / max(1, self.run_nanoseconds))) for each in busy)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "executor": self.executor,
            "runs": len(self.times),
            "threads": self.threads,
            "microseconds": self.run_nanoseconds / 1000,
            "waiting": list(self.waiting),
            "steps": [step.to_json() for step in self.steps],
            "compilation": [{"name": s.name, "microseconds": (s.end - s.begin) / 1000} for s in self.compilation],
        }

    def events(self, suffix: str = "") -> list[dict[str, Any]]:
        """Return events of Chrome's trace format: steps, waits and compilation. suffix: after the names of steps.

        The format is the "Trace Event Format" of Chrome, which Perfetto reads, too.
        """
        named = [(thread, f"thread {thread}") for thread in range(self.threads)]
        if self.compilation:
            named.append((_COMPILING, "compilation"))
        found = [
            {
                "cat": "Metadata",
                "ph": "M",
                "pid": os.getpid(),
                "tid": row,
                "name": "thread_name",
                "args": {"name": name},
            }
            for row, name in named
        ]
        found += [event("Compilation", s.name, _COMPILING, s.begin, s.end, {}) for s in self.compilation]
        facts = [
            {"id": index, "op_name": step.kernel, "node": step.node, "parts": step.parts, "flops": step.cost.flops,
             "bytes": step.bytes_touched, "sources": sources_document(step.sources)}
            for index, step in enumerate(self.steps)
        ]  # fmt: skip
        for run in self.times.tolist():
            ended = [0] * self.threads
            for step, fact, threads in zip(self.steps, facts, run, strict=True):
                for thread, (begin, end) in enumerate(threads[: self.threads]):
                    if not end:
                        continue
                    if ended[thread] and begin > ended[thread]:
                        found.append(event("Wait", "wait", thread, ended[thread], begin, {"id": fact["id"]}))
                    found.append(event("Node", f"{step.node}{suffix}", thread, begin, end, fact))
                    ended[thread] = end
        return found

    def speedscope(self) -> dict[str, Any]:
        """Return a document of speedscope: a profile for each thread, and one of compilation."""
        frames: dict[str, int] = {}
        profiles = []
        for thread in range(self.threads):
            events = []
            for run in self.times[:, :, thread].tolist():
                for step, (begin, end) in zip(self.steps, run, strict=True):
                    if end:
                        frame = frames.setdefault(f"{step.node} ({step.kernel})", len(frames))
                        events += [{"type": "O", "frame": frame, "at": begin}, {"type": "C", "frame": frame, "at": end}]
            profiles.append(_profile(f"thread {thread}", events))
        ordered = []
        for span in self.compilation:
            frame = frames.setdefault(span.name, len(frames))
            length = span.end - span.begin
            ordered += [(span.begin, 1, -length, "O", frame), (span.end, 0, length, "C", frame)]
        if ordered:
            events = [{"type": kind, "frame": frame, "at": at} for at, _, _, kind, frame in sorted(ordered)]
            profiles.append(_profile("compilation", events))
        return {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": [{"name": name} for name in frames]},
            "profiles": profiles,
            "exporter": "ingot",
        }

    def node_data(self, quantity: Quantity = "time") -> dict[str, Any]:
        """Return a document of Model Explorer: microseconds, bytes or FLOPs of each node, see `node_data`."""
        number: dict[Quantity, Callable[[StepTime], float]] = {
            "time": lambda step: step.nanoseconds / 1000,
            "bytes": lambda step: step.bytes_touched,
            "flops": lambda step: step.cost.flops,
        }
        return node_data(
            (step.node, [source.name for source in step.sources if source.name], number[quantity](step))
            for step in self.steps
        )

    def save(self, path: str | os.PathLike[str], format: Format = "chrome", quantity: Quantity = "time") -> None:
        """Write the trace to a file. quantity: of "model-explorer", which has one number for each node.

        Raises OutputError for a file that cannot be written.
        """
        document: Any
        match format:
            case "chrome":
                document = self.events()
            case "speedscope":
                document = self.speedscope()
            case "model-explorer":
                document = self.node_data(quantity)
        with written(Path(path)) as file:
            file.write(json.dumps(document).encode())

    def __repr__(self) -> str:
        runs, steps = counted(len(self.times), "run"), counted(len(self.steps), "step")
        return f"<Trace: {runs}, {steps}, {counted(self.threads, 'thread')}, {self.run_nanoseconds / 1000:.1f} us>"

    def __str__(self) -> str:
        lines = [f"{'us':>10} {'share':>6}  kernel"]
        total = max(1, sum(step.nanoseconds for step in self.steps))
        for step in sorted(self.steps, key=lambda step: -step.nanoseconds):
            share = f"{step.nanoseconds / total:6.1%}"
            lines.append(
                f"{step.nanoseconds / 1000:10.1f} {share}  {step.kernel} x{step.parts}  {step.node}"
                f"{shown_sources(step.sources)}"
            )
        waits = ", ".join(f"{share:.0%}" for share in self.waiting)
        lines.append(f"{self.run_nanoseconds / 1000:10.1f} {'':6}  a run; its threads have no task for {waits} of it")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Draw the last run: a row for each thread, a rectangle for each step, and gaps where it waits."""
        run = self.times[-1]
        begin = min((int(each) for each in run[..., 0].flat if each), default=0)
        x = html.WIDTH / max(1, int(run[..., 1].max(initial=0)) - begin)
        parts = []
        for thread in range(self.threads):
            parts.append(html.text(0, 30 * thread + 11, f"thread {thread}"))
            for number, (step, (first, last)) in enumerate(zip(self.steps, run[:, thread].tolist(), strict=True)):
                if last:
                    tip = f"{step.kernel}, {step.node}: {(last - first) / 1000:.1f} us"
                    box = (first - begin) * x, 30 * thread + 14, (last - first) * x, 14
                    parts.append(html.rectangle(*box, number, tip, step.kernel))
        return html.drawing(repr(self), parts, 30 * max(1, self.threads))


def event(kind: str, name: str, row: int, begin: int, end: int, args: dict[str, Any]) -> dict[str, Any]:
    """Return a complete event of Chrome's trace format. row: of the timeline. begin, end: in nanoseconds."""
    times = {"ts": begin / 1000, "dur": (end - begin) / 1000}
    return {"cat": kind, "name": name, "ph": "X", "pid": os.getpid(), "tid": row, **times, "args": args}


def _profile(name: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    begin, end = (events[0]["at"], events[-1]["at"]) if events else (0, 0)
    return {
        "type": "evented", "name": name, "unit": "nanoseconds", "startValue": begin, "endValue": end, "events": events,
    }  # fmt: skip
