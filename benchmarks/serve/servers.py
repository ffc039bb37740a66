"""The servers, each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ROOT
from benchmarks.llm.model import CONTEXT

START_SECONDS = 60
BATCH_TOKENS = 512  # of prompts and answers in a step, at most: as many as Ingot has
ENDS_AFTER_SECONDS = 5


@dataclass(frozen=True)
class Programs:
    """The programs of others: of aiperf, of llama.cpp's server, and Python with OpenVINO GenAI."""

    aiperf: str
    llama_server: str
    openvino: str

    def of(self, engine: str) -> str:
        """The program of an engine's server."""
        return {"llama.cpp": self.llama_server, "openvino": self.openvino}.get(engine, sys.executable)


def command(engine: str, program: str, path: Path, port: int, threads: int, sequences: int) -> list[str]:
    """The command line of an engine's server, which draws so many answers together."""
    if engine == "openvino":
        numbers = map(str, (port, threads, sequences, BATCH_TOKENS))
        return [program, "-m", "benchmarks.serve.openvino_server", str(path.resolve()), *numbers]
    if engine == "llama.cpp":
        return [
            program, "-m", str(path), "--port", str(port), "-t", str(threads), "-tb", str(threads), "-lm", "none",
            "-np", str(sequences), "-c", str(1024 * sequences), "-b", str(BATCH_TOKENS), "-ub", str(BATCH_TOKENS),
            "--no-ui",
        ]  # fmt: skip
    return [
        program, "-c", "from ingot.cli import main; main()", "serve", f"model={path}", "--port", str(port),
        "--threads", str(threads), "--sequences", str(sequences), "--context", str(CONTEXT // 2),
    ]  # fmt: skip


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A process of a server that answers requests at `address`."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self.process, self.address = process, address

    def cpu_seconds(self) -> float:
        """The CPU time of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def peak_bytes(self) -> int:
        """The most resident memory so far."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))

    def is_ready(self) -> bool:
        """Whether it answers."""
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


@contextlib.contextmanager
def running(engine: str, program: str, path: Path, threads: int, sequences: int, log: Path) -> Iterator[Server]:
    """A server that is ready. Ends the program when it does not start."""
    port = free_port()
    with open(log, "w") as file:
        process = subprocess.Popen(
            command(engine, program, path, port, threads, sequences), stdout=file, stderr=file, cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip
    server = Server(process, f"http://127.0.0.1:{port}")
    try:
        end = time.monotonic() + START_SECONDS
        while not server.is_ready():
            if process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{engine} does not start, see {log}")
            time.sleep(0.05)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(ENDS_AFTER_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
