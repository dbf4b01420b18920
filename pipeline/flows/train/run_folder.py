"""The folder of a training: what defines it, under which name, and what it has come to."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.settings.training import PairSettings, TrainSettings
from pipeline.store.base import Store, room
from pipeline.store.store import open_store
from pipeline.store.units import Stored
from pipeline.text.corpus.sources import SourceFile
from pipeline.text.rows.pairs import training_files

RUN, RESULT, METRICS, CHECKPOINTS, ENCODER, REPORT = (
    "run.json",
    "result.json",
    "metrics.jsonl",
    "checkpoints",
    "encoder",
    "report.html",
)
_VERSION = "training-1"  # changes with any change of the training that changes bits
_SHAPES_NOTHING = {"root", "name", "data", "workers", "threads", "failures", "checkpoint", "watch"}
_NAME = re.compile(r"[\w][\w.+=-]*")
_LAST = "config.json"  # of an encoder: written behind all others
_DIGITS = 12  # of a name that is made
_SHOWN = 60  # characters of a value in an error


class RunRecord(Stored):
    """What a training folder was begun for; created once."""

    name: str
    digest: str
    definition: dict[str, Any]
    """settings and identities of encoder and files: equal ones give equal trainings"""
    encoder: str
    """what it starts from, as it was named"""
    counts: tuple[dict[str, int], ...]
    """rows of each source: in the files, and of them left out"""
    sources: tuple[str, ...] = ()
    """URIs of what was read; of a folder of manifests the one that was the newest"""
    steps_per_epoch: int
    steps: int


class ResultRecord(Stored):
    """What a training came to; created last."""

    name: str
    digest: str
    space_id: str
    """of the encoder in the folder `encoder`"""
    steps: int
    """that were made; fewer than the plan's where dev or the learning rate ended the training"""
    best_step: int | None = None
    """whose weights the encoder has, where that was chosen by dev"""
    figures: dict[str, float] = {}
    """dev: the best one; without dev same_rows (how many were measured before the first step and after the
    last) and their start_loss, end_loss and so on"""
    ended: str = ""
    """why before the planned steps, in a sentence"""


@dataclass(frozen=True)
class RunFolder:
    """The folder below train.root; `store` begins there."""

    name: str
    store: Store
    definition: dict[str, Any]

    @property
    def digest(self) -> str:
        """sha256 (hex) of what defines the training."""
        return digest_of(self.definition)

    @property
    def encoder(self) -> str:
        """Where the trained encoder is, or will be."""
        return self.store.uri_of(ENCODER)

    @property
    def report(self) -> str:
        """Where the page of the training is, or will be."""
        return self.store.uri_of(REPORT)

    def record(self) -> RunRecord:
        """What the training was begun for. DataError where that is not to be read."""
        record = RunRecord.load(self.store, RUN)
        if record is None:
            raise DataError(
                self.store.uri_of(RUN),
                "the record of the training",
                "no such file",
                "it was deleted while the training ran: run the command again",
            )
        return record

    def result(self) -> ResultRecord | None:
        """What the training came to; None while it has not ended, and when its encoder is not there any more: the last checkpoints make it again."""
        return ResultRecord.left(self.store, RESULT) if self.store.exists(f"{ENCODER}/{_LAST}") else None

    def ended(self) -> ResultRecord:
        """What the training came to, once its workers are done."""
        result = self.result()
        assert result is not None, "the first rank ends with it"
        return result

    def begin(self, record: RunRecord) -> bool:
        """Create the record; False where it is there already, of an equal training. ConfigError as `check`."""
        self.check()
        created = self.store.create(RUN, record.to_json())
        if not created and RunRecord.left(self.store, RUN) is None:
            self.store.write(RUN, record.to_json())  # what a killed run left of it
        return created

    def check(self) -> None:
        """ConfigError where the folder is another training's, with the keys that differ, or is none of a training at all, or cannot be one."""
        with room(self.store.uri):
            record = RunRecord.left(self.store, RUN)
        if record is None:
            if strangers := [entry.path for entry in self.store.list() if entry.path != RUN]:
                raise ConfigError(
                    self.store.uri,
                    "the folder of a training, or none",
                    f"{strangers[0]} and no {RUN}",
                    "set train.name or train.root to another place",
                )
        elif record.digest != self.digest:
            differing = list(_differing(record.definition, self.definition))
            remedy = "give these as they were (workers, threads, cluster, checkpoint and watch may change), or another train.name"
            raise ConfigError(
                f"train.name {self.name}",
                "the settings that this training began with",
                "; ".join(differing) or "another version of the program",
                remedy,
            )


def open_run(settings: TrainSettings, encoder: EncoderFolder) -> RunFolder:
    """The folder of that training. ConfigError for a name that cannot be one; DataError where there are no files."""
    definition = {
        "version": _VERSION,
        "encoder": {"space_id": encoder.space_id},
        "train": settings.model_dump(mode="json", exclude=_shapes_nothing(settings)),
        "data": [_identity(source, training_files(source.uri)) for source in settings.data],
        "dev": [_stamp(file) for file in training_files(settings.dev.uri)] if settings.dev.uri else [],
    }
    name = (
        _checked(settings.name)
        if settings.name is not None
        else f"{'-'.join(one.name for one in settings.objective)}-{digest_of(definition)[:_DIGITS]}"
    )
    return RunFolder(name, open_store(f"{open_store(settings.root).uri}/{name}"), definition)


def _shapes_nothing(settings: TrainSettings) -> dict[str, Any]:
    """How dev is measured is left out where it is by Spearman: what began before there was the choice is to be found again."""
    return dict.fromkeys(_SHAPES_NOTHING, True) | (
        {"dev": {"measure"}} if settings.dev.measure == "spearman" else {}
    )


def _identity(source: PairSettings, files: list[SourceFile]) -> dict[str, Any]:
    return source.defining("uri") | {"files": [_stamp(file) for file in files]}


def _stamp(file: SourceFile) -> list[Any]:
    return [file.name, file.size, file.stamp]


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "train.name",
            "letters, digits and . _ - + =, for a folder",
            repr(name),
            "choose another name, or null for one that is made",
        )
    return name


def _differing(old: Any, new: Any, key: str = "") -> Iterator[str]:
    """Each key at which two trees differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            yield from _differing(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for place, (before, now) in enumerate(zip(old, new, strict=True)):
            yield from _differing(before, now, f"{key}[{place}]")
    elif old != new:
        yield f"{key} is {str(new)[:_SHOWN]} and was {str(old)[:_SHOWN]}"
