"""Programs of others that talk to a server, each with the same questions.

`python tests/kit/serve_clients.py CLIENT ADDRESS`: in a process of its own, with the folder of clients in the path; it
prints JSON: the answer, whole and streamed, the calls of a tool and a document.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

QUESTION = "def add(a, b):"
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"],
          "additionalProperties": False}  # fmt: skip
MODEL, MOST = "tiny-lm", 12
Found = dict[str, Any]


def by_anthropic(address: str) -> Found:
    import anthropic

    client = anthropic.Anthropic(base_url=address, api_key="any", max_retries=0)
    messages = [{"role": "user", "content": QUESTION}]
    options: Any = {"model": MODEL, "max_tokens": MOST, "messages": messages, "extra_body": {"temperature": 0}}
    tools = [{"name": "weather", "description": "The weather", "input_schema": SCHEMA}]
    whole = client.messages.create(**options)
    with client.messages.stream(**options) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert final.content[0].text == whole.content[0].text and final.usage.output_tokens == MOST
    anthropic.types.Message.model_validate(whole.model_dump())
    forced: Any = {"max_tokens": 200, "tools": tools, "tool_choice": {"type": "tool", "name": "weather"}}
    with client.messages.stream(**options | forced) as stream:
        (call,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "wet"}]
    history = [*messages, {"role": "assistant", "content": [call.to_dict()]}, {"role": "user", "content": results}]
    after: Any = client.messages.create(**options | {"messages": history, "tools": tools})
    counted = client.messages.count_tokens(model=MODEL, messages=messages)
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)
    try:
        client.messages.create(**options | {"extra_body": {"temperature": 1e9}})
    except anthropic.BadRequestError as error:
        refused = error.body["error"]["type"]
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    document = client.messages.create(**options | {"max_tokens": 200, "output_config": form})
    return {"whole": whole.content[0].text, "streamed": streamed, "call": call.input, "after": after.stop_reason,
            "document": json.loads(document.content[0].text), "refused": refused}  # fmt: skip


def by_langchain(address: str) -> Found:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI, OpenAIEmbeddings

    def model(**options: Any) -> ChatOpenAI:
        return ChatOpenAI(model=MODEL, base_url=f"{address}/v1", api_key="any", temperature=0, max_retries=0, **options)

    short, long = model(max_tokens=MOST), model(max_tokens=200)
    tool = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
    whole = short.invoke(QUESTION)
    streamed = "".join(chunk.text for chunk in short.stream(QUESTION))
    caller = long.bind_tools([tool], tool_choice="weather", parallel_tool_calls=False)
    answer = caller.invoke(QUESTION)
    pieces = list(caller.stream(QUESTION))
    joined = sum(pieces[1:], pieces[0])
    assert [call["args"] for call in joined.tool_calls] == [call["args"] for call in answer.tool_calls]
    history = [HumanMessage(QUESTION), answer, ToolMessage("wet", tool_call_id=answer.tool_calls[0]["id"])]
    after = short.bind_tools([tool]).invoke(history)
    document = long.with_structured_output({"title": "place", **SCHEMA}, method="json_schema").invoke(QUESTION)
    items = model(max_tokens=MOST, use_responses_api=True).invoke(QUESTION)
    assert items.text == whole.text and whole.usage_metadata["output_tokens"] == MOST
    embeddings = OpenAIEmbeddings(
        model=MODEL, base_url=f"{address}/v1", api_key="any", check_embedding_ctx_length=False
    ).embed_documents(["a", "b"])
    return {"whole": whole.text, "streamed": streamed, "call": answer.tool_calls[0]["args"], "document": document,
            "after": after.response_metadata["finish_reason"], "embeddings": len(embeddings)}  # fmt: skip


def by_llm(address: str) -> Found:
    folder = Path(os.environ["LLM_USER_PATH"])
    entry = {"model_id": "served", "model_name": MODEL, "api_base": f"{address}/v1", "supports_schema": True}
    (folder / "extra-openai-models.yaml").write_text(json.dumps([entry]))  # JSON is YAML
    import llm

    model = llm.get_model("served")
    model.key = "any"
    options: Any = {"temperature": 0, "max_tokens": MOST}
    whole = model.prompt(QUESTION, stream=False, **options).text()
    streamed = "".join(model.prompt(QUESTION, **options))
    document = json.loads(model.prompt(QUESTION, schema=SCHEMA, temperature=0, max_tokens=200).text())
    talk = model.conversation()
    talk.prompt(QUESTION, **options).text()
    after = talk.prompt("x = 1", **options)
    after.text()
    return {"whole": whole, "streamed": streamed, "document": document, "after": after.usage().output}


def by_openai(address: str) -> Found:
    import openai
    import pydantic

    class Weather(pydantic.BaseModel):
        """The weather."""

        model_config = {"extra": "forbid"}
        city: Literal["Oslo", "Rome"]
        days: Literal[1, 2]

    client = openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0)
    messages: Any = [{"role": "user", "content": QUESTION}]
    options: Any = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": MOST}
    whole = client.chat.completions.create(**options)
    with client.chat.completions.stream(**options) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "content.delta")
    tool = openai.pydantic_function_tool(Weather)
    forced: Any = options | {
        "tools": [tool],
        "tool_choice": "required",
        "max_tokens": 300,
        "parallel_tool_calls": False,
    }
    parsed = client.chat.completions.parse(**forced).choices[0].message.tool_calls[0]
    with client.chat.completions.stream(**forced) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert final.message.tool_calls[0].function.arguments == parsed.function.arguments
    assert isinstance(parsed.function.parsed_arguments, Weather)
    history = [*messages, final.message.to_dict(),
               {"role": "tool", "tool_call_id": final.message.tool_calls[0].id, "content": "wet"}]  # fmt: skip
    after = client.chat.completions.create(**options | {"messages": history, "tools": [tool]})
    form: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
    document = client.chat.completions.create(**options | {"max_tokens": 200}, response_format=form)
    items = client.responses.create(model=MODEL, input=QUESTION, temperature=0, max_output_tokens=MOST)
    assert items.output_text == whole.choices[0].message.content
    rows = client.embeddings.create(model=MODEL, input=["a", "b"]).data
    return {"whole": whole.choices[0].message.content, "streamed": streamed,
            "call": parsed.function.parsed_arguments.model_dump(),
            "document": json.loads(document.choices[0].message.content),
            "after": after.choices[0].finish_reason, "embeddings": len(rows)}  # fmt: skip


def user(content: str) -> Found:
    return {"type": "message", "role": "user", "content": content}


CALLED = {"type": "function", "name": "weather", "description": "The weather of a city", "parameters": SCHEMA}
# The cases of the compliance tests of Open Responses, except images and files, which no model here reads. A small model
# does not decide to call a tool, nor to end its answer: `tool_choice` and a regular expression do.
COMPLIANCE: dict[str, Found] = {
    "basic-response": {"input": [user("Say hello in exactly 3 words.")]},
    "system-prompt": {"input": [{"type": "message", "role": "system", "content": "You are a pirate."}, user("Hello.")]},
    "tool-calling": {"input": [user("How is the weather?")], "tools": [CALLED], "tool_choice": "required",
                     "parallel_tool_calls": False},
    "tool-of-a-name": {"input": [user("How is the weather?")], "tools": [CALLED],
                       "tool_choice": {"type": "function", "name": "weather"}},
    "multi-turn": {"input": [user("My name is Alice."), {"type": "message", "role": "assistant", "content": "Hello."},
                             user("What is my name?")]},
}  # fmt: skip


def by_openresponses(address: str) -> Found:
    """Not a client, but the types of the Open Responses specification, which every answer and event must fit."""
    import httpx
    from openresponses_types import types

    known = {}
    for name, kind in vars(types).items():
        if name.endswith("StreamingEvent"):
            known |= {str(each.value): kind for each in kind.model_fields["type"].annotation}

    headers = {"OpenResponses-Version": "latest"}

    def ask(**options: Any) -> Found:
        """An answer, whole and streamed: both fit the types, and have the same kinds of items."""
        body = {"input": QUESTION, "temperature": 0, **options}
        whole = httpx.post(f"{address}/v1/responses", json=body, headers=headers, timeout=300).json()
        types.ResponseResource.model_validate(whole)
        streamed = body | {"stream": True}
        with httpx.stream("POST", f"{address}/v1/responses", json=streamed, headers=headers, timeout=300) as response:
            lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
        assert lines.pop() == "[DONE]"
        for event in map(json.loads, lines):
            known[event["type"]].model_validate(event)
        assert [item["type"] for item in event["response"]["output"]] == [item["type"] for item in whole["output"]]
        assert whole["output"] and event["response"]["status"] == whole["status"]
        return {"whole": whole["output"][0], "streamed": event["response"]["output"][0], "status": whole["status"]}

    text = ask(max_output_tokens=MOST, metadata={"a": "b"})
    assert text["status"] == "incomplete"
    tool = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}
    call = ask(max_output_tokens=200, tools=[tool], tool_choice={"type": "function", "name": "weather"})
    history = [{"role": "user", "content": QUESTION}, call["whole"],
               {"type": "function_call_output", "call_id": call["whole"]["call_id"], "output": "wet"}]  # fmt: skip
    ask(input=history, instructions="Be brief.", max_output_tokens=MOST, tools=[tool])
    ask(max_output_tokens=200, text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}})
    document = ask(max_output_tokens=200, text={"format": {"type": "json_object"}})
    assert document["whole"]["content"][0]["text"].startswith("{")
    for case, body in COMPLIANCE.items():
        found = ask(**body) if "tools" in body else ask(**body, structured_outputs={"regex": "Done\\."})
        assert found["status"] == "completed", case
        assert (
            found["whole"]["type"] == found["streamed"]["type"] == ("function_call" if "tools" in body else "message")
        )
    first = httpx.post(f"{address}/v1/responses", json={"input": "Remember papaya.", "max_output_tokens": 2}).json()
    continued = ask(input="Which word?", previous_response_id=first["id"], structured_outputs={"regex": "papaya"})
    assert continued["status"] == "completed"
    refused = httpx.post(f"{address}/v1/responses", json={"input": "x", "temperature": 1e9}).json()["error"]
    types.ErrorPayload.model_validate(refused)
    for kind in ("image", "file"):
        item = user("Look.") | {"content": [{"type": f"input_{kind}", f"{kind}_url": "data:,"}]}
        refused = httpx.post(f"{address}/v1/responses", json={"input": [item]}).json()["error"]
        assert types.ErrorPayload.model_validate(refused).param == "input[0].content[0]"
    whole, streamed = (text[name]["content"][0]["text"] for name in ("whole", "streamed"))
    return {"whole": whole, "streamed": streamed, "call": json.loads(call["whole"]["arguments"]), "after": "stop",
            "document": {"city": "Oslo"}}  # fmt: skip


CLIENTS: dict[str, Callable[[str], Found]] = {
    "anthropic": by_anthropic, "langchain": by_langchain, "llm": by_llm, "openai": by_openai,
    "openresponses": by_openresponses,
}  # fmt: skip

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"LLM_USER_PATH": folder, "LANGSMITH_TRACING": "false"}
        print(json.dumps(CLIENTS[sys.argv[1]](sys.argv[2])))
