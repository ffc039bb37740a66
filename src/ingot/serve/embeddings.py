"""Embeddings of OpenAI's protocol: the vectors of texts, which run together with those of other requests."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import anyio
import numpy as np

from ingot.errors import InputError
from ingot.llm.embedder import Embedder
from ingot.llm.service import MAX_WAITING
from ingot.serve.answers import Served
from ingot.serve.queues import Queued
from ingot.serve.requests import MAX_INPUTS, EmbeddingRequest
from ingot.serve.texts import Text, TextQueue
from ingot.serve.threads import aside


class Embedding(Queued):
    """An embedder with the queue of its texts."""

    def __init__(self, name: str, embedder: Embedder, max_waiting: int = MAX_WAITING):
        self.name, self.embedder, self.llm = name, embedder, embedder.llm
        self.queue = TextQueue(
            embedder.rows, lambda texts: embedder.vectors([text.tokens for text in texts]), max_waiting
        )

    @property
    def nbytes(self) -> int:
        """Bytes of weights and activations."""
        return self.llm.memory.total if self.llm.encoder is None else self.llm.encoder.nbytes


async def embeddings(served: Embedding | Served, request: EmbeddingRequest) -> dict[str, Any]:
    """Return the document with the vectors of a request. Raises the errors of `Embedder.encode` and of the run."""
    texts = [request.input] if isinstance(request.input, str) else request.input
    if not texts:
        raise InputError("input: empty, got no texts, expected at least one")
    if len(texts) > MAX_INPUTS:
        raise InputError(f"input: too many texts, got {len(texts)}, expected at most {MAX_INPUTS}")
    embedder = served.embedder if isinstance(served, Embedding) else Embedder(served.llm)

    def encoded() -> list[list[int]]:
        return [embedder.encode(text, request.prompt_name, truncate=request.truncate) for text in texts]

    tokens = await aside(encoded)
    if isinstance(served, Embedding):
        futures = served.queue.put([Text(ids) for ids in tokens])
        vectors = await asyncio.gather(*map(asyncio.wrap_future, futures))
    else:
        # One call of a thread for each text: a client that goes ends the work.
        vectors = [(await anyio.to_thread.run_sync(embedder.vectors, [ids]))[0] for ids in tokens]
    rows = [embedder.shortened(vector, request.dimensions) for vector in vectors]
    data = [
        {"object": "embedding", "index": index, "embedding": _value(row, index, request)}
        for index, row in enumerate(rows)
    ]
    count = sum(map(len, tokens))
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"object": "list", "data": data, "model": served.name, "usage": usage}


def _value(row: np.ndarray, index: int, request: EmbeddingRequest) -> str | list[float]:
    if request.encoding_format == "base64":
        return base64.b64encode(row.astype("<f4").tobytes()).decode()
    if not np.isfinite(row).all():
        raise InputError(f"input[{index}]: NaN or infinity, which JSON has not, expected encoding_format to be base64")
    numbers: list[float] = row.tolist()
    return numbers
