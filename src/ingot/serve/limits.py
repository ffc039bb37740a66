"""Limits of the body of a request: its type, its size, and the depth of its JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ingot.errors import InputError

MAX_BODY_BYTES = 8 << 20  # of a request
MAX_JSON_DEPTH = 64  # of the JSON of a request

_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1


async def json_of(http: Request) -> bytes:
    """Return the body of a request, a JSON document.

    Raises HTTPException for a wrong type or size, ClientDisconnect.
    """
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "content-type: expected application/json")
    return await body_of(http, MAX_BODY_BYTES)


class BodyBytes:
    """The bytes of the bodies of requests in progress, and the most that they may have together."""

    def __init__(self, most: int):
        self.most, self.held = most, 0

    @contextlib.contextmanager
    def request(self) -> Iterator[Callable[[int], None]]:
        """Count a request's bytes while it is in progress: yield what counts further ones.

        That raises HTTPException with status 429 for bytes that exceed the limit.
        """
        own = 0

        def count(nbytes: int) -> None:
            nonlocal own
            if self.held + nbytes > self.most:
                raise HTTPException(429, f"body: busy, expected at most {self.most} bytes of all requests in progress")
            own += nbytes
            self.held += nbytes

        try:
            yield count
        finally:
            self.held -= own


async def body_of(http: Request, most: int, count: Callable[[int], None] | None = None) -> bytes:
    """Return the body of a request; count: called with the number of bytes of each part.

    Raises HTTPException for more than `most` bytes, ClientDisconnect, and the errors of `count`.
    """
    data = bytearray()
    length = http.headers.get("content-length", "")
    if not (length.isdecimal() and int(length) > most):
        async for part in http.stream():
            if count is not None:
                count(len(part))
            data += part
            if len(data) > most:
                break
        else:
            return bytes(data)
    raise HTTPException(413, f"body: too large, expected at most {most} bytes")


def expect_shallow(data: bytes) -> None:
    """Raise InputError for JSON with more than MAX_JSON_DEPTH arrays and objects inside each other."""
    if data.count(b"[") + data.count(b"{") <= MAX_JSON_DEPTH:
        return
    plain = data.replace(rb"\\", b"").replace(rb"\"", b"")  # each quote that is left begins or ends a string
    characters = np.frombuffer(plain, np.uint8)
    is_outside = np.cumsum(characters == ord('"'), dtype=np.int32) % 2 == 0
    depth = int(np.cumsum(_STEPS[characters] * is_outside, dtype=np.int32).max(initial=0))
    if depth > MAX_JSON_DEPTH:
        raise InputError(f"body: JSON too deep, got {depth} levels, expected at most {MAX_JSON_DEPTH}")
