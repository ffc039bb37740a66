"""Answers of a service as asynchronous streams of parts."""

from __future__ import annotations

import asyncio
import secrets
import string
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import anyio

from ingot.errors import IngotError, StoppedError
from ingot.llm.generation import Generation
from ingot.llm.model import LLM
from ingot.llm.sampling import LogProbs
from ingot.llm.service import Service
from ingot.llm.text import TextStream
from ingot.serve.parts import Part, PartReader
from ingot.serve.stored import Store
from ingot.serve.tools import Call

Report: TypeAlias = tuple[int, list[LogProbs]] | IngotError | None  # a token, or how the answer ended


@dataclass(frozen=True, slots=True)
class Served:
    """A model with its service, the name by which clients know it, and its stored responses."""

    name: str
    llm: LLM
    service: Service
    stored: Store = field(default_factory=Store)

    @property
    def is_alive(self) -> bool:
        """Whether the service accepts answers."""
        return self.service.is_open

    @property
    def nbytes(self) -> int:
        """Bytes of weights, cache and activations, also of the draft model."""
        drafting = 0 if self.llm.speculation is None else self.llm.speculation.draft_bytes
        return self.llm.memory.total + drafting

    def close(self) -> None:
        """End the service with its answers."""
        self.service.close()


@dataclass(eq=False)
class Answer:
    """An answer of a request: its generation, and how its text is read.

    reader: splits the text into parts. shown: control tokens that belong to the text. ids: the number of characters of
    a call's identifier. tokens: the number drawn up to the end of the answer; the service may have drawn more by then.
    is_stopped: whether its text ended the answer. stopped_by: the stop string that did.
    """

    generation: Generation
    stops: Sequence[str] = ()
    priority: int = 0
    reader: PartReader = field(default_factory=PartReader)
    shown: dict[int, str] = field(default_factory=dict)
    ids: int = 24
    tokens: int = 0
    reasoning_tokens: int = 0
    is_stopped: bool = False
    stopped_by: str | None = None

    @property
    def finish_reason(self) -> str:
        """Why the answer ended: "stop", "length", "timeout" or "tool_calls"."""
        reason = "stop" if self.is_stopped else self.generation.finish_reason or "length"
        return "tool_calls" if reason == "stop" and self.reader.has_calls else reason

    def call_id(self) -> str:
        """Return a new identifier for a call."""
        letters = string.ascii_letters + string.digits
        text = "".join(secrets.choice(letters) for _ in range(self.ids))
        return text if self.ids < 16 else f"call_{text}"


@dataclass(slots=True)
class Piece:
    """Parts that are certain now, and the tokens drawn since the last piece, with their logprobs if they are wanted.

    is_progress: whether the piece is empty and the prompt still computed.
    """

    parts: list[Part]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogProbs] = field(default_factory=list)
    is_progress: bool = False


@dataclass(slots=True)
class Whole:
    """A finished answer. text: None if the answer has calls and no text."""

    text: str | None = None
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    logprobs: list[LogProbs] = field(default_factory=list)


async def pieces(served: Served, answer: Answer, progress: float | None = None) -> AsyncGenerator[Piece, None]:
    """Draw an answer; yield a piece after each token. Closing the generator ends the answer within a step.

    progress: the seconds after which an empty piece follows another one until the first token is drawn.

    Raises the errors of `Service.submit` and those of the answer, and StoppedError if the service closes.
    """
    generation, reader = answer.generation, answer.reader
    stream = TextStream(served.llm.tokenizer, answer.stops, answer.shown)
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Report]()

    def notify(generation: Generation, is_token: bool, error: IngotError | None) -> None:
        logprobs = [generation.logprobs] if is_token and generation.logprobs is not None else []
        loop.call_soon_threadsafe(arrived.put_nowait, (generation.token, logprobs) if is_token else error)

    served.service.submit(generation, notify, answer.priority)
    try:
        while (drawn := await _reported(arrived, None if answer.tokens else progress)) is not None:
            if isinstance(drawn, IngotError):
                raise drawn
            if not drawn:
                yield Piece([], is_progress=True)
                continue
            token, logprobs = drawn
            answer.tokens += 1
            was_reasoning = reader.is_reasoning
            parts = reader.push(stream.push(token))
            answer.reasoning_tokens += was_reasoning or reader.is_reasoning
            yield Piece(parts, [token], logprobs)
            answer.stopped_by = stream.stop
            answer.is_stopped = stream.stopped or reader.is_over
            if answer.is_stopped:
                generation.stop()
                break
        if not answer.is_stopped and generation.finish_reason not in ("stop", "length", "timeout"):
            raise StoppedError("service: closed before the end of the answer")
        parts = reader.push(stream.finish())
        answer.stopped_by = stream.stop
        yield Piece([*parts, *reader.finish()])
    finally:
        generation.stop("cancelled")


async def _reported(arrived: asyncio.Queue[Report], seconds: float | None) -> Report | Literal[False]:
    """Return what the service reports next, False if that takes longer than some seconds."""
    if seconds is None:
        return await arrived.get()
    with anyio.move_on_after(seconds):
        return await arrived.get()
    return False


async def whole(served: Served, answer: Answer) -> Whole:
    """Draw an answer and return it."""
    found = Whole()
    text = ""
    async for piece in pieces(served, answer):
        found.logprobs += piece.logprobs
        for part in piece.parts:
            if part.call is not None:
                found.calls.append(part.call)
            elif part.kind == "reasoning":
                found.reasoning += part.text
            else:
                text += part.text
    found.text = text or (None if found.calls else "")
    return found


async def wholes(served: Served, answers: Sequence[Answer]) -> list[Whole]:
    """Draw answers together and return them."""
    found = [Whole()] * len(answers)

    async def draw(index: int) -> None:
        found[index] = await whole(served, answers[index])

    await together(draw(index) for index in range(len(answers)))
    return found


async def together(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines at the same time. The first IngotError cancels the others and is raised."""
    failed: list[IngotError] = []

    async def guarded(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except IngotError as error:
            failed.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for work in works:
            group.start_soon(guarded, work)
    if failed:
        raise failed[0]
