"""The Responses API of OpenAI: answers as output items, and as named events."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

import msgspec

from ingot.errors import IngotError, InputError, UnsupportedError
from ingot.load.hf.strict_json import shown
from ingot.serve.answers import Answer, Served, pieces
from ingot.serve.chat import Chat, answers_of, prompt_of, template_message, tool_of
from ingot.serve.errors import Failure, message_of, openai_error
from ingot.serve.events import Protocol, Send, Writer
from ingot.serve.openai import token_logprobs
from ingot.serve.parts import Part
from ingot.serve.requests import Request, thinking_variables, tool_choice
from ingot.serve.stored import PREFIXES, UnknownResponseError, listed_item
from ingot.serve.tools import Json

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text", "refusal")
_ROLES = ("user", "assistant", "system", "developer")
_UNREAD = {"input_image": "images", "input_file": "files", "input_audio": "audio", "input_video": "videos"}


class ResponsesRequest(Request, kw_only=True):
    """The body of /v1/responses."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None

    def chat(self) -> Chat:
        """Return the request in the form of all protocols.

        Raises InputError for fields that are not supported, for bad tools and for bad items.
        """
        for name in ("background", "conversation"):
            if getattr(self, name):
                got = shown(getattr(self, name))
                raise InputError(f"{name}: not supported, got {got}, expected none; use previous_response_id")
        options = self.options(0)
        if self.max_output_tokens is not None:
            options["max_tokens"] = self.max_output_tokens
        if self.top_logprobs is not None or "message.output_text.logprobs" in (self.include or ()):
            options["logprobs"] = self.top_logprobs or 0
        tools = [_flat_tool(document, f"tools[{index}]") for index, document in enumerate(self.tools or ())]
        effort = (self.reasoning or {}).get("effort")
        return Chat(
            self.messages(),
            tools,
            **tool_choice(self.tool_choice),
            parallel=self.parallel_tool_calls is not False,
            schema=_schema(self.text),
            options=options,
            variables=thinking_variables(effort) | (self.chat_template_kwargs or {}),
            stops=self.stops,
            priority=self.priority or 0,
        )

    def messages(self) -> list[Json]:
        """Return the instructions and items as messages of a chat template."""
        messages: list[Json] = []
        if self.instructions is not None:
            messages.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*messages, {"role": "user", "content": self.input}]
        if not self.input:
            raise InputError("input: no items, expected a text or at least one item")
        for index, item in enumerate(self.input):
            _add_item(messages, item, f"input[{index}]")
        return [{"content": "", **message} if "tool_calls" not in message else message for message in messages]


def items_of(served: Served, request: ResponsesRequest) -> list[Json]:
    """Return the items of a request's input, after those of the response that it continues and its output.

    Raises UnknownResponseError for a response that is not stored.
    """
    own = request.input
    items = [{"type": "message", "role": "user", "content": own}] if isinstance(own, str) else own
    name = request.previous_response_id
    if name is None:
        return list(items)
    try:
        return [*served.stored.items(name), *served.stored.response(name)["output"], *items]
    except UnknownResponseError as error:
        raise UnknownResponseError(f"previous_response_id: {error}") from error


def _whole(served: Served, request: ResponsesRequest) -> Chat:
    """Return a request with all items in the form of all protocols. Raises the errors of `items_of` and `chat`."""
    if request.previous_response_id is None:
        return request.chat()
    return msgspec.structs.replace(request, input=items_of(served, request)).chat()


def _flat_tool(document: Json, where: str) -> Any:
    if document.get("type") != "function":
        raise InputError(f"{where}.type: not supported, got {shown(document.get('type'))}, expected 'function'")
    return tool_of({key: value for key, value in document.items() if key != "type" and value is not None}, where)


def _schema(text: Json | None) -> Json | None:
    """Return the schema of `text.format`. Raises InputError for another format."""
    form = (text or {}).get("format") or {"type": "text"}
    kind = form.get("type") if isinstance(form, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind != "json_schema" or not isinstance(form.get("schema"), dict):
        raise InputError(f"text.format: got {shown(form)}, expected text, json_object, or json_schema with a schema")
    return dict(form["schema"])


def _add_item(messages: list[Json], item: Json, where: str) -> None:
    """Add an item of the input to messages; the items of one turn of the model become one message."""
    kind = item.get("type", "message")
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    if kind == "message":
        role, content = item.get("role"), _content(item.get("content"), f"{where}.content")
        if role not in _ROLES:
            raise InputError(f"{where}.role: got {shown(role)}, expected {', '.join(_ROLES)}")
        if role == "assistant" and last is not None and not {"content", "tool_calls"} & last.keys():
            last["content"] = content
        else:
            messages.append({"role": role, "content": content})
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary") or []
        messages.append({"role": "assistant", "reasoning_content": _joined(parts, f"{where}.content")})
    elif kind == "function_call":
        if last is None:
            last = {"role": "assistant"}
            messages.append(last)
        last.setdefault("tool_calls", []).append(_call(item, where))
    elif kind == "function_call_output":
        content = _content(item.get("output"), f"{where}.output")
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
    else:
        raise InputError(f"{where}.type: not supported, got {shown(kind)}, expected message, function_call,"
                         " function_call_output or reasoning")  # fmt: skip


def _call(item: Json, where: str) -> Json:
    """Return an item of a call in the words of chat templates. Raises InputError for fields that no call has."""
    for name in ("call_id", "name", "arguments"):
        if not isinstance(item.get(name), str):
            raise InputError(f"{where}.{name}: got {shown(item.get(name))}, expected a text")
    function = {"name": item["name"], "arguments": item["arguments"]}
    call = {"id": item["call_id"], "type": "function", "function": function}
    try:
        template_message({"tool_calls": [call]}, where)
    except InputError as error:
        raise InputError(f"{where}.arguments: {str(error).partition(': ')[2]}") from error
    return call


def _content(content: Any, where: str) -> str:
    return content if isinstance(content, str) else _joined(content, where)


def _joined(parts: Any, where: str) -> str:
    """Return the texts of parts, joined by line breaks. Raises UnsupportedError for parts of other types."""
    if not isinstance(parts, list):
        raise InputError(f"{where}: got {shown(parts)}, expected a text or a list of parts")
    texts = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in _UNREAD:
            raise UnsupportedError(f"{where}[{index}]: the model reads no {_UNREAD[kind]}, got {kind}, expected a text")
        if kind not in _TEXTS:
            raise UnsupportedError(f"{where}[{index}]: got a part of type {shown(kind)}, expected a text")
        text = part.get("text", part.get("refusal"))
        if not isinstance(text, str):
            raise InputError(f"{where}[{index}].text: got {shown(text)}, expected a text")
        texts.append(text)
    return "\n".join(texts)


class _Writer(Writer[ResponsesRequest]):
    """Writes an answer as output items, in the words of OpenAI."""

    _reasoning = "reasoning_text"  # in the names of events

    def __init__(self, served: Served, request: ResponsesRequest, answer: Answer, send: Send):
        super().__init__(served, request, answer, send)
        self._items = items_of(served, request)
        self._sequence = 0
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._output: list[Json] = []
        self._part: Json | None = None  # the content part of the last item while it is written

    async def write(self) -> Json:
        """Draw the answer, and return the finished response."""
        await self._event("response.created", response=self._response("in_progress"))
        await self._event("response.in_progress", response=self._response("in_progress"))
        async for piece in pieces(self._served, self._answer):
            logprobs = token_logprobs(self._served.llm, piece.logprobs)
            for part in piece.parts:
                if part.call is not None:
                    await self._close("completed")
                    await self._call(part)
                else:
                    await self._add("message" if part.kind == "text" else "reasoning", part.text, logprobs)
                    logprobs = []
        is_cut = self._answer.finish_reason == "length"
        if not self._output:
            await self._add("message", "", [])
        await self._close("incomplete" if is_cut else "completed")
        status = "incomplete" if is_cut else "completed"
        response = self._response(status)
        if response["store"]:
            self._served.stored.put(response, [listed_item(item) for item in self._items])
        await self._event(f"response.{status}", response=response)
        return response

    async def fail(self, error: IngotError) -> None:
        """Send the event that ends a stream with an error."""
        failed = self._response("failed") | {"error": {"code": "server_error", "message": message_of(error)}}
        await self._event("response.failed", response=failed)

    # -- inside -------------------------------------------------------------------------------------------------

    async def _event(self, kind: str, **fields: Any) -> None:
        await self._send({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1

    async def _about(self, kind: str, **fields: Any) -> None:
        """Send an event about the content part that is being written."""
        await self._event(kind, **self._where, content_index=0, **fields)

    @property
    def _where(self) -> Json:
        return {"item_id": self._output[-1]["id"], "output_index": len(self._output) - 1}

    async def _open(self, kind: str, **fields: Any) -> Json:
        item = {"id": f"{PREFIXES[kind]}_{uuid.uuid4().hex}", "type": kind, "status": "in_progress", **fields}
        self._output.append(item)
        await self._event(
            "response.output_item.added", output_index=len(self._output) - 1, item=msgspec.to_builtins(item)
        )
        return item

    async def _add(self, kind: str, text: str, logprobs: list[Json]) -> None:
        """Add text to a message or to reasoning; open an item if the last one is of another kind."""
        if self._part is None or self._output[-1]["type"] != kind:
            await self._close("completed")
            fields: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            item = await self._open(kind, content=[], **fields)
            part: Json = {"type": "reasoning_text", "text": ""}
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"].append(part)
            self._part = part
            await self._about("response.content_part.added", part=msgspec.to_builtins(part))
        self._part["text"] += text
        if kind == "message":
            self._part["logprobs"] += logprobs
            await self._about("response.output_text.delta", delta=text, logprobs=logprobs)
        else:
            await self._about(f"response.{self._reasoning}.delta", delta=text)

    async def _close(self, status: str) -> None:
        """End the part and the item that are being written."""
        if self._part is None:
            return
        part, item, self._part = self._part, self._output[-1], None
        item["status"] = status
        if item["type"] == "message":
            await self._about("response.output_text.done", text=part["text"], logprobs=part["logprobs"])
        else:
            await self._about(f"response.{self._reasoning}.done", text=part["text"])
        await self._about("response.content_part.done", part=part)
        await self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    async def _call(self, part: Part) -> None:
        assert part.call is not None
        name, text = part.call.name, part.call.text
        item = await self._open("function_call", call_id=self._answer.call_id(), name=name, arguments="")
        await self._event("response.function_call_arguments.delta", **self._where, delta=text)
        item |= {"arguments": text, "status": "completed"}
        await self._event("response.function_call_arguments.done", **self._where, name=name, arguments=text)
        await self._event("response.output_item.done", output_index=len(self._output) - 1, item=item)

    def _format(self) -> Json:
        """Return `text.format` as responses repeat it, with the fields that a schema may leave out."""
        form = (self._request.text or {}).get("format") or {"type": "text"}
        return {"description": None, "strict": None, **form} if form["type"] == "json_schema" else dict(form)

    def _response(self, status: str) -> Json:
        request, generation = self._request, self._answer.generation
        sampling, usage = generation.sampler.sampling, generation.usage
        is_over = status != "in_progress"
        counts = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.reused_tokens, "cache_write_tokens": 0},
            "output_tokens": self._answer.tokens,
            "output_tokens_details": {"reasoning_tokens": self._answer.reasoning_tokens},
            "total_tokens": usage.prompt_tokens + self._answer.tokens,
        }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._served.name,
            "instructions": request.instructions,
            "output": list(self._output),
            "tools": [
                {"description": None, "parameters": None, "strict": None, **tool} for tool in request.tools or ()
            ],
            "tool_choice": request.tool_choice or "auto",
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "text": {**(request.text or {}), "format": self._format()},
            "reasoning": {"effort": (request.reasoning or {}).get("effort"), "summary": None},
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "top_logprobs": request.top_logprobs or 0,
            "max_output_tokens": request.max_output_tokens,
            "max_tool_calls": None,
            "truncation": "disabled",
            "metadata": request.metadata or {},
            "usage": counts if is_over else None,
            "store": request.store is not False,
            "background": False,
            "previous_response_id": request.previous_response_id,
            "service_tier": "default",
            "safety_identifier": None,
            "prompt_cache_key": None,
        }


class _OpenWriter(_Writer):
    """Writes an answer in the words of the Open Responses specification, where they differ from OpenAI's."""

    _reasoning = "reasoning"

    def _format(self) -> Json:
        form = super()._format()
        return form | {"strict": bool(form["strict"]), "schema": None} if form["type"] == "json_schema" else form


def _failed(failure: Failure, count: int) -> Json:
    """Return the event of an error that ends a stream, with the fields of OpenAI and those of Open Responses."""
    error = openai_error(failure)["error"]
    return {**error, "type": "error", "sequence_number": count, "error": error}


def input_tokens(served: Served, request: ResponsesRequest) -> Json:
    """Return the number of tokens of a request's prompt."""
    return {"object": "response.input_tokens", "input_tokens": len(prompt_of(served.llm, _whole(served, request)))}


_OPENAI: Protocol[ResponsesRequest] = Protocol(
    ResponsesRequest,
    lambda served, request: answers_of(served.llm, _whole(served, request)),
    _Writer.document,
    _Writer.stream,
    openai_error,
    named=True,
    failed=_failed,
)
RESPONSES = replace(
    _OPENAI,
    variants={"openresponses-version": replace(_OPENAI, document=_OpenWriter.document, stream=_OpenWriter.stream)},
)
