"""Charts of the page of a training."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from markupsafe import Markup

from pipeline.charts import frame
from pipeline.charts.geometry import colour
from pipeline.charts.training import (
    POINTS,
    StepAxis,
    ValueAxis,
    curves_chart,
    dev_chart,
    rate,
    trajectory_chart,
)
from pipeline.report.evaluation import Chart
from pipeline.report.training_report import TrainingReport
from pipeline.train.metrics_line import MetricsLine


def sections(report: TrainingReport) -> list[tuple[str, list[Chart]]]:
    """Return (heading, charts) of the metrics that exist."""
    steps = StepAxis(report.steps)
    with_resumes = replace(steps, resumed=tuple(float(step) for step, _ in report.resumed if step))
    found = [
        ("Learning", list(_learning(report, with_resumes))),
        ("Vectors", list(_vectors(report.lines, steps))),
        ("Steps", list(_step_charts(report, steps))),
    ]
    return [(heading, charts) for heading, charts in found if charts]


def legend(names: Sequence[str]) -> Markup:
    """Return the legend of a chart: its colours, in order, with names."""
    return Markup(" ").join(
        Markup('<span class="series"><span class="key {}"></span>{}</span>').format(colour(number), name)
        for number, name in enumerate(names)
    )


def _learning(report: TrainingReport, steps: StepAxis) -> Iterator[Chart]:
    if report.dev:
        name = f"{report.measure.capitalize()} on dev"
        drawn = dev_chart(_points(report.lines, "dev"), report.dev["best"].step, steps, name)
        yield Chart(name, drawn, "Larger is better; over all pairs of the file.")
    curves = {"loss": _points(report.lines, "loss")}
    parts = dict.fromkeys(name for line in report.lines for name in line.parts)
    if len(parts) > 1:
        curves |= {
            name: [(float(line.step), line.parts[name]) for line in report.lines if name in line.parts]
            for name in parts
        }
    if count := len(curves["loss"]):
        note = f"Median of {-(-count // POINTS)} records at each point; the single records are drawn faintly."
        key = legend(list(curves)) if len(curves) > 1 else ""
        drawn = curves_chart(list(curves.values()), steps, "Loss")
        yield Chart("Loss", drawn, note if count > POINTS else "", key)


def _vectors(lines: Sequence[MetricsLine], steps: StepAxis) -> Iterator[Chart]:
    with_both = [line for line in lines if line.uniformity is not None and line.alignment is not None]
    if with_both:
        points = [(line.uniformity or 0.0, line.alignment or 0.0) for line in with_both]
        yield Chart(
            "Alignment against uniformity",
            trajectory_chart(points, with_both[0].step),
            "Low alignment: positives are close; low uniformity: texts are spread out. Measured on "
            "training batches, with dropout.",
        )
    elif spread := _points(lines, "uniformity"):
        yield Chart(
            "Uniformity",
            curves_chart([spread], steps, "Uniformity"),
            "The lower, the more evenly texts are spread out.",
        )
    cosines = {"positives": _points(lines, "positive_cosine"), "negatives": _points(lines, "negative_cosine")}
    if all(cosines.values()):
        yield Chart(
            "Mean cosine of positives and of negatives",
            curves_chart(list(cosines.values()), steps, "Mean cosines of positives and negatives"),
            "The farther apart, the better positives are distinguished from negatives.",
            legend(list(cosines)),
        )


def _step_charts(report: TrainingReport, steps: StepAxis) -> Iterator[Chart]:
    clip = report.settings.optimizer.clip
    clipping = "Not clipped." if clip is None else f"Before clipping to {clip:g}."
    for name, heading, label, note in (
        ("learning_rate", "Learning rate", rate, ""),
        ("gradient_norm", "Norm of the gradient", frame.compact, clipping),
        (
            "tokens_per_s",
            "Tokens per second",
            frame.compact,
            "On all workers, tokens of all views, including waiting.",
        ),
        ("waiting", "Proportion of time waiting for a batch", frame.percent, ""),
    ):
        if points := _points(report.lines, name):
            threshold = None
            if name == "gradient_norm" and clip is not None and clip < 1.5 * max(y for _, y in points):
                threshold = clip, f"clipped to {clip:g}"
            yield Chart(
                heading, curves_chart([points], steps, heading, ValueAxis(label, 0.0), threshold), note
            )


def _points(lines: Sequence[MetricsLine], name: str) -> list[tuple[float, float]]:
    return [(float(line.step), float(value)) for line in lines if (value := getattr(line, name)) is not None]
