"""The Messages API of Anthropic: answers as content blocks, and as named events."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import msgspec

from ingot.errors import InputError, UnsupportedError
from ingot.load.hf.strict_json import shown
from ingot.serve.answers import Answer, Served, pieces
from ingot.serve.chat import Chat, answers_of, prompt_of, tool_of
from ingot.serve.errors import Failure
from ingot.serve.events import Protocol, Send, Writer
from ingot.serve.log import request_id
from ingot.serve.parts import Part
from ingot.serve.requests import StructuredOutputs
from ingot.serve.tools import Json, Tool

# Claude Code writes a number that changes with each request into this block of the system prompt: no cache would help.
_CHANGING = "x-anthropic-billing-header"
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class CountRequest(msgspec.Struct, kw_only=True):
    """The body of /v1/messages/count_tokens."""

    messages: list[dict[str, Any]]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self) -> Chat:
        """Return the request in the form of all protocols. Raises InputError for bad tools and blocks."""
        choice = self.tool_choice or {"type": "auto"}
        return Chat(
            self.history(),
            [_tool(document, f"tools[{index}]") for index, document in enumerate(self.tools or ())],
            _choice(choice),
            parallel=not choice.get("disable_parallel_tool_use"),
            schema=_schema(self.output_config),
            variables=_variables(self.thinking) | (self.chat_template_kwargs or {}),
        )

    def history(self) -> list[Json]:
        """Return the system prompt and the messages as messages of a chat template."""
        system = [self.system] if isinstance(self.system, str) else _texts(self.system or [], "system")
        kept = [text for text in system if not text.startswith(_CHANGING)]
        messages: list[Json] = [{"role": "system", "content": "\n\n".join(kept)}] if kept else []
        for index, message in enumerate(self.messages):
            where = f"messages[{index}]"
            role, content = message.get("role"), message.get("content")
            if role not in ("user", "assistant", "system"):
                raise InputError(f"{where}.role: got {shown(role)}, expected 'user' or 'assistant'")
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
                raise InputError(f"{where}.content: got {shown(content)}, expected a text or a list of blocks")
            read = _assistant(blocks, where) if role == "assistant" else _user(role, blocks, where)
            messages += read
        return messages


class MessagesRequest(CountRequest, kw_only=True):
    """The body of /v1/messages."""

    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    priority: int | None = None
    structured_outputs: StructuredOutputs | None = None

    def chat(self) -> Chat:
        """Return the request in the form of all protocols. Raises InputError for bad tools and blocks."""
        names = ("max_tokens", "temperature", "top_p", "top_k")
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.structured_outputs is not None:
            options |= self.structured_outputs.options
        return replace(super().chat(), options=options, stops=self.stop_sequences or (), priority=self.priority or 0)


def _texts(blocks: Any, where: str) -> list[str]:
    """Return the texts of blocks. Raises UnsupportedError for blocks of other types."""
    if not isinstance(blocks, list):
        raise InputError(f"{where}: got {shown(blocks)}, expected a text or a list of blocks")
    texts = []
    for index, block in enumerate(blocks):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind != "text" or not isinstance(block.get("text"), str):
            raise UnsupportedError(f"{where}[{index}]: got a block of type {shown(kind)}, expected a text")
        texts.append(block["text"])
    return texts


def _user(role: str, blocks: list[Json], where: str) -> list[Json]:
    """Return a user's blocks as messages: the results of tools, and texts."""
    messages: list[Json] = []
    for index, block in enumerate(blocks):
        at = f"{where}.content[{index}]"
        if block.get("type") == "tool_result":
            content = block.get("content")
            text = content if isinstance(content, str) else "\n".join(_texts(content or [], f"{at}.content"))
            messages.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
            continue
        (text,) = _texts([block], at)
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{text}"
        else:
            messages.append({"role": role, "content": text})
    return messages


def _assistant(blocks: list[Json], where: str) -> list[Json]:
    """Return the blocks of the model as one message with reasoning, text and calls."""
    message: Json = {"role": "assistant", "content": ""}
    for index, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "tool_use":
            function = {"name": block.get("name"), "arguments": block.get("input")}
            call = {"id": block.get("id"), "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        elif kind == "thinking":
            message["reasoning_content"] = message.get("reasoning_content", "") + str(block.get("thinking", ""))
        elif kind != "redacted_thinking":
            message["content"] += "".join(_texts([block], f"{where}.content[{index}]"))
    return [message]


def _tool(document: Json, where: str) -> Tool:
    if document.get("type") not in (None, "custom"):
        raise InputError(f"{where}.type: not supported, got {shown(document['type'])}, expected 'custom'")
    function: Json = {key: document[key] for key in ("name", "description", "strict") if key in document}
    if "input_schema" in document:
        function["parameters"] = document["input_schema"]
    return tool_of(function, where)


def _choice(choice: Json) -> str:
    kind = choice.get("type")
    if kind == "tool" and isinstance(choice.get("name"), str):
        return f"={choice['name']}"
    if kind not in ("auto", "any", "none"):
        raise InputError(f"tool_choice: got {shown(choice)}, expected the type auto, any or none, or tool with a name")
    return "required" if kind == "any" else str(kind)


def _schema(config: Json | None) -> Json | None:
    form = (config or {}).get("format")
    if form is None:
        return None
    if not isinstance(form, dict) or form.get("type") != "json_schema" or not isinstance(form.get("schema"), dict):
        raise InputError(f"output_config.format: got {shown(form)}, expected the type json_schema with a schema")
    return dict(form["schema"])


def _variables(thinking: Json | None) -> Json:
    return {} if thinking is None else {"enable_thinking": thinking.get("type") != "disabled"}


class _Writer(Writer[MessagesRequest]):
    """Writes an answer as content blocks."""

    def __init__(self, served: Served, request: MessagesRequest, answer: Answer, send: Send):
        super().__init__(served, request, answer, send)
        self._content: list[Json] = []
        self._is_open = False  # whether the last block is being written
        self._id = f"msg_{uuid.uuid4().hex}"

    async def write(self) -> Json:
        """Draw the answer, and return the finished message."""
        await self._send({"type": "message_start", "message": self._message()})
        async for piece in pieces(self._served, self._answer):
            for part in piece.parts:
                if part.call is not None:
                    await self._call(part)
                elif part.kind == "text":
                    await self._add("text", part.text)
                else:
                    await self._add("thinking", part.text)
        await self._close()
        answer = self._answer
        reason = "stop_sequence" if answer.stopped_by is not None else _REASONS[answer.finish_reason]
        end = {"stop_reason": reason, "stop_sequence": answer.stopped_by}
        await self._send({"type": "message_delta", "delta": end, "usage": self._usage()})
        await self._send({"type": "message_stop"})
        return self._message() | end

    # -- inside -------------------------------------------------------------------------------------------------

    async def _open(self, block: Json) -> None:
        await self._close()
        self._content.append(block)
        self._is_open = True
        await self._send({"type": "content_block_start", "index": len(self._content) - 1, "content_block": dict(block)})

    async def _delta(self, kind: str, **fields: str) -> None:
        index = len(self._content) - 1
        await self._send({"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}})

    async def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            await self._send({"type": "content_block_stop", "index": len(self._content) - 1})

    async def _add(self, kind: str, text: str) -> None:
        """Add text to a block of text or of thinking; open one if the last block is of another type."""
        if not self._is_open or self._content[-1]["type"] != kind:
            await self._open({"type": kind, kind: "", **({"signature": ""} if kind == "thinking" else {})})
        self._content[-1][kind] += text
        await self._delta(f"{kind}_delta", **{kind: text})

    async def _call(self, part: Part) -> None:
        assert part.call is not None
        identifier = self._answer.call_id().replace("call_", "toolu_")
        await self._open({"type": "tool_use", "id": identifier, "name": part.call.name, "input": {}})
        await self._delta("input_json_delta", partial_json=part.call.text)
        self._content[-1]["input"] = part.call.arguments
        await self._close()

    def _message(self) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._served.name,
            "content": list(self._content),
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _usage(self) -> Json:
        usage = self._answer.generation.usage
        return {
            "input_tokens": usage.prompt_tokens - usage.reused_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.reused_tokens,
            "output_tokens": self._answer.tokens,
            "output_tokens_details": {"thinking_tokens": self._answer.reasoning_tokens},
        }


def anthropic_error(failure: Failure) -> Json:
    """Return an error in Anthropic's shape."""
    kind = _KINDS.get(failure.status, "invalid_request_error" if failure.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": failure.message}, "request_id": request_id()}


def count_tokens(served: Served, request: CountRequest) -> Json:
    """Return the number of tokens of a request's prompt."""
    return {"input_tokens": len(prompt_of(served.llm, request.chat()))}


MESSAGES: Protocol[MessagesRequest] = Protocol(
    MessagesRequest,
    lambda served, request: answers_of(served.llm, request.chat()),
    _Writer.document,
    _Writer.stream,
    anthropic_error,
    named=True,
    ping={"type": "ping"},
    ends=False,
)
