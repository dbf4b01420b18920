"""Run the rows of tables as `manta train` and `manta evaluate` do, and keep their results in a folder."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from jobs.command import named_configs
from pipeline.config import digest_of, load_settings
from pipeline.errors import PipelineError
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.evaluate.report import facts_of
from pipeline.flows.train.train import open_training
from pipeline.log import Stages
from pipeline.settings import Job
from tests.benchmarks.papers.claim import Claim, Row, Table, Training
from tests.benchmarks.papers.data import COUNTS, NLI_TEXTS, Sources, nli_texts, read_of, token_counts
from tests.benchmarks.papers.measure import Column
from tests.benchmarks.papers.verdict import Comparison
from tests.benchmarks.train_alone import train_alone

_GEOMETRY = {"evaluate.geometry.sentences": 2_000, "evaluate.geometry.mev": "published"}
_FOLDS = 5  # of the transfer tasks: half of the published number, for time


class NotRun(Exception):
    """Raised for a row that cannot be run here; the message is the reason."""


@dataclass
class Runner:
    """Runs rows with the settings of the command.

    Attributes:
        folder: results, trainings and evaluations; a second run continues from them.
        starts: path of each start by name.
        identities: space of each start by name, so that another start at the same path has other results.
        sources: where rows come from.
        steps: number of steps of a training.
        seeds: seeds of trainings and samples.
        trained: settings of all trainings, such as their precision, by their dotted keys.
        rate_factor: factor of the learning rates that are not those of the files.
        deadline: time, as of `time.monotonic`, after which no further row is begun.
        device: device of trainings: cpu or cuda. Evaluations run on the CPU.
    """

    folder: Path
    starts: Mapping[str, str]
    identities: Mapping[str, str]
    sources: Sources
    steps: int
    seeds: Sequence[int]
    trained: Mapping[str, Any]
    rate_factor: float
    deadline: float
    device: str = "cpu"
    skipped: dict[str, str] = field(default_factory=dict)
    """reasons of rows that were not run, by table and row"""
    facts: dict[tuple[str, ...], dict[str, Any]] = field(default_factory=dict)
    """answers of evaluations by their arguments, because several metrics are read from one answer"""

    def run(self, table: Table) -> None:
        """Train the rows of a table with every seed, then measure all of them together.

        A row that cannot be run, or for which no time is left, has its reason in `skipped`.
        """
        for row in table.rows:
            try:
                for seed in self.seeds:
                    self._check(table, row, seed)
                    self.candidate(row, seed)
            except (NotRun, PipelineError) as error:
                reason = " ".join(str(error).split())
                self.skipped[f"{table.key}: {row.name}"] = reason
                progress(f"not run: {row.name} ({reason})")
        for seed, name in product(self.seeds, table.columns):
            self._measure(table, name, seed)

    def rows(self, table: Table) -> list[Row]:
        """Return the rows of the table that were run."""
        return [row for row in table.rows if f"{table.key}: {row.name}" not in self.skipped]

    def _check(self, table: Table, row: Row, seed: int) -> None:
        """Raise NotRun if the start of a row is missing, or if no time is left to begin it."""
        if row.start not in (*self.starts, "new"):
            raise NotRun(f"no {row.start} start was given")
        began = row.training is not None and self._training_file(row.training, seed).exists()
        measured = all(self._place(row, name, seed).exists() for name in table.columns)
        if time.monotonic() > self.deadline and not began and not measured:
            raise NotRun("out of time")

    def _measure(self, table: Table, name: str, seed: int) -> None:
        """Evaluate the rows of a table on a column together, and store the values that are missing."""
        column = Column.of(name)
        rows = [row for row in self.rows(table) if not self._place(row, name, seed).exists()]
        if not rows:
            return
        others = [each for each in map(Column.of, table.columns) if each.aggregation == column.aggregation]
        tasks = column.tasks and tuple(dict.fromkeys(task for each in others for task in each.tasks))
        named = [self.candidate(row, seed) | {"name": row.name} for row in rows]
        facts = self._evaluate(named, column, seed, tasks)
        for row in rows:
            value = column.value(facts, row.name, row.layer)
            _write(self._place(row, name, seed), {"row": row.name, "column": name, "value": value})

    def _place(self, row: Row, name: str, seed: int) -> Path:
        """Return the file of a value."""
        sample = seed if Column.of(name).metric else None  # the seed of a sample; tasks have none
        space = self.identities["english"] if row.training is None else self._identity(row.training, seed)
        return self._file([[space, row.encoder, row.fit], name, row.layer, sample])

    def value(self, row: Row, name: str, seed: int) -> float:
        """Return the value of a column, which was measured before."""
        return float(_read(self._place(row, name, seed))["value"])

    def _interval(self, table: Table, claim: Claim, seed: int) -> tuple[float, float] | None:
        """Return the interval of the paired bootstrap of a claim's difference; None without a bootstrap."""
        column = Column.of(claim.column)
        if column.metric is not None:
            return None
        run = {row.name for row in self.rows(table)}
        below = dict.fromkeys(
            each.below
            for each in table.claims
            if (each.above, each.column) == (claim.above, claim.column) and each.below in run
        )
        rows = [table.row(name) for name in (claim.above, *below)]
        named = [self.candidate(row, seed) | {"name": row.name} for row in rows]
        low, high = column.interval(self._evaluate(named, column, seed, column.tasks), claim.below)
        return -high, -low  # the evaluation has the differences of the others from the first

    def compare(self, table: Table, claim: Claim) -> Comparison:
        """Compare the rows of a claim; without values if a row was not run."""
        rows = [table.row(name) for name in (claim.above, claim.below)]
        if any(row not in self.rows(table) for row in rows):
            return Comparison((), ())
        above, below = ([self.value(row, claim.column, seed) for seed in self.seeds] for row in rows)
        trained = any(row.training is not None for row in rows)
        intervals = [
            self._interval(table, claim, seed) for seed in (self.seeds if trained else self.seeds[:1])
        ]
        return Comparison(above, below, [each for each in intervals if each is not None])

    def candidate(self, row: Row, seed: int) -> dict[str, Any]:
        """Train what the row needs; return it as a candidate of `manta evaluate`."""
        path = self.starts["english"] if row.training is None else self.product(row.training, seed)
        encoder = {name: self._resolved(value) for name, value in row.encoder.items()}
        if row.fit is None:
            return {"encoder": {"path": path, **encoder}}
        fit = {**row.fit, "on": self._resolved(row.fit.get("on", "target"))}
        return {"encoder": {"path": path, **encoder}, "fit": fit}

    def _resolved(self, value: Any) -> Any:
        """Replace the name of a file that is made here by its path."""
        if value == COUNTS:
            return token_counts(self.sources)
        return nli_texts(self.sources)["uri"] if value == NLI_TEXTS else value

    def product(self, training: Training, seed: int) -> str:
        """Return the path of the trained encoder, after training it unless an earlier run did."""
        file = self._training_file(training, seed)
        if not file.exists():
            settings, began = self._settings(training, seed), time.monotonic()
            job = load_settings(Job, named_configs()[f"train/{training.config}"], arguments(settings))
            run, result = train_alone(job, self.device)
            facts = {"encoder": run.encoder, "seconds": time.monotonic() - began, "steps": result.steps}
            facts["initial"] = open_training(job)[0].encoder.path
            _write(file, facts | {"metrics": dict(result.metrics), "settings": settings})
        return str(_read(file)["encoder"]).removeprefix("file://")

    def initial(self, training: Training, seed: int) -> str:
        """Return the path of the encoder before the first step: for new encoders, random weights."""
        self.product(training, seed)
        return str(_read(self._training_file(training, seed))["initial"])

    def seconds(self, training: Training, seed: int) -> float:
        """Return the wall time of a training."""
        return float(_read(self._training_file(training, seed))["seconds"])

    def measured(self, training: Training, seed: int) -> dict[str, float]:
        """Return what a training measured of itself, such as the loss of the same rows before and after."""
        metrics = _read(self._training_file(training, seed))["metrics"]
        return {name: float(value) for name, value in metrics.items()}

    def _settings(self, training: Training, seed: int) -> dict[str, Any]:
        """Return the settings of a training, after making its rows and its start."""
        start = self.starts.get(training.start)
        path = start if training.after is None else self.product(training.after, seed)
        read = read_of(training.data, self.sources)
        places = {"train.data": read, "train.root": str(self.folder / "trainings")}
        return places | self._own_settings(training, path, seed)

    def _evaluate(
        self, candidates: Sequence[Mapping[str, Any]], column: Column, seed: int, tasks: Sequence[str]
    ) -> dict[str, Any]:
        """Evaluate candidates on tasks, or their geometry if the column has a metric."""
        settings: dict[str, Any] = {
            "evaluate.tasks": str(self.sources.data),
            "evaluate.names": list(tasks or ("STSB-dev",)),
            "evaluate.aggregation": column.aggregation,
            "evaluate.candidates": list(candidates),
            "evaluate.folds": _FOLDS,
            "evaluate.root": str(self.folder),
            "release.root": str(self.folder / "releases"),
        }
        if column.metric:
            settings |= _GEOMETRY | {"evaluate.geometry.seed": seed, "evaluate.bootstrap": 0}
        given = arguments(settings)
        if given not in self.facts:
            job = load_settings(Job, None, given)
            self.facts[given] = facts_of(evaluate(job, Stages(), geometry=column.metric is not None))
        return self.facts[given]

    def _training_file(self, training: Training, seed: int) -> Path:
        return self._file(self._identity(training, seed))

    def _identity(self, training: Training, seed: int) -> Any:
        """Return what a training depends on, without its paths, so that nothing has to be made to know it."""
        start = self.identities.get(training.start)
        first = start if training.after is None else self._identity(training.after, seed)
        return [training.config, training.data, self._own_settings(training, None, seed), first]

    def _own_settings(self, training: Training, start: str | None, seed: int) -> dict[str, Any]:
        """Return the settings of a training, without its rows."""
        settings = training_settings(training, start, steps=self.steps, seed=seed)
        if training.rate is not None:
            settings["train.optimizer.learning_rate"] = self.rate_factor * training.rate
        return {**self.trained, **settings}

    def _file(self, identity: Any) -> Path:
        return self.folder / "results" / f"{digest_of(identity)[:24]}.json"


def training_settings(training: Training, start: str | None, *, steps: int, seed: int) -> dict[str, Any]:
    """Return the settings of a training that differ from its file, by their dotted keys, without its rows.

    Args:
        training: the training.
        start: path of the encoder that it starts from; None for a new one.
        steps: number of steps of most trainings.
        seed: seed of weights, dropout and order.
    """
    settings: dict[str, Any] = {
        "train.epochs": 1_000.0,
        "train.max_steps": training.max_steps or max(1, round(steps * training.steps)),
        "train.seed": seed,
        "train.order.seed": seed,
        "train.order.batch_rows": training.rows,
        "train.checkpoint": {"steps": None, "minutes": 15.0},
    }
    if training.rate is not None:
        settings["train.optimizer.learning_rate"] = training.rate
    if start is not None:
        settings["encoder.path"] = start
    return settings | dict(training.settings)


def arguments(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return settings as arguments of a command, key.path=value."""
    return tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())


def progress(text: str) -> None:
    """Print a line on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1, default=str), encoding="utf-8")
    part.rename(file)


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found
