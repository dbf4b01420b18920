"""Formats of numbers and texts on the pages."""

import unicodedata
from collections.abc import Iterable
from difflib import SequenceMatcher

from markupsafe import Markup, escape

from pipeline.charts.frame import minus, percent, shortened

MAX_EXCERPT = 240  # characters of a text in the release report
MAX_VARIANT = 400  # characters of a text on the page of an augmented corpus


def two_digits(value: float | None, missing: str = "") -> str:
    """Format with two decimals and a true minus; None becomes `missing`."""
    return missing if value is None else minus(f"{value:.2f}")


def signed(value: float | None) -> str:
    """Format with a sign, two decimals and a true minus; None becomes empty."""
    return "" if value is None else minus(f"{value:+.2f}") if round(value, 2) else "0.00"


def cosine(value: float) -> str:
    """Format with three decimals and a true minus, without a minus before zero."""
    return minus(f"{round(value, 3) + 0.0:.3f}")


def proportion(value: float) -> str:
    """Format a proportion: 0.975 -> 97.5 %; 0 % and 100 % are exact."""
    text = "< 0.1 %" if 0 < value < 0.001 else "> 99.9 %" if 0.999 < value < 1 else percent(value)
    return text.replace(" ", "\u00a0")


def percent_interval(low: float, high: float) -> str:
    """Format an interval of a proportion: 95.1 to 96.2 %."""
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"


def gate_value(value: float | None) -> str:
    """Format a gate's value: integers as such, others with at most four decimals."""
    if value is None:
        return "not measured"
    if value == int(value):
        return f"{int(value):,}"
    digits = 4 if abs(1 - value) > 1e-3 else 7  # a canary's cosine of 0.9999998 is not 1
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


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


def excerpt(text: str) -> str:
    """Shorten a text to one line of at most 240 characters; control characters become U+FFFD."""
    line = " ".join(text[: 4 * MAX_EXCERPT].split())
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in line)
    return line if len(line) <= MAX_EXCERPT else line[: MAX_EXCERPT - 1].rstrip() + "…"


def plain(name: str) -> str:
    """Replace underscores: too_long_for_model -> too long for model."""
    return name.replace("_", " ")


def alternatives(words: Iterable[str]) -> str:
    """Join distinct words: 0.4 or 0.5."""
    return " or ".join(dict.fromkeys(words))


def marked(variant: str, text: str) -> Markup:
    """Mark words that were added to a variant, and strike through words that were removed from the text.

    Case and punctuation are ignored. Only the beginnings of long texts are compared.
    """
    old, new = (shortened(each, MAX_VARIANT).split() for each in (text, variant))
    matcher = SequenceMatcher(
        None,
        [_without_punctuation(word) for word in old],
        [_without_punctuation(word) for word in new],
        autojunk=False,
    )
    words: list[Markup] = []
    for kind, start, stop, first, last in matcher.get_opcodes():
        if kind == "equal":
            words += map(escape, new[first:last])
            continue
        words += [Markup("<del>{}</del>").format(" ".join(old[start:stop]))] * (stop > start)
        words += [Markup("<mark>{}</mark>").format(" ".join(new[first:last]))] * (last > first)
    return Markup(" ").join(words)


def _without_punctuation(word: str) -> str:
    return "".join(
        letter
        for letter in unicodedata.normalize("NFKC", word).casefold()
        if unicodedata.category(letter)[0] != "P"
    )
