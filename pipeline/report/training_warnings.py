"""Warnings about a training, for its page and its model card."""

import math
from collections.abc import Iterator

from pipeline.charts.frame import percent
from pipeline.report.course import on_same_rows, risen
from pipeline.report.training_report import TrainingReport
from pipeline.settings.training import TrainSettings
from pipeline.store.units import total

_AT_CHANCE = 0.02  # relative distance of a loss from ln N, the loss of a random choice
_EQUAL = 0.9999  # cosine of equal views, up to rounding in half precision
_COLLAPSED = 0.98  # mean cosine of different texts
_SLOW = 0.2  # proportion of the time spent waiting for batches
_TAIL = 0.2  # of the lines are averaged for the end of a training, because single steps vary
_REPEATS = {
    "keep": ": each is a false negative of the other. Set train.order.repeats to mask or drop.",
    "drop": ", although rows were exchanged with other batches: too few others were left.",
    "mask": ", and were not used as negatives of each other.",
}
"""consequence of texts that repeat within a batch, by train.order.repeats"""


def training_warnings(report: TrainingReport) -> list[str]:
    """Return warnings to consider before the encoder is used, those of the objective first."""
    return [
        *report.objective_warnings,
        *_dev_warnings(report),
        *_loss_warnings(report),
        *_collapse_warnings(report),
        *_row_warnings(report),
        *_speed_warnings(report),
    ]


def _dev_warnings(report: TrainingReport) -> Iterator[str]:
    dev, measures = report.dev, on_same_rows(report.lines)
    if not dev and not measures:
        yield (
            "Nothing was measured on dev or on the same rows at start and end: the encoder has the last "
            "weights, which need not be better than the first. Set train.dev.uri."
        )
    elif not dev and report.steps and not measures[0].better:
        first = measures[0]
        yield (
            f"On the same {report.same_rows:,} rows the {first.name} is no better after the last step "
            f"({first.end:.3g}) than before the first ({first.start:.3g}). Try a lower learning rate, "
            "other data, or another objective."
        )
    elif not dev:
        return
    elif dev["best"].step == 0 and report.steps:
        yield (
            "No score on dev was better than the one before the first step. Try a lower learning rate, other "
            "data, or another objective."
        )
    if report.ended:
        yield f"It ended before its last step: {report.ended}."


def _loss_warnings(report: TrainingReport) -> Iterator[str]:
    if found := risen(report.lines):
        start, end = found
        yield (
            f"The loss rises: {start:.3g} on average over the first third of the steps, {end:.3g} over the "
            "last. Try a lower learning rate or a longer warm-up."
        )


def _collapse_warnings(report: TrainingReport) -> Iterator[str]:
    measured = [line for line in report.lines if line.loss is not None]
    tail = measured[-max(1, round(_TAIL * len(measured))) :]
    nce = [
        value for line in tail for name, value in line.parts.items() if name.rpartition(".")[2] == "info_nce"
    ]
    if nce and (
        count := _candidates_at_chance(
            sum(nce) / len(nce) / max(1, len(report.settings.matryoshka)), report.settings
        )
    ):
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


def _candidates_at_chance(loss: float, settings: TrainSettings) -> int | None:
    """Return the number of candidates, once or twice the batch, whose logarithm equals the loss."""
    rows = (
        settings.order.batch_rows if settings.across_ranks else settings.order.batch_rows // settings.workers
    )
    return next(
        (
            count
            for count in (rows, 2 * rows)
            if count > 1 and abs(loss - math.log(count)) < _AT_CHANCE * math.log(count)
        ),
        None,
    )


def _row_warnings(report: TrainingReport) -> Iterator[str]:
    counts, rows = total(line.counts for line in report.lines), sum(line.rows for line in report.lines)
    if repeated := counts.get("repeated", 0):
        yield (
            f"{repeated:,} of {rows:,} rows ({percent(repeated / max(rows, 1))}) had a text in common with "
            f"another row of their batch{_REPEATS[report.settings.order.repeats]}"
        )
    if blank := counts.get("blank", 0):
        yield f"{blank:,} texts were missing or blank, and were read as a blank."
    if overflows := counts.get("overflows", 0):
        yield (
            f"Gradients overflowed {overflows:,} times; each time the loss scale was halved and the step "
            "repeated."
        )


def _speed_warnings(report: TrainingReport) -> Iterator[str]:
    waited = sum((line.waiting or 0.0) * line.seconds for line in report.lines)
    if report.seconds and waited / report.seconds > _SLOW:
        yield (
            f"{percent(waited / report.seconds)} of the time was spent waiting for batches: reading or "
            "tokenizing is too slow for this device."
        )
