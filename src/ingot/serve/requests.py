"""The requests of OpenAI's protocol as types, and the options of an answer that they contain.

Fields that are not listed are ignored, as clients send fields of many servers. Ranges of numbers are checked where they
are used, by `Sampling`.
"""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import msgspec

from ingot.errors import InputError
from ingot.load.hf.strict_json import shown
from ingot.serve.chat import Chat, tool_of
from ingot.serve.tools import Tool

MAX_CHOICES = 16  # answers for each prompt of a request
MAX_PROMPTS = 256  # prompts of a request
MAX_INPUTS = 2048  # texts of a request for embeddings
_MODES = ("auto", "required")


class StreamOptions(msgspec.Struct):
    """`stream_options`: whether a last chunk has the usage."""

    include_usage: bool = False


class JsonSchema(msgspec.Struct):
    """`response_format.json_schema`."""

    schema: dict[str, Any]
    name: str = "schema"


class ResponseFormat(msgspec.Struct):
    """`response_format`: the form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer follows, or None for any text. Raises InputError for a missing schema."""
        if self.type == "json_object":
            return {"type": "object"}
        if self.type == "json_schema" and self.json_schema is None:
            raise InputError("response_format: no json_schema, got none, expected one for the type json_schema")
        return None if self.json_schema is None else self.json_schema.schema


class StructuredOutputs(msgspec.Struct):
    """`structured_outputs`: a JSON schema or an expression that the whole answer follows, its reasoning included."""

    json: dict[str, Any] | None = None
    regex: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of `LLM.generation`."""
        given = {"schema": self.json, "regex": self.regex}
        return {name: value for name, value in given.items() if value is not None}


class Request(msgspec.Struct, kw_only=True):
    """The fields that requests for text share."""

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    priority: int | None = None
    structured_outputs: StructuredOutputs | None = None
    timeout: float | None = None
    return_progress: bool | None = None

    @property
    def choices(self) -> int:
        """The number of answers for each prompt. Raises InputError for a number out of range."""
        count = 1 if self.n is None else self.n
        if not 1 <= count <= MAX_CHOICES:
            raise InputError(f"n: out of range, got {count}, expected 1..{MAX_CHOICES}")
        return count

    @property
    def stops(self) -> list[str]:
        """The stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def options(self, choice: int) -> dict[str, Any]:
        """Return the options of `LLM.generation` for one of the answers; those not given are left out.

        Raises InputError for a key of logit_bias that is not a token.
        """
        names = "max_tokens temperature top_p top_k min_p seed timeout".split()
        names += "repetition_penalty presence_penalty frequency_penalty".split()
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.seed is not None:
            options["seed"] = self.seed + choice  # answers of one request differ
        if self.logit_bias is not None:
            options["logit_bias"] = {_token(key): bias for key, bias in self.logit_bias.items()}
        if self.structured_outputs is not None:
            options |= self.structured_outputs.options
        return options


class ChatRequest(Request, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def options(self, choice: int) -> dict[str, Any]:
        """Return the options of `LLM.generation` for one of the answers, without a schema."""
        options = super().options(choice)
        if self.max_completion_tokens is not None:
            options["max_tokens"] = self.max_completion_tokens
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError(f"top_logprobs: got {self.top_logprobs} without logprobs, expected logprobs to be true")
        if self.logprobs:
            options["logprobs"] = self.top_logprobs or 0
        return options

    def chat(self) -> Chat:
        """Return the request in the form of all protocols. Raises InputError for bad tools and options."""
        schema = None if self.response_format is None else self.response_format.schema
        tools = [_tool(document, f"tools[{index}]") for index, document in enumerate(self.tools or ())]
        return Chat(
            self.messages,
            tools,
            **tool_choice(self.tool_choice),
            parallel=self.parallel_tool_calls is not False,
            schema=schema,
            options=self.options(0),
            variables=thinking_variables(self.reasoning_effort) | (self.chat_template_kwargs or {}),
            choices=self.choices,
            stops=self.stops,
            priority=self.priority or 0,
        )


class CompletionRequest(Request, kw_only=True):
    """The body of /v1/completions. prompt: a text, several, ids, or several lists of ids."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """The prompts, one or more. Raises InputError for an empty list, for too many, and for other elements."""
        prompt = self.prompt
        if isinstance(prompt, str) or all(type(token) is int for token in prompt):
            prompt = [prompt]
        kinds: tuple[Any, ...] = (list[str], list[list[int]])
        for kind in kinds:
            with contextlib.suppress(msgspec.ValidationError):
                prompts: list[str] | list[list[int]] = msgspec.convert(prompt, kind)
                if len(prompts) > MAX_PROMPTS:
                    raise InputError(f"prompt: too many, got {len(prompts)}, expected at most {MAX_PROMPTS}")
                if prompts and all(prompts):
                    return prompts
        raise InputError(f"prompt: got {shown(self.prompt)}, expected a text, texts, ids or lists of ids, none empty")

    def options(self, choice: int) -> dict[str, Any]:
        """Return the options of `LLM.generation` for one of the answers; 16 tokens by default, as OpenAI's."""
        for name in ("echo", "suffix"):
            if getattr(self, name):
                raise InputError(f"{name}: not supported, got {getattr(self, name)!r}, expected none")
        options = {"max_tokens": 16} | super().options(choice)
        return options if self.logprobs is None else options | {"logprobs": self.logprobs}


class TemplateRequest(msgspec.Struct, kw_only=True):
    """The body of /apply-template: the messages of a conversation, with tools."""

    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    model: str | None = None

    def chat(self) -> Chat:
        """Return the conversation in the form of all protocols. Raises InputError for bad tools."""
        tools = [_tool(document, f"tools[{index}]") for index, document in enumerate(self.tools or ())]
        return Chat(self.messages or (), tools, variables=self.chat_template_kwargs or {})


class TokenizeRequest(TemplateRequest, kw_only=True):
    """The body of /tokenize: a text, or the messages of a conversation, with tools."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None


class DetokenizeRequest(msgspec.Struct):
    """The body of /detokenize."""

    tokens: list[int]
    model: str | None = None


class EmbeddingRequest(msgspec.Struct):
    """The body of /v1/embeddings. prompt_name, truncate: see `Embedder.encode`."""

    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    prompt_name: str | None = None
    truncate: bool = False


def _token(key: str) -> int:
    if not key.isascii() or not key.isdecimal():
        raise InputError(f"logit_bias: not a token, got {key!r}, expected a number")
    return int(key)


def _tool(document: dict[str, Any], where: str) -> Tool:
    if document.get("type", "function") != "function":
        raise InputError(f"{where}.type: not supported, got {shown(document['type'])}, expected 'function'")
    return tool_of(document.get("function"), f"{where}.function")


def tool_choice(choice: str | dict[str, Any] | None) -> dict[str, Any]:
    """Return OpenAI's `tool_choice` as fields of `Chat`. Raises InputError for another one."""
    if choice is None or choice in ("auto", "none", "required"):
        return {"choice": choice or "auto"}
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"choice": f"={_name(choice)}"}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        if isinstance(allowed, dict) and isinstance(allowed.get("tools"), list) and allowed.get("mode") in _MODES:
            return {"choice": allowed["mode"], "allowed": frozenset(map(_name, allowed["tools"]))}
    raise InputError(f"tool_choice: got {shown(choice)}, expected auto, none, required, a function, or allowed_tools")


def _name(tool: Any) -> str:
    """Return the name in {"type": "function", "name"} or {"type": "function", "function": {"name"}}."""
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InputError(f"tool_choice: got {shown(tool)}, expected a function's name")
    return name


def thinking_variables(effort: str | None) -> dict[str, Any]:
    """Return the variables of chat templates for an effort of reasoning; "none" means no reasoning."""
    if effort is None:
        return {}
    return {"enable_thinking": False} if effort == "none" else {"reasoning_effort": effort}
