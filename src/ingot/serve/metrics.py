"""Metrics of a server in Prometheus' text format."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingot.llm.generation import Generation
from ingot.llm.service import Service
from ingot.serve.answers import Served
from ingot.serve.events import Send
from ingot.serve.models import Kind, Models, Running
from ingot.serve.queues import Queued

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class Metrics:
    """Counts of the models' services, read when they are asked for, and histograms of the times of streamed answers.

    Every metric has the label `model`. Counts of a model stay when it is unloaded.
    """

    def __init__(self, registry: CollectorRegistry, models: Models):
        registry.register(_Counts(models))
        self.first = Histogram(
            "ingot_time_to_first_token_seconds", "From a request to its first text", ["model"], registry=registry,
            buckets=_SECONDS,
        )  # fmt: skip
        self.gap = Histogram(
            "ingot_token_gap_seconds", "Between two texts of a stream", ["model"], registry=registry, buckets=_SECONDS
        )

    def watched(self, name: str, send: Send, answers: list[Generation]) -> Send:
        """Return a function that sends a chunk of a model's stream and observes its time."""
        last, has_text = time.perf_counter(), False

        async def observed(chunk: dict[str, Any]) -> None:
            nonlocal last, has_text
            if any(answer.usage.completion_tokens for answer in answers):
                now = time.perf_counter()
                (self.gap if has_text else self.first).labels(name).observe(now - last)
                last, has_text = now, True
            await send(chunk)

        return observed


_GAUGES: dict[str, tuple[str, Callable[[Service], int]]] = {
    "ingot_requests_waiting": ("Answers that wait for a sequence", lambda service: service.waiting),
    "ingot_requests_active": ("Answers that have a sequence", lambda service: service.active),
    "ingot_cache_blocks_used": (
        "Blocks of keys and values in use",
        lambda service: service.engine.sequences.used_blocks[0],
    ),
    "ingot_cache_blocks": ("Blocks of keys and values", lambda service: service.engine.sequences.used_blocks[1]),
}
_TOTALS = {
    "ingot_prompt_tokens": ("Tokens of prompts", "prompt_tokens"),
    "ingot_cached_tokens": ("Tokens of prompts found in the cache", "reused_tokens"),
    "ingot_completion_tokens": ("Tokens drawn", "completion_tokens"),
    "ingot_drafted_tokens": ("Tokens that speculative decoding predicted", "drafted_tokens"),
    "ingot_accepted_tokens": ("Predicted tokens that were drawn", "accepted_tokens"),
    "ingot_answers_finished": ("Answers that ended by themselves", "finished"),
    "ingot_answers_cancelled": ("Answers that their clients ended", "cancelled"),
    "ingot_answers_failed": ("Answers that ended with an error", "failed"),
    "ingot_answers_preempted": ("Times that an answer gave its cache blocks up", "preempted"),
    "ingot_steps": ("Runs of the model", "steps"),
}
_TOTALS_OF_PLAIN = {
    "ingot_inferences": ("Requests for a run", "requests"),
    "ingot_inference_runs": ("Runs, of which each may have joined several requests", "runs"),
}
_TOTALS_OF_TEXTS = {
    "ingot_texts": ("Texts embedded or pairs of texts scored", "requests"),
    "ingot_text_runs": ("Runs, of which each may have joined several texts", "runs"),
}


class _Counts(Collector):
    def __init__(self, models: Models):
        self._models = models
        self._past: dict[str, Counter[str]] = defaultdict(Counter)  # of services that have ended
        models.on_unload = self._keep

    def _keep(self, name: str, running: Running) -> None:
        self._past[name].update(_counts_of(running))

    def collect(self) -> Iterable[Metric]:
        """Yield the current counts."""
        services = {model.name: model.running.service for model in self._models if isinstance(model.running, Served)}
        loaded = GaugeMetricFamily("ingot_model_loaded", "Whether a model is loaded", labels=["model"])
        memory = GaugeMetricFamily("ingot_model_bytes", "Bytes of a loaded model", labels=["model"])
        for model in self._models:
            loaded.add_metric([model.name], float(model.running is not None))
            memory.add_metric([model.name], model.nbytes)
        yield from (loaded, memory)
        for name, (text, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["model"])
            for model_name, service in services.items():
                gauge.add_metric([model_name], value(service))
            yield gauge
        totals: list[tuple[tuple[Kind, ...], dict[str, tuple[str, str]]]] = [
            (("language",), _TOTALS),
            (("plain",), _TOTALS_OF_PLAIN),
            (("embedding", "rerank"), _TOTALS_OF_TEXTS),
        ]
        for kinds, of_kinds in totals:
            for name, (text, field) in of_kinds.items():
                counter = CounterMetricFamily(name, text, labels=["model"])
                for model in (each for each in self._models if each.kind in kinds):
                    now = _counts_of(model.running).get(field, 0)
                    counter.add_metric([model.name], now + self._past[model.name][field])
                yield counter


def _counts_of(running: Running | None) -> dict[str, int]:
    """Return the totals of a loaded model since it was loaded."""
    if isinstance(running, Served):
        return asdict(running.service.counts)
    if isinstance(running, Queued):
        return {"requests": running.queue.requests, "runs": running.queue.runs}
    return {}
