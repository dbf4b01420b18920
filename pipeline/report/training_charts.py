"""Draw the charts of the page of a training."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from markupsafe import Markup

from pipeline.charts import frame
from pipeline.charts.geometry import colour
from pipeline.charts.training import (
    SMOOTHED_POINTS,
    StepAxis,
    ValueAxis,
    curves_chart,
    dev_chart,
    rate,
    trajectory_chart,
)
from pipeline.report.evaluation_report import Chart
from pipeline.report.training_report import TrainingReport
from pipeline.train.metrics_line import MetricsLine


def sections(report: TrainingReport) -> list[tuple[str, list[Chart]]]:
    """Return the sections with charts as (heading, charts); charts of missing metrics are left out."""
    steps = StepAxis(report.steps)
    with_resumes = replace(steps, resumed=tuple(float(step) for step, _ in report.resumed if step))
    all_sections = [
        ("Learning", list(_learning(report, with_resumes))),
        ("Vectors", list(_vectors(report.lines, steps))),
        ("Steps", list(_step_charts(report, steps))),
    ]
    return [(heading, charts) for heading, charts in all_sections if charts]


def legend(names: Sequence[str]) -> Markup:
    """Return the legend of a chart as HTML: the colour of each series with its name."""
    return Markup(" ").join(
        Markup('<span class="series"><span class="key {}"></span>{}</span>').format(colour(number), name)
        for number, name in enumerate(names)
    )


def _learning(report: TrainingReport, steps: StepAxis) -> Iterator[Chart]:
    if report.dev_lines:
        name = f"{report.measure.capitalize()} on dev"
        chart = dev_chart(_points(report.lines, "dev"), report.dev_lines.best.step, steps, name)
        yield Chart(name, chart, "Larger is better; over all pairs of the file.")
    curves = {"loss": _points(report.lines, "loss")}
    parts = dict.fromkeys(name for line in report.lines for name in line.parts)
    if len(parts) > 1:
        curves |= {
            name: [(float(line.step), line.parts[name]) for line in report.lines if name in line.parts]
            for name in parts
        }
    if count := len(curves["loss"]):
        group = -(-count // SMOOTHED_POINTS)
        note = f"Median of {group} records at each point; the single records are drawn faintly."
        key = legend(list(curves)) if len(curves) > 1 else ""
        chart = curves_chart(list(curves.values()), steps, "Loss")
        yield Chart("Loss", chart, note if count > SMOOTHED_POINTS else "", key)


def _vectors(lines: Sequence[MetricsLine], steps: StepAxis) -> Iterator[Chart]:
    on_dev = [line for line in lines if len(line.dev_geometry) == 2]
    if on_dev:
        yield Chart(
            "Alignment against uniformity on dev",
            trajectory_chart(
                [(line.dev_geometry["uniformity"], line.dev_geometry["alignment"]) for line in on_dev],
                on_dev[0].step,
            ),
            "Low alignment: pairs above four fifths of the highest score are close; low uniformity: all "
            "sentences are spread out. Measured with the score, on the encoder's vectors without dropout.",
        )
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
            "Tokens of all views on all workers; the time includes waiting for batches.",
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
    """Return (step, value) of the lines that have the metric `name`."""
    return [(float(line.step), float(value)) for line in lines if (value := getattr(line, name)) is not None]
