"""The OpenAPI document, and a fuzz of the server from it."""

import re

import httpx
import pytest

import ingot
from fuzzed_server import PATHS, SECONDS, fuzz
from ingot.serve.app import PROTOCOLS
from ingot.serve.schema import BODIES

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
