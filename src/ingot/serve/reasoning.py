"""The reasoning before an answer: the markers of model families, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ingot.llm.tokenizer import Tokenizer

_TAIL = 16  # tokens of a prompt in which its last marker is searched


@dataclass(frozen=True, slots=True)
class Thinking:
    """The markers around the reasoning of a family of models.

    sign: a text that the family's chat template contains. dropped: markers that are no part of answers. repeats:
    whether reasoning may begin again after text.
    """

    sign: str
    begin: str
    end: str
    dropped: tuple[str, ...] = ()
    repeats: bool = False

    @property
    def markers(self) -> str:
        """The texts that are written around reasoning and text."""
        return self.begin + self.end + "".join(self.dropped)

    def state(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> str:
        """Return "open" if a prompt ends in reasoning, "closed" if it ends after reasoning, else ""."""
        tail = tokenizer.decode(prompt[-_TAIL:], special=True).rstrip()
        return "open" if tail.endswith(self.begin.rstrip()) else "closed" if tail.endswith(self.end) else ""


_HARMONY = ("<|end|>", "<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>")
THINKING = (
    Thinking("<|channel|>", "<|channel|>analysis<|message|>", "<|end|>", _HARMONY, repeats=True),
    Thinking("<|channel>", "<|channel>thought\n", "<channel|>"),
    Thinking(
        "<|START_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    ),
    Thinking("[THINK]", "[THINK]", "[/THINK]"),
    Thinking("seed:think>", "<seed:think>", "</seed:think>"),
    Thinking("◁think▷", "◁think▷", "◁/think▷"),
    Thinking("think>", "<think>", "</think>"),
)


def thinking_of(template: str) -> Thinking | None:
    """Return the markers of reasoning of a chat template; None if the template has none."""
    return next((thinking for thinking in THINKING if thinking.sign in template), None)
