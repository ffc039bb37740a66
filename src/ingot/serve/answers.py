"""Answers of a service as asynchronous streams of text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from ingot.errors import IngotError, StoppedError
from ingot.llm.generation import Generation
from ingot.llm.model import LLM, LogProbs
from ingot.llm.service import Service
from ingot.llm.text import TextStream


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is certain now, and the tokens drawn since the last piece, with their logprobs if they are wanted."""

    text: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[LogProbs] = field(default_factory=list)


async def pieces(
    llm: LLM, service: Service, generation: Generation, stops: Sequence[str], priority: int = 0
) -> AsyncGenerator[Piece, None]:
    """Draw an answer; yield a piece after each token. Closing the generator ends the answer within a step.

    Raises the errors of `Service.submit` and those of the answer.
    """
    stream = TextStream(llm.tokenizer, stops)
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[tuple[int, list[LogProbs]] | IngotError | None]()

    def notify(generation: Generation, is_token: bool, error: IngotError | None) -> None:
        sampler, token = generation.sampler, generation.token
        wants_logprobs = is_token and sampler.sampling.logprobs is not None
        logprobs = [LogProbs(token, sampler.logprob, sampler.top)] if wants_logprobs else []
        loop.call_soon_threadsafe(arrived.put_nowait, (token, logprobs) if is_token else error)

    service.submit(generation, notify, priority)
    try:
        while (drawn := await arrived.get()) is not None:
            if isinstance(drawn, IngotError):
                raise drawn
            token, logprobs = drawn
            yield Piece(stream.push(token), [token], logprobs)
            if stream.stopped:
                generation.stop()
                return
        if generation.finish_reason == "closed":
            raise StoppedError("service: closed before the end of the answer")
        if rest := stream.finish():
            yield Piece(rest)
    finally:
        generation.stop("cancelled")


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
