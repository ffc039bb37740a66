"""The load: requests by aiperf, with its own figures."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXTRA = {"temperature": 0, "ignore_eos": True, "stream": True}
SECONDS = 480  # of a run, at most


@dataclass(frozen=True)
class Figures:
    """What aiperf reports about a run: tokens a second of all answers; milliseconds; tokens and failed requests."""

    tokens_per_second: float
    first_p50: float
    first_p95: float
    gap_p50: float
    gap_p99: float
    tokens: float
    failed: int


def send(
    aiperf: str,
    address: str,
    requests: list[dict[str, object]],
    concurrency: int,
    rate: float,
    tokenizer: Path,
    folder: Path,
    seed: int,
) -> Figures:
    """Send the requests at Poisson's intervals, so many a second, of which so many are in flight at most.

    Ends the program where aiperf fails, or takes too long.
    """  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rows = [json.dumps({"payload": request | EXTRA}) for request in requests]
    (folder / "requests.jsonl").write_text("\n".join(rows) + "\n")
    command = [
        aiperf, "profile", "--model", "model", "--url", address, "--endpoint-type", "completions", "--streaming",
        "--custom-dataset-type", "mooncake_trace", "--input-file", str(folder / "requests.jsonl"),
        "--no-fixed-schedule", "--dataset-sampling-strategy", "sequential", "--request-count", str(len(requests)),
        "--concurrency", str(concurrency), "--request-rate", str(rate), "--arrival-pattern", "poisson",
        "--random-seed", str(seed), "--tokenizer", str(tokenizer), "--artifact-dir", str(folder),
        "--workers-max", "1", "--record-processors", "1", "--ui", "none", "--no-gpu-telemetry",
        "--no-server-metrics",
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"aiperf: no end of {len(requests)} requests within {SECONDS} seconds")
    (folder / "log").write_text(done.stdout + done.stderr)
    found = folder / "profile_export_aiperf.json"
    if done.returncode or not found.exists():
        sys.exit(f"aiperf failed, see {folder / 'log'}")
    return figures(json.loads(found.read_text()))


def figures(document: dict[str, Any]) -> Figures:
    """The figures of aiperf's summary."""
    first, gap = document["time_to_first_token"], document["inter_chunk_latency"]
    return Figures(
        document["output_token_throughput"]["avg"], first["p50"], first["p95"], gap["p50"], gap["p99"],
        document["total_output_tokens"]["avg"], int(document.get("error_request_count", {}).get("avg", 0)),
    )  # fmt: skip
