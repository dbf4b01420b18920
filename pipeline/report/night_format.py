"""Number and text formats of the release report."""

from pipeline.charts import frame

EXCERPT = 240  # characters of a text that are shown


def plain(value: float | None) -> str:
    """Format a gate's value: integers as such, others with at most four decimals."""
    if value is None:
        return "not measured"
    if value == int(value):
        return f"{int(value):,}"
    digits = 4 if abs(1 - value) > 1e-3 else 7  # a canary's cosine of 0.9999998 is not 1
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def cosine(value: float) -> str:
    """Format with three decimals and a true minus, without a minus before zero."""
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "\u2212")


_GATES = {
    "row_conservation": "rows indexed, quarantined or skipped",
    "indexed_rows": "rows in the index",
    "finite_vectors": "non-finite vectors",
    "unique_ids": "repeated ids",
    "quarantined": "rows quarantined, of those read",
    "size_gib": "index files, GiB",
    "p99_ms": "latency (p99), ms",
    "canary_cosine": "cosine of unchanged texts with the previous release",
}


def gate_name(name: str) -> str:
    """Describe what a gate measures: finite_vectors -> non-finite vectors, recall_at_10 -> recall@10."""
    if name in _GATES:
        return _GATES[name]
    for key, words in {"recall_at_": "recall@", "_gib": ", GiB", "_ms": ", ms", "_": " "}.items():
        name = name.replace(key, words)
    return name


def interval(low: float, high: float) -> str:
    """Format an interval of a proportion: 95.1 to 96.2 %."""
    return f"{frame.percent(low).removesuffix(' %')} to {frame.percent(high)}"


def excerpt(text: str) -> str:
    """Shorten a text to one line of at most 240 characters; control characters become U+FFFD."""
    line = "".join(
        letter if letter.isprintable() else "\ufffd" for letter in " ".join(text[: 4 * EXCERPT].split())
    )
    return line if len(line) <= EXCERPT else line[: EXCERPT - 1].rstrip() + "…"
