"""Iterators over the tokens that a service draws, for threads and for asynchronous tasks."""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncGenerator, Generator, Iterable

from ingot.errors import IngotError
from ingot.llm.generation import Drawn, Generation
from ingot.llm.service import Service
from ingot.llm.text import TextStream


def drawn_together(service: Service, generations: Iterable[Generation]) -> Generator[Drawn, None, None]:
    """Yield the tokens of several answers as the service draws them. Closing the generator ends the answers.

    Raises the first error of an answer.
    """
    arrived: queue.SimpleQueue[Drawn | IngotError | None] = queue.SimpleQueue()

    def notify(generation: Generation, is_token: bool, error: IngotError | None) -> None:
        arrived.put(Drawn(generation, generation.token, generation.logprobs) if is_token else error)

    begun: list[Generation] = []
    try:
        for generation in generations:
            begun.append(generation)
            service.submit(generation, notify)
        left = len(begun)
        while left:
            drawn = arrived.get()
            if isinstance(drawn, IngotError):
                raise drawn
            if drawn is None:
                left -= 1
            else:
                yield drawn
    finally:
        for generation in begun:
            generation.stop("cancelled")


async def drawn_by(service: Service, generation: Generation) -> AsyncGenerator[Drawn, None]:
    """Yield the tokens of an answer as the service draws them. Closing the generator ends the answer.

    Raises the error of the answer.
    """
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Drawn | IngotError | None]()

    def notify(generation: Generation, is_token: bool, error: IngotError | None) -> None:
        drawn = Drawn(generation, generation.token, generation.logprobs) if is_token else error
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits for the answer
            loop.call_soon_threadsafe(arrived.put_nowait, drawn)

    try:
        service.submit(generation, notify)
        while (drawn := await arrived.get()) is not None:
            if isinstance(drawn, IngotError):
                raise drawn
            yield drawn
    finally:
        generation.stop("cancelled")


def pushed(stream: TextStream, drawn: Drawn) -> str:
    """Return the text that is certain with a token; end the answer at a stop string."""
    piece = stream.push(drawn.token)
    if stream.stopped:
        drawn.generation.stop()
    return piece
