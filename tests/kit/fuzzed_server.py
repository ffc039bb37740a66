"""A fuzz of a server from its OpenAPI document: `python tests/kit/fuzzed_server.py --count 10000 [--keep]`.

hypothesis draws requests that follow the document and requests that are almost right, and sends them to a server of
tiny-lm, while a stream is repeated and compared with the model's own answer. No request may have status 500, hang, or
get an answer that is not of its protocol. The exit code is 1 otherwise. With --keep, the number of requests goes to the
ledger of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import json
import random
import threading
from collections import Counter
from collections.abc import Iterable

import httpx
from hypothesis import HealthCheck, given, seed, settings

import ingot
from fuzz import ledger
from ingot.cli.demo_language import FOLDER
from ingot.serve.app import PROTOCOLS
from ingot.serve.schema import BODIES
from requests_of_schema import requests
from serving import served

RUN = "requests by a fuzz from the OpenAPI document, during a stream that keeps its bits"
PART = 500  # requests of one run of hypothesis

# Of a language model; a request for inference has its own fuzz in tests/serve/test_infer.py.
PATHS = [*PROTOCOLS, *(path for path in BODIES if "rerank" not in path and not path.startswith("/v2/"))]
BODY = {"prompt": "def fib(n):", "max_tokens": 40, "temperature": 0, "logprobs": 3, "stream": True}
ENDS = ("message_stop", "response.completed", "response.incomplete")  # the last events of named streams
SECONDS = 300  # of an answer; the machine may be busy


def events(lines: Iterable[str]) -> list[str]:
    """The data of a stream's events. Raises AssertionError for other lines."""
    found = []
    for line in lines:
        assert not line or line.startswith((": ping", "data: ", "event: ")), line
        if line.startswith("data: "):
            found.append(line.removeprefix("data: "))
    return found


def fuzz(address: str, document: dict, count: int, number: int) -> Counter:
    """Send requests while a stream is repeated; return the number of each status."""
    statuses, over, wrong = Counter(), threading.Event(), []
    want = ingot.LLM(FOLDER, precision="f32", sequences=1).complete(
        BODY["prompt"], max_tokens=BODY["max_tokens"], temperature=0, logprobs=3
    )

    def repeat() -> None:
        while not over.is_set():
            with httpx.stream(
                "POST", f"{address}/v1/completions", json=BODY | {"priority": -1}, timeout=SECONDS
            ) as got:
                *chunks, done = events(got.iter_lines())
            choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
            text = "".join(choice["text"] for choice in choices)
            logprobs = [value for each in choices if each["logprobs"] for value in each["logprobs"]["token_logprobs"]]
            if (text, logprobs, done) != (want.text, [each.logprob for each in want.logprobs], "[DONE]"):
                wrong.append((text, logprobs))

    @seed(number)
    @settings(max_examples=count, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(requests(document, PATHS))
    def every(request: tuple[str, object]) -> None:
        path, body = request
        content = json.dumps(body).encode()
        kind = {"content-type": "application/json"}
        got = httpx.post(address + path, content=content, headers=kind, timeout=SECONDS)
        statuses[path, got.status_code] += 1
        assert got.status_code in (200, 400, 404, 429), (got.text, content)
        if got.status_code != 200:
            error = got.json()["error"]
            kinds = ("invalid_request_error", "not_found_error", "rate_limit_error")
            assert error["message"] and error["type"] in kinds, (error, content)
        elif got.headers["content-type"].startswith("text/event-stream"):
            last = events(got.text.split("\n"))[-1]
            assert last == "[DONE]" or json.loads(last)["type"] in ENDS, last
        else:
            got.json()

    stream = threading.Thread(target=repeat)
    stream.start()
    try:
        every()
    finally:
        over.set()
        stream.join()
    assert not wrong
    return statuses


def main() -> None:
    """Fuzz a server, and report the statuses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--keep", action="store_true", help="add the number to the ledger")
    asked = parser.parse_args()
    print(f"seed {asked.seed}")
    statuses: Counter[tuple[str, int]] = Counter()
    with served() as address:
        document = httpx.get(f"{address}/openapi.json").json()
        for number in range(0, asked.count, PART):
            found = fuzz(address, document, min(PART, asked.count - number), asked.seed + number)
            statuses += found
            if asked.keep:
                ledger.served(RUN, found.total())
            print(f"{statuses.total()} requests", flush=True)
    print(*sorted(statuses.items()), sep="\n")


if __name__ == "__main__":
    main()
