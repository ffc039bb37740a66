"""Measure streams of a server in this process, and report CPU times for each token and each step."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import ingot
from benchmarks.harness import page
from benchmarks.harness.report import table, verdict
from ingot.cli.demo_language import FOLDER
from ingot.serve import app
from ingot.serve.connections import Server

STREAMS, TOKENS, ROUNDS = 16, 300, 5
GOAL_MS = 0.3  # at most, for a token

CLIENT = """
import sys, threading, httpx, json
url, streams, body = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
def read():
    with httpx.stream("POST", url, json=body, timeout=None) as response:
        response.raise_for_status()
        for _ in response.iter_raw():
            pass
threads = [threading.Thread(target=read) for _ in range(streams)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def cpu_seconds(thread: threading.Thread) -> float:
    """The CPU time of a thread of this process so far."""
    return int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]) / 1e9


class Programs:
    """The CPU time that threads spend in the compiled programs of a model."""

    def __init__(self, llm: ingot.LLM):
        self.seconds = 0.0
        for _, mode in llm.engine.modes.items():
            mode.native.call = self._timed(mode.native.call)  # type: ignore[method-assign]

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            begin = time.thread_time()
            try:
                return call(*arguments)
            finally:
                self.seconds += time.thread_time() - begin

        return timed


@contextlib.contextmanager
def served(llm: ingot.LLM) -> Iterator[tuple[str, threading.Thread, threading.Thread]]:
    """A server in a thread: its address, the thread of its service and that of its event loop."""
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        server = Server(app(llm, "tiny-lm"))
        loop = threading.Thread(target=server.run, args=([listener],))
        loop.start()
        while not server.started:
            time.sleep(0.01)
        service = next(each for each in set(threading.enumerate()) - before if each.name == "ingot service")
        try:
            yield "http://{}:{}".format(*listener.getsockname()), service, loop
        finally:
            server.should_exit = True
            loop.join()


def measure(address: str, service: threading.Thread, programs: Programs, streams: int, is_chat: bool) -> list[float]:
    """CPU milliseconds for each token: of the scheduler, and of all other threads of Python."""
    question = {"messages": [{"role": "user", "content": "x"}]} if is_chat else {"prompt": "x"}
    body = question | {"max_tokens": TOKENS, "temperature": 0, "logit_bias": {"0": -100}, "stream": True}
    path = "/v1/chat/completions" if is_chat else "/v1/completions"

    def spent() -> tuple[float, float]:
        others = [each for each in threading.enumerate() if each not in (service, threading.current_thread())]
        return cpu_seconds(service) - programs.seconds, sum(map(cpu_seconds, others))

    before = spent()
    subprocess.run([sys.executable, "-c", CLIENT, address + path, str(streams), json.dumps(body)], check=True)
    return [1000 * (end - begin) / (streams * TOKENS) for begin, end in zip(before, spent(), strict=True)]


def main() -> None:
    """Measure and report."""
    parser = page.options(__package__, rounds=ROUNDS, threads=page.THREADS)
    parser.add_argument("--streams", type=int, default=STREAMS, metavar="N", help=f"{STREAMS} by default")
    parser.add_argument("--chat", action="store_true", help="streams of chats")
    asked = parser.parse_args()
    llm = ingot.LLM(FOLDER, precision="f32", sequences=asked.streams, threads=asked.threads)
    with served(llm) as (address, service, _):
        programs = Programs(llm)
        rounds = [measure(address, service, programs, asked.streams, asked.chat) for _ in range(asked.rounds + 1)][1:]
    scheduler, http = (median(values) for values in zip(*rounds, strict=True))
    total = median(map(sum, rounds))
    rows = [
        [name, f"{value:.3f}", f"{value * asked.streams:.2f}"]
        for name, value in (("scheduler", scheduler), ("HTTP", http), ("**together**", total))
    ]
    page.publish(
        __package__, asked, "CPU time of serving", ["ingot"],
        f"{asked.streams} streams of {TOKENS} tokens; the median of {asked.rounds} rounds after a first one. "
        f"Goal: at most {GOAL_MS} ms for a token; {verdict(total <= GOAL_MS)}.",
        table(["CPU time", "ms for a token", "ms for a step"], rows),
    )  # fmt: skip


if __name__ == "__main__":
    main()
