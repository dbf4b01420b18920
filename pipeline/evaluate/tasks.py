"""Which tasks a job asks for: those of a folder by name or group, and one's own. What is not there is named, and no average hides it."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate import TASKS, Score, Task
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.store.base import Store
from pipeline.store.store import open_store

STS = (
    "STS12",
    "STS13",
    "STS14",
    "STS15",
    "STS16",
    "STSB-test",
    "SICK-R",
)  # the seven that published averages are over
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")  # likewise
GROUPS: dict[str, tuple[str, ...]] = {
    "sts": STS,
    "stsb-multi": (),
    "senteval": ("MR", "CR", "SUBJ", "MPQA", "SST2", "SST5", "TREC", "MRPC"),
}

_FOLDERS = {"sts": "sts", "stsb-multi": "sts", "senteval": "transfer"}  # folder: kind of its tasks
_SINGLE = ("STSB-train", "STSB-dev", "SICK-R-train", "SICK-R-trial")  # known, and in no group
_FILES = {"SICK-R": ("SICK-R", "SICK-R-test")}  # where a task's file may bear another name
_TRANSLATED = re.compile("STSB-[a-z]{2,3}(-[A-Za-z]+)?-(train|dev|test)")


@dataclass(frozen=True)
class Missing:
    """A task that was asked for and is not there."""

    name: str
    reason: str


@dataclass(frozen=True)
class Selection:
    """The tasks of a job, names distinct, and what is missing."""

    tasks: tuple[Task, ...]
    missing: tuple[Missing, ...]


@dataclass(frozen=True)
class Average:
    """The unweighted mean of several tasks' values. label: "Avg. (...)" for all members of a published average, scored by its protocol; else "mean of ..."."""

    label: str
    value: float
    members: tuple[str, ...]
    complete: bool


def select_tasks(settings: EvaluateSettings) -> Selection:
    """Tasks of `evaluate.names` in the folder `evaluate.tasks`, then those of `evaluate.own`.

    ConfigError for an unknown name or two tasks of one name; DataError for a folder of another layout, for a file that is not what its kind needs, or if nothing
    asked for is there.
    """
    found, missing = (
        _of_folder(settings, open_store(settings.tasks)) if settings.tasks is not None else ([], [])
    )
    tasks = [*found, *(own_task(source, settings) for source in settings.own)]
    names = [task.name for task in tasks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            "evaluate.own",
            "tasks of different names",
            f"{', '.join(twice)} more than once",
            "give each a `name`",
        )
    if settings.tasks is not None and not settings.names and not settings.own:
        raise ConfigError(
            "evaluate.names",
            "names of tasks or of groups",
            "none",
            "name some, such as sts, or leave evaluate.tasks out",
        )
    if not tasks and missing:
        raise DataError(
            f"evaluate.tasks: {settings.tasks}",
            f"at least one of {', '.join(each.name for each in missing)}",
            "none",
            "set evaluate.names to what is there",
        )
    return Selection(tuple(tasks), tuple(missing))


def own_task(source: TaskSettings, settings: EvaluateSettings) -> Task:
    """The task over the file at `source.uri`."""
    folder, name = os.path.split(source.uri) if "://" not in source.uri else source.uri.rsplit("/", 1)
    if not name:
        raise DataError(
            f"evaluate.own: uri {source.uri!r}",
            "a Parquet file",
            "a folder" if folder else "nothing",
            "name the file",
        )
    return TASKS[source.kind].of(source, open_store(folder or "."), name, settings)


def averages(scores: Mapping[str, Score]) -> tuple[Average, ...]:
    """Of the STS tasks and of the transfer tasks among `scores` (by task name), where there are at least two of either."""
    found = (_average([name for name in group if name in scores], group, scores) for group in (STS, TRANSFER))
    return tuple(each for each in found if each is not None)


def _average(there: Sequence[str], group: Sequence[str], scores: Mapping[str, Score]) -> Average | None:
    if len(there) < 2:
        return None
    complete = len(there) == len(group) and not any(
        scores[name].facts.get("missing_splits") for name in there
    )
    label = f"Avg. ({', '.join(there)})" if complete else f"mean of {', '.join(there)}"
    return Average(label, sum(scores[name].value for name in there) / len(there), tuple(there), complete)


def _of_folder(settings: EvaluateSettings, store: Store) -> tuple[list[Task], list[Missing]]:
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
    """Path by name of every task file; DataError where the folder holds none."""
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
    """The tasks that a name or a group means."""
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
    """The file that a missing task would be in."""
    folder = (
        "senteval"
        if name in GROUPS["senteval"]
        else "stsb-multi"
        if name == "stsb-multi" or _TRANSLATED.fullmatch(name)
        else "sts"
    )
    stems = ("NAME",) if name == "stsb-multi" else _FILES.get(name, (name,))
    return " or ".join(f"{folder}/{stem}.parquet" for stem in stems)


def _task(name: str, path: str, store: Store, settings: EvaluateSettings) -> Task:
    kind = _FOLDERS[path.partition("/")[0]]
    low: dict[str, float | int | str | bool] = (
        {"low": 1} if name.startswith("SICK-R") else {}
    )  # people scored it from 1 to 5
    return TASKS[kind].of(
        TaskSettings(kind=kind, uri=store.uri_of(path), name=name, options=low), store, path, settings
    )
