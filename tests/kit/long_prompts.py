"""What the tokens of a stream cost while other clients post long prompts: `python tests/kit/long_prompts.py`.

The figures are CPU times of threads, which other programs on the machine change little. The prompts are longer than the
context, so that the server tokenises and refuses them: the runs of the model are those of the stream alone. Tokenising
that keeps the interpreter, or has the priority of the model's threads, shows in the CPU time between two tokens.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.serve import app
from ingot.serve.connections import Server

TOKENS = 400
KIB = 64  # of each prompt
_LINE = "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
_CLIENTS = """
import sys, threading, httpx
url, count, size, line = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
body = {"prompt": (line * (size // len(line) + 1))[:size]}
def post():
    with httpx.Client(timeout=None) as client:
        while True:
            assert client.post(url, json=body).status_code == 400
for _ in range(count):
    threading.Thread(target=post, daemon=True).start()
sys.stdin.read()
"""


def cpu_seconds() -> dict[int, float]:
    """The CPU time of each thread of this process."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        nanoseconds = (thread / "schedstat").read_text().split()[0]
        found[int(thread.name)] = int(nanoseconds) / 1e9
    return found


def by_kind(spent: dict[int, float], service: int, loop: int) -> dict[str, float]:
    """CPU time of the model's threads, of the event loop, and of the other threads of Python, which read prompts."""
    python = {thread.native_id for thread in threading.enumerate()} - {service, loop, threading.get_native_id()}
    return {
        "model": sum(seconds for thread, seconds in spent.items() if thread == service or _is_native(thread)),
        "event loop": spent[loop],
        "prompts": sum(seconds for thread, seconds in spent.items() if thread in python),
    }


def _is_native(thread: int) -> bool:
    return thread not in {each.native_id for each in threading.enumerate()}


def stream(address: str) -> int:
    """Read a stream to its end; return its tokens."""
    body = {"prompt": "x", "max_tokens": TOKENS, "temperature": 0, "logit_bias": {"0": -100}, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=None) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    return int(json.loads(lines[-1].removeprefix("data: "))["usage"]["completion_tokens"])


def measure(address: str, service: int, loop: int, clients: int) -> list[str]:
    """The cells of a number of clients: CPU milliseconds for each token of the stream."""
    command = [sys.executable, "-c", _CLIENTS, f"{address}/v1/completions", str(clients), str(KIB << 10), _LINE]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as other:
        try:
            time.sleep(2 if clients else 0)
            before = cpu_seconds()
            tokens = stream(address)
            spent = {thread: seconds - before.get(thread, 0) for thread, seconds in cpu_seconds().items()}
        finally:
            other.kill()
    kinds = by_kind(spent, service, loop)
    return [str(clients), *(f"{1000 * seconds / tokens:.2f}" for seconds in kinds.values())]


def main() -> None:
    """Measure the numbers of clients, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", default="0,1,8,32", metavar="N,M")
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    llm = ingot.LLM(FOLDER, precision="f32", sequences=4, threads=asked.threads)
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        before = set(threading.enumerate())
        server = Server(app(llm, "tiny-lm"))
        running = threading.Thread(target=server.run, args=([listener],))
        running.start()
        while not server.started:
            time.sleep(0.01)
        service = next(each for each in set(threading.enumerate()) - before if each.name == "ingot service")
        address = "http://{}:{}".format(*listener.getsockname())
        assert service.native_id is not None and running.native_id is not None
        stream(address)
        counts = map(int, asked.clients.split(","))
        rows = [measure(address, service.native_id, running.native_id, count) for count in counts]
        server.should_exit = True
        running.join()
    print(f"CPU milliseconds for each of {TOKENS} tokens of a stream; each client posts prompts of {KIB} KiB")
    for row in [["clients", "model", "event loop", "prompts"], *rows]:
        print("".join(cell.rjust(12) for cell in row))


if __name__ == "__main__":
    main()
