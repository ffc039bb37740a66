"""/v1/messages: Anthropic's protocol, streamed and not, with tools and reasoning."""

import httpx
import pytest

import ingot
from ingot.serve.chat import prompt_of
from ingot.serve.messages import CountRequest
from serving import events, served, writes

PATH = "/v1/messages"
TOOLS = [{"name": "now", "description": "The time", "input_schema": {"type": "object"}}]
CALL = '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>'
FULL = f"<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"
ASK = {"max_tokens": 300, "temperature": 0, "messages": [{"role": "user", "content": "Go."}]}


@pytest.fixture(scope="module")
def address(folder):
    with served(folder) as address:
        yield address


def collected(named: list) -> dict:
    """The message that the events of a stream build."""
    message, inputs = None, {}
    for name, data in named:
        assert name == data["type"]
        if name == "message_start":
            message = data["message"]
        elif name == "content_block_start":
            assert data["index"] == len(message["content"])
            message["content"].append(data["content_block"])
        elif name == "content_block_delta":
            kind, (field, text) = data["delta"].pop("type"), *data["delta"].items()
            assert data["index"] == len(message["content"]) - 1
            if kind == "input_json_delta":
                inputs[data["index"]] = inputs.get(data["index"], "") + text
            else:
                message["content"][-1][field] += text
        elif name == "message_delta":
            message |= data["delta"] | {"usage": data["usage"]}
    for index, text in inputs.items():
        message["content"][index]["input"] = httpx.Response(200, text=text).json()
    return message


def plain(message: dict) -> dict:
    """A message without what differs from answer to answer."""
    content = [{key: value for key, value in block.items() if key != "id"} for block in message["content"]]
    reasons = message["stop_reason"], message["stop_sequence"]
    return {
        "content": content,
        "reasons": reasons,
        "tokens": message["usage"]["output_tokens"],
        "role": message["role"],
    }


THINKING = {"type": "thinking", "thinking": "Hm.", "signature": ""}
USE = {"type": "tool_use", "name": "now", "input": {"a": 1}}


@pytest.mark.parametrize(
    "text, options, content, reason",
    [
        (FULL, {"tools": TOOLS}, [THINKING, {"type": "text", "text": "I look."}, USE, USE], "tool_use"),
        (
            FULL,
            {"tools": TOOLS, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            [THINKING, {"type": "text", "text": "I look."}, USE],
            "tool_use",
        ),
        ("Fine.", {}, [{"type": "text", "text": "Fine."}], "end_turn"),
        ("Fine. So", {"stop_sequences": ["x", ". "]}, [{"type": "text", "text": "Fine"}], "stop_sequence"),
        ("Fine.", {"max_tokens": 0}, [], "max_tokens"),
        (CALL, {"tools": TOOLS, "tool_choice": {"type": "none"}}, [{"type": "text", "text": CALL}], "end_turn"),
    ],
    ids=["full", "one", "text", "stopped", "none", "no calls"],
)
def test_blocks_and_events(address, text, options, content, reason):
    body = {**ASK, **writes(text), **options}
    got = httpx.post(address + PATH, json=body, headers={"x-api-key": "any"}, timeout=120)
    assert got.status_code == 200, got.text
    named = events(address, PATH, body)
    assert plain(collected(named)) == plain(got.json())
    assert named[-1][0] == "message_stop" and named[0][1]["message"]["usage"]["input_tokens"] > 0
    assert plain(got.json())["content"] == content and got.json()["stop_reason"] == reason
    assert got.json()["stop_sequence"] == (". " if reason == "stop_sequence" else None)
    starts = [data["content_block"] for name, data in named if name == "content_block_start"]
    assert len(starts) == len([name for name, _ in named if name == "content_block_stop"]) == len(content)


def test_forced_calls(address):
    for choice in ({"type": "any"}, {"type": "tool", "name": "now"}):
        body = {**ASK, "tools": TOOLS, "tool_choice": choice, "thinking": {"type": "disabled"}}
        got = httpx.post(address + PATH, json=body, timeout=120).json()
        assert {block["type"] for block in got["content"]} <= {"tool_use", "text"}
        assert got["stop_reason"] in ("tool_use", "max_tokens")


HISTORY = {
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=NONCE;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ],
    "messages": [
        {"role": "user", "content": "Go."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t", "name": "now", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "12:00"}]},
                {"type": "text", "text": "Well?"},
                {"type": "text", "text": "So?"},
            ],
        },
    ],
    "tools": TOOLS,
}


def test_blocks_are_the_turns_of_a_template(folder, address):
    call = {"id": "t", "type": "function", "function": {"name": "now", "arguments": {"a": 1}}}
    assert CountRequest(**HISTORY).history() == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "I look.", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "12:00"},
        {"role": "user", "content": "Well?\nSo?"},
    ]
    got = httpx.post(f"{address}{PATH}/count_tokens", json=HISTORY).json()
    assert got == {"input_tokens": len(prompt_of(ingot.LLM(folder, sequences=1), CountRequest(**HISTORY).chat()))}


def test_a_changing_header_spoils_no_cache(address):
    usages = []
    for number in ("1", "2"):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
                  {"type": "text", "text": "def add(a, b):\n    return a + b\n" * 12}]  # fmt: skip
        body = {**ASK, "system": system, "max_tokens": 1}
        usages.append(httpx.post(address + PATH, json=body, timeout=120).json()["usage"])
    first, second = usages
    assert second["cache_read_input_tokens"] > 64 > second["input_tokens"]
    counts = [usage["input_tokens"] + usage["cache_read_input_tokens"] for usage in usages]
    assert counts[0] == counts[1] and first["output_tokens"] == 1


BAD = [
    ({"max_tokens": None}, 400),
    ({"messages": []}, 400),
    ({"messages": [{"role": "king", "content": "a"}]}, 400),
    ({"messages": [{"role": "user", "content": 3}]}, 400),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]}, 400),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "a", "input": 3}]}]}, 400),
    ({"system": [{"type": "image"}]}, 400),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 400),
    ({"tools": TOOLS, "tool_choice": {"type": "some"}}, 400),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "x"}}, 400),
    ({"output_config": {"format": {"type": "xml"}}}, 400),
    ({"temperature": 1e9}, 400),
    ({"stop_sequences": [""]}, 400),
    ({"model": "other"}, 404),
]


@pytest.mark.parametrize("body, status", BAD, ids=[f"{row[0]!s:.70}" for row in BAD])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(address, body, status, stream):
    got = httpx.post(address + PATH, json=ASK | {"stream": stream} | body, timeout=120)
    error = got.json()
    assert got.status_code == status and error["type"] == "error" and error["error"]["message"], got.text
    assert error["error"]["type"] == {400: "invalid_request_error", 404: "not_found_error"}[status]


def test_keys_and_a_full_queue():
    with served(api_keys=["secret"], max_waiting=0) as address:
        for path in (PATH, f"{PATH}/count_tokens"):
            for headers in ({}, {"x-api-key": "wrong"}):
                got = httpx.post(address + path, json=ASK, headers=headers)
                assert got.status_code == 401 and got.json()["error"]["type"] == "authentication_error"
        assert httpx.get(f"{address}/v1/models", headers={"x-api-key": "secret"}).status_code == 200
        got = httpx.post(address + PATH, json=ASK, headers={"x-api-key": "secret"})
        assert got.status_code == 429 and got.json()["error"]["type"] == "rate_limit_error"


def test_a_stream_that_fails_says_so(address):
    body = ASK | {"structured_outputs": {"regex": "(a{1,1000}){1,1000}b{1,1000}c"}}
    name, data = events(address, PATH, body)[-1]
    assert name == data["type"] == "error" and "too complex" in data["error"]["message"]
