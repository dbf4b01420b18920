"""Run the rows of tables as `manta train` and `manta evaluate` do, and keep their results in a folder."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.command import named_configs
from pipeline.config import digest_of, load_settings
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.evaluate.report import facts_of
from pipeline.flows.train.train import train
from pipeline.log import Stages
from pipeline.settings import Job
from tests.benchmarks.papers.claim import Claim, Row, Table, Training
from tests.benchmarks.papers.data import COUNTS, NLI_TEXTS, Sources, nli_texts, read_of, token_counts
from tests.benchmarks.papers.measure import Column
from tests.benchmarks.papers.verdict import Comparison

_GEOMETRY = {"evaluate.geometry.sentences": 2_000, "evaluate.geometry.mev": "published"}
_FOLDS = 5  # of the transfer tasks: half of the published number, for time
_MEASURED = ("start_loss", "end_loss", "start_uniformity", "end_uniformity", "dev")


class NotRun(Exception):
    """Raised for a row that cannot be run here; the message is the reason."""


@dataclass(frozen=True)
class Values:
    """Results of a row: values of columns by seed, and what its trainings measured by seed."""

    columns: dict[str, dict[int, float]]
    training: dict[int, dict[str, float]]


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
        deadline: time, as of `time.monotonic`, after which no further row is begun.
    """

    folder: Path
    starts: Mapping[str, str]
    identities: Mapping[str, str]
    sources: Sources
    steps: int
    seeds: Sequence[int]
    deadline: float
    skipped: dict[str, str] = field(default_factory=dict)
    """reasons of rows that were not run, by table and row"""

    def run(self, table: Table, row: Row) -> None:
        """Train and measure a row with every seed; record a reason if that is not possible."""
        for seed in self.seeds:
            try:
                self._check(row)
                for column in table.columns:
                    self.value(row, column, seed)
            except NotRun as reason:
                self.skipped[f"{table.key}: {row.name}"] = str(reason)
                return

    def _check(self, row: Row) -> None:
        """Raise NotRun if the start of a row is missing, or if no time is left."""
        if row.start not in (*self.starts, "new"):
            raise NotRun(f"no {row.start} start was given")
        if time.monotonic() > self.deadline:
            raise NotRun("out of time")

    def value(self, row: Row, name: str, seed: int) -> float:
        """Return the value of a column, from the results of an earlier run if it has one."""
        column, candidate = Column.of(name), self.candidate(row, seed)
        sample = seed if column.metric else None  # the seed of a sample; tasks have none
        file = self._file([candidate, name, row.layer, sample])
        if not file.exists():
            facts = self._evaluate([candidate], column, seed, row)
            _write(file, {"row": row.name, "column": name, "value": column.value(facts, row.layer)})
        return float(_read(file)["value"])

    def interval(self, table: Table, claim: Claim, seed: int) -> tuple[float, float] | None:
        """Return the interval of the paired bootstrap of a claim's difference; None for other columns."""
        column = Column.of(claim.column)
        if column.metric is not None:
            return None
        rows = [table.row(name) for name in (claim.below, claim.above)]
        pair = [self.candidate(row, seed) | {"name": name} for row, name in zip(rows, "ba", strict=True)]
        if pair[0]["id"] == pair[1]["id"]:
            return 0.0, 0.0
        file = self._file([pair, claim.column])
        if not file.exists():
            found = column.interval(self._evaluate(pair, column, seed, rows[0]))
            _write(file, {"above": claim.above, "below": claim.below, "interval": found})
        low, high = _read(file)["interval"]
        return low, high

    def compare(self, table: Table, claim: Claim) -> Comparison:
        """Compare the rows of a claim; without values if a row was not run."""
        rows = [table.row(name) for name in (claim.above, claim.below)]
        if any(f"{table.key}: {row.name}" in self.skipped for row in rows):
            return Comparison((), ())
        above, below = ([self.value(row, claim.column, seed) for seed in self.seeds] for row in rows)
        trained = any(row.training is not None for row in rows) or Column.of(claim.column).metric
        seeds = self.seeds if trained else self.seeds[:1]
        found = [self.interval(table, claim, seed) for seed in seeds]
        return Comparison(above, below, [each for each in found if each is not None])

    def candidate(self, row: Row, seed: int) -> dict[str, Any]:
        """Train what the row needs; return a candidate of `manta evaluate`, with an `id` for results."""
        path = self.starts["english"] if row.training is None else self.product(row.training, seed)
        encoder = {name: self._resolved(value) for name, value in row.encoder.items()}
        space = self.identities["english"] if row.training is None else path
        made = {"id": [space, row.encoder, row.fit], "encoder": {"path": path, **encoder}}
        if row.fit is None:
            return made
        return made | {"fit": {**row.fit, "on": self._resolved(row.fit.get("on", "target"))}}

    def _resolved(self, value: Any) -> Any:
        """Replace the name of a file that is made here by its path."""
        if value == COUNTS:
            return token_counts(self.sources)
        return nli_texts(self.sources)["uri"] if value == NLI_TEXTS else value

    def product(self, training: Training, seed: int) -> str:
        """Return the path of the trained encoder, after training it unless an earlier run did."""
        settings = self._settings(training, seed)
        file = self._training_file(training, settings)
        if not file.exists():
            began = time.monotonic()
            job = load_settings(Job, named_configs()[f"train/{training.config}"], arguments(settings))
            ended = train(job, Stages())
            seconds = time.monotonic() - began
            facts = {"encoder": ended.run.encoder, "seconds": seconds, "steps": ended.result.steps}
            _write(file, facts | {"metrics": dict(ended.result.metrics), "settings": settings})
        return str(_read(file)["encoder"]).removeprefix("file://")

    def measured(self, row: Row, seed: int) -> dict[str, float]:
        """Return what the training of a row measured of itself, such as its loss before and after."""
        if row.training is None:
            return {}
        settings = self._settings(row.training, seed)
        metrics = _read(self._training_file(row.training, settings))["metrics"]
        return {name: metrics[name] for name in _MEASURED if name in metrics}

    def _settings(self, training: Training, seed: int) -> dict[str, Any]:
        """Return the settings of a training, after making its rows and its start."""
        start = self.starts.get(training.start)
        path = start if training.after is None else self.product(training.after, seed)
        read = read_of(training.data, self.sources)
        places = {"train.data": read, "train.root": str(self.folder / "trainings")}
        return places | training_settings(training, path, steps=self.steps, seed=seed)

    def _evaluate(
        self, candidates: Sequence[Mapping[str, Any]], column: Column, seed: int, row: Row
    ) -> dict[str, Any]:
        """Evaluate candidates on the tasks of a column, or their geometry."""
        named = [{key: value for key, value in each.items() if key != "id"} for each in candidates]
        settings: dict[str, Any] = {
            "evaluate.tasks": str(self.sources.data),
            "evaluate.names": list(column.tasks or ("STSB-dev",)),
            "evaluate.aggregation": column.aggregation,
            "evaluate.candidates": named,
            "evaluate.folds": _FOLDS,
            "evaluate.root": str(self.folder),
            "release.root": str(self.folder / "releases"),
        }
        if column.metric:
            settings |= _GEOMETRY | {"evaluate.geometry.seed": seed, "evaluate.bootstrap": 0}
        job = load_settings(Job, None, arguments(settings))
        return facts_of(evaluate(job, Stages(), geometry=column.metric is not None))

    def _training_file(self, training: Training, settings: Mapping[str, Any]) -> Path:
        return self._file([training.config, settings, self.identities.get(training.start)])

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
        "train.max_steps": max(1, round(steps * training.steps)),
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
