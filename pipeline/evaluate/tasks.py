"""Select the tasks of a job by name or group, and average scores over the groups that papers average."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pipeline.errors import ConfigError, DataError, did_you_mean
from pipeline.evaluate import TASKS, EvaluationTask, Score
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store

# The seven tasks of each published average.
YEARLY_STS = ("STS12", "STS13", "STS14", "STS15", "STS16")
STS = (*YEARLY_STS, "STSB-test", "SICK-R")
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
GROUPS: dict[str, tuple[str, ...]] = {
    "sts": STS,
    "stsb-multi": (),  # the files of this folder, whatever their languages
    "senteval": ("MR", "CR", "SUBJ", "MPQA", "SST2", "SST5", "TREC", "MRPC"),
}

_KIND_BY_FOLDER = {"sts": "sts", "stsb-multi": "sts", "senteval": "transfer"}
_UNGROUPED = ("STSB-train", "STSB-dev", "SICK-R-train", "SICK-R-trial")  # known tasks that are in no group
_FILE_NAMES = {"SICK-R": ("SICK-R", "SICK-R-test")}  # tasks whose file may have one of several names
_TRANSLATED = re.compile("STSB-[a-z]{2,3}(-[A-Za-z]+)?-(train|dev|test)")


@dataclass(frozen=True)
class MissingTask:
    """Requested task whose file is missing."""

    name: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """The tasks of a job, with distinct names, and the requested tasks whose files are missing."""

    tasks: tuple[EvaluationTask, ...]
    missing: tuple[MissingTask, ...]


@dataclass(frozen=True)
class TaskAverage:
    """Unweighted mean of the values of several tasks."""

    value: float
    """the mean"""
    members: tuple[str, ...]
    """names of the tasks"""
    complete: bool
    """True if all tasks of the published average were measured on all their splits, so that the averages are
    comparable"""

    @property
    def label(self) -> str:
        """Name of the average in tables and in JSON."""
        names = ", ".join(self.members)
        return f"Avg. ({names})" if self.complete else f"average of the {len(self.members)} measured: {names}"


def select_tasks(settings: EvaluateSettings) -> Selection:
    """Return the tasks that `evaluate.names` selects from `evaluate.tasks`, then the tasks `evaluate.own`.

    Raises:
        ConfigError: an unknown name, or two tasks with one name.
        DataError: a folder of another layout, an unsuitable file, or no task at all.
    """
    folder_tasks, missing = (
        _select_from_folder(settings, open_store(settings.tasks)) if settings.tasks is not None else ([], [])
    )
    tasks = [*folder_tasks, *(task_of_file(source, settings) for source in settings.own)]
    names = [task.name for task in tasks]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            "evaluate.own",
            "tasks of different names",
            f"{', '.join(repeated)} more than once",
            "set a different `name` for each",
        )
    if settings.tasks is not None and not settings.names and not settings.own:
        raise ConfigError(
            "evaluate.names",
            "names of tasks or of groups",
            "none",
            "set evaluate.names, for example to sts, or leave evaluate.tasks out",
        )
    if not tasks and missing:
        raise DataError(
            f"evaluate.tasks: {settings.tasks}",
            f"at least one of {', '.join(task.name for task in missing)}",
            "none",
            "set evaluate.names to tasks of the folder",
        )
    return Selection(tuple(tasks), tuple(missing))


def task_of_file(source: TaskSettings, settings: EvaluateSettings) -> EvaluationTask:
    """Return the task that the settings describe, for the file at `source.uri`."""
    folder, name = os.path.split(source.uri) if "://" not in source.uri else source.uri.rsplit("/", 1)
    if not name:
        raise DataError(
            f"evaluate.own: uri {source.uri!r}",
            "a Parquet file",
            "a folder" if folder else "nothing",
            "use the path of a file",
        )
    return TASKS[source.kind].of(source, open_store(folder or "."), name, settings)


def averages(scores: Mapping[str, Score]) -> tuple[TaskAverage, ...]:
    """Average the STS tasks, and the transfer tasks; a group with fewer than two scores has no average.

    Args:
        scores: scores by name of the task.
    """
    names_by_group = (tuple(name for name in group if name in scores) for group in (STS, TRANSFER))
    return tuple(_average(names, scores) for names in names_by_group if len(names) >= 2)


def _average(names: tuple[str, ...], scores: Mapping[str, Score]) -> TaskAverage:
    lacks_splits = any(scores[name].facts.get("missing_splits") for name in names)
    value = sum(scores[name].value for name in names) / len(names)
    return TaskAverage(value, names, complete=names in (STS, TRANSFER) and not lacks_splits)


def _select_from_folder(
    settings: EvaluateSettings, store: Store
) -> tuple[list[EvaluationTask], list[MissingTask]]:
    files = _files(store)
    tasks, missing = list[EvaluationTask](), list[MissingTask]()
    for name in dict.fromkeys(chain.from_iterable(_expand(requested, files) for requested in settings.names)):
        path = next((files[stem] for stem in _FILE_NAMES.get(name, (name,)) if stem in files), None)
        if path is None:
            missing.append(MissingTask(name, f"no file {_expected_files(name)} in {store.uri}"))
        else:
            tasks.append(_published_task(name, path, store, settings))
    return tasks, missing


def _files(store: Store) -> dict[str, str]:
    """Return the path of every task file by the name of the task. Raises DataError if the folder has none."""
    paths = [
        entry.path
        for folder in _KIND_BY_FOLDER
        for entry in store.list(folder, ".parquet")
        if entry.path.count("/") == 1
    ]
    if not paths:
        raise DataError(
            f"evaluate.tasks: {store.uri}",
            f"files {', '.join(f'{folder}/NAME.parquet' for folder in _KIND_BY_FOLDER)}",
            "none",
            "check the path",
        )
    return {path.rpartition("/")[2].removesuffix(".parquet"): path for path in paths}


def _expand(requested: str, files: Mapping[str, str]) -> Sequence[str]:
    """Return the names of the tasks of a group, or the name of a single task. Raises ConfigError.

    Args:
        files: path of every task file by the name of the task.
    """
    if requested == "stsb-multi":  # without a file the name stays, and is reported as a missing task
        return [name for name, path in files.items() if path.startswith("stsb-multi/")] or [requested]
    if requested in GROUPS:
        return GROUPS[requested]
    grouped_names = (name for group in GROUPS.values() for name in group)
    known_names = list(dict.fromkeys([*GROUPS, *grouped_names, *_UNGROUPED, *files]))
    if requested in known_names or _TRANSLATED.fullmatch(requested):
        return [requested]
    hint = did_you_mean(requested, known_names, f"known: {', '.join(known_names)}", most=3)
    raise ConfigError("evaluate.names", "names of tasks or of groups", repr(requested), hint)


def _expected_files(name: str) -> str:
    """Name the files in which a missing task was expected, for a message."""
    folder = "sts"
    if name in GROUPS["senteval"]:
        folder = "senteval"
    elif name == "stsb-multi" or _TRANSLATED.fullmatch(name):
        folder = "stsb-multi"
    stems = ("NAME",) if name == "stsb-multi" else _FILE_NAMES.get(name, (name,))
    return " or ".join(f"{folder}/{stem}.parquet" for stem in stems)


def _published_task(name: str, path: str, store: Store, settings: EvaluateSettings) -> EvaluationTask:
    kind = _KIND_BY_FOLDER[path.partition("/")[0]]
    # SICK-R has scores from 1 to 5.
    options: dict[str, float | int | str | bool] = {"low": 1} if name.startswith("SICK-R") else {}
    source = TaskSettings(kind=kind, uri=store.uri_of(path), name=name, options=options)
    return TASKS[kind].of(source, store, path, settings)
