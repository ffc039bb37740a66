"""Streaming of text from tokens: complete characters only, up to a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from ingot.errors import InputError, LimitError
from ingot.llm.tokenizer import Tokenizer

MAX_STOPS = 16  # stop strings
MAX_STOP_BYTES = 256  # bytes of a stop string

# The decoder's replacement for invalid or incomplete characters.
_MARK = "\ufffd"

# Tokens that are decoded together. Older tokens no longer affect the text of new ones.
_MOST_TOKENS = 32
_TOKENS_KEPT = 8


class TextStream:
    """Converts ids to text one at a time; the joined pieces are `tokenizer.decode(ids)` up to a stop string.

    A character is returned with its last byte; bytes that never form a character become U+FFFD. (In a run of byte
    tokens that is not valid text, `decode` may also replace valid characters; encoded texts have no such runs.) Text
    that may be the beginning of a stop string is withheld. The stop string that ends first, and all text after it, is
    never returned.

    stop: at most 16 strings of 1 to 256 bytes. shown: control tokens whose texts belong to the text; by default none
    does. Raises InputError or LimitError for other strings.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: str | Sequence[str] = (), shown: Mapping[int, str] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._shown = shown or {}
        self._stops = checked_stops(stop)
        self._longest = max(map(len, self._stops), default=0)
        self._ids: list[int] = []
        self._passed = ""  # the part of these ids' text that was already searched for stop strings
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._withheld = ""
        self.stop: str | None = None  # the stop string that ended the text

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text."""
        return self.stop is not None

    def push(self, token: int) -> str:
        """Add a token; return the text that is now certain and was not returned before, "" once `stopped`.

        An id without a token adds no text: a model may have more logits than the tokenizer has tokens.
        Raises InputError if `token` is not an id.
        """
        if self.stopped:
            return ""
        token = self._tokenizer.checked_id(token)
        if token in self._shown:
            fresh = self._utf8.decode(b"", final=True) + self._rest() + self._shown[token]
            self._passed = self._tokenizer.decode_known(self._ids)
            return self._search(fresh)
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
        """Return the text that was withheld; no more ids may follow."""
        if self.stopped:
            return ""
        text = self._search(self._utf8.decode(b"", final=True) + self._rest())
        text += self._withheld
        self._ids, self._passed, self._withheld = [], "", ""
        return text

    def _next(self, token: int) -> str:
        """Return the text that a token adds to the text of the ids before it."""
        self._ids.append(token)
        text = self._tokenizer.decode_known(self._ids)
        certain = max(len(self._passed), len(text) - text.endswith(_MARK))
        fresh, self._passed = text[len(self._passed) : certain], text[:certain]
        if len(self._ids) >= _MOST_TOKENS and len(self._ids) % _TOKENS_KEPT == 0:
            self._forget(text)
        return fresh

    def _rest(self) -> str:
        """Return the remaining text of the ids so far, if no id follows."""
        return self._tokenizer.decode_known(self._ids)[len(self._passed) :]

    def _forget(self, text: str) -> None:
        """Drop old ids if the decoded text of the remaining ones does not change."""
        decode = self._tokenizer.decode_known
        for first in range(len(self._ids) - _TOKENS_KEPT, 0, -1):
            before, after = decode(self._ids[: first + 1]), decode(self._ids[first:])
            shared = len(decode(self._ids[first : first + 1]))
            if shared and len(before) <= len(self._passed) and before + after[shared:] == text:
                self._passed = self._passed[len(before) - shared :]
                del self._ids[:first]
                return

    def _search(self, fresh: str) -> str:
        """Return the text that is not part of a stop string and cannot become part of one."""
        text, self._withheld = self._withheld + fresh, ""
        ends = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if ends:
            _, start, self.stop = min(ends)
            return text[:start]
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                self._withheld = text[start:]
                return text[:start]
        return text


def checked_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Return stop strings as a tuple. Raises InputError or LimitError."""
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, list | tuple):
        raise InputError(f"stop: wrong type, got {type(stop).__name__}, expected a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise LimitError(f"stop: too many strings, got {len(stops)}, expected at most {MAX_STOPS}")
    for index, text in enumerate(stops):
        if not isinstance(text, str) or not text:
            raise InputError(f"stop[{index}]: not a text, got {text!r}, expected a non-empty string")
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MAX_STOP_BYTES:
            raise LimitError(f"stop[{index}]: too long, got {size} bytes, expected at most {MAX_STOP_BYTES}")
    return tuple(stops)
