"""Measure the loads that have no stored result, and report all."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.harness import page
from benchmarks.harness.report import table, verdict
from benchmarks.llm.files import FOLDER
from benchmarks.serve import load, model, servers

ENGINES = ("llama.cpp", "openvino", "ingot")
REQUESTS = {1: 6, 4: 12, 16: 32, 64: 64}  # by the number of streams
ARRIVALS = 4  # a second, for each stream
SEQUENCES = max(REQUESTS)
TOKENS_GOAL, FIRST_GOAL, GAP_GOAL = 1.3, 0.7, 0.7  # at least; at most; at most


def stored(results: Path, precision: str, streams: int, state: str, engine: str) -> Path:
    """The path of a result."""
    return results / f"{precision}-{streams}-{state}-{engine}.json"


def write_model(engine: str, folder: Path, precision: str, programs: servers.Programs) -> None:
    """Write the model that an engine's server reads, in a process of its own, unless it is there."""
    if model.path_of(engine, folder, precision).exists():
        return
    if engine == "openvino":
        model.write_openvino(folder, precision, programs.openvino)
    else:
        subprocess.run([sys.executable, "-m", "benchmarks.serve.model", str(folder), precision], check=True)


def measure(asked: argparse.Namespace, programs: servers.Programs, precision: str, engine: str, results: Path) -> None:
    """Measure those loads of an engine that have no result, on one server."""
    states = asked.states.split(",")
    loads = [
        streams
        for streams in map(int, asked.loads.split(","))
        if not all(stored(results, precision, streams, state, engine).exists() for state in states)
    ]
    if not loads:
        return
    write_model(engine, asked.folder, precision, programs)
    path = model.path_of(engine, asked.folder, precision)
    tokenizer = (asked.folder / "serve-tokenizer").resolve()
    log = results / f"{engine}-{precision}.log"
    with servers.running(engine, programs.of(engine), path, asked.threads, SEQUENCES, log) as server:
        for streams in loads:
            requests = model.requests(asked.folder, REQUESTS[streams], seed=streams)
            for state in states:
                before = server.cpu_seconds()
                found = load.send(
                    programs.aiperf, server.address, requests, streams, float(ARRIVALS * streams), tokenizer,
                    results / "aiperf", streams,
                )  # fmt: skip
                facts = asdict(found) | {"cpu_seconds": server.cpu_seconds() - before, "peak": server.peak_bytes()}
                stored(results, precision, streams, state, engine).write_text(json.dumps(facts))
                print(precision, streams, state, engine, facts, file=sys.stderr, flush=True)


def rows_of(results: Path, precision: str, state: str) -> list[list[str]]:
    """The rows of a table: each load, each engine."""
    rows = []
    for streams in REQUESTS:
        paths = {engine: stored(results, precision, streams, state, engine) for engine in ENGINES}
        found = {engine: json.loads(path.read_text()) for engine, path in paths.items() if path.exists()}
        for engine, facts in found.items():
            cells = [f"{facts['tokens_per_second']:.1f}", f"{facts['first_p50']:.0f}", f"{facts['first_p95']:.0f}"]
            cells += [f"{facts['gap_p50']:.1f}", f"{facts['gap_p99']:.1f}", f"{facts['peak'] / 2**20:.0f}"]
            rows.append([f"{streams} {engine}", *cells, str(facts["failed"])])
        others = [facts for engine, facts in found.items() if engine != "ingot"]
        if "ingot" in found and others:
            rows.append([f"**{streams} Ingot / best other**", *compared(found["ingot"], others)])
    return rows


def compared(mine: dict[str, float], others: list[dict[str, float]]) -> list[str]:
    """The cells of the ratios to the best other server in each figure, with the goals."""
    tokens = mine["tokens_per_second"] / max(each["tokens_per_second"] for each in others)
    first, gap = (mine[key] / min(each[key] for each in others) for key in ("first_p95", "gap_p99"))
    return [
        f"{tokens:.2f} {verdict(tokens >= TOKENS_GOAL)}", "", f"{first:.2f} {verdict(first <= FIRST_GOAL)}", "",
        f"{gap:.2f} {verdict(gap <= GAP_GOAL)}", "", "",
    ]  # fmt: skip


def report(results: Path) -> list[str]:
    """A table for each precision and state of the cache."""
    head = ["streams", "tokens/s", "first token p50, ms", "p95, ms", "gap p50, ms", "p99, ms", "peak RSS MiB", "failed"]
    parts = [
        f"Goals of Ingot over the best other server in each figure: tokens/s at least {TOKENS_GOAL}, p95 of the first "
        f"token at most {FIRST_GOAL}, p99 of the gap at most {GAP_GOAL}."
    ]
    for precision in model.PRECISIONS:
        for state in ("cold", "warm"):
            if rows := rows_of(results, precision, state):
                parts += [f"## {precision}, cache {state}", table(head, rows)]
    return parts


def versions(programs: servers.Programs) -> str:
    """The versions of the programs that are installed."""
    lines = []
    genai = "import openvino_genai; print('openvino-genai', openvino_genai.__version__)"
    for command in (
        [programs.aiperf, "--version"], [programs.llama_server, "--version"], [programs.openvino, "-c", genai]
    ):  # fmt: skip
        if shutil.which(command[0]) is not None:
            printed = subprocess.run(command, capture_output=True, text=True, check=False)
            words = (printed.stdout + printed.stderr).split("built")[0].split()
            name = [] if command[1] == "-c" else [Path(command[0]).name]
            lines += [] if printed.returncode else [" ".join([*name, *words]).replace("version: ", "")]
    return f"Measured with {', '.join(lines)}." if lines else ""


def main() -> None:
    """Measure and report."""
    parser = page.options(__package__, threads=page.THREADS)
    parser.add_argument("--engines", default=",".join(ENGINES), metavar="A,B", help="by default all")
    parser.add_argument("--precision", choices=model.PRECISIONS, help="this one alone")
    parser.add_argument("--loads", default=",".join(map(str, REQUESTS)), metavar="N,M", help="streams, by default all")
    parser.add_argument("--states", default="cold,warm", help="of the cache, by default cold,warm")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the models and the results are")
    parser.add_argument("--aiperf", default="aiperf", help="the program of aiperf")
    parser.add_argument("--llama-server", default="llama-server", help="the program of llama.cpp's server")
    parser.add_argument("--openvino", default="python3", help="Python with openvino-genai and optimum-intel")
    asked = parser.parse_args()
    programs = servers.Programs(asked.aiperf, asked.llama_server, asked.openvino)
    results = asked.folder / "serve"
    results.mkdir(parents=True, exist_ok=True)
    engines = [engine for engine in asked.engines.split(",") if engine]
    for program in (programs.aiperf, *map(programs.of, engines)):
        if engines and shutil.which(program) is None:
            sys.exit(f"not installed: {program}; benchmarks/README.md has the commands")
    for precision in [asked.precision] if asked.precision else model.PRECISIONS:
        for engine in engines:
            measure(asked, programs, precision, engine, results)
    parts = [versions(programs), *report(results)]
    page.publish(__package__, asked, "Serving", ["ingot"], *filter(None, parts))


if __name__ == "__main__":
    main()
