"""Charts of the page of a training."""

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from pipeline.charts import frame
from pipeline.charts.geometry import colour
from pipeline.charts.training import POINTS, Points, StepAxis, course_chart, curves_chart, dev_chart, rate
from pipeline.report.evaluation import Chart
from pipeline.report.training_report import TrainingReport
from pipeline.settings.training import TrainSettings
from pipeline.train.metrics_line import MetricsLine


def sections(report: TrainingReport) -> list[tuple[str, list[Chart]]]:
    """Return (heading, charts) of the metrics that exist."""
    steps = StepAxis(report.steps)
    marked = replace(steps, resumed=tuple(float(step) for step, _ in report.resumed if step))
    found = [
        ("Learning", _learning(report, marked)),
        ("Vectors", _vectors(report, steps)),
        ("Steps", _step_charts(report, steps)),
    ]
    return [(heading, charts) for heading, charts in found if charts]


def _learning(report: TrainingReport, steps: StepAxis) -> list[Chart]:
    charts, dev = [], report.dev
    if dev:
        points = _points(report.lines, "dev")
        name = f"{report.measure.capitalize()} on dev"
        charts.append(
            Chart(
                name,
                dev_chart(points, dev["best"].step, steps, name),
                "Larger is better; over all pairs of the file.",
            )
        )
    curves = {"loss": _points(report.lines, "loss")}
    parts = list(dict.fromkeys(name for line in report.lines for name in line.parts))
    if len(parts) > 1:
        curves |= {
            name: [(float(line.step), line.parts[name]) for line in report.lines if name in line.parts]
            for name in parts
        }
    if curves["loss"]:
        charts.append(
            Chart(
                "Loss",
                curves_chart(list(curves.values()), steps, "Loss"),
                _smoothing_note(curves["loss"]),
                _key(list(curves)) if len(curves) > 1 else "",
            )
        )
    return charts


def _vectors(report: TrainingReport, steps: StepAxis) -> list[Chart]:
    charts, lines = [], report.lines
    placed = [line for line in lines if line.uniformity is not None and line.alignment is not None]
    course = [(line.uniformity or 0.0, line.alignment or 0.0) for line in placed]
    if course:
        note = (
            "Low alignment: positives are close; low uniformity: texts are spread out. Vectors of the "
            "training, with dropout."
        )
        charts.append(Chart("Alignment against uniformity", course_chart(course, placed[0].step), note))
    elif spread := _points(lines, "uniformity"):
        charts.append(
            Chart(
                "Uniformity",
                curves_chart([spread], steps, "Uniformity"),
                "The lower, the more evenly texts are spread out.",
            )
        )
    cosines = {"positives": _points(lines, "positive_cosine"), "negatives": _points(lines, "negative_cosine")}
    if all(cosines.values()):
        chart = curves_chart(list(cosines.values()), steps, "Mean cosines of positives and negatives")
        charts.append(
            Chart(
                "Mean cosine of positives and of negatives",
                chart,
                "The farther apart, the better positives are distinguished from negatives.",
                _key(list(cosines)),
            )
        )
    return charts


def _step_charts(report: TrainingReport, steps: StepAxis) -> list[Chart]:
    lines, charts = report.lines, []
    for name, heading, note in (
        ("learning_rate", "Learning rate", ""),
        ("gradient_norm", "Norm of the gradient", _clipping(report.settings)),
    ):
        if points := _points(lines, name):
            clip = report.settings.optimizer.clip if name == "gradient_norm" else None
            level = (
                (clip, f"clipped to {clip:g}")
                if clip is not None and clip < 1.5 * max(y for _, y in points)
                else None
            )
            charts.append(
                Chart(
                    heading,
                    curves_chart(
                        [points],
                        steps,
                        heading,
                        floor=0.0,
                        level=level,
                        label=rate if name == "learning_rate" else frame.compact,
                    ),
                    note,
                )
            )
    if points := _points(lines, "tokens_per_s"):
        charts.append(
            Chart(
                "Tokens per second",
                curves_chart([points], steps, "Tokens per second", floor=0.0),
                "On all workers, tokens of all views, including waiting.",
            )
        )
    if points := _points(lines, "waiting"):
        charts.append(
            Chart(
                "Proportion of time waiting for a batch",
                curves_chart(
                    [points], steps, "Proportion of time waiting for a batch", floor=0.0, label=frame.percent
                ),
            )
        )
    return charts


def _clipping(settings: TrainSettings) -> str:
    clip = settings.optimizer.clip
    return "Not clipped." if clip is None else f"Before clipping to {clip:g}."


def _smoothing_note(points: Points) -> str:
    if len(points) <= POINTS:
        return ""
    return f"Median of {-(-len(points) // POINTS)} records at each point; all of them faintly behind."


def _points(lines: Sequence[MetricsLine], name: str) -> list[tuple[float, float]]:
    return [(float(line.step), float(value)) for line in lines if (value := getattr(line, name)) is not None]


def _key(names: Sequence[str]) -> Markup:
    """Return the key of the colours."""
    parts = (
        Markup('<span class="series"><span class="key {}"></span>{}</span>').format(colour(number), name)
        for number, name in enumerate(names)
    )
    return Markup(" ").join(parts)
