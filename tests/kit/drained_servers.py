"""Servers that end while 64 requests are in flight: `python tests/kit/drained_servers.py --count 200 [--keep]`.

Each server of tiny-lm gets SIGTERM some time after the requests were sent. Every request gets its whole answer, the one
that the model gives alone. The exit code is 1 after the first server that loses or cuts one. With --keep, the number of
servers goes to the ledger of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal

import ingot
from fuzz import ledger
from http_server import command, post
from ingot.cli.demo_language import FOLDER

RUN = "servers that get SIGTERM with 64 requests in flight: each is answered whole"


async def asked(host: str, port: int, body: dict, sent: asyncio.Semaphore) -> str:
    """The text of an answer: of a document, or of a stream."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(post("/v1/completions", json.dumps(body).encode()))
    await writer.drain()
    sent.release()
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert head.startswith("HTTP/1.1 200 OK"), head
    rest = await reader.read()
    writer.close()
    if not body["stream"]:
        return json.loads(rest)["choices"][0]["text"]
    events = [line.removeprefix(b"data: ") for line in rest.splitlines() if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]" and rest.endswith(b"0\r\n\r\n")
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


async def drained(process, address: str, bodies: list[dict], seconds: float) -> list[str]:
    """The texts of answers of a server that ends some time after the requests were sent."""
    host, port = address.removeprefix("http://").split(":")
    sent = asyncio.Semaphore(0)
    answers = [asyncio.create_task(asked(host, int(port), body, sent)) for body in bodies]
    for _ in bodies:
        await sent.acquire()
    await asyncio.sleep(seconds)
    process.send_signal(signal.SIGTERM)
    return await asyncio.gather(*answers)


def answers_alone() -> dict[str, str]:
    """The answers to some prompts of a model that draws one at a time."""
    llm = ingot.LLM(FOLDER, precision="f32", sequences=1)
    return {
        prompt: llm.complete(prompt, max_tokens=16, temperature=0).text
        for prompt in map("def f{}(a):".format, range(8))
    }


def drain(oracles: dict[str, str], seed: int) -> None:
    """Send 64 requests, and SIGTERM while they are in flight. Raises AssertionError unless each has its own answer.

    oracles: the answers to expect, by the prompts.
    """
    draw = random.Random(seed)
    prompts = [draw.choice(list(oracles)) for _ in range(64)]
    bodies = [
        {"prompt": prompt, "max_tokens": 16, "temperature": 0, "stream": draw.random() < 0.5} for prompt in prompts
    ]
    with command("--precision", "f32", "--drain", "300") as (process, address):
        texts = asyncio.run(drained(process, address, bodies, draw.choice([0, 0, 0.01, 0.1, 0.3])))
        process.communicate(timeout=300)
    assert texts == [oracles[prompt] for prompt in prompts], f"seed {seed}"
    assert process.returncode == -signal.SIGTERM


def main() -> None:
    """End servers, and report their number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--keep", action="store_true", help="add the number to the ledger")
    asked = parser.parse_args()
    oracles = answers_alone()
    for number in range(asked.count):
        drain(oracles, asked.seed + number)
        if asked.keep:
            ledger.served(RUN, 1)
        print(f"{number + 1} of {asked.count} servers ended without a loss", flush=True)


if __name__ == "__main__":
    main()
