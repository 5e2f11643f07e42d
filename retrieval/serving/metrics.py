"""The Prometheus metrics of the search server."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
CALLS = ("search", "search_batch")


class Metrics:
    """The Prometheus metrics of the server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        labels = ("index", "call")
        self.requests = Counter("ratchet_search_requests", "Requests answered", labels, registry=registry)
        self.errors = Counter("ratchet_search_errors", "Error answers", (*labels, "status"), registry=registry)
        self.seconds = Histogram(
            "ratchet_search_seconds", "Seconds from headers to answer", labels, registry=registry, buckets=BUCKETS
        )
        self.queries = Counter("ratchet_search_queries", "Queries searched", ("index",), registry=registry)
        self.in_flight = Gauge("ratchet_search_in_flight", "Requests in flight", ("index",), registry=registry)


class MetricsMiddleware:
    """ASGI middleware before everything else, which counts what is refused as well."""

    def __init__(self, app: ASGIApp, metrics: Metrics, names: frozenset[str]) -> None:
        self._app, self._metrics, self._names = app, metrics, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        name, call = self._target(scope["path"])
        started, status = time.perf_counter(), 500

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._metrics.in_flight.labels(name).track_inprogress():
            try:
                await self._app(scope, receive, watched_send)
            finally:
                self._metrics.requests.labels(name, call).inc()
                self._metrics.seconds.labels(name, call).observe(time.perf_counter() - started)
                if status >= 400:
                    self._metrics.errors.labels(name, call, str(status)).inc()

    def _target(self, path: str) -> tuple[str, str]:
        """(index, call) of a path; empty where there is no such thing, so that nobody can make up labels."""
        _, _, name, call, *_ = [*path.split("/"), "", "", "", ""]
        return name if name in self._names else "", call if call in CALLS else ""
