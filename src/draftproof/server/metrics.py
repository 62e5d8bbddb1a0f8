"""Prometheus metrics, under vLLM's names with the prefix `draftproof:`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from draftproof.engine.events import RoundEvent
from draftproof.types import Result

# seconds; the edges of vLLM's histograms
FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 40)
PER_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
WHOLE = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480)


@dataclass(kw_only=True, slots=True)
class RequestTimes:
    """When a request arrived, got its first token and ended; seconds of one monotonic clock."""

    arrived: float
    first_token: float | None = None
    ended: float | None = None


class Metrics:
    """The metrics of one server, in a registry of their own.

    An observer of the engine's rounds (called in the engine's thread), and told of each request.
    """

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self._model = model_name
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts read.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.finished = self._counter("request_success", "Ended requests.", "finished_reason")
        self.failed = self._counter("request_failure", "Requests that failed.", "code")
        self.drafts = self._counter("spec_decode_num_drafts", "Rounds of a row with drafts.")
        self.drafted = self._counter("spec_decode_num_draft_tokens", "Draft tokens.")
        self.accepted = self._counter("spec_decode_num_accepted_tokens", "Accepted draft tokens.")
        self.accepted_at = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "Accepted draft tokens.", "position"
        )
        self.cache_queries = self._counter("prefix_cache_queries", "Tokens of prompts.")
        self.cache_hits = self._counter("prefix_cache_hits", "Of these, copied from another row.")
        self.audited = self._counter("audit", "Requests decoded again in plain mode.", "outcome")
        self.mismatches = self._counter("audit_mismatch", "Audited requests whose output differed.")
        self.first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", FIRST_TOKEN
        )
        self.per_token = self._histogram(
            "time_per_output_token_seconds", "Time per token after the first one.", PER_TOKEN
        )
        self.whole = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the last token.", WHOLE
        )

    def follow(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge that is asked for its value whenever the metrics are read."""
        gauge = Gauge(f"draftproof:{name}", text, ["model_name"], registry=self.registry)
        gauge.labels(self._model).set_function(value)

    def on_round(self, event: RoundEvent) -> None:
        """Count what a round drafted and accepted."""
        drafted = [row for row in event.rows if row.drafts]
        used = [min(row.accepted, len(row.emitted)) for row in drafted]
        self.drafts.labels(self._model).inc(len(drafted))
        self.drafted.labels(self._model).inc(sum(len(row.drafts) for row in drafted))
        self.accepted.labels(self._model).inc(sum(used))
        for position in range(max(used, default=0)):
            count = sum(accepted > position for accepted in used)
            self.accepted_at.labels(self._model, str(position)).inc(count)
        self.generation_tokens.labels(self._model).inc(sum(len(row.emitted) for row in event.rows))

    def on_end(self, results: Sequence[Result], times: RequestTimes) -> None:
        """Count a request all of whose sequences ended."""
        for result in results:
            self.finished.labels(self._model, str(result.finish_reason)).inc()
            self.prompt_tokens.labels(self._model).inc(result.prompt_len)
            self.cache_queries.labels(self._model).inc(result.prompt_len)
            self.cache_hits.labels(self._model).inc(result.num_cached_tokens)
        self._observe(times, max(len(result.token_ids) for result in results))

    def _observe(self, times: RequestTimes, tokens: int) -> None:
        if times.ended is None:
            return
        self.whole.labels(self._model).observe(times.ended - times.arrived)
        if times.first_token is not None:
            self.first_token.labels(self._model).observe(times.first_token - times.arrived)
            if tokens > 1:
                spent = times.ended - times.first_token
                self.per_token.labels(self._model).observe(spent / (tokens - 1))

    def count_failure(self, status: int) -> None:
        """Count a request that was answered with an error."""
        self.failed.labels(self._model, str(status)).inc()

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        names = ["model_name", *labels]
        counter = Counter(f"draftproof:{name}", text, names, registry=self.registry)
        if not labels:
            counter.labels(self._model)  # there from the start, as 0
        return counter

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(
            f"draftproof:{name}", text, ["model_name"], buckets=buckets, registry=self.registry
        )
