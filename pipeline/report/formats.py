"""Format numbers and texts for the HTML pages."""

import unicodedata
from collections.abc import Iterable
from difflib import SequenceMatcher

from markupsafe import Markup, escape

from pipeline.charts.frame import minus, percent, shorten

MAX_EXCERPT = 240  # characters of a text in the release report
MAX_VARIANT = 400  # characters of a text on the page of an augmented corpus


def two_decimals(value: float | None, missing: str = "") -> str:
    """Format with two decimals and a minus sign (U+2212); None becomes `missing`."""
    return missing if value is None else minus(f"{value:.2f}")


def signed(value: float | None) -> str:
    """Format with a sign and two decimals, zero without a sign; None becomes the empty string."""
    if value is None:
        return ""
    return minus(f"{value:+.2f}") if round(value, 2) else "0.00"


def cosine(value: float) -> str:
    """Format with three decimals; -0.0001 becomes 0.000."""
    return minus(f"{round(value, 3) + 0.0:.3f}")


def proportion(value: float) -> str:
    """Format a proportion: 0.975 -> 97.5 %. Only exact values become 0 % and 100 %."""
    text = percent(value)
    if 0 < value < 0.001:
        text = "< 0.1 %"
    elif 0.999 < value < 1:
        text = "> 99.9 %"
    return text.replace(" ", "\u00a0")


def percent_interval(low: float, high: float) -> str:
    """Format an interval of a proportion: 95.1 to 96.2 %."""
    return f"{percent(low).removesuffix(' %')} to {percent(high)}"


def gate_value(value: float | None) -> str:
    """Format a gate's value: integers without decimals, others with up to four decimals (near 1, seven)."""
    if value is None:
        return "not measured"
    if value == int(value):
        return f"{int(value):,}"
    digits = 4 if abs(1 - value) > 1e-3 else 7  # a canary's cosine of 0.9999998 is not 1
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


_GATE_NAMES = {
    "readable": "files that a searcher cannot use",
    "row_conservation": "rows indexed, quarantined or filtered",
    "indexed_rows": "rows in the index",
    "finite_vectors": "non-finite vectors",
    "unique_ids": "repeated ids",
    "quarantined": "rows quarantined, of those read",
    "space": "change of the vector space without a setting",
    "deleted_rows": "rows deleted, of the previous release's",
    "filtered_rows": "rows filtered now, of the previous release's",
    "empty_texts": "rows without a text, increase",
    "shorter_texts": "mean length of the texts, decrease",
    "repeated_texts": "repeated texts, increase",
    "query_drift": "drift of users' queries from rows, AUC",
    "far_queries": "users' queries without a near answer",
    "size_gib": "index files, GiB",
    "p99_ms": "latency (p99), ms",
    "relevance": "relevance for your own queries",
    "relevance_recall_at_10": "recall@10 of relevant rows, for your own queries",
    "relevance_mrr_at_10": "MRR@10 for your own queries",
    "relevance_change": "relevance, change since the previous release",
    "canary_cosine": "cosine of unchanged texts with the previous release",
}


def gate_name(name: str) -> str:
    """Describe what a gate measures: finite_vectors -> non-finite vectors, recall_at_10 -> recall@10."""
    if name in _GATE_NAMES:
        return _GATE_NAMES[name]
    for key, words in {"recall_at_": "recall@", "_gib": ", GiB", "_ms": ", ms", "_": " "}.items():
        name = name.replace(key, words)
    return name


def excerpt(text: str) -> str:
    """Shorten a text to one line of at most 240 characters; control characters become U+FFFD."""
    # this part of a long text suffices; it is longer than the excerpt, because white space is shortened
    line = " ".join(text[: 4 * MAX_EXCERPT].split())
    line = "".join(char if char.isprintable() else "\ufffd" for char in line)
    return line if len(line) <= MAX_EXCERPT else line[: MAX_EXCERPT - 1].rstrip() + "…"


def plain(name: str) -> str:
    """Replace underscores: too_long_for_model -> too long for model."""
    return name.replace("_", " ")


def join_alternatives(words: Iterable[str]) -> str:
    """Join words with "or", each once: 0.4 or 0.5."""
    return " or ".join(dict.fromkeys(words))


def mark_changes(variant: str, text: str) -> Markup:
    """Return a variant as HTML: added words are marked, and words that it lacks are struck through.

    Case and punctuation are ignored. Long texts are shortened before they are compared.
    """
    old, new = shorten(text, MAX_VARIANT).split(), shorten(variant, MAX_VARIANT).split()
    matcher = SequenceMatcher(
        None,
        [_without_punctuation(word) for word in old],
        [_without_punctuation(word) for word in new],
        autojunk=False,
    )
    words: list[Markup] = []
    for kind, old_start, old_stop, new_start, new_stop in matcher.get_opcodes():
        removed, added = old[old_start:old_stop], new[new_start:new_stop]
        if kind == "equal":
            words += map(escape, added)
            continue
        if removed:
            words.append(Markup("<del>{}</del>").format(" ".join(removed)))
        if added:
            words.append(Markup("<mark>{}</mark>").format(" ".join(added)))
    return Markup(" ").join(words)


def _without_punctuation(word: str) -> str:
    return "".join(
        char
        for char in unicodedata.normalize("NFKC", word).casefold()
        if not unicodedata.category(char).startswith("P")
    )
