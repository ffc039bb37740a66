"""Metrics of a server in Prometheus' text format."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingot.llm.generation import Generation
from ingot.llm.service import Service
from ingot.serve.openai import Send

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """Counts of a service, read when they are asked for, and histograms of the times of streamed answers."""

    def __init__(self, registry: CollectorRegistry, service: Service):
        registry.register(_Counts(service))
        self.first = Histogram(
            "ingot_time_to_first_token_seconds", "From a request to its first text", registry=registry, buckets=_SECONDS
        )
        self.gap = Histogram(
            "ingot_token_gap_seconds", "Between two texts of a stream", registry=registry, buckets=_SECONDS
        )

    def watched(self, send: Send, answers: list[Generation]) -> Send:
        """Return a function that sends a chunk of a stream and observes its time."""
        last, has_text = time.perf_counter(), False

        async def observed(chunk: dict[str, Any]) -> None:
            nonlocal last, has_text
            if any(answer.usage.completion_tokens for answer in answers):
                now = time.perf_counter()
                (self.gap if has_text else self.first).observe(now - last)
                last, has_text = now, True
            await send(chunk)

        return observed


class _Counts(Collector):
    def __init__(self, service: Service):
        self._service = service

    def collect(self) -> Iterable[Metric]:
        """Yield the current counts."""
        service, counts = self._service, self._service.counts
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "ingot_requests_waiting": ("Answers that wait for a sequence", lambda: service.waiting),
            "ingot_requests_active": ("Answers that have a sequence", lambda: service.active),
            "ingot_cache_blocks_used": (
                "Blocks of keys and values in use",
                lambda: service.engine.sequences.used_blocks[0],
            ),
            "ingot_cache_blocks": ("Blocks of keys and values", lambda: service.engine.sequences.used_blocks[1]),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, value=value())
        totals = {
            "ingot_prompt_tokens": ("Tokens of prompts", counts.prompt_tokens),
            "ingot_cached_tokens": ("Tokens of prompts found in the cache", counts.reused_tokens),
            "ingot_completion_tokens": ("Tokens drawn", counts.completion_tokens),
            "ingot_drafted_tokens": ("Tokens that speculative decoding predicted", counts.drafted_tokens),
            "ingot_accepted_tokens": ("Predicted tokens that were drawn", counts.accepted_tokens),
            "ingot_answers_finished": ("Answers that ended by themselves", counts.finished),
            "ingot_answers_cancelled": ("Answers that their clients ended", counts.cancelled),
            "ingot_answers_failed": ("Answers that ended with an error", counts.failed),
            "ingot_answers_preempted": ("Times that an answer gave its cache blocks up", counts.preempted),
            "ingot_steps": ("Runs of the model", counts.steps),
        }
        for name, (text, total) in totals.items():
            yield CounterMetricFamily(name, text, value=total)
