"""The limits of a server's connections and requests, its ids, log lines, keys and origins, and its end."""

import asyncio
import importlib
import json
import logging
import re
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

import ingot
from drained_servers import answers_alone, drain
from http_server import command, everything, opened, post
from ingot.cli.demo_language import FOLDER
from ingot.serve import app, connections
from ingot.serve.access import keys_of_file
from ingot.serve.connections import Limits
from ingot.serve.limits import MAX_BODY_BYTES, MAX_JSON_DEPTH, expect_shallow
from serving import served, serving

LIMITS = Limits(connections=20, header_bytes=8192, arrival_seconds=1, stall_seconds=0.2)
BODY = json.dumps({"prompt": "def f(a):", "max_tokens": 4, "temperature": 0}).encode()


@pytest.fixture(scope="module")
def address():
    with served(limits=LIMITS) as address:
        yield address


def error_of(received: bytes) -> tuple[int, dict]:
    head, _, content = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(content)["error"]


RAW = {
    "not HTTP": (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
    "unknown version": (b"GET / HTTP/9.9\r\n\r\n", 400),
    "negative length": (b"POST /tokenize HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
    "wrong length": (b"POST /tokenize HTTP/1.1\r\ncontent-length: ten\r\n\r\n", 400),
    "two lengths": (b"POST /tokenize HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
    "length and chunks": (
        b"POST /tokenize HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "chunk header": (b"POST /tokenize HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n" + b"f" * 99 + b"\r\n", 400),
    "control in a header": (b"GET /health HTTP/1.1\r\na: \x00\r\n\r\n", 400),
    "large header": (b"GET /health HTTP/1.1\r\na: " + b"b" * 9000 + b"\r\n\r\n", 431),
    "endless header": (b"GET /health HTTP/1.1\r\na: " + b"b" * (1 << 20), 431),
    "many headers": (b"GET /health HTTP/1.1\r\n" + b"a: b\r\n" * 3000 + b"\r\n", 431),
    "long path": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 431),
    "slow headers": (b"GET /health HTTP/1.1\r\na: b", 408),
    "slow body": (post("/v1/completions", BODY)[:-5], 408),
    "large body": (post("/tokenize", b"").replace(b"length: 0", b"length: 99999999"), 413),
    "slow body of a large length": (post("/tokenize", b"").replace(b"length: 0", b"length: 9999999"), 413),
}


@pytest.mark.parametrize("sent, status", RAW.values(), ids=RAW)
def test_bytes_that_are_no_request(address, sent, status):
    with opened(address) as connection:
        connection.sendall(sent)
        got, error = error_of(everything(connection))
    assert got == status and error["message"] and error["type"] == "invalid_request_error"
    assert httpx.get(f"{address}/health").status_code == 200


SHAPES = {
    "/v2/models/a/infer?b": {"error"},
    "/v1/messages": {"type", "error", "request_id"},
    "/v1/completions": {"error"},
}


@pytest.mark.parametrize("path, fields", SHAPES.items())
def test_errors_of_a_connection_have_the_shape_of_the_path(address, path, fields):
    with opened(address) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\na: {'b' * 9000}\r\n\r\n".encode())
        document = json.loads(everything(connection).partition(b"\r\n\r\n")[2])
    assert set(document) == fields and isinstance(document["error"], str) == path.startswith("/v2")


def test_bytes_that_arrive_one_at_a_time_are_a_request(address):
    request = post("/v1/completions", BODY)
    with opened(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(len(request)):
            connection.sendall(request[start : start + 1])
        connection.sendall(post("/v1/completions", BODY, "connection: close"))  # behind the first
        received = everything(connection)
    assert received.count(b"HTTP/1.1 200 OK") == 2


def test_many_small_chunks_are_a_body(address):
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in b" " * 50_000 + BODY) + b"0\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\ncontent-type: application/json\r\nconnection: close\r\n"
    with opened(address) as connection:
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n" + chunks)
        assert b"HTTP/1.1 200 OK" in everything(connection)


def test_idle_connections_are_limited_and_closed(address):
    idle = [opened(address) for _ in range(LIMITS.connections)]
    with opened(address) as connection:
        assert error_of(everything(connection))[0] == 503
    assert {everything(connection) for connection in idle} == {b""}  # after a second
    for connection in idle:
        connection.close()
    assert httpx.get(f"{address}/health").status_code == 200


def cancelled(address: str) -> float:
    lines = httpx.get(f"{address}/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("ingot_answers_cancelled_total{"))


def test_a_client_that_does_not_read_loses_its_answer_and_no_other_is_delayed(address):
    before = cancelled(address)
    body = {"prompt": "def f(a):", "max_tokens": 480, "temperature": 0, "n": 16, "stream": True, "logprobs": 20,
            "logit_bias": {"0": -100}}  # fmt: skip
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = address.removeprefix("http://").split(":")
        connection.connect((host, int(port)))
        connection.sendall(post("/v1/completions", json.dumps(body).encode()))
        kind = {"content-type": "application/json"}
        first = BODY.replace(b"{", b'{"priority": -1, ')
        answer = httpx.post(f"{address}/v1/completions", content=first, headers=kind, timeout=300)
        assert answer.json()["usage"]["completion_tokens"] == 4
        for _ in range(2000):
            if cancelled(address) > before:
                break
            time.sleep(0.02)
        else:
            pytest.fail("the answer goes on")
        assert b"[DONE]" not in everything(connection)


@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1])
def test_the_depth_of_json(address, depth):
    nested = "[" * (depth - 1) + "]" * (depth - 1)
    brackets = json.dumps('\\" [[{{' * 200)
    body = f'{{"prompt": {brackets}, "unknown": {nested}, "stop": ["a", "]"], "max_tokens": 1}}'
    got = httpx.post(f"{address}/v1/completions", content=body, headers={"content-type": "application/json"})
    assert "too deep" in got.text if depth > MAX_JSON_DEPTH else "longer than the context" in got.text, got.text
    assert got.status_code == 400


@pytest.mark.parametrize("unit", [b'"', b'\\"', b'"\\', b"[", b'["', b"[]", b"]"])
def test_the_depth_of_hostile_json(unit):
    data = unit * (MAX_BODY_BYTES // len(unit))
    with pytest.raises(ingot.InputError, match="too deep"):
        expect_shallow(b"[" * 65 + b'"' + data)
    expect_shallow(b'"' + b"[" * 65 + data.replace(b'"', b""))


def test_ids_are_in_answers_errors_and_log_lines(address, caplog):
    caplog.set_level(logging.INFO, "ingot.serve")
    url, kind = f"{address}/v1/completions", {"content-type": "application/json"}
    given = httpx.post(url, content=BODY, headers=kind | {"x-request-id": "abc-1.2_3"})
    assert given.headers["x-request-id"] == "abc-1.2_3"
    for wrong in ("", "a b", "a" * 129, "é", 'a"b'):
        got = httpx.post(url, content=b"{}", headers=kind | {"x-request-id": wrong.encode()})
        identity = got.headers["x-request-id"]
        assert got.status_code == 400 and len(identity) == 32 and got.json()["error"]["request_id"] == identity
    for got in (httpx.get(f"{address}/none"), httpx.get(url), httpx.post(url, content=b"{}")):
        assert got.json()["error"]["request_id"] == got.headers["x-request-id"]
    facts = {record.facts["path"]: record.facts for record in caplog.records}
    assert facts["/none"]["status"] == 404
    first = caplog.records[0].facts
    assert {name: first[name] for name in ("method", "path", "status", "complete", "completion_tokens")} == {
        "method": "POST", "path": "/v1/completions", "status": 200, "complete": True, "completion_tokens": 4,
    }  # fmt: skip
    assert first["finish_reasons"] == ["length"] and first["prompt_tokens"] > 0


@pytest.mark.parametrize("as_json", [True, False])
def test_log_lines_have_no_prompt_no_answer_and_no_key(as_json):
    options = ["--log-json"] if as_json else []
    with command("--api-key", "sesame", *options) as (process, address):
        headers = {"authorization": "Bearer sesame", "x-request-id": "abc"}
        good = httpx.post(f"{address}/v1/completions", json={"prompt": "def secret(", "seed": 1}, headers=headers)
        bad = httpx.post(f"{address}/v1/completions?secret", json={"prompt": ["secret", 1]}, headers=headers)
        wrong = httpx.post(f"{address}/v1/completions", json={}, headers={"authorization": "Bearer secret"})
        with opened(address) as connection:
            connection.sendall(b"GET /secret HTTP/9.9\r\n\r\n")
            everything(connection)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=300)
    assert (good.status_code, bad.status_code, wrong.status_code) == (200, 400, 401)
    assert out == "" and "secret" not in err and "sesame" not in err and good.json()["choices"][0]["text"] not in err
    lines = err.splitlines()
    assert len(lines) == 4
    if as_json:
        facts = [json.loads(line) for line in lines]
        assert [each.get("status") for each in facts] == [200, 400, 401, None]
        assert facts[0]["request_id"] == "abc" and facts[3]["level"] == "warning"


def test_a_bug_is_an_error_with_an_id_and_its_text_is_not_logged(monkeypatch, caplog):
    async def broken(*arguments):
        raise RuntimeError("secret")

    monkeypatch.setattr(importlib.import_module("ingot.serve.openai"), "wholes", broken)
    with served() as address:
        got = httpx.post(f"{address}/v1/completions", content=BODY, headers={"content-type": "application/json"})
    assert got.status_code == 500 and got.json()["error"]["type"] == "server_error"
    assert got.json()["error"]["request_id"] == got.headers["x-request-id"] and "secret" not in got.text


def test_other_names_of_the_host_are_refused():
    with served(hosts=["localhost", "127.0.0.1", "[::1]"]) as address:
        port = address.rpartition(":")[2]
        for host in ("localhost", "LOCALHOST:1", f"127.0.0.1:{port}", "[::1]:80", "[::1]", ""):
            assert httpx.get(f"{address}/ready", headers={"host": host}).status_code == 200, host
        for host in (
            "example.com",
            "localhost.example.com",
            "127.0.0.1.example.com:80",
            "[::2]",
            "[",
            ":",
            "@localhost",
        ):
            got = httpx.get(f"{address}/v1/models", headers={"host": host})
            assert got.status_code == 421 and got.json()["error"]["type"] == "invalid_request_error", host


def test_origins_are_closed_unless_they_are_named():
    preflight = {"origin": "http://127.0.0.1:1", "access-control-request-method": "POST",
                 "access-control-request-headers": "content-type, authorization"}  # fmt: skip
    with served(api_keys=["k"]) as address:
        got = httpx.options(f"{address}/v1/completions", headers=preflight)
        assert got.status_code == 401 and not any(name.startswith("access-control") for name in got.headers)
    with served(api_keys=["k"], origins=["http://127.0.0.1:1"]) as address:
        got = httpx.options(f"{address}/v1/completions", headers=preflight)
        assert got.status_code == 200 and got.headers["access-control-allow-origin"] == "http://127.0.0.1:1"
        got = httpx.get(f"{address}/v1/models", headers={"origin": "http://127.0.0.1:1"})
        assert got.status_code == 401 and got.headers["access-control-allow-origin"] == "http://127.0.0.1:1"
        got = httpx.options(f"{address}/v1/completions", headers=preflight | {"origin": "http://127.0.0.1:2"})
        assert "access-control-allow-origin" not in got.headers


def test_a_server_that_ends_is_live_and_not_ready():
    application = app(ingot.LLM(FOLDER, sequences=1))
    with serving(application) as address:
        for status in (200, 503):
            for path in ("/ready", "/v2/health/ready"):
                assert httpx.get(address + path).status_code == status
            for path in ("/health", "/v2/health/live"):
                assert httpx.get(address + path).status_code == 200
            application.state.is_ending = True
        application.state.is_ending = False
    assert application.state.is_ending


# -- streams that nothing cuts ----------------------------------------------------------------------------------------


def counting(seconds: float, pause: float = 0, space: int = 0) -> Starlette:
    """An application whose answer is a stream of five numbers. seconds: between two of them. pause: the seconds before
    the last one for which the whole process does nothing. space: bytes after each number.
    """

    async def numbers() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"<%d>" % number + b" " * space
            time.sleep(pause if number == 3 else 0)
            await asyncio.sleep(seconds)

    async def answer(http: Request) -> StreamingResponse:
        return StreamingResponse(numbers())

    application = Starlette(routes=[Route("/", answer, methods=["POST"])])
    application.state.is_alive = lambda: True
    return application


def numbers_of(connection: socket.socket) -> list[bytes]:
    """The numbers of the first stream that a connection receives, which must be whole."""
    first, end, _ = everything(connection).partition(b"\r\n0\r\n\r\n")
    assert end, first
    return re.findall(rb"<(\d)>", first)


@pytest.mark.parametrize(
    "rest",
    [b"\r\n", post("/", b"{}")[:-1], post("/", b"{}")[:-30], b"POST"],
    ids=["line break", "body", "headers", "line"],
)
def test_bytes_of_a_next_request_that_come_slowly_cut_no_stream(rest):
    with serving(counting(0.05), Limits(arrival_seconds=0.1)) as address, opened(address) as connection:
        connection.sendall(post("/", b"{}"))
        time.sleep(0.02)
        connection.sendall(rest)
        assert numbers_of(connection) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_pause_of_the_process_takes_no_time_from_the_answers_of_a_server_that_ends():
    application, stopped = counting(0.15, pause=1.5), threading.Event()
    application.state.stop = stopped.set
    with serving(application, Limits(drain_seconds=1, arrival_seconds=0.5, stall_seconds=0.5)) as address:
        connection = opened(address)
        connection.sendall(post("/", b"{}"))
        time.sleep(0.05)
    with connection:
        assert numbers_of(connection) == [b"0", b"1", b"2", b"3", b"4"] and not stopped.is_set()


def test_a_client_that_does_not_read_does_not_hold_a_server_that_ends(monkeypatch):
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.2)
    application, stopped = counting(0.01, space=8 << 20), threading.Event()
    application.state.stop = stopped.set
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with serving(application, Limits(drain_seconds=0.2)) as address:
            host, port = address.removeprefix("http://").split(":")
            connection.connect((host, int(port)))
            connection.sendall(post("/", b"{}"))
            time.sleep(0.05)
            begin = time.monotonic()
        assert stopped.is_set() and time.monotonic() - begin < 20 < Limits().stall_seconds


def test_a_client_that_goes_ends_the_first_of_its_requests_too(address):
    before = cancelled(address)
    body = {"prompt": "def f(a):", "max_tokens": 480, "temperature": 0, "n": 16, "logit_bias": {"0": -100}}
    with opened(address) as connection:
        connection.sendall(2 * post("/v1/completions", json.dumps(body).encode()))
        time.sleep(0.1)
    until = time.monotonic() + 60
    while cancelled(address) - before < 16:
        assert time.monotonic() < until, "the answers go on"
        time.sleep(0.02)


def test_keys_of_a_file(tmp_path: Path, call):
    path = tmp_path / "keys"
    path.write_text("# of the team\nfirst\n\n  second \n")
    assert keys_of_file(path) == ["first", "second"]
    path.write_text("# none\n")
    for bad in (path, tmp_path / "none"):
        code, _, err = call("serve", "tiny-lm", "--api-key-file", bad)
        assert code and "api-key-file" in err
    code, _, err = call("serve", "tiny-lm", "--api-key", "a b")
    assert code and "key 0 is wrong" in err and "a b" not in err


# -- the end of a server ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def oracles() -> dict[str, str]:
    return answers_alone()


def test_of_ten_times_as_many_requests_as_fit_some_are_refused_and_the_others_right(oracles):
    async def ask(client: httpx.AsyncClient, prompt: str) -> bool:
        body = {"prompt": prompt, "max_tokens": 16, "temperature": 0}
        got = await client.post("/v1/completions", json=body)
        if got.status_code == 429:
            return got.headers["retry-after"] != "1"
        assert got.json()["choices"][0]["text"] == oracles[prompt]
        return True

    async def ask_all(address: str) -> list[bool]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=address, timeout=300, limits=limits) as client:
            return await asyncio.gather(*(ask(client, prompt) for prompt in 10 * list(oracles)))

    with served(max_waiting=4) as address:  # and four that are drawn
        answered = asyncio.run(ask_all(address))
        assert 8 <= sum(answered) < 80 == len(answered)
        assert asyncio.run(ask_all(address)).count(True) >= 8


@pytest.mark.parametrize("seed", range(3))
def test_a_server_that_ends_loses_no_answer(oracles, seed):
    drain(oracles, seed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_200_servers_that_end_lose_no_answer(oracles):
    for seed in range(200):
        drain(oracles, 1000 + seed)


LONG = {"prompt": "def f(a):", "max_tokens": 490, "temperature": 0, "logit_bias": {"0": -100}, "n": 8}


@pytest.mark.parametrize("how", ["second signal", "time"])
def test_answers_that_take_too_long_to_drain_end_with_an_error(how):
    got = {}

    def ask(stream: bool) -> None:
        got[stream] = httpx.post(f"{address}/v1/completions", json=LONG | {"stream": stream}, timeout=300)

    with command("--drain", "0" if how == "time" else "300") as (process, address):
        threads = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
        for thread in threads:
            thread.start()
        while 'ingot_requests_active{model="tiny-lm"} 8' not in httpx.get(f"{address}/metrics").text:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        if how == "second signal":
            time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        process.communicate(timeout=300)
    assert got[False].status_code == 503 and "closed before the end" in got[False].json()["error"]["message"]
    *_, error, done = [line.removeprefix("data: ") for line in got[True].text.splitlines() if line.startswith("data: ")]
    assert "closed before the end" in json.loads(error)["error"]["message"] and done == "[DONE]"


def test_a_service_that_ends_by_a_bug_ends_the_command():
    broken = "import ingot.llm.service as s; s.Service._step = lambda self: 1 / 0; "
    with command("--log-json", prelude=broken) as (process, address):
        got = httpx.post(f"{address}/v1/completions", json={"prompt": "a"}, timeout=300)
        assert got.status_code == 503 and got.json()["error"]["type"] == "server_error"
        _, err = process.communicate(timeout=300)
    assert process.returncode == 75 and "ended by a bug" in err
    assert "ZeroDivisionError" in err and "division by zero" not in err
