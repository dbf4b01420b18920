"""Types of the values that the page of an evaluation shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup

from pipeline.evaluate.bootstrap import ScoreEstimate


@dataclass(frozen=True)
class EvaluatedCandidate:
    """An evaluated encoder with its transform."""

    name: str
    """displayed name"""
    encoder: str
    """path or name of the encoder"""
    dim: int
    """dimension of its vectors"""
    space_id: str
    """id of its vector space"""
    transform: str | None = None
    """description of the transform, or None"""
    transform_id: str | None = None
    """id of the transform, or None"""
    numerics: Mapping[str, int] = field(default_factory=dict)
    """number of sentence vectors by the `numerics_id` of the arithmetic that computed them"""
    bytes: int = 0
    """size of the encoder's files"""
    width: int = 0
    """dimension after the transform"""
    sentences_per_s: float | None = None
    """speed of one worker; None if it was never measured"""


@dataclass(frozen=True)
class TaskRow:
    """Results of all candidates on a task."""

    task: str
    """name of the task"""
    kind: str
    """kind of task, such as sts"""
    metric: str
    """name of the metric, followed by its options, separated by commas"""
    count: int
    """number of pairs, texts or queries"""
    scores: tuple[ScoreEstimate, ...]
    """one score for each candidate"""
    differences: tuple[ScoreEstimate | None, ...]
    """difference of each candidate from the first; None for the first"""
    further_metrics: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """name -> one value for each candidate"""
    shared_facts: Mapping[str, str] = field(default_factory=dict)
    """name -> text, the same for all candidates"""
    differing_facts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """name -> one text for each candidate"""
    description: str = ""
    """explanation of the kind of task"""


@dataclass(frozen=True)
class DifferingPair:
    """Two sentences with a gold score, and their similarities and ranks by two candidates."""

    left: str
    """first sentence"""
    right: str
    """second sentence"""
    gold: str
    """human score"""
    similarities: tuple[float, float]
    """by each candidate"""
    ranks: tuple[float, float]
    """proportion of pairs that are less similar, by each candidate"""


@dataclass(frozen=True)
class Disagreement:
    """Pairs of a task whose ranks by two candidates differ most."""

    task: str
    first: str
    other: str
    pairs: tuple[DifferingPair, ...]


@dataclass(frozen=True)
class AverageRow:
    """An average over several tasks."""

    label: str
    """name of the average, with its tasks"""
    members: tuple[str, ...]
    """names of the tasks"""
    complete: bool
    """True if no task of the average is missing"""
    scores: tuple[ScoreEstimate, ...]
    """one average for each candidate"""
    differences: tuple[ScoreEstimate | None, ...]
    """difference of each candidate from the first; None for the first"""


@dataclass(frozen=True)
class RetrievedText:
    """A text that a search returned, and whether it is relevant to the query."""

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
