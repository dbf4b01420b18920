"""Prometheus metrics of the service."""

from collections.abc import Collection

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_LATENCY_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
_QUERIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServiceMetrics:
    """Metrics of one service, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "manta_serve_requests", "Requests by route and status.", ("route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "manta_serve_request_seconds",
            "Duration of requests by route.",
            ("route",),
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.batch_queries = Histogram(
            "manta_serve_batch_queries",
            "Queries that are answered together.",
            buckets=_QUERIES,
            registry=registry,
        )
        self.release = Gauge("manta_serve_release", "Number of the release that answers.", registry=registry)
        self.rows = Gauge("manta_serve_rows", "Rows of the release that answers.", registry=registry)
        self.refused = Gauge(
            "manta_serve_refused_release",
            "Number of the current release if it is refused because of its space, else 0.",
            registry=registry,
        )
        self.swaps = Counter("manta_serve_swaps", "Swaps to another release.", registry=registry)
        self.failures = Counter(
            "manta_serve_refresh_failures", "Failed attempts to read the current release.", registry=registry
        )
        self.logged, self.log_tidied = _query_log_metrics(registry)

        self._add_tokens(registry)
        self._add_shadow(registry)
        self._add_canary(registry)

    def _add_tokens(self, registry: CollectorRegistry) -> None:
        self.token_requests = Counter(
            "manta_serve_token_requests",
            "Requests by the name of their token and status.",
            ("token", "status"),
            registry=registry,
        )
        self.tokens_refused = Gauge(
            "manta_serve_tokens_refused",
            "1 if the file of tokens cannot be used, so that the tokens of before stay in use, else 0.",
            registry=registry,
        )

    def _add_shadow(self, registry: CollectorRegistry) -> None:
        self.shadow_open = Gauge(
            "manta_serve_shadow_open",
            "1 while the shadow answers, 0 while it does not; nan without a shadow.",
            registry=registry,
        )
        self.shadow_open.set(float("nan"))
        self.shadow_requests = Counter(
            "manta_serve_shadow_requests", "Requests of a shadow by outcome.", ("outcome",), registry=registry
        )
        self.shadow_seconds = Histogram(
            "manta_serve_shadow_seconds",
            "Duration of the searches of the shadow, alone and at a low priority.",
            buckets=_LATENCY_S,
            registry=registry,
        )
        self.shadow_overlap, self.shadow_tau, self.shadow_shift = (
            Gauge(f"manta_serve_shadow_{name}", help, ("estimate",), registry=registry)
            for name, help in (
                ("overlap_at_10", "Proportion of the first ten answers that the shadow has, too."),
                ("kendall_tau", "Rank correlation of the answers of service and shadow."),
                ("score_shift", "How much higher the shadow scores the same id."),
            )
        )

    def _add_canary(self, registry: CollectorRegistry) -> None:
        self.canary_requests = Counter(
            "manta_serve_canary_requests",
            "Searches of the canary by outcome.",
            ("outcome",),
            registry=registry,
        )
        self.canary_release = Gauge(
            "manta_serve_canary_release", "Number of the release that is tried, else 0.", registry=registry
        )
        self.canary_returned = Gauge(
            "manta_serve_canary_returned_release",
            "Number of the current release if the service has returned from it, else 0.",
            registry=registry,
        )

    def forget_tokens(self, names: Collection[str]) -> None:
        """Remove the series of tokens that are gone, so that the number of series is bounded."""
        for metric in self.token_requests.collect():
            for labels in [sample.labels for sample in metric.samples if sample.name.endswith("_total")]:
                if labels["token"] in names:
                    self.token_requests.remove(labels["token"], labels["status"])

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return bytes(generate_latest(self._registry))


def _query_log_metrics(registry: CollectorRegistry) -> tuple[Counter, Gauge]:
    """Return the queries by outcome, and the time of the last look for old lines."""
    logged = Counter(
        "manta_serve_logged_queries",
        "Queries of POST /search by what --log-queries did with them.",
        ("outcome",),
        registry=registry,
    )
    tidied = Gauge(
        "manta_serve_query_log_tidied_timestamp_seconds",
        "Unix time at which lines that were too old were last removed from the query log; 0 without one.",
        registry=registry,
    )
    return logged, tidied
