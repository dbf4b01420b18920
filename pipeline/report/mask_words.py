"""Build the sections of the evaluation page about reading by words.

Each subject of the page has a module of its own.
"""

from pipeline.evaluate.mask_words import READINGS, MaskWordsReport, NamedMaskWords
from pipeline.report.evaluation_report import Section
from pipeline.report.formats import two_decimals

_READINGS_NOTE = (
    "Words: the mean of the embeddings of the likeliest words at the mask, weighted by probability. "
    "De-noised: after subtraction of the template without the text (Jiang et al. 2022, PromptBERT)."
)
_WORDS_NOTE = (
    "The likeliest words at the mask, the likeliest first; right, after de-noising. Good: words that the "
    "text means, and fewer that the template brings whatever the text."
)


def sections(report: MaskWordsReport) -> list[Section]:
    """Build a table of correlations, and a table of words for each candidate."""
    tables = [_readings(report)] if report.pairs else []
    return [*tables, *map(_words, report.candidates)]


def _readings(report: MaskWordsReport) -> Section:
    header = ("reading of the mask token", *(each.name for each in report.candidates))
    rows = [
        (label, *(two_decimals(each.words.correlations[name]) for each in report.candidates))
        for name, label in READINGS.items()
    ]
    counts = sorted({each.words.top_k for each in report.candidates})
    return Section(
        f"Reading by words: Spearman x100 of cosines with human scores, {report.pairs:,} pairs of "
        f"{report.pairs_source}",
        table=(header, *rows),
        notes=(_READINGS_NOTE, f"Words that are averaged: {', '.join(f'{count:,}' for count in counts)}."),
    )


def _words(candidate: NamedMaskWords) -> Section:
    header = ("text", "words", "de-noised")
    rows = [(each.text, ", ".join(each.words), ", ".join(each.denoised)) for each in candidate.words.texts]
    template = f"Template: {candidate.words.template} " if candidate.words.template else ""
    return Section(
        f"Words at the mask: {candidate.name}", table=(header, *rows), notes=(template + _WORDS_NOTE,)
    )
