"""`manta train` on the command line: invalid settings and data are reported before any worker starts, with
the exit code of their kind.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import CommandResult
from tests.flows.train.training import training_arguments, write_sentences, write_sts
from tests.models.folders import save_folder

Train = Callable[..., tuple[int, dict[str, object], str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sentences and an encoder."""
    folder = tmp_path_factory.mktemp("cli")
    save_folder(folder / "encoder", "bert")
    write_sentences(folder / "sentences.parquet")
    return folder


@pytest.fixture
def train(folder: Path, manta: Callable[..., CommandResult]) -> Train:
    """Return a function that trains with further settings and returns (exit code, JSON, standard error)."""

    def run(*given: str) -> tuple[int, dict[str, object], str]:
        ended = manta("train", "--json", *training_arguments(folder, folder / "encoder"), *given)
        return ended.code, json.loads(ended.out), ended.err

    return run


def test_an_objective_is_described_with_its_columns_and_options(manta: Callable[..., CommandResult]):
    facts = json.loads(manta("train", "--describe", "declutr", "--json").out)
    assert facts["columns"] == ["text"]
    assert facts["options"]["temperature"]["default"] == 0.05
    text = manta("train", "--describe", "supervised").out
    assert "columns  anchor, positive, negative (optional), negative2 (optional) to negative32\n" in text
    assert re.search(r"^temperature +null +number > 0 or null$", text, re.MULTILINE)
    assert re.search(r"^similarity +\"cosine\" +one of cosine, dot$", text, re.MULTILINE)
    assert re.search(
        r"^views +\[.*\] +list of 2, each one of none, ", manta("train", "--describe", "consert").out, re.M
    )
    refused = manta("train", "--describe", "simsce")
    assert (refused.code, "did you mean 'simcse'" in refused.err) == (2, True)


def write_unknown_label(folder: Path) -> Path:
    """Write 16 labelled pairs, the last of them with a label that is not one of NLI's."""
    rows = {"premise": ["a"] * 16, "hypothesis": ["b"] * 16, "label": ["entailment"] * 15 + ["maybe"]}
    pq.write_table(pa.table(rows), folder / "pairs.parquet")
    return folder / "pairs.parquet"


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["train.objective=simsce"], 2, "did you mean 'simcse'"),
        (
            ["train.objective={name: simcse, options: {temperature: -1}}"],
            2,
            "train.objective[0].options of simcse: temperature",
        ),
        (["train.order.batch_rows=1"], 2, "train.order.batch_rows: expected 2 rows or more"),
        (["train.workers=3"], 2, "that 3 workers can share equally"),
        (["train.watch.trackers=[nothing]"], 2, "train.watch.trackers"),
        (["train.dev.patience=3"], 2, "train.dev.patience: expected a file to measure on (train.dev.uri)"),
        (["train.data=nowhere.parquet"], 3, "nowhere.parquet"),
        (["train.objective=supervised"], 3, "a column 'anchor' for the role anchor, found the columns text"),
        (["train.dev.uri=nowhere.parquet"], 3, "nowhere.parquet"),
        (
            ["train.max_length=65"],
            2,
            "train.max_length: expected at most the 64 tokens of a text that the encoder reads, found 65",
        ),
        (
            [
                "train.max_length=12",
                'encoder.template=a b c d e f g h i j "[X]" [MASK] .',
                "encoder.pooling=mask",
            ],
            2,
            "train.max_length: expected room for at least one token of a text, found 12, of which",
        ),
        (
            ["encoder.pooling=mean", "encoder.exclude=[punctuation]"],
            2,
            "encoder.exclude: expected an empty list, because a training averages all tokens",
        ),
        (["encoder.path=/nowhere"], 4, "/nowhere: expected an encoder folder"),
    ],
)
def test_invalid_settings_are_reported_before_a_worker_starts(
    train: Train, given: list[str], code: int, words: str
):
    found, answer, said = train(*given)
    assert (found, answer["status"]) == (code, "error")
    assert words in str(answer["message"])
    assert "cluster: starts" not in said


def test_an_unknown_label_is_reported_before_a_worker_starts(train: Train, folder: Path):
    classification = "train.objective=" + next(name for name in _names() if "label" in _columns(name))
    code, answer, said = train(f"train.data={write_unknown_label(folder)}", classification)
    assert code == 3
    assert (
        "row 15 (counted from 0), label: expected one of entailment (0), neutral (1), contradiction "
        "(2), found 'maybe'"
    ) in str(answer["message"])
    assert "cluster: starts" not in said


def _names() -> list[str]:
    from pipeline.objectives import OBJECTIVES

    return OBJECTIVES.names()


def _columns(name: str) -> tuple[str, ...]:
    from pipeline.objectives import OBJECTIVES

    return OBJECTIVES[name].columns


def test_missing_dev_scores_are_reported_before_a_worker_starts(train: Train, folder: Path):
    table = pq.read_table(write_sts(folder / "sts.parquet"))
    pq.write_table(table.drop_columns("score"), folder / "unscored.parquet")
    code, answer, said = train(f"train.dev.uri={folder / 'unscored.parquet'}")
    assert code == 3
    assert "score" in str(answer["message"])
    assert "cluster: starts" not in said
