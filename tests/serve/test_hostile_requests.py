"""Requests of the catalogue of bad inputs: each gets an error that names its field, and no other answer changes."""

import asyncio
import json

import httpx
import pytest

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.serve.events import Events
from ingot.serve.openai import TEXT
from serving import served, with_template

KIND = {"content-type": "application/json"}
MESSAGES = [{"role": "user", "content": "x"}]
TOKENS = 320  # more than the vocabulary of tiny-lm


def completion(**fields: object) -> tuple[str, str]:
    return "/v1/completions", json.dumps({"prompt": "x", "max_tokens": 2} | fields)


def chat(**fields: object) -> tuple[str, str]:
    return "/v1/chat/completions", json.dumps({"messages": MESSAGES, "max_tokens": 2} | fields)


def looked_up(kind: str, url: str) -> tuple[str, str]:
    return chat(messages=[{"role": "user", "content": [{"type": kind, kind: {"url": url}}]}])


REFUSED = {
    "H1 empty": ("/v1/completions", "", None),
    "H1 array": ("/v1/completions", "[]", None),
    "H1 deep": ("/v1/completions", '{"prompt": "x", "a": ' + "[" * 3000 + "]" * 3000 + "}", None),
    "H1 surrogate": ("/v1/completions", '{"prompt": "\\ud800"}', None),
    "H4 n 0": (*completion(n=0), "n"),
    "H4 n -1": (*completion(n=-1), "n"),
    "H4 n 10**9": (*completion(n=10**9), "n"),
    "H4 n 1.5": (*completion(n=1.5), "n"),
    "H4 n text": (*completion(n="2"), "n"),
    "H4 max_tokens -1": (*completion(max_tokens=-1), "max_tokens"),
    "H4 max_completion_tokens -1": (*chat(max_completion_tokens=-1), "max_tokens"),
    "H5 many prompts": (*completion(prompt=["a"] * 100_000), "prompt"),
    "H5 many prompts and choices": (*completion(prompt=["a"] * 257, n=16), "prompt"),
    "H5 id out of range": (*completion(prompt=[10**6]), "prompt"),
    "H5 id below 0": (*completion(prompt=[-1]), "prompt"),
    "H5 floats": (*completion(prompt=[1.0]), "prompt"),
    "H5 many inputs": ("/v1/embeddings", json.dumps({"input": ["a"] * 100_000}), "input"),
    "H6 temperature -1": (*completion(temperature=-1), "temperature"),
    "H6 temperature NaN": ("/v1/completions", '{"prompt": "x", "temperature": NaN}', None),
    "H6 temperature 1e308": (*completion(temperature=1e308), "temperature"),
    "H6 temperature 1e999": ("/v1/completions", '{"prompt": "x", "temperature": 1e999}', "temperature"),
    "H6 temperature hot": (*completion(temperature="hot"), "temperature"),
    "H6 top_p 2": (*completion(top_p=2), "top_p"),
    "H6 top_k -5": (*completion(top_k=-5), "top_k"),
    "H6 presence 1e9": (*completion(presence_penalty=1e9), "presence_penalty"),
    "H6 frequency -1e9": (*completion(frequency_penalty=-1e9), "frequency_penalty"),
    "H6 seed 2**65": (*completion(seed=2**65), "seed"),
    "H7 id beyond the logits": (*completion(logit_bias={str(10**6): 1}), "logit_bias"),
    "H7 infinite": ("/v1/completions", '{"prompt": "x", "logit_bias": {"1": 1e999}}', "logit_bias"),
    "H7 huge": (*completion(logit_bias={"1": 1e300}), "logit_bias"),
    "H8 empty": (*completion(stop=""), "stop[0]"),
    "H8 many": (*completion(stop=["a"] * 10_000), "stop"),
    "H8 long": (*completion(stop="a" * 10_000), "stop[0]"),
    "H9 deep": (
        *chat(response_format={"type": "json_schema", "json_schema": {"schema": {"pattern": "(" * 9999}}}),
        None,
    ),
    "H9 elsewhere": (
        *chat(response_format={"type": "json_schema", "json_schema": {"schema": {"$ref": "file:///etc/passwd"}}}),
        None,
    ),
    "H19 image": (*looked_up("image_url", "file:///etc/passwd"), "messages[0].content[0]"),
    "H19 address": (*looked_up("image_url", "http://127.0.0.1:1/x"), "messages[0].content[0]"),
    "H19 audio": (*looked_up("input_audio", "file:///etc/passwd"), "messages[0].content[0]"),
}  # fmt: skip


@pytest.fixture(scope="module")
def want() -> str:
    return ingot.LLM(FOLDER, precision="f32", sequences=1).complete("def f(a):", max_tokens=8, temperature=0).text


@pytest.mark.parametrize("path, content, field", REFUSED.values(), ids=REFUSED)
def test_refused(address, want, path, content, field):
    got = httpx.post(address + path, content=content, headers=KIND, timeout=300)
    assert got.status_code == 400, got.text
    error = got.json()["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == field, error
    assert len(error["message"]) < 2000 and "Traceback" not in error["message"] and "src/" not in error["message"]
    good = {"prompt": "def f(a):", "max_tokens": 8, "temperature": 0}
    assert httpx.post(f"{address}/v1/completions", json=good, timeout=300).json()["choices"][0]["text"] == want


REFUSING = "{{ raise_exception('none of these') }}"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/apply-template"])
def test_errors_of_files_have_no_path_of_the_server(tmp_path, path):
    """H17: what the template of a folder refuses."""
    folder = with_template(tmp_path / "model", REFUSING)
    with served(folder) as address:
        body = {"messages": MESSAGES, "input": "x", "max_tokens": 2}
        for stream in (False, True):
            got = httpx.post(address + path, json=body | {"stream": stream}, timeout=300)
            assert got.status_code == 400 and "none of these" in got.text, got.text
            assert "model/chat_template.jinja" in got.text and str(tmp_path) not in got.text


ACCEPTED = {
    "H1 a key twice": '{"prompt": "y", "prompt": "x", "max_tokens": 2}',
    "H4 max_tokens null": completion(max_tokens=None)[1],
    "H4 max_tokens 0": completion(max_tokens=0)[1],
    "H4 max_tokens 2**70": completion(max_tokens=2**70)[1],
    "H6 temperature 0": completion(temperature=0)[1],
    "H7 all tokens as unlikely as can be": completion(logit_bias={str(token): -100 for token in range(TOKENS)})[1],
    "H10 unknown field": completion(unknown=1)[1],
}


@pytest.mark.parametrize("content", ACCEPTED.values(), ids=ACCEPTED)
def test_accepted(address, content):
    got = httpx.post(f"{address}/v1/completions", content=content, headers=KIND, timeout=300)
    assert got.status_code == 200, got.text
    assert got.json()["choices"][0]["finish_reason"] in ("length", "stop")


async def framed(chunk: dict) -> bytes:
    return b"".join([part async for part in Events(TEXT, lambda send: send(chunk)).read()])


@pytest.mark.parametrize("text", ["a\nb", "a\r\n\r\nb", "\u2028\u2029\x85", "\n\ndata: [DONE]\n\n", "event: x", "\0"])
def test_text_does_not_break_the_frame_of_events(text):
    first, last, rest = asyncio.run(framed({"text": text})).split(b"\n\n")
    assert json.loads(first.removeprefix(b"data: ")) == {"text": text} and b"\n" not in first and b"\r" not in first
    assert (last, rest) == (b"data: [DONE]", b"")
