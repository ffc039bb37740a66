"""Profile both modes of the model."""

from __future__ import annotations

from pathlib import Path

import ingot
from benchmarks.harness import page, report
from benchmarks.llm.engines import CHUNK, prompt
from benchmarks.llm.files import FOLDER, written
from benchmarks.llm.model import PRECISIONS, paths
from ingot.run import probe
from ingot.run.modes import BoundProgram
from ingot.session.reports import Profile

RUNS = 5
SEED = 7


def steps_table(mode: BoundProgram, sizes: dict[str, int], peak: float, read: float) -> str:
    """A row for each kind of step, the longest first. peak: GFLOP/s. read: GB/s."""
    program = mode.native
    found = Profile.of(program, program.profile(list(mode.inputs.values()), RUNS, sizes)).totals()
    whole = sum(total.nanoseconds for total in found.values())
    rows = [
        [name, str(t.count), f"{t.nanoseconds / 1000:.1f}", f"{t.nanoseconds / whole:.1%}",
         f"{t.flops / t.nanoseconds / peak:.0%}", f"{t.nbytes / t.nanoseconds / read:.0%}"]
        for name, t in sorted(found.items(), key=lambda item: -item[1].nanoseconds)
    ]  # fmt: skip
    rows.append(["all", str(len(program.lowered.steps)), f"{whole / 1000:.1f}", "", "", ""])
    return report.table(["kernel, parts, shape", "steps", "us", "of the run", "of peak", "of read bandwidth"], rows)


def tables(precision: str, threads: int, folder: Path) -> str:
    """Both modes."""
    written(folder, precision, [])
    path, _ = paths(folder, precision)
    stored = None if path.is_file() else precision
    model = ingot.LLM(path, context=2 * CHUNK, threads=threads, precision=stored)
    isa = model.options.target.isa
    peak = 2e-9 * probe.fma_per_second(isa, threads)
    read = 1e-9 * probe.bytes_per_second(isa, threads, probe.MOST_BYTES)
    parts = [f"{precision}: {peak:.0f} GFLOP/s of f32 multiply-adds, {read:.1f} GB/s read from memory."]
    list(model.generate_tokens(prompt(CHUNK, SEED), max_tokens=2, temperature=0))
    for name, rows in (("prefill", CHUNK), ("decode", 1)):
        sizes = {"rows": rows, "taken": 1, "sequences": 1}
        parts += [f"### {name}", steps_table(model.engine.mode(name), sizes, peak, read)]
    return "\n\n".join(parts)


def main() -> None:
    """Measure and report."""
    parser = page.options(__package__, threads=page.THREADS)
    parser.add_argument("--precision", default="f32", choices=PRECISIONS)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the models are, or are written")
    asked = parser.parse_args()
    page.publish(__package__, asked, "Steps", ["ingot"], tables(asked.precision, asked.threads, asked.folder))


if __name__ == "__main__":
    main()
