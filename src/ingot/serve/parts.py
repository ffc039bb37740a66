"""The text of an answer as parts: reasoning, text for the reader, and calls of tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ingot.serve.reasoning import Thinking
from ingot.serve.tools import Call, Form, Tool


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of reasoning or of text, or one complete call."""

    kind: Literal["reasoning", "text", "call"]
    text: str = ""
    call: Call | None = None


class PartReader:
    """Splits the text of an answer into parts while it arrives.

    The parts do not depend on how the text is cut into pieces. A block of calls that cannot be read is text: no part
    is a half of a call. White space around reasoning and before calls is left out.

    form: how the model writes calls, None if it may not call. thinking: the markers of its reasoning. opened: whether
    the prompt ends in reasoning. parallel: whether the answer may go on after its first call.
    """

    def __init__(
        self,
        form: Form | None = None,
        tools: Sequence[Tool] = (),
        thinking: Thinking | None = None,
        opened: bool = False,
        parallel: bool = True,
    ):
        self._form, self._tools, self._thinking, self._parallel = form, tools, thinking, parallel
        self._buffer = ""
        self._space = ""  # white space that belongs to the text only if more text follows
        self._state = "reasoning" if opened else "start"
        self._is_empty = True  # whether the current stretch of reasoning or text has nothing but white space so far
        self.has_text = False
        self.has_calls = False

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends in reasoning."""
        return self._state == "reasoning"

    @property
    def is_over(self) -> bool:
        """Whether no text may follow."""
        return self.has_calls and not self._parallel

    def push(self, text: str) -> list[Part]:
        """Add text; return the parts that are certain now."""
        self._buffer += text
        parts: list[Part] = []
        while not self.is_over and self._step(parts):
            pass
        return parts

    def finish(self) -> list[Part]:
        """Return the parts that were withheld; no more text may follow."""
        parts: list[Part] = []
        if self.is_over:
            return parts
        if self._state == "block":
            self._end_block(parts, self._buffer)
            self._buffer = ""
        elif self._state == "reasoning":
            self._add(parts, "reasoning", self._buffer)
        else:
            self._add(parts, "text", self._buffer)
        if self._state != "reasoning" and self._space and self.has_text and not self.has_calls:
            parts.append(Part("text", self._space))
        return parts

    # -- inside -------------------------------------------------------------------------------------------------

    def _step(self, parts: list[Part]) -> bool:
        """Move on by one marker. Return whether there may be another one in the text so far."""
        return {"start": self._start, "reasoning": self._reason, "text": self._write, "block": self._call}[self._state](
            parts
        )

    def _start(self, parts: list[Part]) -> bool:
        thinking, found = self._thinking, self._buffer.lstrip()
        if thinking is not None:
            if found.startswith(thinking.begin):
                self._buffer = found[len(thinking.begin) :]
                self._state = "reasoning"
                return True
            if thinking.begin.startswith(found):
                return False
        self._state = "text"
        self._is_empty = False  # white space at the beginning of an answer without reasoning stays
        if self._form is not None and self._form.opens:
            if not found:
                self._state = "start"
                return False
            if found[0] in self._form.opens:
                self._state = "block"
        return True

    def _reason(self, parts: list[Part]) -> bool:
        assert self._thinking is not None
        before, marker, after = _cut(self._buffer, [self._thinking.end])
        self._add(parts, "reasoning", before)
        self._buffer = after
        if not marker:
            return False
        self._state, self._space, self._is_empty = "text", "", True
        return True

    def _write(self, parts: list[Part]) -> bool:
        form, thinking = self._form, self._thinking
        if self._is_empty and form is not None and form.opens:
            found = self._buffer.lstrip()
            if found and found[0] in form.opens:
                self._buffer, self._state = found, "block"
                return True
        markers = [*thinking.dropped] if thinking is not None else []
        if thinking is not None and thinking.repeats:
            markers.append(thinking.begin)
        if form is not None and form.begin:
            markers.append(form.begin)
        before, marker, after = _cut(self._buffer, markers)
        self._add(parts, "text", before)
        self._buffer = after
        if not marker:
            return False
        if form is not None and marker == form.begin:
            self._buffer, self._state = marker + after, "block"
        elif thinking is not None and marker == thinking.begin:
            self._state, self._space, self._is_empty = "reasoning", "", True
        return True

    def _call(self, parts: list[Part]) -> bool:
        assert self._form is not None
        end = self._form.end
        index = self._buffer.find(end, len(self._form.begin)) if end else -1
        if index < 0:
            return False
        block, self._buffer = self._buffer[: index + len(end)], self._buffer[index + len(end) :]
        self._end_block(parts, block)
        return True

    def _end_block(self, parts: list[Part], block: str) -> None:
        assert self._form is not None
        calls = self._form.read(block, self._tools)
        self._state = "text"
        if calls is None:
            self._add(parts, "text", block)
            return
        self._space, self._is_empty = "", not self.has_text
        self.has_calls = True
        parts += [Part("call", call=call) for call in (calls if self._parallel else calls[:1])]

    def _add(self, parts: list[Part], kind: Literal["reasoning", "text"], text: str) -> None:
        """Add text without white space at the beginning of a stretch, and withhold that at its end."""
        if self._form is None and self._thinking is None:
            parts += [Part(kind, text)] if text else []
            return
        if self._is_empty:
            text = text.lstrip()
        content = text.rstrip()
        if content:
            parts.append(Part(kind, self._space + content))
            self._space, self._is_empty = "", False
            self.has_text = self.has_text or kind == "text"
        self._space += text[len(content) :]


def _cut(text: str, markers: Sequence[str]) -> tuple[str, str, str]:
    """Return the text before the first marker, the marker, and the text after it.

    Without a marker: the text that no marker can begin in, "" and the rest.
    """
    found = [(index, marker) for marker in markers if (index := text.find(marker)) >= 0]
    if found:
        index, marker = min(found)
        return text[:index], marker, text[index + len(marker) :]
    longest = max(map(len, markers), default=1)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(marker.startswith(text[start:]) for marker in markers):
            return text[:start], "", text[start:]
    return text, "", ""
