"""Text from tokens as they come: whole characters only, and nothing from a stop string on."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ingot.errors import InputError, LimitError
from ingot.llm.tokenizer import Tokenizer

MAX_STOPS = 16  # texts that end a generation
MAX_STOP_BYTES = 256  # of one of them

# What decoding gives for bytes that are no character, or not yet one.
_MARK = "\ufffd"

# Tokens that are decoded together. Older ones no longer change what the new ones mean.
_MOST_TOKENS = 32
_TOKENS_KEPT = 8


class TextStream:
    """Turns ids into text, one at a time; what it gives, joined, is `tokenizer.decode(ids)` up to a stop string.

    A character comes when its last byte has come; bytes that never become one come as U+FFFD. (Of a run of byte tokens
    that is no text, `decode` may mark characters that came whole; no encoded text has such runs.) Text that may be the
    beginning of a stop string is held back, and the stop string that ends first, with all after it, never comes.

    stop: at most 16 strings of 1 to 256 bytes. Raises InputError or LimitError when they are not.
    """

    def __init__(self, tokenizer: Tokenizer, stop: str | Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stops = checked_stops(stop)
        self._longest = max(map(len, self._stops), default=0)
        self._ids: list[int] = []
        self._passed = ""  # of these ids' text, what went on to the search for stop strings
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that is certain now and was not before; "" once `stopped`.

        An id that the tokenizer has no token for adds no text: a model may have more columns than tokens.
        Raises InputError when `token` is no id at all.
        """
        if self.stopped:
            return ""
        token = self._tokenizer.checked_id(token)
        if not self._tokenizer.is_text(token):
            return ""
        byte = self._tokenizer.bytes_of.get(token)
        if byte is not None:
            fresh = self._rest() + self._utf8.decode(byte)
            self._ids, self._passed = [token], self._tokenizer.decode_known([token])
        else:
            fresh = self._utf8.decode(b"", final=True) + self._next(token)
        return self._search(fresh) if fresh else ""

    def finish(self) -> str:
        """What was held back, when no more ids come."""
        if self.stopped:
            return ""
        text = self._search(self._utf8.decode(b"", final=True) + self._rest())
        text += self._held
        self._ids, self._passed, self._held = [], "", ""
        return text

    def _next(self, token: int) -> str:
        """The text that a token adds to that of the ids before it."""
        self._ids.append(token)
        text = self._tokenizer.decode_known(self._ids)
        certain = max(len(self._passed), len(text) - text.endswith(_MARK))
        fresh, self._passed = text[len(self._passed) : certain], text[:certain]
        if len(self._ids) >= _MOST_TOKENS and len(self._ids) % _TOKENS_KEPT == 0:
            self._forget(text)
        return fresh

    def _rest(self) -> str:
        """What the ids so far add when nothing follows."""
        return self._tokenizer.decode_known(self._ids)[len(self._passed) :]

    def _forget(self, text: str) -> None:
        """Drops old ids, where the text of the others, after that of the first of them, stays the same."""
        decode = self._tokenizer.decode_known
        for first in range(len(self._ids) - _TOKENS_KEPT, 0, -1):
            before, kept = decode(self._ids[: first + 1]), decode(self._ids[first:])
            shared = len(decode(self._ids[first : first + 1]))
            if shared and len(before) <= len(self._passed) and before + kept[shared:] == text:
                self._passed = self._passed[len(before) - shared :]
                del self._ids[:first]
                return

    def _search(self, fresh: str) -> str:
        """Text that is in no stop string and cannot become part of one."""
        text, self._held = self._held + fresh, ""
        ends = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            return text[: min(ends)[1]]
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                self._held = text[start:]
                return text[:start]
        return text


def checked_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Stop strings as a tuple. Raises InputError or LimitError."""
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, list | tuple):
        raise InputError(f"stop: wrong type, got {type(stop).__name__}, expected a string or a list of them")
    if len(stops) > MAX_STOPS:
        raise LimitError(f"stop: too many strings, got {len(stops)}, expected at most {MAX_STOPS}")
    for index, text in enumerate(stops):
        if not isinstance(text, str) or not text:
            raise InputError(f"stop[{index}]: not a text, got {text!r}, expected a string that is not empty")
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_STOP_BYTES:
            raise LimitError(f"stop[{index}]: too long, got {size} bytes, expected at most {MAX_STOP_BYTES}")
    return tuple(stops)
