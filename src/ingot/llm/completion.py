"""Completion: an answer of a language model."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from ingot.llm.generation import Usage
from ingot.llm.sampling import LogProbs
from ingot.load.hf.strict_json import shown
from ingot.support import html
from ingot.support.columns import counted


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer. tokens: as drawn, including those of a stop string. finish_reason: "stop", "length"
    or "timeout".

    logprobs: one entry per token if the option `logprobs` is set, else empty.
    """

    text: str
    tokens: list[int]
    finish_reason: str
    usage: Usage
    logprobs: list[LogProbs]

    def __repr__(self) -> str:
        return f"<Completion {shown(self.text)}: {counted(len(self.tokens), 'token')}, {self.finish_reason}>"

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return f"{html.title(repr(self))}<pre style='white-space:pre-wrap'>{escape(self.text)}</pre>"
