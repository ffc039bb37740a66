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

MAX_CHOICES = 16  # answers for each prompt of a request
MAX_PROMPTS = 256  # prompts of a request
MAX_INPUTS = 2048  # texts of a request for embeddings


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
        names = "max_tokens temperature top_p top_k min_p seed".split()
        names += "repetition_penalty presence_penalty frequency_penalty".split()
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.seed is not None:
            options["seed"] = self.seed + choice  # answers of one request differ
        if self.logit_bias is not None:
            options["logit_bias"] = {_token(key): bias for key, bias in self.logit_bias.items()}
        return options


class ChatRequest(Request, kw_only=True):
    """The body of /v1/chat/completions."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def options(self, choice: int) -> dict[str, Any]:
        """Return the options of `LLM.generation` for one of the answers."""
        options = super().options(choice)
        if self.max_completion_tokens is not None:
            options["max_tokens"] = self.max_completion_tokens
        if self.top_logprobs is not None and not self.logprobs:
            raise InputError(f"top_logprobs: got {self.top_logprobs} without logprobs, expected logprobs to be true")
        if self.logprobs:
            options["logprobs"] = self.top_logprobs or 0
        if self.response_format is not None and (schema := self.response_format.schema) is not None:
            options["schema"] = schema
        return options


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


class TokenizeRequest(msgspec.Struct):
    """The body of /tokenize: a text, or the messages of a conversation."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    model: str | None = None


class DetokenizeRequest(msgspec.Struct):
    """The body of /detokenize."""

    tokens: list[int]
    model: str | None = None


class EmbeddingRequest(msgspec.Struct):
    """The body of /v1/embeddings."""

    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"


def _token(key: str) -> int:
    if not key.isascii() or not key.isdecimal():
        raise InputError(f"logit_bias: not a token, got {key!r}, expected a number")
    return int(key)
