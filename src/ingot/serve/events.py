"""Streams of server-sent events, and what a protocol has to define to be served."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import anyio
import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Send as SendMessage

from ingot.errors import IngotError
from ingot.llm.model import LLM
from ingot.serve.answers import Answer, Served
from ingot.serve.errors import Failure, failure_of
from ingot.serve.log import count_in_log
from ingot.serve.tools import Json

PING_SECONDS = 10.0  # the longest silence of a stream

Send = Callable[[Json], Awaitable[None]]
Body = TypeVar("Body")


async def dropped(chunk: Json) -> None:
    """Drop a chunk of an answer that is sent as one document."""


class EventResponse(StreamingResponse):
    """A response of events whose generator is closed in the task that reads it, also when the client goes."""

    async def stream_response(self, send: SendMessage) -> None:
        """Send the events."""
        events = cast("AsyncGenerator[bytes, None]", self.body_iterator)
        async with aclosing(events):
            await super().stream_response(send)


@dataclass(frozen=True, slots=True)
class Protocol(Generic[Body]):
    """How requests of one path are read and their answers written.

    body: the type of the request, with `model` and `stream`. answers: the answers of a request, without tokens.
    document: all answers as one document. stream: sends the answers as chunks. error: the shape of errors. named:
    whether events have their chunk's `type` as name. ping: the chunk for a silence; None for a comment. ends: whether
    "[DONE]" is the last event.
    """

    body: type[Body]
    answers: Callable[[LLM, Body], list[Answer]]
    document: Callable[[Served, Body, Sequence[Answer]], Awaitable[Json]]
    stream: Callable[[Served, Body, Sequence[Answer], Send], Awaitable[None]]
    error: Callable[[Failure], Json]
    named: bool = False
    ping: Json | None = None
    ends: bool = True

    @property
    def fields(self) -> set[str]:
        """The names of a request's fields."""
        return set(getattr(self.body, "__struct_fields__", ()))

    async def prepared(self, served: Served, request: Body) -> list[Answer]:
        """Return the answers of a request, without tokens. Raises the errors of `answers`, and BusyError."""
        answers = await anyio.to_thread.run_sync(self.answers, served.llm, request)
        served.service.expect_room(len(answers))
        count_in_log([answer.generation for answer in answers])
        return answers

    async def events(self, work: Callable[[Send], Awaitable[None]]) -> AsyncGenerator[bytes, None]:
        """Yield what the work sends as events, and a ping after each silence. An error is the last chunk."""
        send, receive = anyio.create_memory_object_stream[dict[str, Any]](1)

        async def forward() -> None:
            async with send:
                try:
                    await work(send.send)
                except IngotError as error:
                    await send.send(self.error(failure_of(error, self.fields)))

        async with anyio.create_task_group() as group, receive:
            group.start_soon(forward)
            while True:
                try:
                    with anyio.fail_after(PING_SECONDS):
                        chunk = await receive.receive()
                except TimeoutError:
                    yield b": ping\n\n" if self.ping is None else self._event(self.ping)
                    continue
                except anyio.EndOfStream:
                    break
                yield self._event(chunk)
        if self.ends:
            yield b"data: [DONE]\n\n"

    def _event(self, chunk: Json) -> bytes:
        name = f"event: {chunk.get('type', 'error')}\n".encode() if self.named else b""
        return name + b"data: " + msgspec.json.encode(chunk) + b"\n\n"
