"""The folder of a training: its definition, its name, and its records."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.settings.training import TrainSettings
from pipeline.store.base import Store, room
from pipeline.store.store import open_store
from pipeline.store.stored import Stored
from pipeline.text.rows.pairs import training_files

RUN, RESULT, METRICS = "run.json", "result.json", "metrics.jsonl"
CHECKPOINTS, ENCODER, REPORT = "checkpoints", "encoder", "report.html"
_VERSION = "training-1"  # increased by every change of the code that changes bits of the result
_DEFINES_NOTHING = {"root", "name", "data", "workers", "threads", "failures", "checkpoint", "watch"}
_NAME = re.compile(r"[\w][\w.+=-]*")
_LAST = "config.json"  # the file of an encoder that is written last
_READS = "sentence_bert_config.json"  # the file of an encoder with its max_seq_length
_DIGITS = 12  # of the hash in a generated name
_SHOWN = 60  # characters of a value in an error


class RunRecord(Stored):
    """The definition of a training; created once."""

    name: str
    digest: str
    definition: dict[str, Any]
    """settings, and identities of encoder and files: equal definitions give equal trainings"""
    encoder: str
    """encoder that training starts from, as in the settings"""
    counts: tuple[dict[str, int], ...]
    """for each source: rows in the files, and rows left out by reason"""
    sources: tuple[str, ...] = ()
    """URIs of the rows; for a folder of manifests, the URI of the manifest that is read"""
    steps_per_epoch: int
    steps: int


class ResultRecord(Stored):
    """The result of a training; created last."""

    name: str
    digest: str
    space_id: str
    """of the encoder in the folder `encoder`"""
    steps: int
    """steps taken; fewer than planned if dev or the learning rate ended the training"""
    best_step: int | None = None
    """step of the encoder's weights, if dev chose it"""
    figures: dict[str, float] = {}
    """dev: the best score; without a dev set same_rows (rows measured before the first step and after the
    last) and their start_loss, end_loss and so on"""
    ended: str = ""
    """reason for ending before the planned steps, as a sentence"""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one training below train.root, with a store that is rooted there."""

    name: str
    store: Store
    definition: dict[str, Any]

    @property
    def digest(self) -> str:
        """Return the hexadecimal sha256 of the definition."""
        return digest_of(self.definition)

    @property
    def encoder(self) -> str:
        """Return the URI of the trained encoder, present or future."""
        return self.store.uri_of(ENCODER)

    @property
    def report(self) -> str:
        """Return the URI of the report, present or future."""
        return self.store.uri_of(REPORT)

    def record(self) -> RunRecord:
        """Load the definition that the training began with. Raises DataError if it is missing or invalid."""
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
        """Load the result; None before the end of the training, and if its encoder was deleted.

        In the second case the training makes the encoder again from its last checkpoints.
        """
        return (
            ResultRecord.load_intact(self.store, RESULT) if self.store.exists(f"{ENCODER}/{_LAST}") else None
        )

    def encoder_length(self) -> int | None:
        """Return the number of tokens of a text that the trained encoder reads; None if it is missing."""
        for file in self.store.list(ENCODER, _READS):  # encoders side by side have one each, all alike
            length: int | None = json.loads(self.store.read(file.path)).get("max_seq_length")
            return length
        return None

    def ended(self) -> ResultRecord:
        """Return the result after the workers have ended."""
        result = self.result()
        assert result is not None, "the first rank stores it last"
        return result

    def begin(self, record: RunRecord) -> None:
        """Create the record, unless an equal training has created it. Raises ConfigError as `check`."""
        self.check()
        if not self.store.create(RUN, record.to_json()) and RunRecord.load_intact(self.store, RUN) is None:
            self.store.write(RUN, record.to_json())  # replace the truncated record of a killed run

    def check(self) -> None:
        """Check that the folder belongs to this training, or is empty.

        Raises:
            ConfigError: it belongs to another training (the message has the keys that differ), has files but
                no record, or is not usable as a folder.
        """
        with room(self.store.uri):
            record = RunRecord.load_intact(self.store, RUN)
        if record is None:
            if strangers := [entry.path for entry in self.store.list() if entry.path != RUN]:
                raise ConfigError(
                    self.store.uri,
                    "the folder of a training, or an empty one",
                    f"{strangers[0]} and no {RUN}",
                    "set train.name or train.root to another folder",
                )
        elif record.digest != self.digest:
            raise ConfigError(
                f"train.name {self.name}",
                "the settings that this training began with",
                "; ".join(_differing(record.definition, self.definition)) or "another version of the program",
                "set these as they were (workers, threads, cluster, checkpoint and watch may change), "
                "or another train.name",
            )


def open_run(settings: TrainSettings, encoder: EncoderFolder) -> RunFolder:
    """Open the folder of the training that the settings define.

    Raises:
        ConfigError: train.name is not usable as a folder name.
        DataError: a source has no files.
    """
    if settings.name is not None and not _NAME.fullmatch(settings.name):
        raise ConfigError(
            "train.name",
            "letters, digits and . _ - + =, for a folder",
            repr(settings.name),
            "choose another name, or null for a generated one",
        )
    excluded: dict[str, Any] = dict.fromkeys(_DEFINES_NOTHING, True)
    if (
        settings.dev.measure == "spearman"
    ):  # not in the definitions of trainings begun before it was a setting
        excluded["dev"] = {"measure"}
    if settings.max_length is None:  # likewise
        excluded["max_length"] = True
    definition = {
        "version": _VERSION,
        "encoder": {"space_id": encoder.space_id},
        "train": settings.model_dump(mode="json", exclude=excluded),
        "data": [source.defining("uri") | {"files": _stamps(source.uri)} for source in settings.data],
        "dev": _stamps(settings.dev.uri) if settings.dev.uri else [],
    }
    objectives = "-".join(one.name for one in settings.objective)
    name = settings.name or f"{objectives}-{digest_of(definition)[:_DIGITS]}"
    return RunFolder(name, open_store(f"{open_store(settings.root).uri}/{name}"), definition)


def _stamps(uri: str) -> list[list[Any]]:
    return [[file.name, file.size, file.stamp] for file in training_files(uri)]


def _differing(old: Any, new: Any, key: str = "") -> Iterator[str]:
    """Yield a phrase for each key at which two trees differ, with both values."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            yield from _differing(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, now) in enumerate(zip(old, new, strict=True)):
            yield from _differing(before, now, f"{key}[{index}]")
    elif old != new:
        yield f"{key} is {str(new)[:_SHOWN]} and was {str(old)[:_SHOWN]}"
