"""Compile `roofline.c`, and measure with it and with the library's own kernels."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import ROOT
from benchmarks.harness import page, report
from ingot.run import library, probe
from ingot.support import machine

HERE = Path(__file__).parent
DRAM_BYTES = 256 << 20  # for all threads together, well beyond the last cache
L2_BYTES = 256 << 10  # for each thread, well inside its L2
UNITS = {
    "fma_gflops": "fused multiply-add, GFLOP/s",
    "bf16_dot_gflops": "dot products of bf16, GFLOP/s",
    "read_gb_per_s": "streaming read, GB/s",
    "barrier_ns": "barrier, ns",
    "region_ns": "one parallel step, ns",
    "too_many_threads_ratio": "time with twice as many threads as CPUs, ratio",
    "empty_run_ns": "empty run, ns",
}


def measure() -> dict[str, dict[str, float]]:
    """The figures by quantity, then by `isa.threads`, `level.threads`, `threads` or caller."""
    native = library.load()
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "roofline"
        csrc = ROOT / "src" / "ingot" / "csrc"
        command = ["cc", "-std=gnu11", "-O3", "-Wall", "-Wextra", "-Werror", f"-I{csrc}", str(HERE / "roofline.c")]
        command += [str(native.path.absolute()), f"-Wl,-rpath,{native.path.absolute().parent}", "-lpthread", "-lm"]
        subprocess.run([*command, "-o", str(program)], check=True)
        lines = subprocess.run(
            [str(program), str(machine.threads())], check=True, capture_output=True, text=True
        ).stdout
    figures: dict[str, dict[str, float]] = {quantity: {} for quantity in UNITS}
    for name, value in (line.split() for line in lines.splitlines()):
        quantity, _, case = name.partition(".")
        figures[quantity][case] = float(value)
    figures["empty_run_ns"]["python"] = _python_call_ns(native)
    for threads in sorted({1, machine.threads()}):
        for isa in native.isas():
            figures["fma_gflops"][f"{isa}.{threads}"] = 2e-9 * probe.fma_per_second(isa, threads)
        for level, nbytes in (("dram", DRAM_BYTES), ("l2", L2_BYTES * threads)):
            rate = probe.bytes_per_second(native.best_isa, threads, nbytes)
            figures["read_gb_per_s"][f"{level}.{threads}"] = 1e-9 * rate
    return figures


def _python_call_ns(native: library.Library) -> float:
    run, program, null = native.entry.ingot_run, native.ffi.new("ingot_program *"), native.ffi.NULL
    best = float("inf")
    for _ in range(7):
        begin = time.perf_counter_ns()
        for _ in range(20000):
            run(program, null, null)
        best = min(best, (time.perf_counter_ns() - begin) / 20000)
    return best


def main() -> None:
    """Measure and report."""
    parser = page.options(__package__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, for a program")
    asked = parser.parse_args()
    figures = measure()
    if asked.json:
        print(json.dumps(figures, indent=2))
        return
    named = {UNITS[quantity]: cases for quantity, cases in figures.items()}
    page.publish(__package__, asked, "Roofline", ["ingot"], report.roofline(named))


if __name__ == "__main__":
    main()
