"""The keyword options of `LLM` and of its methods, for type checkers and editors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

Message = Mapping[str, Any]  # {"role": ..., "content": ...}


class ModelKeywords(TypedDict):
    """The options that `LLM` and `memory_of` share, except sequences, whose defaults differ."""

    context: int | None
    precision: str | None
    threads: int
    cache_dtype: str | None
    executor: str
    template: str | os.PathLike[str] | None


class StepKeywords(TypedDict, total=False):
    """The options of `LLM` that change the steps of answers, and not the answers."""

    cache_positions: int | None
    checkpoints: int | None
    cache_dir: str | os.PathLike[str] | None
    cache_dir_bytes: int
    lookup: bool
    draft: str | os.PathLike[str] | None


class DrawKeywords(TypedDict, total=False):
    """How tokens are drawn: the fields of `Sampling` but temperature, and what constrains the text."""

    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int | None
    logprobs: int | None
    schema: Mapping[str, Any] | str | None
    regex: str | None
    grammar: str | None
    timeout: float | None


class TokenKeywords(DrawKeywords, total=False):
    """The options of an answer in tokens."""

    max_tokens: int | None
    temperature: float


class TextKeywords(TokenKeywords, total=False):
    """The options of an answer in text."""

    stop: str | Sequence[str]


class ChatKeywords(TextKeywords, total=False):
    """The options of an answer to a conversation."""

    tools: Sequence[Mapping[str, Any]] | None
    template_options: Mapping[str, Any]
