"""`ingot serve` as its clients see it: OpenAI's own client, bad requests, closed connections, many at once."""

import contextlib
import importlib
import json
import re
import shlex
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from http_server import command
from ingot.cli.demo_language import FOLDER
from serving import events, served

PROMPT = "def add(a, b):"
MESSAGES = [{"role": "user", "content": "def fib(n):"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


def test_a_completion_is_that_of_the_library(client, llm):
    want = llm.complete(PROMPT, max_tokens=12, temperature=0, logprobs=2)
    got = client.completions.create(model="tiny-lm", prompt=PROMPT, max_tokens=12, temperature=0, logprobs=2)
    (choice,) = got.choices
    assert (choice.text, choice.finish_reason) == (want.text, "length")
    assert choice.logprobs.token_logprobs == [each.logprob for each in want.logprobs]
    assert got.usage.completion_tokens == 12 and got.usage.prompt_tokens == want.usage.prompt_tokens
    ids = client.completions.create(model="tiny-lm", prompt=llm.encode(PROMPT), max_tokens=12, temperature=0)
    assert ids.choices[0].text == want.text


def test_a_chat_is_that_of_the_library_streamed_and_not(client, llm):
    options = {"model": "tiny-lm", "messages": MESSAGES, "max_tokens": 20, "temperature": 0, "n": 2}
    want = llm.chat(MESSAGES, max_tokens=20, temperature=0)
    whole = client.chat.completions.create(**options)
    assert [choice.message.content for choice in whole.choices] == [want, want]
    texts, reasons = ["", ""], [[], []]
    stream = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    for chunk in stream[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index].append(choice.finish_reason)
    assert texts == [want, want]
    assert all(each[-1] == "length" and not any(each[:-1]) for each in reasons)
    usage = stream[-1].usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert usage.prompt_tokens_details.cached_tokens > 0


def test_sampled_choices_differ_and_repeat_with_their_seed(client):
    options = {"model": "tiny-lm", "messages": MESSAGES, "max_tokens": 12, "temperature": 1.5, "seed": 3, "n": 3}
    first, second = (client.chat.completions.create(**options) for _ in range(2))
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in second.choices]
    assert len(set(texts)) == 3


def test_stop_strings_schemas_and_embeddings(client, llm):
    stopped = client.completions.create(model="tiny-lm", prompt=PROMPT, max_tokens=50, temperature=0, stop="#")
    assert "#" not in stopped.choices[0].text and stopped.choices[0].finish_reason == "stop"
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    answer = client.chat.completions.create(model="tiny-lm", messages=MESSAGES, response_format=form, max_tokens=40)
    assert json.loads(answer.choices[0].message.content)["a"] in (1, 2)
    found = client.embeddings.create(model="tiny-lm", input=["a b", "c"])
    np.testing.assert_array_equal([each.embedding for each in found.data], llm.embed(["a b", "c"]))


def test_tokenize_and_back(address, llm):
    ids = httpx.post(f"{address}/tokenize", json={"prompt": PROMPT}).json()
    assert ids == {"tokens": llm.encode(PROMPT), "count": len(llm.encode(PROMPT)), "max_model_len": 512}
    text = httpx.post(f"{address}/detokenize", json={"tokens": ids["tokens"][1:]}).json()
    assert text == {"prompt": PROMPT}
    chat = httpx.post(f"{address}/tokenize", json={"messages": MESSAGES}).json()
    assert chat["tokens"] == llm.chat_template.encode(llm.tokenizer, MESSAGES)


def test_a_conversation_as_text_and_the_facts_of_the_model(address, llm):
    tools = [{"type": "function", "function": {"name": "now"}}]
    for body in ({"messages": MESSAGES}, {"messages": [{"role": "system", "content": "x"}, *MESSAGES], "tools": tools}):
        got = httpx.post(f"{address}/apply-template", json=body).json()
        assert got == {"prompt": llm.chat_template.render(body["messages"], tools=body.get("tools"))}
    facts = httpx.get(f"{address}/props").json()
    assert facts["default_generation_settings"] == {"n_ctx": 512} and facts["total_slots"] == 4
    assert facts["model_alias"] == "tiny-lm" and facts["chat_template"] == llm.chat_template.sources["default"]
    assert httpx.get(f"{address}/props?model=other").status_code == 404


def test_timings_have_the_tokens_of_the_prompt_and_of_the_answer(client):
    prompt = "# timings\n" * 20
    for is_cached in (False, True):
        got = client.completions.create(model="tiny-lm", prompt=prompt, max_tokens=5, temperature=0)
        times, usage = got.timings, got.usage
        assert (times["cache_n"] > 0) == is_cached and times["cache_n"] == usage.prompt_tokens_details.cached_tokens
        assert times["cache_n"] + times["prompt_n"] == usage.prompt_tokens and times["predicted_n"] == 5
        assert times["prompt_per_second"] == pytest.approx(1000 * times["prompt_n"] / times["prompt_ms"])
        assert times["predicted_per_second"] == pytest.approx(4000 / times["predicted_ms"])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_progress_of_a_prompt(address, path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("ingot.serve.openai"), "PROGRESS_SECONDS", 1e-4)
    text = f"# {path}\n" + "x = [1, 2, 3]\n" * 24
    body = {"prompt": text, "max_tokens": 4, "temperature": 0}
    body |= {"messages": [{"role": "user", "content": text}]} if "chat" in path else {}
    *chunks, end = events(address, path, body | {"return_progress": True, "stream_options": {"include_usage": True}})
    progress = [chunk["prompt_progress"] for _, chunk in chunks if "prompt_progress" in chunk]
    assert progress and end[1] == "[DONE]"
    for each in progress:
        assert 0 <= each["cache"] <= each["processed"] < each["total"] == chunks[-1][1]["usage"]["prompt_tokens"]
    assert [each["time_ms"] for each in progress] == sorted(each["time_ms"] for each in progress)
    rest = [chunk["choices"] for _, chunk in chunks if "prompt_progress" not in chunk]
    assert rest == [chunk["choices"] for _, chunk in events(address, path, body)[:-1]] + [[]]


BAD = [
    ("/v1/completions", {}, 400, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1, "a"]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [99999]}, 400, "prompt"),
    ("/v1/completions", {"prompt": "x", "echo": True}, 400, "echo"),
    ("/v1/completions", {"prompt": "x", "temperature": 1e9}, 400, "temperature"),
    ("/v1/completions", {"prompt": "x", "top_p": -1}, 400, "top_p"),
    ("/v1/completions", {"prompt": "x", "repetition_penalty": 0}, 400, "repetition_penalty"),
    ("/v1/completions", {"prompt": "x", "max_tokens": -1}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 1.5}, 400, "max_tokens"),
    ("/v1/completions", {"prompt": "x", "n": 17}, 400, "n"),
    ("/v1/completions", {"prompt": "x", "seed": 2**70}, 400, "seed"),
    ("/v1/completions", {"prompt": "x", "stop": [""]}, 400, "stop[0]"),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"a": 1}}, 400, "logit_bias"),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"5": 101}}, 400, "logit_bias"),
    ("/v1/completions", {"prompt": "x", "model": "other"}, 404, None),
    ("/v1/completions", {"prompt": "x " * 600}, 400, None),
    ("/v1/chat/completions", {"messages": "x"}, 400, "messages"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "king", "content": "x"}]}, 400, "messages[0].role"),
    ("/v1/chat/completions", {"messages": MESSAGES, "top_logprobs": 3}, 400, "top_logprobs"),
    ("/v1/chat/completions", {"messages": MESSAGES, "chat_template_kwargs": {"messages": 1}}, 400, None),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES, "response_format": {"type": "json_schema"}},
        400,
        "response_format",
    ),
    (
        "/v1/chat/completions",
        {"messages": MESSAGES, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
        400,
        None,
    ),
    ("/tokenize", {}, 400, "prompt"),
    ("/apply-template", {}, 400, "messages"),
    ("/apply-template", {"messages": []}, 400, "messages"),
    ("/detokenize", {"tokens": [-1]}, 400, None),
    ("/v1/embeddings", {"input": []}, 400, "input"),
]


@pytest.mark.parametrize(
    "path, body, status, parameter", BAD, ids=[f"{path[1:]}-{body!s:.60}" for path, body, *_ in BAD]
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(address, path, body, status, parameter, stream):
    got = httpx.post(address + path, json=body | {"stream": True} if stream else body)
    assert got.status_code == status, got.text
    error = got.json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"]
    assert error["param"] == parameter


@pytest.mark.parametrize(
    "content, kind, status",
    [
        (b"{", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"prompt": "\xff"}', "application/json", 400),
        (b"\x00", "application/json", 400),
        (b"{}", "text/plain", 415),  # a page of another site may send text without asking
        (b'"' + b"x" * (9 << 20) + b'"', "application/json", 413),
    ],
    ids=["cut", "deep", "latin", "zero", "text", "large"],
)
def test_bad_bodies(address, content, kind, status):
    got = httpx.post(f"{address}/v1/completions", content=content, headers={"content-type": kind})
    assert got.status_code == status and got.json()["error"]["message"]


def test_a_long_prompt_says_both_numbers(client):
    with pytest.raises(openai.BadRequestError, match=r"got \d+ tokens, expected at most 512") as raised:
        client.chat.completions.create(model="tiny-lm", messages=[{"role": "user", "content": "a " * 2000}])
    assert raised.value.code == "context_length_exceeded"


def test_unknown_paths_and_methods(address):
    for got in (httpx.get(f"{address}/none"), httpx.get(f"{address}/v1/completions")):
        assert got.status_code in (404, 405) and got.json()["error"]["type"] == "invalid_request_error"


def counts(address: str) -> dict[str, float]:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return {line.partition("{")[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_connection_ends_its_answer(address, stream):
    before = counts(address)["ingot_answers_cancelled_total"]
    body = {"prompt": PROMPT, "max_tokens": 450, "temperature": 0, "stream": stream, "logit_bias": {"0": -100}}
    with (
        contextlib.suppress(httpx.ReadTimeout),
        httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=httpx.Timeout(10, read=0.05)) as response,
    ):
        next(response.iter_lines())
    for _ in range(500):
        now = counts(address)
        if now["ingot_answers_cancelled_total"] > before and not now["ingot_requests_active"]:
            return
        time.sleep(0.02)
    pytest.fail(f"the answer goes on: {now}")


def test_many_clients_get_the_answers_of_one(client):
    texts = {}

    def ask(index: int) -> None:
        answer = client.completions.create(
            model="tiny-lm", prompt=f"def f{index % 4}(a):\n", max_tokens=16, temperature=0
        )
        texts[index] = answer.choices[0].text

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 32 and all(texts[index] == texts[index % 4] for index in texts)


def test_keys_and_a_full_queue():
    with served(api_keys=["other", "secret"], max_waiting=1) as address:
        assert httpx.get(f"{address}/health").json() == httpx.get(f"{address}/ready").json() == {"status": "ok"}
        for headers in ({}, {"authorization": "Bearer wrong"}):
            for got in (httpx.get(f"{address}/v1/models", headers=headers),
                        httpx.post(f"{address}/v1/completions", json={"prompt": "x"}, headers=headers)):  # fmt: skip
                assert got.status_code == 401 and got.json()["error"]["type"] == "authentication_error"
        right = {"authorization": "Bearer secret"}
        for headers in (right, {"authorization": "bearer other"}, {"x-api-key": "secret"}):
            assert httpx.get(f"{address}/v1/models", headers=headers).status_code == 200
        assert httpx.get(f"{address}/v1/models", headers=right).json()["data"][0]["id"] == "tiny-lm"
        busy = httpx.post(f"{address}/v1/completions", json={"prompt": "x", "n": 2}, headers=right)
        assert busy.status_code == 429 and busy.headers["retry-after"] == "1"
        assert busy.json()["error"]["type"] == "rate_limit_error"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_serves_until_a_signal(number: int):
    with command() as (process, address):
        port = int(address.rpartition(":")[2])
        assert httpx.get(f"{address}/ready").status_code == 200
        answer = httpx.post(f"{address}/v1/completions", json={"prompt": PROMPT, "max_tokens": 4})
        assert answer.json()["model"] == "tiny-lm" and answer.json()["usage"]["completion_tokens"] == 4
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert out == "" and process.returncode in (0, -signal.SIGTERM)
    (line,) = err.splitlines()  # of the answer; probes are not logged
    assert 'path="/v1/completions" status=200' in line and "completion_tokens=4" in line
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_the_command_refuses_a_port_in_use(call):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code, _, err = call("serve", "tiny-lm", "--port", listener.getsockname()[1])
    assert code == 75 and "cannot listen, got Address already in use" in err


def test_the_blocks_of_the_page_run(address, capsys):
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text().replace("http://127.0.0.1:8000", address)
    (curl,) = re.findall(r"^```\n(curl .*?)```", page, re.DOTALL | re.MULTILINE)
    _, url, _, header, _, body = shlex.split(curl.replace("\\\n", ""))
    got = httpx.post(url, content=body, headers=[header.split(": ")])
    assert got.json()["choices"][0]["message"]["content"], got.text
    client, _, application = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(client, {})
    assert len(capsys.readouterr().out) > 20
    exec(application.replace('"folder"', repr(str(FOLDER))), {})
