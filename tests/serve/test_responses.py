"""/v1/responses: OpenAI's client and its types, streamed and not; responses that are stored and continued."""

import asyncio
import json

import httpx
import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseStreamEvent

import ingot
from ingot.serve import stored
from ingot.serve.chat import prompt_of
from ingot.serve.events import Events, Send
from ingot.serve.responses import RESPONSES, ResponsesRequest
from serving import events, served, writes

PATH = "/v1/responses"
TOOLS = [{"type": "function", "name": "now", "description": "The time", "parameters": {"type": "object"}}]
CALL = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
FULL = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}"
EVENT = pydantic.TypeAdapter(ResponseStreamEvent)


@pytest.fixture(scope="module")
def address(folder):
    with served(folder) as address:
        yield address


def plain(response: dict) -> dict:
    """A response without what differs from answer to answer."""
    items = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in response["output"]]
    usage = {key: response["usage"][key] for key in ("input_tokens", "output_tokens", "output_tokens_details")}
    return {"output": items, "status": response["status"], "usage": usage, "why": response["incomplete_details"]}


ITEM = ["output_item.added", "content_part.added"]
TEXT = [*ITEM, "output_text.delta", "output_text.done", "content_part.done", "output_item.done"]
THOUGHT = [*ITEM, "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"]
CALLED = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
BOUNDS = ["created", "in_progress"]


@pytest.mark.parametrize(
    "text, options, order, status",
    [
        (FULL, {"tools": TOOLS}, [*THOUGHT, *TEXT, *CALLED], "completed"),
        ("Fine.", {}, TEXT, "completed"),
        (FULL, {"tools": TOOLS, "max_output_tokens": 7}, THOUGHT, "incomplete"),
        ("Fine and good.", {"max_output_tokens": 2, "top_logprobs": 1}, TEXT, "incomplete"),
        ("Fine.", {"max_output_tokens": 0}, TEXT, "incomplete"),
    ],
    ids=["full", "text", "thought", "cut", "none"],
)
def test_items_and_events(address, text, options, order, status):
    body = {"input": "Go.", "temperature": 0, **writes(text), **options}
    got = httpx.post(address + PATH, json=body, timeout=120)
    assert got.status_code == 200, got.text
    whole = got.json()
    Response.model_validate(whole, strict=False)
    named = events(address, PATH, body)
    assert named.pop() == ("", "[DONE]")
    assert [name for name, _ in named] == [data["type"] for _, data in named]
    assert [data["sequence_number"] for _, data in named] == list(range(len(named)))
    for _, data in named:
        EVENT.validate_python(data)
    kinds = [name.removeprefix("response.") for name, _ in named]
    once = [kind for at, kind in enumerate(kinds) if not at or kind != kinds[at - 1]]
    assert once == [*BOUNDS, *order, status]
    assert plain(named[-1][1]["response"]) == plain(whole) and whole["status"] == status
    deltas = [data["delta"] for name, data in named if name == "response.output_text.delta"]
    messages = [item["content"][0]["text"] for item in whole["output"] if item["type"] == "message"]
    assert "".join(deltas) == "".join(messages)
    assert [data["item"] for name, data in named if name.endswith("item.done")] == named[-1][1]["response"]["output"]
    if "top_logprobs" in options:
        assert len(whole["output"][0]["content"][0]["logprobs"]) == 2


def test_openais_client(address):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
    with client.responses.stream(model="tiny-lm", input="Go.", tools=TOOLS, extra_body=writes(FULL)) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert {"response.output_text.delta", "response.function_call_arguments.done"} <= kinds
    assert (
        final.output_text == "I look." and final.output[-1].name == "now" and final.output[0].content[0].text == "Hm."
    )
    again = client.responses.create(
        model="tiny-lm",
        input=[{"role": "user", "content": "Go."}, *(item.model_dump(exclude_none=True) for item in final.output),
               {"type": "function_call_output", "call_id": final.output[-1].call_id, "output": "12:00"}],
        tools=TOOLS, extra_body=writes("Noon."),
    )  # fmt: skip
    assert again.output_text == "Noon." and again.usage.input_tokens_details.cached_tokens >= 0

    class Answer(pydantic.BaseModel):
        a: bool

    parsed = client.responses.parse(
        model="tiny-lm", input="Go.", text_format=Answer, extra_body={"reasoning": {"effort": "none"}}
    )
    assert isinstance(parsed.output_parsed, Answer)


def test_items_are_the_turns_of_a_template(folder, address):
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c", "name": "now", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "d", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "12:00"},
        {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "13:00"}]},
    ]
    request = ResponsesRequest(input=items, instructions="Be brief.", tools=TOOLS)
    function = {"name": "now", "arguments": '{"a": 1}'}
    calls = [{"id": "c", "type": "function", "function": function},
             {"id": "d", "type": "function", "function": {"name": "now", "arguments": "{}"}}]  # fmt: skip
    assert request.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "reasoning_content": "Hm.", "content": "I look.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "12:00"},
        {"role": "tool", "tool_call_id": "d", "content": "13:00"},
    ]
    body = {"input": items, "instructions": "Be brief.", "tools": TOOLS}
    got = httpx.post(f"{address}{PATH}/input_tokens", json=body).json()
    tokens = prompt_of(ingot.LLM(folder, sequences=1), request.chat())
    assert got == {"object": "response.input_tokens", "input_tokens": len(tokens)}


TEXT_PART, PART = {"type": "input_text", "text": "a"}, "input[0].content[1]"
BAD = [
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"previous_response_id": 1}, "previous_response_id"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"input": 3}, "input"),
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"role": "user", "content": [TEXT_PART, {"type": "input_image", "image_url": "x"}]}]}, PART),
    ({"input": [{"role": "user", "content": [TEXT_PART, {"type": "input_file", "file_data": "x"}]}]}, PART),
    ({"input": [{"role": "user", "content": [TEXT_PART, {"type": "input_video", "video_url": "x"}]}]}, PART),
    ({"input": [{"role": "user", "content": [TEXT_PART, {"type": "input_text", "text": 1}]}]}, f"{PART}.text"),
    ({"input": [{"role": "user", "content": [TEXT_PART, 1]}]}, PART),
    ({"input": [{"role": "user", "content": 1}]}, "input[0].content"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"type": "reasoning", "content": [1]}]}, "input[0].content[0]"),
    ({"input": [{"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image"}]}]},
     "input[0].output[0]"),
    ({"input": [{"role": "king", "content": "a"}]}, "input[0].role"),
    ({"input": [{"role": ["user"], "content": "a"}]}, "input[0].role"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "a", "arguments": "{"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "a", "arguments": "[]"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call", "call_id": "c", "arguments": "{}"}]}, "input[0].name"),
    ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]}, "input[0].call_id"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "x"}}}}, None),
    ({"temperature": 1e9}, "temperature"),
    ({"max_output_tokens": -1}, "max_tokens"),
]  # fmt: skip


@pytest.mark.parametrize("body, parameter", BAD, ids=[f"{row[0]!s:.60}" for row in BAD])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(address, body, parameter, stream):
    got = httpx.post(address + PATH, json={"input": "Go.", "stream": stream} | body, timeout=120)
    assert got.status_code == 400, got.text
    assert got.json()["error"]["param"] == parameter and got.json()["error"]["message"]


def test_what_a_model_does_not_read_is_named(address):
    content = [{"type": "input_text", "text": "What is this?"}, {"type": "input_image", "image_url": "data:,"}]
    got = httpx.post(address + PATH, json={"input": [{"role": "user", "content": content}]}).json()["error"]
    assert got["message"] == "input[0].content[1]: the model reads no images, got input_image, expected a text"


@pytest.mark.parametrize("headers", [{}, {"OpenResponses-Version": "latest"}], ids=["openai", "open responses"])
def test_reasoning_events_have_the_names_that_the_client_asks_for(address, headers):
    named = events(address, PATH, {"input": "Go.", **writes("<think>\nHm.\n</think>\n\n1")}, **headers)
    word = "reasoning" if headers else "reasoning_text"
    assert {name for name, _ in named if "reasoning" in name} == {f"response.{word}.delta", f"response.{word}.done"}
    form = {"type": "json_schema", "name": "a", "schema": {"const": 1}}
    body = {"input": "Go.", "text": {"format": form}, "max_output_tokens": 1}
    found = httpx.post(address + PATH, json=body, headers=headers, timeout=120).json()["text"]["format"]
    assert found == form | {"description": None} | ({"strict": False, "schema": None} if headers else {"strict": None})


@pytest.mark.parametrize("name", ["error", "cut"])
def test_an_error_event_has_the_fields_of_both_protocols(name):
    async def work(send: Send) -> None:
        await send({"type": "response.created"})
        raise ingot.LimitError("temperature: too high")

    async def collect() -> list[bytes]:
        stream = Events(RESPONSES, work)
        chunks = [chunk async for chunk in stream.read()]
        return chunks if name == "error" else [*chunks[:1], stream.cut()]

    _, event, *_ = asyncio.run(collect())
    first, data = event.splitlines()[:2]
    found = json.loads(data.removeprefix(b"data: "))
    assert first == b"event: error" and EVENT.validate_python(found).sequence_number == (1 if name == "error" else 2)
    error = found["error"]
    assert {key: found[key] for key in ("code", "message", "param")} == {
        key: error[key] for key in ("code", "message", "param")
    }
    kind, parameter = ("invalid_request_error", "temperature") if name == "error" else ("server_error", None)
    assert (error["type"], error["param"]) == (kind, parameter)


def texts(items: list[dict]) -> list[tuple[str, str]]:
    """The messages of a list of items."""
    return [(item["role"], item["content"][0]["text"]) for item in items if item["type"] == "message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_continued_by_its_id(address, stream):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)

    def ask(**options) -> Response:
        made = client.responses.create(model="tiny-lm", stream=stream, **options)
        return list(made)[-1].response if stream else made

    first = ask(input="Go.", tools=TOOLS, instructions="Be brief.", extra_body=writes(FULL))
    result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "12:00"}
    second = ask(input=[result], tools=TOOLS, previous_response_id=first.id, extra_body=writes("Noon."))
    assert second.store and second.previous_response_id == first.id and second.output_text == "Noon."
    third = ask(input="Thanks.", previous_response_id=second.id, store=False, extra_body=writes("Bye."))

    given = [item.model_dump(exclude_none=True) for item in first.output]
    whole = [{"role": "user", "content": "Go."}, *given, result,
             {"role": "assistant", "content": "Noon."}, {"role": "user", "content": "Thanks."}]  # fmt: skip
    same = ask(input=whole, store=False, extra_body=writes("Bye."))
    assert third.usage.input_tokens == same.usage.input_tokens
    counted = client.responses.input_tokens.count(input="Thanks.", previous_response_id=second.id)
    assert counted.input_tokens == same.usage.input_tokens

    assert client.responses.retrieve(second.id) == second
    items = [item.to_dict() for item in client.responses.input_items.list(second.id, order="asc", limit=2)]
    assert [item["type"] for item in items] == ["message", "reasoning", "message", "function_call",
                                                "function_call_output"]  # fmt: skip
    assert texts(items) == [("user", "Go."), ("assistant", "I look.")] and len({item["id"] for item in items}) == 5
    assert [item.id for item in client.responses.input_items.list(second.id)] == [item["id"] for item in items][::-1]
    for gone in (third.id, second.id):
        if gone == second.id:
            client.responses.delete(second.id)
        for call in (client.responses.retrieve, client.responses.input_items.list, client.responses.delete):
            with pytest.raises(openai.NotFoundError, match="not found"):
                call(gone)
        with pytest.raises(openai.BadRequestError) as refused:
            ask(input="a", previous_response_id=gone)
        assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")


@pytest.mark.parametrize("query", ["order=up", "limit=0", "limit=101", "limit=x", "after=msg_1"])
def test_bad_pages_of_items(address, query):
    name = httpx.post(address + PATH, json={"input": "Go.", "max_output_tokens": 1}, timeout=120).json()["id"]
    assert httpx.get(f"{address}{PATH}/{name}/input_items?{query}").status_code == 400


def test_the_responses_used_longest_ago_are_dropped(monkeypatch):
    monkeypatch.setattr(stored, "MAX_STORED_BYTES", 1000)
    store = stored.Store()
    for name in ("a", "b", "c"):
        store.put({"id": name, "text": 300 * "x"}, [{"role": "user", "content": "Go."}])
        store.response("a")
    assert "a" in store and "b" not in store and "c" in store
    store.put({"id": "d", "text": 1000 * "x"}, [])
    assert not any(name in store for name in "abcd")


def test_a_stream_that_fails_says_so(address):
    body = {"input": "Go.", "structured_outputs": {"regex": "(a{1,1000}){1,1000}b{1,1000}c"}}
    (name, data), end = events(address, PATH, body)[-2:]
    EVENT.validate_python(data)
    assert name == "response.failed" and "too complex" in data["response"]["error"]["message"] and end[1] == "[DONE]"
    assert data["response"]["output"][0]["content"][0]["text"].startswith("aaa")
