"""Tools and reasoning over HTTP: OpenAI's client, with answers whose text an expression fixes.

`structured_outputs.regex` has tiny-lm write the text that a model of a family would write.
"""

import json

import httpx
import openai
import pytest
import transformers

import chat_templates
import ingot
from ingot.serve.chat import Chat, prompt_of
from serving import events, served, with_template, writes

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"$ref": "#/$defs/days"}},
                "required": ["city", "days"],
                "additionalProperties": False,
                "$defs": {"days": {"enum": [1, 2]}},
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time"}},
]
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
ASK = [{"role": "user", "content": "Go."}]
CALLS = [("weather", {"city": "Oslo", "days": 2}), ("now", {})]
HERMES = (
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def address(folder):
    with served(folder) as address:
        yield address


def asked(client: openai.OpenAI, text: str = "", **options) -> tuple:
    """The reasoning, content, calls and finish reason of an answer, the same streamed and not."""
    options = {"model": "tiny-lm", "messages": ASK, "max_tokens": 300, "seed": 1, "temperature": 1} | options
    options["extra_body"] = (writes(text) if text else {}) | options.pop("extra_body", {})
    choice = client.chat.completions.create(**options).choices[0]
    message = choice.message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    whole = getattr(message, "reasoning_content", "") or "", message.content, calls, choice.finish_reason
    reasoning, content, reasons, drawn = "", "", [], []
    for chunk in client.chat.completions.create(**options, stream=True):
        (choice,) = chunk.choices
        reasons.append(choice.finish_reason)
        reasoning += getattr(choice.delta, "reasoning_content", "") or ""
        content += choice.delta.content or ""
        for part in choice.delta.tool_calls or ():
            if part.index == len(drawn):
                assert part.id and part.function.name and part.type == "function"
                drawn.append([part.function.name, ""])
            drawn[part.index][1] += part.function.arguments or ""
    assert choice.delta.model_dump(exclude_none=True) == {} and not any(reasons[:-1])
    streamed = [(name, json.loads(arguments)) for name, arguments in drawn]
    assert (reasoning, content or None, streamed, reasons[-1]) == (whole[0], whole[1] or None, *whole[2:])
    return whole


ANSWERS = [
    (f"<think>\nHm.\n</think>\n\nI look.\n{HERMES}", {"tools": TOOLS}, ("Hm.", "I look.", CALLS, "tool_calls")),
    (HERMES, {"tools": TOOLS, "parallel_tool_calls": False}, ("", None, CALLS[:1], "tool_calls")),
    (HERMES, {"tools": TOOLS, "tool_choice": "none"}, ("", HERMES, [], "stop")),
    (HERMES, {}, ("", HERMES, [], "stop")),
    (f"No. {HERMES[:60]}", {"tools": TOOLS}, ("", f"No. {HERMES[:60]}", [], "stop")),
    ("<think>\nHm.\n</think>\n\nFine.", {}, ("Hm.", "Fine.", [], "stop")),
    ("  Fine.\n", {}, ("", "  Fine.\n", [], "stop")),
]


@pytest.mark.parametrize("text, options, want", ANSWERS, ids=[f"{row[0]:.20}-{len(row[1])}" for row in ANSWERS])
def test_calls_and_reasoning(client, text, options, want):
    assert asked(client, text, **options) == want


def test_cut_answers_have_no_half_calls(client):
    whole = client.chat.completions.create(model="tiny-lm", messages=ASK, tools=TOOLS, extra_body=writes(HERMES))
    tokens = whole.usage.completion_tokens
    for most in (1, 3, tokens // 2, tokens - 2):
        _, content, calls, reason = asked(client, HERMES, tools=TOOLS, max_tokens=most)
        assert reason == "length" and calls in ([], CALLS[:1])
        assert HERMES.startswith(content or "") or content.startswith("<tool_call>")


def test_forced_calls_follow_their_schema(client):
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        _, content, calls, reason = asked(
            client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, extra_body=QUIET
        )
        (name, arguments), *_ = calls
        assert content is None and reason == "tool_calls"
        assert (
            arguments == {} if name == "now" else arguments["city"] in ("Oslo", "Rome") and arguments["days"] in (1, 2)
        )
        assert choice == "required" or name == "weather"


def test_allowed_tools_are_the_only_ones_called(client):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    options = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "extra_body": QUIET}
    assert asked(client, **options)[2] == [("now", {})]
    choice = {"type": "allowed_tools", "allowed_tools": allowed | {"mode": "auto"}}
    assert asked(client, HERMES, tools=TOOLS, tool_choice=choice)[2] == [("now", {})]


def test_strict_tools_are_constrained_where_they_are_called(client):
    strict = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]
    _, content, calls, _ = asked(client, tools=strict, max_tokens=30, extra_body=QUIET)
    assert content or calls


def test_a_document_follows_reasoning(client):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": TOOLS[0]["function"]["parameters"]}}
    _, content, _, reason = asked(client, response_format=form, extra_body=QUIET)
    assert json.loads(content)["city"] in ("Oslo", "Rome") and reason == "stop"


def test_reasoning_counts_and_is_turned_off(client, address):
    for text, least in (("<think>\nHm hm hm.\n</think>\n\nFine.", 4), ("Fine.", 0)):
        answer = client.chat.completions.create(model="tiny-lm", messages=ASK, extra_body=writes(text))
        counted = answer.usage.completion_tokens_details.reasoning_tokens
        assert least <= counted <= answer.usage.completion_tokens and bool(counted) == bool(least)
    text = "<think>Hm.</think>Fine."  # the template has closed the reasoning: this is text
    assert asked(client, text, extra_body=QUIET) == ("", text, [], "stop")
    assert asked(client, "Hm.</think>", reasoning_effort="none")[1] == "Hm.</think>"


def test_a_template_that_opens_the_reasoning(tmp_path):
    opening = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}"
    with served(with_template(tmp_path / "model", opening)) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
        assert asked(client, "Hm.\n</think>\n\nFine.") == ("Hm.", "Fine.", [], "stop")
        assert asked(client, "Hm.") == ("Hm.", "", [], "stop")


def test_control_tokens_mark_the_calls_of_mistral(tmp_path):
    folder = with_template(tmp_path / "model", chat_templates.MISTRAL, ("[TOOL_CALLS]", "[INST]", "[/INST]"))
    with served(folder) as address:
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
        choice = {"type": "function", "function": {"name": "weather"}}
        _, content, calls, reason = asked(client, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
        assert (content, reason, calls[0][0]) == (None, "tool_calls", "weather")
        answer = client.chat.completions.create(model="tiny-lm", messages=ASK, tools=TOOLS[:1], tool_choice="required",
                                                parallel_tool_calls=False)  # fmt: skip
        message = answer.choices[0].message
        assert all(len(call.id) == 9 for call in message.tool_calls)
        assert "[TOOL_CALLS]" not in asked(client, "Fine.")[1]


HISTORY = [
    *ASK,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "weather", "arguments": '{"city": "Oslo", "days": 2}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "wet"},
]


def test_histories_reach_the_template_as_in_transformers(address, folder):
    llm = ingot.LLM(folder, sequences=1)
    body = {"messages": HISTORY, "tools": TOOLS}
    ids = httpx.post(f"{address}/tokenize", json=body).json()["tokens"]
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    call = HISTORY[1]["tool_calls"][0]
    objects = [call | {"function": {"name": "weather", "arguments": {"city": "Oslo", "days": 2}}}]
    history = [HISTORY[0], HISTORY[1] | {"tool_calls": objects}, HISTORY[2]]
    tools = [TOOLS[0], {"type": "function", "function": TOOLS[1]["function"]}]
    text = theirs.apply_chat_template(
        history, tools=tools, chat_template=chat_templates.QWEN, add_generation_prompt=True, tokenize=False
    )
    assert llm.tokenizer.decode(ids, special=True) == text


def test_developers_are_systems_where_a_template_has_none(folder):
    llm = ingot.LLM(folder, sequences=1)
    one, two = (
        prompt_of(llm, Chat([{"role": role, "content": "Be brief."}, *ASK])) for role in ("developer", "system")
    )
    assert one == two


def calling(arguments: str) -> list[dict]:
    """A conversation with a call."""
    return [*ASK, {"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": arguments}}]}]


CONTENT = "messages[0].content[0]"
ARGUMENTS = "messages[1].tool_calls[0].function.arguments"
BAD = [
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": TOOLS + TOOLS}, "tools"),
    ({"tools": TOOLS, "tool_choice": "always"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "none"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{}]}}, "tool_choice"),
    (
        {"tools": [{"function": {"name": "a", "parameters": {"type": "x"}}}], "tool_choice": "required"},
        None,
    ),
    ({"structured_outputs": {"regex": "("}}, None),
    ({"structured_outputs": {"regex": "a", "json": {}}}, None),
    ({"messages": [*ASK, {"role": "assistant", "tool_calls": 3}]}, "messages[1].tool_calls"),
    ({"messages": calling("{")}, ARGUMENTS),
    ({"messages": calling("3")}, ARGUMENTS),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, CONTENT),
]  # fmt: skip


@pytest.mark.parametrize("body, parameter", BAD, ids=[f"{row[0]!s:.70}" for row in BAD])
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests(address, body, parameter, stream):
    got = httpx.post(f"{address}/v1/chat/completions", json={"messages": ASK, "stream": stream} | body, timeout=120)
    error = got.json()["error"]
    assert got.status_code == 400 and error["type"] == "invalid_request_error" and error["message"], got.text
    assert error["param"] == parameter


def test_usage_is_the_last_chunk_alone(address):
    body = {"messages": ASK, "max_tokens": 3, "stream_options": {"include_usage": True}, "logprobs": True}
    *chunks, last, end = (data for _, data in events(address, "/v1/chat/completions", body))
    assert end == "[DONE]" and last["choices"] == [] and last["usage"]["completion_tokens"] == 3
    assert all(chunk["usage"] is None for chunk in chunks)
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    drawn = [each for chunk in chunks for each in (chunk["choices"][0]["logprobs"] or {}).get("content", ())]
    assert len(drawn) == 3


def test_an_answer_that_becomes_too_complex_fails_alone(address):
    body = {"messages": ASK, "structured_outputs": {"regex": "(a{1,1000}){1,1000}b{1,1000}c"}}
    got = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=120)
    assert got.status_code == 400 and "too complex" in got.json()["error"]["message"]
    last, end = events(address, "/v1/chat/completions", body)[-2:]
    assert "too complex" in last[1]["error"]["message"] and end[1] == "[DONE]"
    body = {"messages": ASK, "max_tokens": 2}
    assert httpx.post(f"{address}/v1/chat/completions", json=body).status_code == 200
