"""`manta evaluate` on the command line: a table for people, one JSON object for programs, and an exit code
for each kind of error.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.store.files.open_store import open_store
from pipeline.store.releases.prune import prune
from pipeline.store.releases.release import Releases
from tests.conftest import CommandResult
from tests.flows.evaluate.evaluating import arguments, write_pairs
from tests.models.folders import folder_of_language_model, save_folder

Manta = Callable[..., CommandResult]
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a task, an encoder and pairs of one's own."""
    folder = tmp_path_factory.mktemp("cli")
    save_folder(folder / "encoder", "bert")
    write_pairs(folder / "tasks/sts/STS13.parquet", 40)
    rng, table = np.random.default_rng(0), pq.read_table(folder / "tasks/sts/STS13.parquet")
    own = {
        "query": table["sentence1"],
        "title": table["sentence2"],
        "clicked": pa.array(rng.integers(0, 2, 40)),
    }
    pq.write_table(pa.table(own), folder / "clicks.parquet")
    return folder


def test_two_candidates_are_compared_in_table_json_and_page(folder: Path, manta: Manta):
    own = (
        f"evaluate.own=[{{kind: pairs, uri: {folder / 'clicks.parquet'}, columns: {{sentence1: query, "
        "sentence2: title, label: clicked}}]"
    )
    candidates = (
        f"evaluate.candidates=[{{name: now}}, {{name: new, encoder: {{path: {folder / 'encoder'}, pooling: "
        "max}}]"
    )
    asked = [*arguments(folder, folder / "encoder"), "evaluate.names=[STS13, STS14]", own, candidates]
    code, shown, _ = manta("evaluate", *asked)
    assert code == 0
    lines = shown.splitlines()
    assert lines[0] == "Spearman x100, cosine, all; 95 % intervals of 50 resamples"
    assert lines[1].split() == ["task", "count", "now", "new", "difference"]
    assert lines[2].startswith("STS13     40  ")
    assert any(line.startswith("average precision x100, cosine") for line in lines)
    assert f"missing: STS14 (no file sts/STS14.parquet in {folder / 'tasks'})" in lines
    assert Path(lines[-1].removeprefix("report").strip()).read_text().startswith("<!doctype html>")
    code, shown, _ = manta("evaluate", "--json", *asked)
    (line,) = shown.splitlines()
    answer = json.loads(line)
    assert (code, answer["status"], answer["sentences_encoded"]) == (0, "done", 0)
    assert [(each["task"], each["candidate"]) for each in answer["results"]] == [
        ("STS13", "now"),
        ("STS13", "new"),
        ("clicks", "now"),
        ("clicks", "new"),
    ]
    assert all(each["low"] <= each["value"] <= each["high"] for each in answer["results"])
    assert [each["task"] for each in answer["differences"]] == ["STS13", "clicks"]
    assert {"report", "json", "seconds", "missing", "averages"} <= set(answer)


def test_words_at_the_mask_are_printed_for_people_and_programs(folder: Path, manta: Manta):
    encoder = folder_of_language_model(folder / "language model")
    asked = [
        f"release.root={folder / 'root'}",
        f"encoder.path={encoder}",
        'encoder.template="[X]" means [MASK].',
        "evaluate.mask_words.texts=[two dogs run]",
    ]
    code, shown, _ = manta("evaluate", "--mask-words", *asked)
    assert code == 0
    heading, header, row = shown.splitlines()[:3]
    assert heading == 'Words at the mask: language model template="[X]" means [MASK].'
    assert header.split() == ["text", "words", "de-noised"]
    assert row.startswith("two dogs run  ")
    answer = json.loads(manta("evaluate", "--mask-words", "--json", *asked).out)
    (candidate,) = answer["mask_words"]["candidates"]
    assert ", ".join(candidate["words"]["texts"][0]["words"]) in row
    assert manta("evaluate", "--mask-words", *asked[:2], *asked[3:]).code == 2


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["evaluate.names=[STS99]"], 2, "did you mean"),
        (["evaluate.candidates=[{release: 1, transform: t}]"], 2, "a release or an encoder, not both"),
        (
            ["evaluate.tasks=", "evaluate.candidates=[release:current]"],
            2,
            "tasks to evaluate the candidates on",
        ),
        (["evaluate.tasks=/nowhere"], 3, "check the path"),
        (["evaluate.names=[STS14]"], 3, "STS14"),
        (["evaluate.own=[{kind: pairs, uri: /nowhere/p.parquet}]"], 3, "/nowhere/p.parquet"),
        (["evaluate.candidates=[release:3]"], 3, "release 3"),
        (["evaluate.candidates=[/nowhere/model]"], 4, "/nowhere/model"),
    ],
)
def test_a_failed_evaluation_has_its_exit_code_and_writes_no_page(
    folder: Path, manta: Manta, tmp_path: Path, given: list[str], code: int, words: str
):
    ended, shown, errors = manta(
        "evaluate", *arguments(folder, folder / "encoder"), f"release.root={tmp_path / 'root'}", *given
    )
    assert (ended, shown) == (code, "")
    assert words in errors
    assert not list(tmp_path.rglob("*.html"))


def test_prune_leaves_evaluations_alone(folder: Path, manta: Manta):
    asked = [*arguments(folder, folder / "encoder"), "evaluate.names=[STS13]"]
    assert manta("evaluate", *asked)[0] == 0
    before = sorted((folder / "root/evaluations").rglob("*"))
    assert before
    assert prune(Releases(open_store(folder / "root")), keep=1, grace_s=0.0).files == 0
    assert sorted((folder / "root/evaluations").rglob("*")) == before
