"""`python tests/kit/soak_serve.py --minutes 60 [--seed N]`: mixed load on a server of tiny-lm in f32.

Clients send completions, chats, streams, long prompts, requests that are cancelled or dropped, and bad requests. Each
answer has the tokens and the logprobs, to the bit, that it has alone. The memory of the server is flat: its maximum in
the second half of the run exceeds that of the first by less than 3 %, after a quarter of the time. The exit code is 1
when an answer differs or the memory grows.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

import ingot
from fuzz import ledger
from http_server import command, opened, post
from ingot.cli.demo_language import FOLDER

RUN = "requests of mixed load by 12 clients, with answers that keep their bits and memory that stays flat"
CLIENTS = 12
SECONDS_BETWEEN_SAMPLES = 2.0
PAUSE_SECONDS = 15.0  # a machine that pauses the process so long may close idle connections that clients use again
MOST_GROWTH = 1.03
Json = dict[str, Any]

OPTIONS: list[Json] = [
    {"max_tokens": 24, "temperature": 0, "logprobs": 2},
    {"max_tokens": 40, "temperature": 1.0, "seed": 7, "logprobs": 0},
    {"max_tokens": 16, "temperature": 0.7, "seed": 3, "top_p": 0.9, "repetition_penalty": 1.2, "logprobs": 5},
]
LONG = "def f(a, b):\n    return a + b\n\n"
PROMPTS = [f"def f{index}(a):\n" for index in range(6)] + [LONG * count for count in (8, 12)]
BAD: list[tuple[str, Json]] = [
    ("/v1/completions", {"prompt": LONG * 200}),
    ("/v1/completions", {"prompt": "x", "temperature": -1}),
    ("/v1/completions", {"prompt": [10**6]}),
    ("/v1/chat/completions", {"messages": [{"role": "king", "content": "x"}]}),
    ("/v1/chat/completions", {"messages": [], "response_format": {"type": "json_schema"}}),
    ("/detokenize", {"tokens": [-1]}),
]


@dataclass
class Load:
    """What clients share: the expected answers, and the counts of a run."""

    address: str
    expected: dict[tuple[int, int], tuple[str, list[float]]]
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    cut: list[tuple[float, str]] = field(default_factory=list)
    is_over: threading.Event = field(default_factory=threading.Event)

    def check(self, case: tuple[int, int], text: str, logprobs: list[float], kind: str) -> None:
        """Count an answer, and keep it if it differs from the expected one."""
        self.counts[kind] += 1
        if (text, logprobs) != self.expected[case]:
            self.wrong.append(f"{kind} {case}: got {text!r}, expected {self.expected[case][0]!r}")


def expected() -> dict[tuple[int, int], tuple[str, list[float]]]:
    """The answers of a model that draws one at a time: texts and logprobs by the numbers of prompt and options."""
    llm = ingot.LLM(FOLDER, precision="f32", sequences=1)
    answers = {}
    for number, prompt in enumerate(PROMPTS):
        for which, options in enumerate(OPTIONS):
            answer = llm.complete(prompt, **options)
            answers[number, which] = answer.text, [each.logprob for each in answer.logprobs]
    return answers


def events(lines: Iterator[str]) -> Iterator[Json]:
    """The chunks of a stream."""
    for line in lines:
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def complete(load: Load, client: httpx.Client, draw: random.Random) -> None:
    """Ask for an answer at once."""
    case, body = drawn(draw)
    (choice,) = client.post("/v1/completions", json=body).raise_for_status().json()["choices"]
    load.check(case, choice["text"], choice["logprobs"]["token_logprobs"], "completion")


def stream(load: Load, client: httpx.Client, draw: random.Random) -> None:
    """Read a stream."""
    case, body = drawn(draw)
    with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as got:
        choices = [chunk["choices"][0] for chunk in events(got.iter_lines())]
    logprobs = [value for each in choices if each["logprobs"] for value in each["logprobs"]["token_logprobs"]]
    load.check(case, "".join(each["text"] for each in choices), logprobs, "stream")


def chat(load: Load, client: httpx.Client, draw: random.Random) -> None:
    """Ask for two choices of a chat, which are equal without sampling."""
    messages = [{"role": "user", "content": draw.choice(PROMPTS[:6])}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 16, "n": 2}
    first, second = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"]
    load.counts["chat"] += 1
    if first["message"] != second["message"]:
        load.wrong.append(f"chat {messages}: two answers")


def cancel(load: Load, client: httpx.Client, draw: random.Random) -> None:
    """Close a stream after some chunks."""
    body = {"prompt": draw.choice(PROMPTS), "max_tokens": 200, "stream": True, "n": 2}
    with client.stream("POST", "/v1/completions", json=body) as got:
        for number, _ in enumerate(events(got.iter_lines())):
            if number == draw.randrange(12):
                break
    load.counts["cancelled"] += 1


def drop(load: Load, client: httpx.Client, draw: random.Random) -> None:
    """Close the connection at once, or in the middle of the request."""
    content = post("/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": LONG * 9}]}).encode())
    with opened(load.address) as connection:
        connection.sendall(content[: draw.choice([len(content), draw.randrange(len(content))])])
    load.counts["dropped"] += 1


def mistake(load: Load, client: httpx.Client, draw: random.Random) -> None:
    """Send a bad request."""
    path, body = draw.choice(BAD)
    got = client.post(path, json=body)
    load.counts["refused"] += 1
    if got.status_code != 400:
        load.wrong.append(f"{path} {str(body)[:80]}: got status {got.status_code}, expected 400")


Work = Callable[[Load, httpx.Client, random.Random], None]
WORKS: list[Work] = [complete, complete, stream, stream, chat, cancel, drop, mistake]


def drawn(draw: random.Random) -> tuple[tuple[int, int], Json]:
    """The numbers of a prompt and options, and the body of their request."""
    number, which = draw.randrange(len(PROMPTS)), draw.randrange(len(OPTIONS))
    return (number, which), {"prompt": PROMPTS[number]} | OPTIONS[which]


def work(load: Load, seed: int) -> None:
    """Send requests until the run is over."""
    draw = random.Random(seed)
    with httpx.Client(base_url=load.address, timeout=600) as client:
        while not load.is_over.is_set():
            try:
                draw.choice(WORKS)(load, client, draw)
            except (httpx.HTTPError, OSError) as error:
                load.cut.append((time.monotonic(), f"{type(error).__name__}: {error}"))


def resident(process: subprocess.Popen[str]) -> int:
    """The bytes of a process that are in memory."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(status.partition("VmRSS:")[2].split()[0])


def main() -> int:
    """Run the load; print the counts and the memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="add the number of requests to the ledger")
    asked = parser.parse_args()
    with command("--precision", "f32", "--sequences", "4", "--log-json") as (process, address):
        threading.Thread(target=lambda: [None for _ in process.stderr or ()], daemon=True).start()
        load, sizes = Load(address, expected()), []
        clients = [threading.Thread(target=work, args=(load, asked.seed * CLIENTS + i)) for i in range(CLIENTS)]
        for client in clients:
            client.start()
        end = time.monotonic() + 60 * asked.minutes
        while (now := time.monotonic()) < end and not load.wrong:
            time.sleep(SECONDS_BETWEEN_SAMPLES)
            if time.monotonic() - now > PAUSE_SECONDS:
                load.pauses.append(time.monotonic())
            sizes.append(resident(process))
        load.is_over.set()
        for client in clients:
            client.join()
        process.send_signal(signal.SIGTERM)
        code = process.wait(600)
    load.wrong += [text for at, text in load.cut if not any(abs(at - pause) < PAUSE_SECONDS for pause in load.pauses)]
    settled = sizes[len(sizes) // 4 :]
    first, second = settled[: len(settled) // 2], settled[len(settled) // 2 :]
    growth = max(second) / max(first)
    print(f"{asked.minutes:g} minutes, {CLIENTS} clients, exit code {code}: {dict(sorted(load.counts.items()))}")
    print(f"memory: median {statistics.median(settled) / 2**20:.1f} MiB, growth {100 * (growth - 1):+.2f} %")
    print("MiB:", *(f"{size / 2**20:.1f}" for size in sizes[:: max(1, len(sizes) // 20)]))
    print(f"{len(load.pauses)} pauses of the machine, {len(load.cut)} connections cut")
    print(*load.wrong[:20], sep="\n")
    is_wrong = bool(load.wrong) or growth > MOST_GROWTH or code != -signal.SIGTERM
    if asked.keep and not is_wrong:
        ledger.served(RUN, load.counts.total())
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
