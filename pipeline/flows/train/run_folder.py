"""The folder of a training in the store: its name, the definition of the training, and its records."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pydantic import Field

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.objectives.build import corrections, data_requirements
from pipeline.settings.training import SourceSettings, TrainSettings
from pipeline.stats.geometry import Metric
from pipeline.store.files.base import Store
from pipeline.store.files.disk import translate_disk_errors
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import Stored
from pipeline.text.rows.negatives import default_columns
from pipeline.text.rows.training_rows import read_footer, training_files

RUN, RESULT = "run.json", "result.json"
CHECKPOINTS, ENCODER, REPORT = "checkpoints", "encoder", "report.html"
_VERSION = "training-1"  # increased by every change of the code that changes bits of the result
# Settings that do not change the result, and `data`, which is in the definition together with its files.
_NOT_DEFINING = {"root", "name", "seeds", "data", "workers", "threads", "failures", "checkpoint", "watch"}
# Settings newer than _VERSION -> the setting that decides about each of them. If the latter has its default,
# a definition leaves the newer setting out.
_NEWER = {
    "dev.measure": "dev.measure",
    "test": "test.uri",
    "max_length": "max_length",
    "chunk_tokens": "chunk_tokens",
    "convolutional": "convolutional.width",
    "dan": "dan.width",
    "transformer": "transformer.width",
    "word_table": "word_table.dim",
    "paragraph_vectors": "paragraph_vectors.dim",
    "schedule.final": "schedule.final",
    "expand": "expand.words",
}
_VALID_NAME = re.compile(r"[\w][\w.+=-]*")
_LAST_ENCODER_FILE = "config.json"  # written last, so an encoder that has it is complete
_LENGTH_FILE = "sentence_bert_config.json"  # the file with an encoder's max_seq_length
_HASH_DIGITS = 12  # in a generated name
_MAX_SHOWN = 60  # characters of a value in an error message


class RunRecord(Stored):
    """Definition and plan of a training, written when it begins."""

    name: str
    """name of the folder"""
    digest: str
    """hexadecimal sha256 of the definition"""
    definition: dict[str, Any]
    """settings, and identities of encoder and files: equal definitions give equal trainings"""
    encoder: str
    """encoder that training starts from, as in the settings"""
    counts: tuple[dict[str, int], ...]
    """counts of each source: rows in the files, and rows left out by reason"""
    lexical_overlap: tuple[dict[str, Metric], ...] = ()
    """for each source, mean lexical overlap of the anchors with the texts of each role (positive, negative,
    negative2); empty for a source without pairs"""
    sources: tuple[str, ...] = ()
    """URI of each source; for a folder of manifests, the URI of the manifest that is read"""
    steps_per_epoch: int
    """number of steps of one pass over the rows"""
    steps: int
    """number of planned steps"""


class ResultRecord(Stored):
    """Result of a training, written after all its other files."""

    name: str
    """name of the folder"""
    digest: str
    """hexadecimal sha256 of the definition"""
    space_id: str
    """identity of the trained encoder's space"""
    steps: int
    """steps taken; fewer than planned if dev or the learning rate ended the training"""
    best_step: int | None = None
    """step of the encoder's weights, if dev chose that step"""
    metrics: dict[str, float] = Field({}, alias="figures")
    """With a dev set: dev, the best score. Without one: same_rows, the number of rows that were measured
    before the first step and after the last, and start_loss, end_loss and so on for them. For a model that
    predicts labels or scores also its metrics on dev and test: dev_accuracy, test_accuracy, test_f1 and so
    on"""
    ended: str = ""
    """sentence that says why the training ended before the planned steps"""


@dataclass(frozen=True)
class RunFolder:
    """The folder of one training below train.root."""

    name: str
    """name of the folder"""
    store: Store
    """store whose root is the folder"""
    definition: dict[str, Any]
    """everything that the result of the training depends on"""

    @property
    def digest(self) -> str:
        """Hexadecimal sha256 of the definition."""
        return digest_of(self.definition)

    @property
    def encoder(self) -> str:
        """URI of the trained encoder, which may not exist yet."""
        return self.store.uri_of(ENCODER)

    @property
    def report(self) -> str:
        """URI of the report, which may not exist yet."""
        return self.store.uri_of(REPORT)

    def record(self) -> RunRecord:
        """Load the record of the training's beginning. Raises DataError if it is missing or invalid."""
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
        """Load the result; None before the end of the training, or if its encoder was deleted.

        If the encoder was deleted, running the training again restores it from the last checkpoints.
        """
        if not self.store.exists(f"{ENCODER}/{_LAST_ENCODER_FILE}"):
            return None
        return ResultRecord.load_intact(self.store, RESULT)

    def encoder_length(self) -> int | None:
        """Return the number of tokens of a text that the trained encoder reads; None without an encoder."""
        # A model of two encoders has two such files, with the same length.
        for file in self.store.list(ENCODER, _LENGTH_FILE):
            length: int | None = json.loads(self.store.read(file.path)).get("max_seq_length")
            return length
        return None

    def final_result(self) -> ResultRecord:
        """Return the result, after the workers have ended."""
        result = self.result()
        assert result is not None, "the first rank stores it last"
        return result

    def begin(self, record: RunRecord) -> None:
        """Create the record, unless an equal training has created it. Raises ConfigError as in `check`."""
        self.check()
        if not self.store.create(RUN, record.to_json()) and RunRecord.load_intact(self.store, RUN) is None:
            self.store.write(RUN, record.to_json())  # replace the truncated record of a killed run

    def check(self) -> None:
        """Check that the folder belongs to this training, or is empty.

        Raises:
            ConfigError: it belongs to another training (the message names the settings that differ), has
                files but no record, or is not usable as a folder.
        """
        with translate_disk_errors(self.store.uri):
            record = RunRecord.load_intact(self.store, RUN)
        if record is None:
            if other_files := [entry.path for entry in self.store.list() if entry.path != RUN]:
                raise ConfigError(
                    self.store.uri,
                    "the folder of a training, or an empty one",
                    f"{other_files[0]} and no {RUN}",
                    "set train.name or train.root to another folder",
                )
        elif record.digest != self.digest:
            raise ConfigError(
                f"train.name {self.name}",
                "the settings that this training began with",
                "; ".join(_differing(record.definition, self.definition)) or "another version of the program",
                "restore these settings (workers, threads, cluster, checkpoint and watch may change) and "
                "files, or choose another train.name",
            )


def open_run(settings: TrainSettings, encoder: EncoderFolder) -> RunFolder:
    """Open the folder of the training that the settings define.

    Raises:
        ConfigError: train.name is not usable as a folder name.
        DataError: a source has no files.
        ModelError: the word vectors of train.expand cannot be opened.
    """
    if settings.name is not None and not _VALID_NAME.fullmatch(settings.name):
        raise ConfigError(
            "train.name",
            "letters, digits and . _ - + =, for a folder",
            repr(settings.name),
            "choose another name, or null for a generated one",
        )
    definition = {
        "version": _VERSION,
        "encoder": {"space_id": encoder.space_id},
        "train": settings.model_dump(mode="json", exclude=_not_defining(settings)),
        "data": [
            source.identity_settings(without="uri")
            | {"files": _stamps(source.uri)}
            | _negatives(settings, source)
            for source in settings.data
        ],
        "dev": _stamps(settings.dev.uri) if settings.dev.uri else [],
    }
    if settings.test.uri is not None:
        definition["test"] = _stamps(settings.test.uri)
    if settings.expand.vectors is not None:
        definition["expansion"] = {"space_id": open_folder(settings.expand.vectors).space_id}
    if corrected := corrections(settings, encoder):
        definition["corrections"] = corrected
    objectives = "-".join(term.name for term in settings.objective)
    name = settings.name or f"{objectives}-{digest_of(definition)[:_HASH_DIGITS]}"
    return RunFolder(name, open_store(f"{open_store(settings.root).uri}/{name}"), definition)


def _not_defining(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings that a definition leaves out, as the argument `exclude` of pydantic.

    Among them are defaults of settings that are newer than _VERSION, so that earlier definitions stay equal.
    """
    excluded: dict[str, Any] = dict.fromkeys(_NOT_DEFINING, True)
    defaults = TrainSettings()
    for name, decides in _NEWER.items():
        section, _, key = name.partition(".")
        if attrgetter(decides)(settings) == attrgetter(decides)(defaults):
            excluded[section] = {key} if key else True
    if not settings.bound_sources:
        excluded["objective"] = {"__all__": {"source"}}
    return excluded


def _stamps(uri: str) -> list[list[Any]]:
    """Return name, size and stamp of each file, which identify its content."""
    return [[file.name, file.size, file.stamp] for file in training_files(uri)]


def _negatives(settings: TrainSettings, source: SourceSettings) -> dict[str, Any]:
    """Return the columns of hard negatives that are found by their names, such as negative_1.

    Earlier versions did not read them: a training that they began is not continued with further candidates.
    """
    required = data_requirements(settings.of_source(source))
    schema = read_footer(training_files(source.uri)[0])[0]
    found = default_columns(source, (*required.columns, *required.optional), [schema])
    return {"negatives": found} if found else {}


def _differing(old: Any, new: Any, key: str = "") -> Iterator[str]:
    """Yield a phrase for each key at which two nested structures differ, with both values."""
    if key in ("dev", "test") or key.endswith(".files"):
        before, now = ({name: stamp for name, *stamp in files or ()} for files in (old, new))
        for name in dict.fromkeys([*before, *now]):
            if before.get(name) != now.get(name):
                state = "has changed" if name in before and name in now else "is new"
                yield f"train.{key.removesuffix('.files')}: {name} {state if name in now else 'is gone'}"
    elif isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys([*old, *new]):
            yield from _differing(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (old_item, new_item) in enumerate(zip(old, new, strict=True)):
            yield from _differing(old_item, new_item, f"{key}[{index}]")
    elif old != new:
        yield f"{key} is {str(new)[:_MAX_SHOWN]} and was {str(old)[:_MAX_SHOWN]}"
