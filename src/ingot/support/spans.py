"""Spans: named intervals of a computation, recorded where a caller asks for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_RECORDED: ContextVar[list[Span] | None] = ContextVar("recorded spans", default=None)


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of nanoseconds of `time.monotonic_ns`; spans that begin later and end earlier are inside of it."""

    name: str
    begin: int
    end: int


@contextmanager
def recorded() -> Iterator[list[Span]]:
    """Record the spans of the block in a list, in the order of their ends."""
    spans: list[Span] = []
    token = _RECORDED.set(spans)
    try:
        yield spans
    finally:
        _RECORDED.reset(token)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Give the block a span, if spans are recorded."""
    spans = _RECORDED.get()
    if spans is None:
        yield
        return
    begin = time.monotonic_ns()
    try:
        yield
    finally:
        spans.append(Span(name, begin, time.monotonic_ns()))
