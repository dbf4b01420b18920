"""Names and groups of tasks: selection, missing tasks, and averages."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.errors import ConfigError, DataError
from pipeline.evaluate import Score
from pipeline.evaluate.tasks import STS, averages, select_tasks
from pipeline.settings import EvaluateSettings, TaskSettings
from tests.evaluate.files import random_vectors, save

PAIRS = {"subset": ["x"] * 4, "sentence1": list("abcd"), "sentence2": list("efgh"), "score": [1.0, 2, 3, 5]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "sts/STS12",
        "sts/STSB-test",
        "sts/STSB-dev",
        "sts/SICK-R-train",
        "stsb-multi/STSB-de-dev",
        "stsb-multi/STSB-zh-dev",
    ):
        save(tmp_path / f"{name}.parquet", PAIRS)
    return tmp_path


def names(folder: Path, *wanted: str) -> tuple[list[str], list[str]]:
    selection = select_tasks(EvaluateSettings(tasks=str(folder), names=wanted))
    return [task.name for task in selection.tasks], [each.name for each in selection.missing]


def test_missing_tasks_of_a_group_are_reported(folder: Path):
    assert names(folder, "sts") == (["STS12", "STSB-test"], ["STS13", "STS14", "STS15", "STS16", "SICK-R"])
    missing = select_tasks(EvaluateSettings(tasks=str(folder))).missing
    assert "no file sts/STS14.parquet" in missing[1].reason
    assert "no file sts/SICK-R.parquet or sts/SICK-R-test.parquet" in missing[-1].reason


def test_names_and_groups_can_be_mixed_and_repeated(folder: Path):
    assert names(folder, "STSB-dev", "stsb-multi", "STSB-dev", "STSB-es-test") == (
        ["STSB-dev", "STSB-de-dev", "STSB-zh-dev"],
        ["STSB-es-test"],
    )


def test_sick_is_found_under_both_file_names(folder: Path):
    save(folder / "sts/SICK-R-test.parquet", PAIRS)
    assert names(folder, "SICK-R")[0] == ["SICK-R"]


def test_sick_scores_start_at_1(folder: Path):
    save(folder / "sts/SICK-R-trial.parquet", PAIRS | {"score": [0.0, 2, 3, 5]})
    with pytest.raises(DataError, match="scores from 1 to 5"):
        names(folder, "SICK-R-trial")


def test_unknown_names_get_a_suggestion(folder: Path):
    with pytest.raises(ConfigError, match="did you mean 'STSB-test'"):
        names(folder, "STSB-tset")
    with pytest.raises(ConfigError, match="did you mean 'senteval'"):
        names(folder, "sentevall")
    with pytest.raises(ConfigError, match=r"did you mean 'STSB-dev' or 'STSB-\w+-dev' or 'STSB-\w+-dev'"):
        names(folder, "STSB-dve")


def test_a_job_without_tasks_is_refused(folder: Path, tmp_path: Path):
    with pytest.raises(DataError, match="at least one of MR, CR"):
        names(folder, "senteval")
    with pytest.raises(ConfigError, match=r"evaluate\.names: expected names"):
        names(folder)
    with pytest.raises(DataError, match="use the path of a file"):
        select_tasks(EvaluateSettings(own=(TaskSettings(kind="sts", uri=f"{folder}/"),)))
    with pytest.raises(DataError, match=r"sts/NAME\.parquet"):
        names(tmp_path / "elsewhere", "sts")


def test_files_with_other_columns_are_refused(folder: Path):
    save(folder / "sts/STS13.parquet", {"text1": ["a"], "text2": ["b"], "gold": [1.0]})
    with pytest.raises(DataError, match="found text1, text2, gold"):
        names(folder, "STS13")


def test_own_tasks_need_distinct_names(folder: Path):
    file = str(folder / "sts" / "STS12.parquet")
    own = TaskSettings(kind="sts", uri=file, name="ours")
    selection = select_tasks(EvaluateSettings(tasks=str(folder), names=("STS12",), own=(own,)))
    assert [task.name for task in selection.tasks] == ["STS12", "ours"]
    assert selection.tasks[1].score(random_vectors()).count == 4
    assert (
        select_tasks(EvaluateSettings(own=(TaskSettings(kind="sts", uri=f"file://{file}"),))).tasks[0].name
        == "STS12"
    )
    with pytest.raises(ConfigError, match="STS12 more than once"):
        select_tasks(
            EvaluateSettings(tasks=str(folder), names=("STS12",), own=(TaskSettings(kind="sts", uri=file),))
        )


def scored(values: dict[str, float], **facts: object) -> dict[str, Score]:
    return {name: Score("Spearman x100", value, 2, facts=facts) for name, value in values.items()}


def test_the_published_average_needs_all_seven_tasks():
    values = dict(zip(STS, np.arange(7.0), strict=True))
    whole = averages(scored(values | {"STSB-dev": 90.0}))[0]
    assert (whole.value, whole.complete) == (3.0, True)
    assert whole.label == "Avg. (STS12, STS13, STS14, STS15, STS16, STSB-test, SICK-R)"
    part = averages(scored({"STS13": 1.0, "STS12": 2.0}))[0]
    assert (part.label, part.value, part.complete) == ("average of the 2 measured: STS12, STS13", 1.5, False)
    assert averages(scored({"STS13": 1.0})) == ()


def test_an_average_with_a_missing_split_is_not_the_published_one():
    values = dict.fromkeys(("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"), 80.0)
    assert averages(scored(values))[0].complete
    assert not averages(scored(values, missing_splits=["test"]))[0].complete
