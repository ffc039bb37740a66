"""Responses that a server keeps in memory, so that later requests continue them by their ids."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

from ingot.errors import InputError
from ingot.serve.tools import Json

MAX_STORED_BYTES = 64 << 20  # of the responses of a model, as JSON
MAX_LISTED = 100  # items of a page
_USUAL_LISTED = 20
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}  # of ids


class UnknownResponseError(InputError):
    """No response with an id is stored."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A response and the items of its input, also those of the responses that it continues, as JSON."""

    response: bytes
    items: bytes

    @property
    def nbytes(self) -> int:
        return len(self.response) + len(self.items)


class Store:
    """The responses of a model, at most MAX_STORED_BYTES: the one that was used longest ago is dropped first."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def put(self, response: Json, items: list[Json]) -> None:
        """Store a response with the items of its input."""
        entry = _Entry(msgspec.json.encode(response), msgspec.json.encode(items))
        with self._lock:
            self._entries[response["id"]] = entry
            self._nbytes += entry.nbytes
            while self._nbytes > MAX_STORED_BYTES:
                _, dropped = self._entries.popitem(last=False)
                self._nbytes -= dropped.nbytes

    def response(self, name: str) -> Json:
        """Return a response. Raises UnknownResponseError."""
        return dict(msgspec.json.decode(self._find(name).response))

    def items(self, name: str) -> list[Json]:
        """Return the items of the input of a response. Raises UnknownResponseError."""
        return list(msgspec.json.decode(self._find(name).items))

    def drop(self, name: str) -> None:
        """Drop a response. Raises UnknownResponseError."""
        entry = self._find(name)
        with self._lock:
            if self._entries.pop(name, None) is not None:
                self._nbytes -= entry.nbytes

    def _find(self, name: str) -> _Entry:
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                raise UnknownResponseError(f"response: not found, got {name[:100]!r}, expected the id of a stored one")
            self._entries.move_to_end(name)
            return entry


def listed_item(item: Json) -> Json:
    """Return an item of an input as lists of items have it: with an id, and the content of a message as parts."""
    kind = item.get("type", "message")
    shown = {**item, "id": item.get("id") or f"{PREFIXES[kind]}_{uuid.uuid4().hex}", "type": kind}
    if kind == "message":
        content = item.get("content")
        part: Json = {"type": "input_text", "text": content}
        if item.get("role") == "assistant":
            part = {"type": "output_text", "text": content, "annotations": [], "logprobs": []}
        shown |= {"status": item.get("status", "completed"), "content": [part] if isinstance(content, str) else content}
    elif kind in ("function_call", "function_call_output"):
        shown["status"] = item.get("status", "completed")
    return shown


def page(items: list[Json], query: Any) -> Json:
    """Return a page of items. query: the texts of `order` ("desc" or "asc"), `limit` and `after`, an item's id.

    Raises InputError for another value.
    """
    order, limit, after = query.get("order", "desc"), query.get("limit", str(_USUAL_LISTED)), query.get("after")
    if order not in ("asc", "desc"):
        raise InputError(f"order: got {order[:100]!r}, expected 'asc' or 'desc'")
    if not (limit.isascii() and limit.isdecimal() and len(limit) < 4 and 1 <= int(limit) <= MAX_LISTED):
        raise InputError(f"limit: out of range, got {limit[:100]!r}, expected 1 to {MAX_LISTED}")
    ordered = items if order == "asc" else items[::-1]
    if after is not None:
        ids = [item["id"] for item in ordered]
        if after not in ids:
            raise InputError(f"after: got {after[:100]!r}, expected the id of an item")
        ordered = ordered[ids.index(after) + 1 :]
    data = ordered[: int(limit)]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **ends, "has_more": len(data) < len(ordered)}
