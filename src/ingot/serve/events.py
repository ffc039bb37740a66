"""Streams of server-sent events, and what a protocol has to define to be served."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive
from starlette.types import Send as SendMessage

from ingot.errors import IngotError
from ingot.serve.answers import Answer, Served
from ingot.serve.errors import CUT, Failure, failure_of
from ingot.serve.log import count_in_log
from ingot.serve.threads import aside
from ingot.serve.tools import Json

PING_SECONDS = 10.0  # the longest silence of a stream
CUT_SECONDS = 1.0  # in which a client reads the end of a stream that is cut
_DONE = b"data: [DONE]\n\n"

Send = Callable[[Json], Awaitable[None]]
Body = TypeVar("Body")


async def dropped(chunk: Json) -> None:
    """Drop a chunk of an answer that is sent as one document."""


class Writer(ABC, Generic[Body]):
    """Writes an answer as a document, and sends the events of a stream about it."""

    def __init__(self, served: Served, request: Body, answer: Answer, send: Send):
        self._served, self._request, self._answer, self._send = served, request, answer, send

    @abstractmethod
    async def write(self) -> Json:
        """Draw the answer, and return the finished document."""

    async def fail(self, error: IngotError) -> None:
        """Send the events that end a stream with an error, or raise it."""
        raise error

    @classmethod
    async def document(cls, served: Served, request: Body, answers: Sequence[Answer]) -> Json:
        """Return the document of a request's only answer."""
        return await cls(served, request, answers[0], dropped).write()

    @classmethod
    async def stream(cls, served: Served, request: Body, answers: Sequence[Answer], send: Send) -> None:
        """Send the events of a request's only answer."""
        writer = cls(served, request, answers[0], send)
        try:
            await writer.write()
        except IngotError as error:
            await writer.fail(error)


class EventResponse(StreamingResponse):
    """A response of events, which are closed in the task that reads them, also when the client goes.

    The protocol's error is the last event when a bug cuts the stream, or the program that runs the application.
    """

    def __init__(self, events: Events):
        self._read = events.read()
        super().__init__(self._read, media_type="text/event-stream")
        self._events, self._is_gone = events, False

    async def listen_for_disconnect(self, receive: Receive) -> None:
        """Wait until the client goes."""
        await super().listen_for_disconnect(receive)
        self._is_gone = True

    async def stream_response(self, send: SendMessage) -> None:
        """Send the events."""
        is_begun = is_whole = False

        async def begun(message: Message) -> None:
            nonlocal is_begun
            await send(message)
            is_begun = True

        try:
            async with aclosing(self._read):
                await super().stream_response(begun)
            is_whole = True
        finally:
            if is_begun and not is_whole and not self._is_gone:
                with anyio.move_on_after(CUT_SECONDS, shield=True):
                    await send({"type": "http.response.body", "body": self._events.cut(), "more_body": False})


@dataclass(frozen=True, slots=True)
class Protocol(Generic[Body]):
    """How requests of one path are read and their answers written.

    body: the type of the request, with `model` and `stream`. answers: the answers of a request, without tokens.
    document: all answers as one document. stream: sends the answers as chunks. error: the shape of errors. named:
    whether events have their chunk's `type` as name. ping: the chunk for a silence; None for a comment. ends: whether
    "[DONE]" is the last event. failed: the shape of an error that ends a stream after a number of chunks; None for that
    of other errors. variants: the protocols of requests that have a header, by its name in lower case.
    """

    body: type[Body]
    answers: Callable[[Served, Body], list[Answer]]
    document: Callable[[Served, Body, Sequence[Answer]], Awaitable[Json]]
    stream: Callable[[Served, Body, Sequence[Answer], Send], Awaitable[None]]
    error: Callable[[Failure], Json]
    named: bool = False
    ping: Json | None = None
    ends: bool = True
    failed: Callable[[Failure, int], Json] | None = None
    variants: Mapping[str, Protocol[Body]] = field(default_factory=dict)

    @property
    def fields(self) -> set[str]:
        """The names of a request's fields."""
        return set(getattr(self.body, "__struct_fields__", ()))

    async def prepared(self, served: Served, request: Body) -> list[Answer]:
        """Return the answers of a request, without tokens. Raises the errors of `answers`, and BusyError."""
        served.service.expect_room()
        answers = await aside(self.answers, served, request)
        served.service.expect_room(len(answers))
        count_in_log([answer.generation for answer in answers])
        return answers

    def chosen(self, headers: Mapping[str, str]) -> Protocol[Body]:
        """Return the protocol of a request with these headers."""
        return next((variant for name, variant in self.variants.items() if name in headers), self)


@dataclass(eq=False)
class Events(Generic[Body]):
    """The events of a stream: what some work sends, and a ping after each silence. An error is the last chunk.

    count: the chunks that were sent, without pings.
    """

    protocol: Protocol[Body]
    work: Callable[[Send], Awaitable[None]]
    count: int = 0

    async def read(self) -> AsyncGenerator[bytes, None]:
        """Do the work, and yield the bytes of the events."""
        protocol = self.protocol
        send, receive = anyio.create_memory_object_stream[Json | Failure](1)

        async def forward() -> None:
            async with send:
                try:
                    await self.work(send.send)
                except IngotError as error:
                    await send.send(failure_of(error, protocol.fields))

        async with anyio.create_task_group() as group, receive:
            group.start_soon(forward)
            while True:
                try:
                    with anyio.fail_after(PING_SECONDS):
                        chunk = await receive.receive()
                except TimeoutError:
                    yield b": ping\n\n" if protocol.ping is None else self._event(protocol.ping)
                    continue
                except anyio.EndOfStream:
                    break
                event = self._event(self._error(chunk) if isinstance(chunk, Failure) else chunk)
                self.count += 1
                yield event
        if protocol.ends:
            yield _DONE

    def cut(self) -> bytes:
        """Return the events that end a stream which is cut."""
        return self._event(self._error(CUT)) + (_DONE if self.protocol.ends else b"")

    def _error(self, failure: Failure) -> Json:
        protocol = self.protocol
        return protocol.error(failure) if protocol.failed is None else protocol.failed(failure, self.count)

    def _event(self, chunk: Json) -> bytes:
        name = f"event: {chunk.get('type', 'error')}\n".encode() if self.protocol.named else b""
        return name + b"data: " + msgspec.json.encode(chunk) + b"\n\n"
