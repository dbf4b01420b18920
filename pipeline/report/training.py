"""The page of a training: what was trained on what, how it went, and what came of it; one HTML file, no network, no script."""

import inspect
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from markupsafe import Markup

from pipeline.charts import frame
from pipeline.charts.geometry import colour
from pipeline.charts.training import POINTS, Points, Steps, curves_chart, dev_chart, rate, way_chart
from pipeline.models.folder.folder import MASKED, EncoderFolder
from pipeline.models.folder.modules import SENTENCE_TRANSFORMERS_MODES, Denoise, Dense
from pipeline.report.course import ends, on_same_rows
from pipeline.report.evaluation import Chart
from pipeline.report.page import fill
from pipeline.report.signs import warnings
from pipeline.settings.training import ObjectiveSettings, TrainSettings
from pipeline.train.metrics_line import MetricsLine

_ANY = 1_000_000_000  # scores of any scale: ranks alone count


@dataclass(frozen=True)
class Source:
    """Files that were trained on. rows: in them; unlabelled, missing: of these, left out without a label, or without a text."""

    uri: str
    rows: int
    unlabelled: int = 0
    weight: int = 1
    missing: int = 0

    @property
    def used(self) -> int:
        """Rows that were trained on."""
        return self.rows - self.unlabelled - self.missing


@dataclass(frozen=True)
class Product:
    """The encoder that came of it.

    head: whether a layer of the objective stays behind the encoder; prompt, template: what stands before every text, or around it; elsewhere: whether
    sentence-transformers and embedding servers have a name for every part of it, and load it; trusted: whether the former does with the folder's own module file.
    """

    space_id: str
    dim: int
    max_length: int
    pooling: tuple[str, ...]
    normalized: bool
    head: bool = False
    prompt: str = ""
    template: str = ""
    elsewhere: bool = True
    trusted: bool = False

    @classmethod
    def of(cls, folder: EncoderFolder, *, head: bool) -> "Product":
        """What a saved folder says."""
        pooling = folder.pooling or tuple(
            dict.fromkeys(name for part in folder.parts for name in part.pooling)
        )
        named = set(pooling) <= set(SENTENCE_TRANSFORMERS_MODES.values()) and all(
            isinstance(module, Dense | str) for module in folder.tail
        )
        elsewhere = named and not (
            folder.whole_words or folder.parts or folder.template or folder.ends_sentences
        )
        trusted, kept = (
            pooling == MASKED and not folder.ends_sentences,
            head or any(isinstance(module, Denoise) for module in folder.tail),
        )
        return cls(
            folder.space_id,
            folder.dim,
            folder.max_length,
            pooling,
            folder.normalize,
            kept,
            folder.prompt,
            folder.template or "",
            elsewhere,
            trusted,
        )


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the page and the model card say; whatever is empty is left out."""

    name: str
    uri: str
    """of the training's folder"""
    settings: TrainSettings
    encoder: str
    """what the training started from, by path or name"""
    start_space: str
    sources: tuple[Source, ...]
    steps: int
    """that were made"""
    planned: int
    steps_per_epoch: int
    lines: tuple[MetricsLine, ...]
    """of metrics.jsonl"""
    product: Product
    best_step: int | None = None
    """with the best figure on dev"""
    ended: str = ""
    """why before the planned steps, as half a sentence"""
    device: str = ""
    """what it ran on: "2 workers, CPU, 1 thread" """
    created: str | None = None
    doubts: tuple[str, ...] = ()
    """what the objective says of its settings"""
    settings_text: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def objective(self) -> str:
        """Names, with their weights where there are several."""
        terms = self.settings.objective
        return " + ".join(
            term.name if term.weight == 1 else f"{term.weight:g} x {term.name}" for term in terms
        )

    @property
    def kept_step(self) -> int:
        """After which the weights are those of the encoder."""
        return (
            self.best_step if self.best_step is not None and self.settings.dev.keep == "best" else self.steps
        )

    @property
    def rows(self) -> int:
        """That were trained on: those without a label, or left out without a text, are none of them."""
        return sum(source.used for source in self.sources)

    @property
    def seconds(self) -> float:
        """Of all steps, without measurements and checkpoints."""
        return sum(line.seconds for line in self.lines)

    @property
    def resumed(self) -> tuple[tuple[int, int], ...]:
        """(step, times) of each place where the training was begun anew."""
        return tuple((line.step, line.resumed) for line in self.lines if line.resumed)

    @property
    def measure(self) -> str:
        """What the figure on dev is called."""
        return {"spearman": "Spearman x100", "accuracy": "accuracy, %"}[self.settings.dev.measure]

    @property
    def dev(self) -> dict[str, MetricsLine]:
        """The line before the first step, the best one and the last one, of those with a figure on dev."""
        measured = [line for line in self.lines if line.dev is not None]
        if not measured:
            return {}
        best = max(measured, key=lambda line: (line.dev or 0.0, -line.step))
        before = {"before": measured[0]} if measured[0].step == 0 else {}
        return before | {"best": best, "last": measured[-1]}

    @property
    def same_rows(self) -> int:
        """Rows that were measured before the first step and after the last; 0 if none were."""
        return int(max((line.same_rows.get("rows", 0) for line in self.lines), default=0))

    @property
    def unseen(self) -> bool:
        """Whether the rows that were measured are none of those that the training had seen by its end."""
        last = self.steps * self.settings.order.batch_rows + self.same_rows
        return len(self.sources) == 1 and last <= self.steps_per_epoch * self.settings.order.batch_rows


def render(report: Report) -> str:
    """The page, complete in itself (UTF-8). Every text from outside is escaped."""
    filters: dict[str, Callable[..., Any]] = {
        "figure": two_digits,
        "signed": _signed,
        "rate": rate,
        "plain": _plain,
        "options": options,
        "literal": repr,
        "three": _three_digits,
    }
    values = {
        "sections": sections(report),
        "verdict": verdict(report),
        "warnings": warnings(report),
        "ends": ends(report.lines),
        "same_rows": on_same_rows(report.lines),
    }
    return fill("training.html.j2", filters, report=report, comparison=comparison(report), **values)


def comparison(report: Report) -> str:
    """The command that compares the encoder with what it started from, ready for a shell; empty where no pairs with scores are known."""
    dev = report.settings.dev
    if dev.uri is None or dev.measure != "spearman":
        return ""
    start = [] if report.settings.recurrent.cell else [report.encoder]
    task = {
        "kind": "sts",
        "uri": dev.uri,
        **({"columns": dev.columns} if dev.columns else {}),
        "options": {"low": -_ANY, "high": _ANY},
    }
    given = {"evaluate.candidates": [*start, f"{report.uri}/encoder"], "evaluate.own": [task]}
    arguments = (
        f"{name}={yaml.safe_dump(value, default_flow_style=True, width=math.inf).strip()}"
        for name, value in given.items()
    )
    return shlex.join(["manta", "evaluate", *arguments])


def verdict(report: Report) -> str:
    """What was trained on what, and what came of it, in a sentence or two."""
    said = f"{report.objective} on {report.rows:,} rows, {report.steps:,} steps of {report.settings.order.batch_rows} rows."
    dev = report.dev
    if "before" not in dev:
        return said if dev else said + _without_dev(report)
    before, best = dev["before"].dev or 0.0, dev["best"].dev or 0.0
    if dev["best"].step == 0:
        return f"{said} On dev the encoder was best before the first step: {two_digits(before)}."
    return f"{said} On dev the encoder went from {two_digits(before)} to {two_digits(best)}."


def _without_dev(report: Report) -> str:
    """The first measure of the same rows at both ends, as a further sentence."""
    measures = on_same_rows(report.lines)
    if not measures:
        return ""
    first, rows = measures[0], f"the same {report.same_rows:,} rows"
    ends = f"{_three_digits(first.start)} to {_three_digits(first.end)}"
    return f" On {rows} the {first.name} went from {ends}."


def sections(report: Report) -> list[tuple[str, list[Chart]]]:
    """(heading, charts): those for which there are figures."""
    steps = Steps(report.steps)
    marked = replace(steps, resumed=tuple(float(step) for step, _ in report.resumed if step))
    found = [
        ("How it went", _learning(report, marked)),
        ("Its vectors", _vectors(report, steps)),
        ("Steps", _moves(report, steps)),
    ]
    return [(heading, charts) for heading, charts in found if charts]


def _learning(report: Report, steps: Steps) -> list[Chart]:
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
                _behind(curves["loss"]),
                _key(list(curves)) if len(curves) > 1 else "",
            )
        )
    return charts


def _vectors(report: Report, steps: Steps) -> list[Chart]:
    charts, lines = [], report.lines
    placed = [line for line in lines if line.uniformity is not None and line.alignment is not None]
    way = [(line.uniformity or 0.0, line.alignment or 0.0) for line in placed]
    if way:
        note = "Positives lie close where alignment is low, texts are spread out where uniformity is low. Of vectors as they were trained, with dropout."
        charts.append(Chart("Alignment against uniformity", way_chart(way, placed[0].step), note))
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
                "The further apart, the better they are told from each other.",
                _key(list(cosines)),
            )
        )
    return charts


def _moves(report: Report, steps: Steps) -> list[Chart]:
    lines, charts = report.lines, []
    for name, heading, note in (
        ("learning_rate", "Learning rate", ""),
        ("gradient_norm", "Norm of the gradient", _clipping(report.settings)),
    ):
        if points := _points(lines, name):
            clip = report.settings.optimizer.clip if name == "gradient_norm" else None
            level = (
                (clip, f"cut to {clip:g}")
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
                "Of all workers, tokens of all views, waiting included.",
            )
        )
    if points := _points(lines, "waiting"):
        charts.append(
            Chart(
                "Share of the time without a batch",
                curves_chart(
                    [points], steps, "Share of the time without a batch", floor=0.0, label=frame.percent
                ),
            )
        )
    return charts


def _clipping(settings: TrainSettings) -> str:
    clip = settings.optimizer.clip
    return "Never cut." if clip is None else f"Before it was cut to {clip:g}."


def _behind(points: Points) -> str:
    return (
        f"The median of {-(-len(points) // POINTS)} lines of figures at each point; all of them faintly behind."
        if len(points) > POINTS
        else ""
    )


def _points(lines: Sequence[MetricsLine], name: str) -> list[tuple[float, float]]:
    return [(float(line.step), float(value)) for line in lines if (value := getattr(line, name)) is not None]


def _key(names: Sequence[str]) -> Markup:
    """What the colours mean."""
    parts = (
        Markup('<span class="series"><span class="key {}"></span>{}</span>').format(colour(number), name)
        for number, name in enumerate(names)
    )
    return Markup(" ").join(parts)


def two_digits(value: float | None) -> str:
    """As correlations x100 are given; a true minus sign."""
    return "" if value is None else f"{value:.2f}".replace("-", "\u2212")


def _three_digits(value: float) -> str:
    return f"{value:.3g}".replace("e-0", "e-").replace("-", "\u2212")


def _plain(value: float) -> str:
    return f"{value:g}".replace("-", "\u2212")


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "\u2212") if round(value, 2) else "0.00"


def options(term: ObjectiveSettings) -> str:
    """temperature 0.05, head none: what was set, and the objective's defaults behind it."""
    from pipeline.objectives import OBJECTIVES  # here: it loads torch

    parameters = inspect.signature(OBJECTIVES[term.name]).parameters.values()
    usual = {
        each.name: each.default
        for each in parameters
        if each.kind is each.KEYWORD_ONLY and each.default is not each.empty and each.name not in term.options
    }
    return ", ".join(
        f"{name.replace('_', ' ')} {_said(value)}"
        for name, value in (term.options | usual).items()
        if value is not None
    )


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " and ".join(map(_said, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
