"""The page of an augmented corpus: how many variants are kept, why the others are not, and what they look like; one HTML file, no network, no script."""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from markupsafe import Markup, escape

from pipeline.augment import ModelStats
from pipeline.charts.augmentation import Spread, colours, shares_chart, spread_chart
from pipeline.charts.frame import percent
from pipeline.report.evaluation import Chart
from pipeline.report.page import fill
from pipeline.settings.augment import KeepSettings

_FEW_KEPT = 0.5  # of a label's variants: with fewer, most of the work was for nothing
_MANY = 0.2  # of a label's variants, rejected for one reason that a setting would mend
_MANY_LONG = 0.02  # of the texts over a model's limit: they have no variant, so what is trained on these lacks long texts
_FEW_TEXTS = 0.9  # of the texts with a variant
_LETTERS = 400  # of a text that is shown
_TIMES = {1: "once", 2: "twice"}


@dataclass(frozen=True)
class Method:
    """What makes the variants of one name. labels: of its variants; ratios, similarities: of a sample's variants; None where there are none."""

    name: str
    method: str
    labels: tuple[str, ...]
    keep: KeepSettings
    ratios: Spread | None = None
    similarities: Spread | None = None


@dataclass(frozen=True)
class Work:
    """What a stage with models did in this run. seconds: wall time, starts of workers included."""

    title: str
    stats: ModelStats
    seconds: float

    @property
    def padding(self) -> float:
        """Share of the places in batches that held no token."""
        return self.stats.padding / max(self.stats.tokens_in + self.stats.padding, 1)

    def per_s(self, name: str) -> float:
        """Texts, tokens_in or tokens_out a second with all workers."""
        return float(getattr(self.stats, name) / max(self.seconds, 1e-9))


@dataclass(frozen=True)
class Example:
    """A text with what was made of it, in the order of the columns: (label, the variant or None where there is none, why it is rejected or None where it is kept)."""

    text: str
    variants: tuple[tuple[str, str | None, str | None], ...]


@dataclass(frozen=True)
class Rejected:
    """A variant that is not kept; None where none was made."""

    label: str
    text: str
    variant: str | None


@dataclass(frozen=True)
class Sample:
    """What was looked at row by row. texts: those of `rows` with at least so many kept variants, for one, two ...; rejected: reason -> some."""

    rows: int = 0
    texts: tuple[int, ...] = ()
    examples: tuple[Example, ...] = ()
    rejected: Mapping[str, tuple[Rejected, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the page says; whatever is empty is left out."""

    name: str
    number: int
    """of the manifest"""
    uri: str
    """of the manifest"""
    units_uri: str
    corpus: str
    """as the job names it"""
    rows: int
    units: int
    counts: Mapping[str, Mapping[str, int]]
    """label -> kept, or the reason -> variants"""
    methods: tuple[Method, ...]
    sample: Sample = Sample()
    quarantined: int = 0
    changes: Mapping[str, int] = field(default_factory=dict)
    """new, changed, deleted rows since the manifest before; empty for the first one"""
    encoder: str = ""
    """that similarities are by"""
    seed: int = 0
    worked: tuple[Work, ...] = ()
    seconds: float = 0.0
    """of the whole run"""
    created: str | None = None
    settings_text: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def made(self) -> int:
        """All variants, kept or not."""
        return sum(sum(counts.values()) for counts in self.counts.values())

    @property
    def kept(self) -> int:
        return sum(counts.get("kept", 0) for counts in self.counts.values())

    @property
    def reasons(self) -> dict[str, int]:
        """Reason -> variants that were rejected for it, the most frequent first."""
        found: Counter[str] = Counter()
        for counts in self.counts.values():
            found.update({name: count for name, count in counts.items() if name != "kept" and count})
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def render(report: Report) -> str:
    """The page, complete in itself (UTF-8). Every text from outside is escaped."""
    filters: dict[str, Callable[..., Any]] = {
        "share": share,
        "plain": _plain,
        "shortened": _shortened,
        "marked": marked,
    }
    colour = colours(list(report.reasons))
    meanings = {reason: meaning(reason, report) for reason in report.reasons}
    return fill(
        "augmentation.html.j2",
        filters,
        report=report,
        verdict=verdict(report),
        warnings=list(warnings(report)),
        colour=colour,
        meanings=meanings,
        shares=shares_chart(report.counts, colour),
        charts=charts(report),
    )


def verdict(report: Report) -> str:
    """How many variants are kept of how many, and what most of the others lack."""
    if not report.made:
        return "The corpus has no rows: nothing was made."
    each = (
        f"{len(report.counts)} variants of each of {report.rows:,} texts"
        if len(report.counts) > 1
        else f"one of each of {report.rows:,} texts"
    )
    said = (
        f"{report.kept:,} of {report.made:,} variants are kept, {share(report.kept / report.made)}: {each}."
    )
    most = [f"{_plain(reason)} ({count:,})" for reason, count in list(report.reasons.items())[:3]]
    if not most:
        return f"{said} None was rejected."
    return (
        f"{said} Rejected most often as {', '.join(most)}."
        if len(most) > 1
        else f"{said} All others are rejected as {most[0]}."
    )


def warnings(report: Report) -> Iterator[str]:
    """What a person should know before training on the variants, in sentences."""
    if report.sample.rows and (texts := report.sample.texts[0] / report.sample.rows) < _FEW_TEXTS:
        yield f"Only {share(texts)} of the texts have a variant that is kept; train.data leaves the others out with missing: drop."
    for method in report.methods:
        said: dict[str, list[str]] = {}
        for label in method.labels:
            for sentence in _of_counts(report.counts[label], method):
                said.setdefault(sentence, []).append(label)
        yield from (f"{', '.join(labels)}: {sentence}" for sentence, labels in said.items())
        if method.method == "back_translation" and method.keep.language is None:
            yield f"{method.name}: nobody looked which language the variants are in; a text that was left untranslated may be among them. Set language in its keep."


def _of_counts(counts: Mapping[str, int], method: Method) -> Iterator[str]:
    """counts: of a label's variants, by kept and by reason."""
    made = sum(counts.values())
    shares = {name: count / made for name, count in counts.items() if count}
    if made and (kept := shares.pop("kept", 0.0)) < _FEW_KEPT:
        few = f"only {share(kept)} of the variants are kept" if kept else "no variant is kept"
        yield f"{few}; most of the others are rejected as {_plain(max(shares, key=lambda name: shares[name]))}."
    if (found := shares.get("too_long_for_model", 0.0)) > _MANY_LONG:
        yield f"{share(found)} of the texts are longer than the model reads and have no variant; what is trained on these lacks long texts. Split them before."
    more = (
        "Sample (decoding.method: sample), or take another pivot language."
        if method.method == "back_translation"
        else "Ask for stronger edits."
    )
    for reason, remedy in (
        ("identical", f"equal to their text. {more}"),
        ("duplicate", "equal to another variant of their text. Ask for fewer, or for ones that differ more."),
        (
            "unlike",
            "less like their text than similarity asks for: edits too strong or a weak model, or a bound that is too high.",
        ),
        (
            "repetition",
            "rejected for words said again and again: a model that gets stuck, or edits that put equal words side by side.",
        ),
        (
            "language",
            "taken for another language. Short texts are mistaken easily: name the likely ones in keep.languages.",
        ),
    ):
        if (found := shares.get(reason, 0.0)) > _MANY:
            yield f"{share(found)} of the variants are {remedy}"


def meaning(reason: str, report: Report) -> str:
    """What rejected variants of that reason have in common, as half a sentence, with the bounds where they were set."""
    keeps = [
        method.keep
        for method in report.methods
        if any(report.counts[label].get(reason) for label in method.labels)
    ]
    lengths, cosines = (
        [bounds for keep in keeps if (bounds := getattr(keep, name)) is not None]
        for name in ("length_ratio", "similarity")
    )
    runs = _either(
        f"{keep.repeat_words} words more than {_TIMES.get(keep.repeats, f'{keep.repeats} times')}"
        for keep in keeps
        if keep.repeats is not None
    )
    return {
        "empty": "nothing came out, or nothing but punctuation",
        "identical": "equal to its text, but for case, punctuation and white space",
        "too_short": f"shorter than {_either(f'{low:g}' for low, _ in lengths)} times its text, in characters",
        "too_long": f"longer than {_either(f'{high:g}' for _, high in lengths)} times its text, in characters",
        "repetition": f"a word right behind itself, or a run of {runs}, unless the text has them as often",
        "language": f"taken for another language than {_either(keep.language for keep in keeps if keep.language)}",
        "unlike": f"cosine with its text below {_either(f'{low:g}' for low, _ in cosines)}",
        "alike": f"cosine with its text above {_either(f'{high:g}' for _, high in cosines)}",
        "duplicate": "equal to a kept variant of the same text in a column before it",
        "too_long_for_model": "the text has more tokens than a model reads; no variant was made",
        "no_source": "the model before gave nothing to go on from; no variant was made",
    }.get(reason, "a reason of the method's own")


def charts(report: Report) -> list[Chart]:
    """Cosines and lengths, for each method that has them."""
    found = []
    for method in report.methods:
        if method.similarities is not None and method.similarities.total:
            note = "Of the variants that no test before it rejects."
            found.append(
                Chart(
                    f"{method.name}: cosine with the text",
                    spread_chart(method.similarities, "cosine with the text"),
                    note,
                )
            )
        if method.ratios is not None and method.ratios.total:
            at_edge = (
                "The bar at the right holds all that are longer still."
                if method.ratios.kept[-1] or method.ratios.rejected[-1]
                else ""
            )
            found.append(
                Chart(
                    f"{method.name}: length",
                    spread_chart(method.ratios, "characters, as a multiple of the text's"),
                    at_edge,
                )
            )
    return found


def marked(variant: str, text: str) -> Markup:
    """The variant with the words marked that were added, and between them, struck through, the words of the text that were removed.

    Case and punctuation make no difference. Of long texts only the beginnings are compared.
    """
    old, new = _shortened(text).split(), _shortened(variant).split()
    matcher = SequenceMatcher(
        None, [_bare(word) for word in old], [_bare(word) for word in new], autojunk=False
    )
    words: list[Markup] = []
    for kind, start, stop, first, last in matcher.get_opcodes():
        if kind == "equal":
            words += map(escape, new[first:last])
            continue
        words += [Markup("<del>{}</del>").format(" ".join(old[start:stop]))] * (stop > start)
        words += [Markup("<mark>{}</mark>").format(" ".join(new[first:last]))] * (last > first)
    return Markup(" ").join(words)


def share(value: float) -> str:
    """0.975 -> 97.5 %, in one piece; never 0 % or 100 % of what is neither none nor all."""
    said = "< 0.1 %" if 0 < value < 0.001 else "> 99.9 %" if 0.999 < value < 1 else percent(value)
    return said.replace(" ", "\u00a0")


def _bare(word: str) -> str:
    return "".join(
        sign
        for sign in unicodedata.normalize("NFKC", word).casefold()
        if unicodedata.category(sign)[0] != "P"
    )


def _plain(name: str) -> str:
    """too_long_for_model -> too long for model."""
    return name.replace("_", " ")


def _shortened(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def _either(words: Iterator[str]) -> str:
    """Each once: 0.4 or 0.5."""
    return " or ".join(dict.fromkeys(words))
