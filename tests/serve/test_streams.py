"""Streams: pings in silence, errors when the server closes, and schemas that take too long."""

import asyncio
import json
import threading

import httpx
import pytest

import ingot
from ingot.cli.demo_language import FOLDER
from ingot.serve import events as sse
from ingot.serve.app import PROTOCOLS
from ingot.serve.events import EventResponse, Events, Send
from serving import served

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Go."}]},
    "/v1/completions": {"prompt": "Go.", "max_tokens": 400},
    "/v1/responses": {"input": "Go."},
    "/v1/messages": {"messages": [{"role": "user", "content": "Go."}], "max_tokens": 400},
}
ENDLESS = {"structured_outputs": {"regex": "(ab)+"}}


def test_every_protocol_is_tried():
    assert BODIES.keys() == PROTOCOLS.keys()


@pytest.mark.parametrize("path", BODIES)
def test_silence_is_filled(path, monkeypatch):
    monkeypatch.setattr(sse, "PING_SECONDS", 0.01)
    protocol = PROTOCOLS[path]

    async def work(send: Send) -> None:
        await asyncio.sleep(0.2)
        await send({"type": "x"})
        raise ingot.LimitError("too long")

    async def collect() -> list[bytes]:
        return [chunk async for chunk in Events(protocol, work).read()]

    pings = {"/v1/messages": b'event: ping\ndata: {"type":"ping"}\n\n'}
    name = b"event: x\n" if protocol.named else b""
    first, *rest = asyncio.run(collect())
    assert first == pings.get(path, b": ping\n\n")
    sent = [chunk for chunk in rest if chunk != first]
    assert sent[0] == name + b'data: {"type":"x"}\n\n' and b"too long" in sent[1]
    assert sent[2:] == ([b"data: [DONE]\n\n"] if protocol.ends else [])


@pytest.mark.parametrize("how", ["bug", "end", "gone"])
@pytest.mark.parametrize("path", BODIES)
def test_a_stream_that_is_cut_ends_with_an_error_unless_its_client_has_gone(path, how):
    protocol, sent, begun = PROTOCOLS[path], [], asyncio.Event()

    async def work(send: Send) -> None:
        await send({"type": "x"})
        await begun.wait()
        await asyncio.sleep(0 if how == "bug" else 60)
        raise RuntimeError("secret")

    async def receive() -> dict:
        await (begun if how == "gone" else asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: dict) -> None:
        sent.append(message)

    async def run() -> None:
        response = EventResponse(Events(protocol, work))
        answer = asyncio.create_task(response({"type": "http"}, receive, send))
        while len(sent) < 2:
            await asyncio.sleep(0)
        begun.set()
        if how == "end":
            answer.cancel()
        (failed,) = await asyncio.gather(answer, return_exceptions=True)
        assert (failed is None) == (how == "gone")

    asyncio.run(run())
    assert sent[-1].get("more_body", True) == (how == "gone")
    if how != "gone":
        last = sent[-1]["body"]
        assert b"cut the answer" in last and b"secret" not in last
        assert last.endswith(b"data: [DONE]\n\n") == protocol.ends


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", BODIES)
def test_a_server_that_closes_ends_answers_with_an_error(path, stream):
    """A client never sees the reason "closed" or "cancelled"."""
    llm = ingot.LLM(FOLDER, precision="f32", sequences=4, context=512)
    protocol, found = PROTOCOLS[path], []

    async def run() -> None:
        service = ingot.llm.service.Service(llm.engine)
        served = sse.Served("tiny-lm", llm, service)
        request = sse.msgspec.convert(BODIES[path] | ENDLESS, protocol.body)
        answers = await protocol.prepared(served, request)
        closing = threading.Timer(0, service.close)

        async def send(chunk: dict) -> None:
            found.append(chunk)
            if len(found) == 4 and not closing.ident:
                closing.start()

        if stream:
            async for event in Events(protocol, lambda _: protocol.stream(served, request, answers, send)).read():
                found.append(event.decode())
        else:
            closing = threading.Timer(0.05, service.close)
            closing.start()
            with pytest.raises(ingot.StoppedError, match="closed"):
                await protocol.document(served, request, answers)
        closing.join()

    asyncio.run(run())
    text = json.dumps(found)
    assert '"cancelled"' not in text and '"closed"' not in text
    assert not stream or "service: closed before the end of the answer" in text


SLOW = {"type": "object", "properties": {"a": {"multipleOf": 0.000001, "type": "number", "maximum": 1e9}},
        "patternProperties": {"(a|b)*c(a|b){12}": {}, "(b|a)*d(a|c){12}": {}, "[a-z]{1,40}x[a-z]*": {}}}  # fmt: skip


def test_slow_and_bad_schemas_are_refused_in_time():
    bad = [SLOW, {"type": "string", "pattern": "("}, {"$ref": "#/none"}, {"type": "string", "pattern": "(?=a)b"},
           {"a": {"b": None}, "type": "unknown"}]  # fmt: skip
    deep: dict = {}
    for _ in range(100):
        deep = {"properties": {"a": deep}}
    with served() as address:
        for schema in [*bad, deep]:
            form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
            body = BODIES["/v1/chat/completions"] | {"response_format": form, "max_tokens": 1}
            got = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=300)
            assert got.status_code == 400, (schema, got.text)
            assert got.json()["error"]["message"]
            assert httpx.get(f"{address}/health").status_code == 200
