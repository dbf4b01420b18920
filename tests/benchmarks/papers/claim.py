"""Types of claims: a published table, how each of its rows is run, and the orderings that it claims."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """One training by `manta train`.

    Attributes:
        config: name of a file in jobs/configs/train: the settings of the paper.
        data: name of the training rows; see `data.SOURCES`.
        settings: settings that differ from the file, by their dotted keys.
        rate: learning rate; None for that of the file. The rates of files are for large pretrained models.
        rows: rows of a batch.
        steps: number of steps, relative to those of the command.
        after: training whose product is the start; None for the common start.
        start: which start; "new" if the settings ask for a new encoder.
        max_steps: number of steps, whatever those of the command; None for those.
    """

    config: str
    data: str
    settings: Settings = field(default_factory=dict)
    rate: float | None = 1e-4
    rows: int = 32
    steps: float = 1.0
    after: "Training | None" = None
    start: Literal["english", "chinese", "new"] = "english"
    max_steps: int | None = None


@dataclass(frozen=True)
class Row:
    """One row of a table.

    Attributes:
        name: name of the row.
        published: published values in the order of the table's columns; None where the paper gives a figure
            or words.
        training: None if nothing is trained.
        encoder: settings of the encoder in the evaluation, such as its pooling.
        fit: settings of a transform that is fitted for the task, as in `evaluate.candidates`.
        layer: number of the layer that the columns measure; None for the sentence vectors.
    """

    name: str
    published: tuple[float | None, ...] = ()
    training: Training | None = None
    encoder: Settings = field(default_factory=dict)
    fit: Settings | None = None
    layer: int | None = None

    @property
    def start(self) -> str:
        """Name of the start that the row needs."""
        return "english" if self.training is None else self.training.start


@dataclass(frozen=True)
class Claim:
    """A claimed ordering: row `above` has a greater value than row `below`."""

    above: str
    below: str
    column: str


@dataclass(frozen=True)
class Table:
    """A published table.

    Attributes:
        key: name of the table in the results and on the command line.
        paper: authors and year.
        source: the table of the paper, and what its numbers are.
        columns: what is measured here; see `measure.COLUMNS`. Other names are tasks of `manta evaluate`.
        rows: the rows.
        claims: orderings that the paper claims.
    """

    key: str
    paper: str
    source: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...]

    def row(self, name: str) -> Row:
        """Return the row of that name."""
        return next(row for row in self.rows if row.name == name)

    @property
    def cost(self) -> int:
        """Number of trainings."""
        return len({row.name for row in self.rows if row.training is not None})


def first_is_above(column: str, *names: str) -> tuple[Claim, ...]:
    """Return the claims that the first of the rows is above every other row."""
    return tuple(Claim(names[0], other, column) for other in names[1:])


def falling(column: str, *names: str) -> tuple[Claim, ...]:
    """Return the claims that each of the rows is above the next one."""
    return tuple(Claim(above, below, column) for above, below in pairwise(names))


def trainings(training: Training | None) -> Iterator[Training]:
    """Yield a training after those that it starts from."""
    if training is not None:
        yield from trainings(training.after)
        yield training
