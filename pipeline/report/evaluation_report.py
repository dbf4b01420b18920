"""Types of the values that the page of an evaluation shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from pipeline.evaluate.bootstrap import ScoreEstimate


@dataclass(frozen=True)
class EvaluatedCandidate:
    """An evaluated encoder with its transform.

    Attributes:
        name: displayed name.
        encoder: path or name of the encoder.
        dim: dimension of its vectors.
        space_id: id of its vector space.
        transform: description of the transform, or None.
        transform_id: id of the transform, or None.
        numerics: number of sentence vectors by the `numerics_id` of the arithmetic that computed them.
        bytes: size of the encoder's files.
        width: dimension after the transform.
        sentences_per_s: speed of one worker; None if it was never measured.
    """

    name: str
    encoder: str
    dim: int
    space_id: str
    transform: str | None = None
    transform_id: str | None = None
    numerics: Mapping[str, int] = field(default_factory=dict)
    bytes: int = 0
    width: int = 0
    sentences_per_s: float | None = None


@dataclass(frozen=True)
class TaskRow:
    """Results of all candidates on a task.

    Attributes:
        task: name of the task.
        kind: kind of task, such as sts.
        metric: name of the metric, followed by its options, separated by commas.
        count: number of pairs, texts or queries.
        scores: one score for each candidate.
        differences: difference of each candidate from the first; None for the first.
        further_metrics: name -> one value for each candidate.
        shared_facts: name -> text, the same for all candidates.
        differing_facts: name -> one text for each candidate.
        description: explanation of the kind of task.
    """

    task: str
    kind: str
    metric: str
    count: int
    scores: tuple[ScoreEstimate, ...]
    differences: tuple[ScoreEstimate | None, ...]
    further_metrics: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    shared_facts: Mapping[str, str] = field(default_factory=dict)
    differing_facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    description: str = ""


@dataclass(frozen=True)
class DifferingPair:
    """Two sentences with a gold score, and their similarities and ranks by two candidates.

    Attributes:
        left: first sentence.
        right: second sentence.
        gold: human score.
        similarities: by each candidate.
        ranks: proportion of pairs that are less similar, by each candidate.
    """

    left: str
    right: str
    gold: str
    similarities: tuple[float, float]
    ranks: tuple[float, float]


@dataclass(frozen=True)
class Disagreement:
    """Pairs of a task whose ranks by two candidates differ most."""

    task: str
    first: str
    other: str
    pairs: tuple[DifferingPair, ...]


@dataclass(frozen=True)
class AverageRow:
    """An average over several tasks.

    Attributes:
        label: name of the average, with its tasks.
        members: names of the tasks.
        complete: True if no task of the average is missing.
        scores: one average for each candidate.
        differences: difference of each candidate from the first; None for the first.
    """

    label: str
    members: tuple[str, ...]
    complete: bool
    scores: tuple[ScoreEstimate, ...]
    differences: tuple[ScoreEstimate | None, ...]


@dataclass(frozen=True)
class RetrievedText:
    """A target that a search returned, and whether it is relevant to the query."""

    text: str
    is_relevant: bool


@dataclass(frozen=True)
class RetrievalExample:
    """The nearest targets of a query by two candidates, nearest first."""

    task: str
    candidates: tuple[str, str]
    query: str
    first: tuple[RetrievedText, ...]
    other: tuple[RetrievedText, ...]


@dataclass(frozen=True)
class Chart:
    """A chart with heading, note, and key of its colours."""

    heading: str
    svg: Markup
    note: str = ""
    key: str | Markup = ""


@dataclass(frozen=True)
class Section:
    """A further section of the page, such as the geometry of the space; the table has a header row."""

    heading: str
    charts: tuple[Chart, ...] = ()
    table: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    has_texts: bool = False
    """cells of the table are texts, not numbers"""


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """Values of the page; empty ones are left out."""

    root: str
    id: str
    created: str | None = None
    candidates: tuple[EvaluatedCandidate, ...]
    rows: tuple[TaskRow, ...] = ()
    averages: tuple[AverageRow, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    """(task, reason)"""
    warnings: tuple[str, ...] = ()
    resamples: int = 0
    disagreements: tuple[Disagreement, ...] = ()
    sections: tuple[Section, ...] = ()
    settings: str = ""
    """YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)
