"""Prometheus counters, by its own client library. Program names and counts, no request contents."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvchat.gateway.requests import OVER, Passage, Passages, Stage

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
MOST_PROGRAMS = 50  # clients choose their own names


class Metrics:
    def __init__(self, passages: Passages, *, by_program: bool) -> None:
        self._registry = registry = CollectorRegistry()
        self._by_program = by_program
        self._programs: set[str] = set()
        by = ("program", "source")
        self._requests = Counter("kvchat_requests", "Requests that are over", (*by, "outcome"), registry=registry)
        self._prompt = Counter("kvchat_prompt_tokens", "Tokens of prompts", by, registry=registry)
        self._cached = Counter("kvchat_cached_tokens", "Of those, found", by, registry=registry)
        self._predicted = Counter("kvchat_predicted_tokens", "Tokens of answers", by, registry=registry)
        self._saved = Counter("kvchat_saved_seconds", "Reading that was spared", by, registry=registry)
        first = "kvchat_first_byte_seconds", "Until the first byte", ("source",)
        self._first = Histogram(*first, buckets=_SECONDS, registry=registry)
        under_way = Gauge("kvchat_requests_under_way", "Waiting or being answered", registry=registry)
        under_way.set_function(lambda: len(passages.under_way))
        passages.subscribe(self._count)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _count(self, passage: Passage) -> None:
        if passage.stage not in OVER:
            return
        program = passage.program if self._by_program else "all"
        if program not in self._programs and len(self._programs) >= MOST_PROGRAMS:
            program = "other"
        self._programs.add(program)
        labels = program, passage.source or "none"
        self._requests.labels(*labels, passage.stage.value).inc()
        if passage.stage is Stage.DONE:
            self._prompt.labels(*labels).inc(passage.prompt or 0)
            self._cached.labels(*labels).inc(passage.cached or 0)
            self._predicted.labels(*labels).inc(passage.predicted or 0)
            self._saved.labels(*labels).inc(passage.saved_ms / 1000)
            if passage.first_ms is not None:
                self._first.labels(labels[1]).observe(passage.first_ms / 1000)
