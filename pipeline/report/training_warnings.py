"""Warnings about a training, for its page and its model card."""

import math
from collections import Counter
from collections.abc import Iterator

from pipeline.charts.frame import percent
from pipeline.report.loss_curve import changes_on_same_rows, find_rising_loss
from pipeline.report.training_report import TrainingReport
from pipeline.settings.training import TrainSettings
from pipeline.store.records.units import sum_counts

# relative tolerance within which a loss counts as equal to ln N, the loss of a random choice among N
_AT_CHANCE = 0.02
_EQUAL = 0.9999  # cosine above which two views count as equal, because of rounding in half precision
_COLLAPSED = 0.98  # vectors count as collapsed if the mean cosine of different texts is above this
_MAX_WAITING = 0.2  # proportion of the time spent waiting for batches
_TAIL = 0.2  # proportion of the lines that is averaged for the end of a training, because single steps vary
_REPEATS_CONSEQUENCE = {
    "keep": ": each is a false negative of the other. Set train.order.repeats to mask or drop.",
    "drop": ", although rows were exchanged with other batches: too few others were left.",
    "mask": ", and were not used as negatives of each other.",
}
"""end of the sentence about texts that repeat within a batch, by train.order.repeats"""


def training_warnings(report: TrainingReport) -> list[str]:
    """Return warnings to consider before the encoder is used; the objective's warnings come first."""
    return [
        *report.objective_warnings,
        *_result_warnings(report),
        *_early_end_warnings(report),
        *_loss_warnings(report),
        *_collapse_warnings(report),
        *_row_warnings(report),
        *_speed_warnings(report),
    ]


def _result_warnings(report: TrainingReport) -> Iterator[str]:
    """Warn if the trained encoder is not, or may not be, better than the encoder at the start."""
    dev, changes = report.dev_lines, changes_on_same_rows(report.lines)
    if dev:
        if dev.best.step == 0 and report.steps:
            yield (
                "No score on dev was better than the one before the first step. Try a lower learning rate, "
                "other data, or another objective."
            )
    elif not changes:
        yield (
            "Nothing was measured on dev or on the same rows at start and end: the encoder has the last "
            "weights, which need not be better than the first. Set train.dev.uri."
        )
    elif report.steps and not changes[0].is_better:
        first = changes[0]
        yield (
            f"On the same {report.same_rows:,} rows the {first.name} is no better after the last step "
            f"({first.end:.3g}) than before the first ({first.start:.3g}). Try a lower learning rate, "
            "other data, or another objective."
        )


def _early_end_warnings(report: TrainingReport) -> Iterator[str]:
    if report.reason_for_early_end:
        yield f"It ended before its last step: {report.reason_for_early_end}."


def _loss_warnings(report: TrainingReport) -> Iterator[str]:
    if rise := find_rising_loss(report.lines):
        start, end = rise
        yield (
            f"The loss rises: {start:.3g} on average over the first third of the steps, {end:.3g} over the "
            "last. Try a lower learning rate or a longer warm-up."
        )


def _collapse_warnings(report: TrainingReport) -> Iterator[str]:
    loss_lines = [line for line in report.lines if line.loss is not None]
    tail = loss_lines[-max(1, round(_TAIL * len(loss_lines))) :]
    weights = _weights(report.settings)
    losses = [
        value / weights.get(name.rpartition(".")[0], 1.0)
        for line in tail
        for name, value in line.parts.items()
        if name.rpartition(".")[2] == "info_nce"
    ]
    # With matryoshka the loss is a sum over dimensions.
    mean_loss = sum(losses) / max(1, len(losses)) / max(1, len(report.settings.matryoshka))
    if losses and (count := _candidates_at_chance(mean_loss, report.settings)):
        yield (
            f"The loss stays at ln {count}, that of a random choice among {count} candidates: the vectors "
            "have collapsed, or the temperature is far too high."
        )
    cosines = [line.positive_cosine for line in tail if line.positive_cosine is not None]
    if cosines and min(cosines) > _EQUAL:
        yield (
            "Positives are equal vectors: the two views of a text do not differ. Set train.dropout, or check "
            "whether the columns have the same texts."
        )
    negatives = [line.negative_cosine for line in tail if line.negative_cosine is not None]
    if negatives and sum(negatives) / len(negatives) > _COLLAPSED:
        yield (
            f"Different texts have a mean cosine of {sum(negatives) / len(negatives):.3f}: the vectors have "
            "collapsed into one direction."
        )


def _weights(settings: TrainSettings) -> dict[str, float]:
    """Return the weight of each objective's loss by the prefix of its parts: simcse, simcse2."""
    seen: Counter[str] = Counter()
    weights = {}
    for term in settings.objective:
        seen[term.name] += 1
        weights[term.name if seen[term.name] == 1 else f"{term.name}{seen[term.name]}"] = term.weight
    return weights


def _candidates_at_chance(loss: float, settings: TrainSettings) -> int | None:
    """Return the number N of candidates if the loss is ln N, the loss of a random choice; None if it is not.

    N is the number of rows of a batch, or twice this number: objectives compare a row with so many
    candidates.
    """
    rows = settings.order.batch_rows
    if not settings.across_ranks:
        rows //= settings.workers
    for count in (rows, 2 * rows):
        if count > 1 and abs(loss - math.log(count)) < _AT_CHANCE * math.log(count):
            return count
    return None


def _row_warnings(report: TrainingReport) -> Iterator[str]:
    counts, rows = sum_counts(line.counts for line in report.lines), sum(line.rows for line in report.lines)
    if repeated := counts.get("repeated", 0):
        yield (
            f"{repeated:,} of {rows:,} rows ({percent(repeated / max(rows, 1))}) had a text in common with "
            f"another row of their batch{_REPEATS_CONSEQUENCE[report.settings.order.repeats]}"
        )
    if blank := counts.get("blank", 0):
        yield f"{blank:,} texts were missing or blank, so that nothing tells them apart."
    if without := counts.get("without_negative", 0):
        yield f"{without:,} hard negatives were missing or blank: contrastive objectives left them out."
    if overflows := counts.get("overflows", 0):
        yield (
            f"Gradients overflowed {overflows:,} times; each time the loss scale was halved and the step "
            "repeated."
        )


def _speed_warnings(report: TrainingReport) -> Iterator[str]:
    waited = sum((line.waiting or 0.0) * line.seconds for line in report.lines)
    if report.seconds and waited / report.seconds > _MAX_WAITING:
        yield (
            f"{percent(waited / report.seconds)} of the time was spent waiting for batches: reading or "
            "tokenizing is too slow for this device."
        )
