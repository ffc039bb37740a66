"""Documents in the order of their answer to a query, as Jina's and Cohere's protocols have it."""

from __future__ import annotations

import asyncio
import math
import uuid
from functools import partial
from typing import Any

import msgspec

from ingot.errors import InputError
from ingot.llm.reranker import Pair, Reranker
from ingot.llm.service import MAX_WAITING
from ingot.serve.queues import Queued
from ingot.serve.requests import MAX_INPUTS
from ingot.serve.texts import Text, TextQueue
from ingot.serve.threads import aside


class Document(msgspec.Struct):
    """A document as an object."""

    text: str


class RerankRequest(msgspec.Struct):
    """The body of /v1/rerank.

    truncate: whether a pair that is too long is cut, the longer text first, instead of refused. raw_scores: whether
    scores are logits instead of between 0 and 1.
    """

    query: str
    documents: list[str | Document]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = False
    truncate: bool = True
    raw_scores: bool = False


class Reranking(Queued):
    """A cross-encoder with the queue of its pairs."""

    def __init__(self, name: str, reranker: Reranker, max_waiting: int = MAX_WAITING):
        self.name, self.reranker = name, reranker
        self.queue = TextQueue(
            reranker.rows,
            lambda texts: reranker.scores([Pair(text.tokens, text.types or []) for text in texts]),
            max_waiting,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of weights and activations."""
        return self.reranker.encoder.nbytes


async def reranked(served: Reranking, request: RerankRequest) -> dict[str, Any]:
    """Return the document with the scores, the highest first; equal ones in the order of the documents.

    Raises InputError, and the errors of `Reranker.encode` and of the run.
    """
    texts = [each if isinstance(each, str) else each.text for each in request.documents]
    if not texts:
        raise InputError("documents: empty, got none, expected at least one")
    if len(texts) > MAX_INPUTS:
        raise InputError(f"documents: too many, got {len(texts)}, expected at most {MAX_INPUTS}")
    if request.top_n is not None and request.top_n < 1:
        raise InputError(f"top_n: out of range, got {request.top_n}, expected 1 or more")

    pairs = await aside(partial(served.reranker.pairs, request.query, texts, truncate=request.truncate))
    futures = served.queue.put([Text(pair.tokens, pair.types) for pair in pairs])
    logits = [float(found[0]) for found in await asyncio.gather(*map(asyncio.wrap_future, futures))]
    if unknown := [index for index, logit in enumerate(logits) if not math.isfinite(logit)]:
        raise InputError(f"documents[{unknown[0]}]: the score is {logits[unknown[0]]}, which JSON has not")
    order = sorted(range(len(texts)), key=lambda index: -logits[index])[: request.top_n]
    results = [
        {"index": index, "relevance_score": logits[index] if request.raw_scores else _sigmoid(logits[index])}
        | ({"document": {"text": texts[index]}} if request.return_documents else {})
        for index in order
    ]
    count = sum(len(pair.tokens) for pair in pairs)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return {"id": f"rerank-{uuid.uuid4().hex}", "model": served.name, "results": results, "usage": usage}


def _sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0
