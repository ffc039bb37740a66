"""The OpenAPI document, and a fuzz of the server from it."""

import json
import re
import threading
from collections import Counter

import httpx
import pytest
from hypothesis import HealthCheck, given, seed, settings

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.serve.app import PROTOCOLS
from ingot.serve.schema import BODIES
from requests_of_schema import requests

# Of a language model; a request for inference has its own fuzz in tests/serve/test_infer.py.
PATHS = [*PROTOCOLS, *(path for path in BODIES if "rerank" not in path and not path.startswith("/v2/"))]
BODY = {"prompt": "def fib(n):", "max_tokens": 40, "temperature": 0, "logprobs": 3, "stream": True}
MESSAGES = [{"role": "user", "content": "a"}]
SMALLEST = {
    "/apply-template": {"messages": MESSAGES},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [1]},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "a"},
    "/v1/embeddings": {"input": "a"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/responses": {"input": "a"},
    "/v1/responses/input_tokens": {"input": "a"},
}
ENDS = ("message_stop", "response.completed", "response.incomplete")  # the last events of named streams
SECONDS = 300  # of an answer; the machine may be busy


@pytest.fixture(scope="module")
def document(address) -> dict:
    return httpx.get(f"{address}/openapi.json").json()


def test_every_path_has_a_description_and_every_post_a_type(document):
    posts = {path for path, methods in document["paths"].items() if "post" in methods}
    assert posts == {re.sub(r":path\}", "}", path) for path in (*PROTOCOLS, *BODIES)} and document["openapi"] == "3.1.0"
    assert document["info"]["version"] == ingot.__version__
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["summary"] and "200" in operation["responses"], path
    for schema in document["components"]["schemas"].values():
        assert schema["description"] and schema["type"] == "object"
    chat = document["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["messages"] and {"stream", "stop", "top_logprobs"} <= chat["properties"].keys()


def events(lines) -> list[str]:
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


@pytest.mark.parametrize("path", PATHS)
def test_the_smallest_request_of_each_path_is_answered(address, path):
    got = httpx.post(address + path, json=SMALLEST[path], timeout=SECONDS)
    assert got.status_code == 200, got.text


def test_a_short_fuzz(address, document):
    statuses = fuzz(address, document, 150, 1)
    assert {path for path, _ in statuses} == set(PATHS)
    assert sum(count for (_, status), count in statuses.items() if status == 200) > 15, statuses


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_long_fuzz(address, document, rng):
    fuzz(address, document, 10_000, int(rng.integers(2**32)))
