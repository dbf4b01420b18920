"""Render the page of an augmented corpus: numbers of variants, reasons of rejection, examples.

Each page has a module of its own.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from pipeline.charts.augmentation import css_classes, histogram_chart, proportions_chart
from pipeline.charts.frame import shorten
from pipeline.report.augmentation_report import AugmentationReport, VariantMethod
from pipeline.report.evaluation_report import Chart
from pipeline.report.formats import MAX_VARIANT, join_alternatives, mark_changes, plain, proportion
from pipeline.report.page import Filters, render_template

# Limits of proportions beyond which the page shows a warning.
_MIN_KEPT = 0.5  # variants of a label that are kept
_MAX_REJECTED = 0.2  # variants of a label that are rejected for one reason
_MAX_TOO_LONG = 0.02  # texts that are longer than a model reads
_MIN_WITH_VARIANT = 0.9  # texts that have a variant
_TIMES = {1: "once", 2: "twice"}


def render(report: AugmentationReport) -> str:
    """Render the page; all texts are escaped."""
    colour = css_classes(list(report.reasons))
    filters: Filters = {
        "share": proportion,
        "plain": plain,
        "shortened": partial(shorten, max_length=MAX_VARIANT),
        "marked": mark_changes,
    }
    return render_template(
        "augmentation.html.j2",
        filters,
        report=report,
        verdict=verdict(report),
        warnings=list(warnings(report)),
        colour=colour,
        meanings={reason: meaning(reason, report) for reason in report.reasons},
        proportions=proportions_chart(report.counts, colour),
        charts=list(charts(report)),
    )


def verdict(report: AugmentationReport) -> str:
    """Summarize how many variants are kept, and why most of the others are rejected."""
    if not report.variant_count:
        return "The corpus has no rows: nothing was made."
    variants = f"{len(report.counts)} variants were" if len(report.counts) > 1 else "one was"
    kept_proportion = proportion(report.kept_count / report.variant_count)
    kept = f"{report.kept_count:,} of {report.variant_count:,} variants are kept, {kept_proportion}"
    reasons = [f"{plain(reason)} ({count:,})" for reason, count in list(report.reasons.items())[:3]]
    others = "Rejected most often" if len(reasons) > 1 else "All others are rejected"
    why = f"{others} as {', '.join(reasons)}." if reasons else "None was rejected."
    return f"{kept}; {variants} made of each of {report.rows:,} texts. {why}"


def warnings(report: AugmentationReport) -> Iterator[str]:
    """Yield warnings to consider before training on the variants."""
    sample = report.sample
    if sample.rows and (with_variant := sample.proportion_with(1)) < _MIN_WITH_VARIANT:
        yield (
            f"Only {proportion(with_variant)} of the texts have a variant that is kept; "
            "set missing: drop in train.data to leave the others out."
        )
    for method in report.methods:
        labels_by_warning: dict[str, list[str]] = {}
        for label in method.labels:
            for sentence in _count_warnings(report.counts[label], method):
                labels_by_warning.setdefault(sentence, []).append(label)
        yield from (f"{', '.join(labels)}: {sentence}" for sentence, labels in labels_by_warning.items())
        if method.kind == "back_translation" and method.keep.language is None:
            yield (
                f"{method.name}: the language of the variants was not checked, so that untranslated texts "
                "may be among them. Set language in its keep."
            )


def _count_warnings(counts: Mapping[str, int], method: VariantMethod) -> Iterator[str]:
    """Yield warnings about one label's variants.

    Args:
        counts: number of variants that are "kept", and of rejected ones by reason.
    """
    total = sum(counts.values())
    proportions = {name: count / total for name, count in counts.items() if count}
    if total and (kept := proportions.pop("kept", 0.0)) < _MIN_KEPT:
        few = f"only {proportion(kept)} of the variants are kept" if kept else "no variant is kept"
        reason = max(proportions, key=lambda name: proportions[name])
        yield f"{few}; most of the others are rejected as {plain(reason)}."
    if (rejected := proportions.get("too_long_for_model", 0.0)) > _MAX_TOO_LONG:
        yield (
            f"{proportion(rejected)} of the texts are longer than the model reads and have no variant, so "
            "that training data lacks long texts. Split them first."
        )
    identical_remedy = (
        "Sample (decoding.method: sample), or use another pivot language."
        if method.kind == "back_translation"
        else "Set stronger edits."
    )
    for reason, remedy in (
        ("identical", f"equal to their text. {identical_remedy}"),
        ("duplicate", "equal to another variant of their text. Set fewer variants, or stronger edits."),
        (
            "unlike",
            "less similar to their text than the limit: the edits are too strong, the model is weak, "
            "or the limit is too high.",
        ),
        (
            "repetition",
            "rejected because of repeated words: the model loops, or edits put equal words side by side.",
        ),
        (
            "language",
            "identified as another language. Short texts are easily misidentified: list the likely languages "
            "in keep.languages.",
        ),
    ):
        if (rejected := proportions.get(reason, 0.0)) > _MAX_REJECTED:
            yield f"{proportion(rejected)} of the variants are {remedy}"


def meaning(reason: str, report: AugmentationReport) -> str:
    """Describe the variants rejected for a reason, with the configured limits."""
    keeps = [
        method.keep
        for method in report.methods
        if any(report.counts[label].get(reason) for label in method.labels)
    ]
    lengths = [keep.length_ratio for keep in keeps if keep.length_ratio is not None]
    cosines = [keep.similarity for keep in keeps if keep.similarity is not None]
    shortest = join_alternatives(f"{low:g}" for low, _ in lengths)
    longest = join_alternatives(f"{high:g}" for _, high in lengths)
    languages = join_alternatives(keep.language for keep in keeps if keep.language)
    runs = join_alternatives(
        f"the same {keep.repeat_words} words more than {_TIMES.get(keep.repeats, f'{keep.repeats} times')}"
        for keep in keeps
        if keep.repeats is not None
    )
    return {
        "empty": "no output, or nothing but punctuation",
        "identical": "equal to its text except for case, punctuation and white space",
        "too_short": f"shorter than {shortest} times its text, in characters",
        "too_long": f"longer than {longest} times its text, in characters",
        "repetition": f"a word right after itself, or {runs}, unless the text repeats words as often",
        "language": f"identified as another language than {languages}",
        "unlike": f"cosine with its text below {join_alternatives(f'{low:g}' for low, _ in cosines)}",
        "alike": f"cosine with its text above {join_alternatives(f'{high:g}' for _, high in cosines)}",
        "duplicate": "equal to a kept variant of the same text in an earlier column",
        "too_long_for_model": "the text has more tokens than a model reads; no variant was made",
        "no_source": "the preceding model had no output; no variant was made",
    }.get(reason, "a reason specific to the method")


def charts(report: AugmentationReport) -> Iterator[Chart]:
    """Draw histograms of cosines and lengths for each method that has them."""
    for method in report.methods:
        if method.similarities is not None and method.similarities.total:
            yield Chart(
                f"{method.name}: cosine with the text",
                histogram_chart(method.similarities, "cosine with the text"),
                "Without variants that another rule rejects first.",
            )
        if method.ratios is not None and method.ratios.total:
            has_longer = method.ratios.kept[-1] or method.ratios.rejected[-1]
            yield Chart(
                f"{method.name}: length",
                histogram_chart(method.ratios, "characters, as a multiple of the text's"),
                "The right bar includes all longer variants." if has_longer else "",
            )
