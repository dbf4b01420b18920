"""What a person should know of a training before its encoder is used: signs that it went wrong, in sentences."""

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.charts.frame import percent
from pipeline.report.course import on_same_rows, risen
from pipeline.settings.training import TrainSettings
from pipeline.train.metrics_line import MetricsLine, totals

if TYPE_CHECKING:
    from pipeline.report.training import Report

_PINNED = 0.02  # of ln N: a loss so near to it tells texts apart no better than chance
_ALIKE = 0.9999  # cosine of two views that are one vector, up to rounding in half precision
_CROWDED = 0.98  # mean cosine of different texts
_SLOW = 0.2  # share of the time without a batch that is worth a word
_TAIL = 0.2  # of the lines: what a training came to is their mean, since single steps vary


def warnings(report: "Report") -> list[str]:
    """What a person should know before the encoder is used, in sentences; the objective's own doubts first."""
    return [
        *report.doubts,
        *_of_dev(report),
        *_of_loss(report),
        *_of_collapse(report),
        *_of_rows(report),
        *_of_speed(report),
    ]


def _of_dev(report: "Report") -> Iterator[str]:
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
        yield "No measurement on dev was better than the one before the first step. Try a lower learning rate, other data, or another objective."
    if report.ended:
        yield f"It ended before its last step: {report.ended}."


def _of_loss(report: "Report") -> Iterator[str]:
    if found := risen(report.lines):
        start, end = found
        yield f"The loss rises: {start:.3g} on average over the first third of the steps, {end:.3g} over the last. Try a lower learning rate or a longer warm-up."


def _of_collapse(report: "Report") -> Iterator[str]:
    tail = _tail([line for line in report.lines if line.loss is not None])
    nce = [
        value for line in tail for name, value in line.parts.items() if name.rpartition(".")[2] == "info_nce"
    ]
    if nce and (
        count := _pinned_at(sum(nce) / len(nce) / max(1, len(report.settings.matryoshka)), report.settings)
    ):
        yield f"The loss stays at ln {count}, as if the right one of {count} candidates were guessed: the vectors have collapsed, or the temperature is far too high."
    cosines = [line.positive_cosine for line in tail if line.positive_cosine is not None]
    if cosines and min(cosines) > _ALIKE:
        yield "Positives are one vector: nothing makes the two views of a text differ. Set train.dropout, or look whether the columns hold the same texts."
    negatives = [line.negative_cosine for line in tail if line.negative_cosine is not None]
    if negatives and sum(negatives) / len(negatives) > _CROWDED:
        yield f"Different texts have a mean cosine of {sum(negatives) / len(negatives):.3f}: the vectors have collapsed into one direction."


def _pinned_at(loss: float, settings: TrainSettings) -> int | None:
    """The number of candidates whose logarithm the loss stays at: rows of the batch, or these and as many hard negatives."""
    rows = (
        settings.order.batch_rows if settings.across_ranks else settings.order.batch_rows // settings.workers
    )
    return next(
        (
            count
            for count in (rows, 2 * rows)
            if count > 1 and abs(loss - math.log(count)) < _PINNED * math.log(count)
        ),
        None,
    )


def _of_rows(report: "Report") -> Iterator[str]:
    counts, rows = totals(report.lines), sum(line.rows for line in report.lines)
    if repeated := counts.get("repeated", 0):
        yield _repeats(repeated, rows, report.settings.order.repeats)
    if blank := counts.get("blank", 0):
        yield f"{blank:,} texts were missing or blank, and were read as one blank."
    if overflows := counts.get("overflows", 0):
        yield f"Gradients overflowed {overflows:,} times; each time the loss scale was halved and the step made again."


def _repeats(repeated: int, rows: int, setting: str) -> str:
    said = f"{repeated:,} of {rows:,} rows ({percent(repeated / max(rows, 1))}) had a text in common with another row of their batch"
    return (
        said
        + {
            "keep": ": each is a false negative of the other. Set train.order.repeats to mask or drop.",
            "drop": ", though rows changed places with those of other batches: too few others were left.",
            "mask": ", and were no negatives of each other.",
        }[setting]
    )


def _of_speed(report: "Report") -> Iterator[str]:
    waited = sum((line.waiting or 0.0) * line.seconds for line in report.lines)
    if report.seconds and waited / report.seconds > _SLOW:
        yield f"{percent(waited / report.seconds)} of the time went by waiting for batches: rows are read or tokenized too slowly for this device."


def _tail(lines: Sequence[MetricsLine]) -> Sequence[MetricsLine]:
    return lines[-max(1, round(_TAIL * len(lines))) :]
