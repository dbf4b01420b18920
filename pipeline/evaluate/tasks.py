"""Selection of tasks by name or group, and averages over published groups; missing tasks are reported."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.base import Store
from pipeline.store.store import open_store

# The seven tasks of published averages.
STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB-test", "SICK-R")
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
GROUPS: dict[str, tuple[str, ...]] = {
    "sts": STS,
    "stsb-multi": (),
    "senteval": ("MR", "CR", "SUBJ", "MPQA", "SST2", "SST5", "TREC", "MRPC"),
}

_FOLDERS = {"sts": "sts", "stsb-multi": "sts", "senteval": "transfer"}  # folder -> kind of its tasks
_SINGLE = ("STSB-train", "STSB-dev", "SICK-R-train", "SICK-R-trial")  # known tasks that are in no group
_FILES = {"SICK-R": ("SICK-R", "SICK-R-test")}  # alternative file names of a task
_TRANSLATED = re.compile("STSB-[a-z]{2,3}(-[A-Za-z]+)?-(train|dev|test)")


@dataclass(frozen=True)
class Missing:
    """Requested task whose file is missing."""

    name: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """Tasks of a job, with distinct names, and the missing ones."""

    tasks: tuple[EvaluationTask, ...]
    missing: tuple[Missing, ...]


@dataclass(frozen=True)
class TaskAverage:
    """Unweighted mean of the values of several tasks.

    Attributes:
        label: "Avg. (...)" for all tasks of a published average with its protocol; else "mean of ...".
        value: the mean.
        members: names of the tasks.
        complete: True for a published average.
    """

    label: str
    value: float
    members: tuple[str, ...]
    complete: bool


def select_tasks(settings: EvaluateSettings) -> Selection:
    """Return the tasks `evaluate.names` of the folder `evaluate.tasks`, then those of `evaluate.own`.

    Raises:
        ConfigError: an unknown name, or two tasks with one name.
        DataError: a folder of another layout, an unsuitable file, or no task at all.
    """
    found, missing = (
        _of_folder(settings, open_store(settings.tasks)) if settings.tasks is not None else ([], [])
    )
    tasks = [*found, *(own_task(source, settings) for source in settings.own)]
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
            f"at least one of {', '.join(each.name for each in missing)}",
            "none",
            "set evaluate.names to tasks of the folder",
        )
    return Selection(tuple(tasks), tuple(missing))


def own_task(source: TaskSettings, settings: EvaluateSettings) -> EvaluationTask:
    """Return the task for the file at `source.uri`."""
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
    """Average the STS tasks and the transfer tasks among `scores` (by task name), if at least two exist."""
    found = (_average([name for name in group if name in scores], group, scores) for group in (STS, TRANSFER))
    return tuple(each for each in found if each is not None)


def _average(present: Sequence[str], group: Sequence[str], scores: Mapping[str, Score]) -> TaskAverage | None:
    if len(present) < 2:
        return None
    complete = len(present) == len(group) and not any(
        scores[name].facts.get("missing_splits") for name in present
    )
    label = f"Avg. ({', '.join(present)})" if complete else f"mean of {', '.join(present)}"
    return TaskAverage(
        label, sum(scores[name].value for name in present) / len(present), tuple(present), complete
    )


def _of_folder(settings: EvaluateSettings, store: Store) -> tuple[list[EvaluationTask], list[Missing]]:
    files = _files(store)
    tasks, missing = [], []
    for name in dict.fromkeys(each for wanted in settings.names for each in _names(wanted, files)):
        path = next((files[stem] for stem in _FILES.get(name, (name,)) if stem in files), None)
        if path is None:
            missing.append(Missing(name, f"no file {_expected(name)} in {store.uri}"))
        else:
            tasks.append(_task(name, path, store, settings))
    return tasks, missing


def _files(store: Store) -> dict[str, str]:
    """Return the path of every task file by name; DataError if the folder has none."""
    paths = [
        entry.path
        for folder in _FOLDERS
        for entry in store.list(folder, ".parquet")
        if entry.path.count("/") == 1
    ]
    if not paths:
        raise DataError(
            f"evaluate.tasks: {store.uri}",
            f"files {', '.join(f'{each}/NAME.parquet' for each in _FOLDERS)}",
            "none",
            "check the path",
        )
    return {path.rpartition("/")[2].removesuffix(".parquet"): path for path in paths}


def _names(wanted: str, files: Mapping[str, str]) -> Sequence[str]:
    """Return the tasks of a name or a group."""
    if wanted == "stsb-multi":
        return [stem for stem, path in files.items() if path.startswith("stsb-multi/")] or [wanted]
    if wanted in GROUPS:
        return GROUPS[wanted]
    known = list(
        dict.fromkeys([*GROUPS, *(name for group in GROUPS.values() for name in group), *_SINGLE, *files])
    )
    if wanted in known or _TRANSLATED.fullmatch(wanted):
        return [wanted]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(known)}"
    raise ConfigError("evaluate.names", "names of tasks or of groups", repr(wanted), hint)


def _expected(name: str) -> str:
    """Return the file that a missing task would have."""
    folder = "sts"
    if name in GROUPS["senteval"]:
        folder = "senteval"
    elif name == "stsb-multi" or _TRANSLATED.fullmatch(name):
        folder = "stsb-multi"
    stems = ("NAME",) if name == "stsb-multi" else _FILES.get(name, (name,))
    return " or ".join(f"{folder}/{stem}.parquet" for stem in stems)


def _task(name: str, path: str, store: Store, settings: EvaluateSettings) -> EvaluationTask:
    kind = _FOLDERS[path.partition("/")[0]]
    # SICK-R has scores from 1 to 5.
    options: dict[str, float | int | str | bool] = {"low": 1} if name.startswith("SICK-R") else {}
    source = TaskSettings(kind=kind, uri=store.uri_of(path), name=name, options=options)
    return TASKS[kind].of(source, store, path, settings)
