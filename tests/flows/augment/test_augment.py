"""Every row gets its variants; nothing is computed twice, and nothing is lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.augment import AUGMENTERS, WordAugmenter, keyed_rng
from pipeline.errors import ConfigError, DataError, ModelError
from pipeline.flows.augment.augment import augment
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.store.files.open_store import open_store
from tests.flows.augment.augmenting import TOO_MANY_WORDS, worked_on
from tests.flows.augment.shuffled import LENIENT, MakeJob, rows_of, shuffles
from tests.flows.conftest import ON_RAY, ROOT, job_arguments, sentences, write_corpus

pytestmark = pytest.mark.usefixtures("cluster", "shuffle_method")


def expected_shuffle(row: dict[str, Any], marks: tuple[str, ...] = ("a", "b"), seed: int = 0) -> str | None:
    """Return the text that the stages give for a row, computed without units and batches."""
    text = row["text"]
    for number, mark in enumerate(marks):
        words = text.split()
        if len(words) >= TOO_MANY_WORDS:
            return None
        order = keyed_rng(seed, row["text_key"] + f"{number}.0".encode(), 0).permutation(len(words))
        text = " ".join([mark, *(words[index] for index in order)])
    return str(text)


def test_no_manifest_is_written_among_the_files_of_the_corpus(make_job: MakeJob, tmp_path: Path):
    job = make_job(LENIENT, "augment.variants.cut=crop", f"release.root={tmp_path / 'corpus' / 'root'}")
    with pytest.raises(ConfigError, match=r"expected a folder that is not below corpus\.uri"):
        augment(job, Stages())
    assert not (tmp_path / "corpus" / "root").exists()


def test_variants_of_a_row_do_not_depend_on_the_files(make_job: MakeJob, tmp_path: Path):
    settings = (
        LENIENT,
        "augment.unit_rows=50",
        "augment.variants.cut=crop",
        "augment.variants.less={method: delete, options: {count: 2}}",
        "augment.seed=3",
    )
    made = augment(make_job(*settings), Stages())
    rows = rows_of(made)
    assert len(rows) == 400
    assert made.manifest.labels == ("cut", "less_1", "less_2")
    crop, delete = (AUGMENTERS[name].model_validate({}) for name in ("crop", "delete"))
    assert isinstance(crop, WordAugmenter)
    assert isinstance(delete, WordAugmenter)
    for row in rows.values():
        words = row["text"].split()
        assert row["variant_cut"] == " ".join(crop.start()(list(words), keyed_rng(3, "cut", 0, row["id"])))
        assert [row["variant_less_1"], row["variant_less_2"]] == [
            " ".join(delete.start()(list(words), keyed_rng(3, "less", number, row["id"])))
            for number in range(2)
        ]
        assert row["lang"] == "en"
    table = pa.concat_tables([pq.read_table(file) for file in sorted((tmp_path / "corpus").glob("*"))])
    shutil.rmtree(tmp_path / "corpus")
    (tmp_path / "corpus").mkdir()
    pq.write_table(
        table.take(np.random.default_rng(0).permutation(len(table))), tmp_path / "corpus" / "mixed.parquet"
    )
    again = augment(
        make_job(*settings, f"release.root={tmp_path / 'other'}", "augment.unit_rows=70"), Stages()
    )
    assert rows_of(again) == rows


@pytest.mark.parametrize("together", [True, False])
def test_models_in_one_worker_and_in_separate_pools_give_equal_texts(
    make_job: MakeJob, tmp_path: Path, together: bool
):
    made = augment(make_job(LENIENT, "augment.unit_rows=50", shuffles(tmp_path, together=together)), Stages())
    rows = rows_of(made)
    assert len(rows) == 400
    for row in rows.values():
        assert row["variant_back"] == expected_shuffle(row)
        assert (row["reason_back"] == "too_long_for_model") == (row["variant_back"] is None)
    assert 0 < made.outcome_counts()["back"]["too_long_for_model"] < 400
    assert [worked.title for worked in made.model_work] == (
        ["back: shuffle a, shuffle b"] if together else ["back: shuffle a", "back: shuffle b"]
    )
    assert sum(worked.stats.texts for worked in made.model_work) == len(worked_on(tmp_path / "journal"))


def test_stage_with_several_outputs_gives_each_a_column(make_job: MakeJob, tmp_path: Path):
    made = augment(make_job(LENIENT, shuffles(tmp_path, outputs=3)), Stages())
    assert made.manifest.labels == ("back_1", "back_2", "back_3")
    row = next(row for row in rows_of(made).values() if row["variant_back_1"])
    variants = {row[f"variant_{label}"] for label in made.manifest.labels}
    assert len(variants) == 3
    assert {tuple(sorted(variant.split())) for variant in variants} == {
        tuple(sorted(["b", "a", *row["text"].split()]))
    }


def test_later_run_processes_only_new_texts_and_equals_a_run_from_scratch(make_job: MakeJob, tmp_path: Path):
    settings = (LENIENT, "augment.unit_rows=50", "augment.variants.cut=crop", shuffles(tmp_path))
    first = augment(make_job(*settings), Stages())
    journal = tmp_path / "journal"
    assert len(journal.read_text().splitlines()) > 400
    assert augment(make_job(*settings), Stages()).status == "unchanged"
    journal.unlink()
    file, texts = tmp_path / "corpus" / "part-1.parquet", sentences(400)
    table = pq.read_table(file)
    rows = table.to_pylist()
    gone, moved, fresh = rows.pop(5), rows[7], rows[9]
    moved["text"], fresh["text"] = (
        texts[0],
        "nobody has seen this sentence before",
    )  # the text of a row in another file, and a new text
    rows.append({**gone, "id": "row-again"})  # an old text under a new id
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)
    second = augment(make_job(*settings), Stages())
    assert (second.status, second.number, second.manifest.rows) == ("augmented", 2, 400)
    assert [line.partition(" ")[2] for line in worked_on(journal) if line.startswith("a ")] == [
        "nobody has seen this sentence before"
    ]
    now = rows_of(second)
    assert gone["id"] not in now
    assert now["row-again"]["variant_back"] == rows_of(first)[gone["id"]]["variant_back"]
    assert now == rows_of(augment(make_job(*settings, f"release.root={tmp_path / 'scratch'}"), Stages()))
    untouched = {unit.path for unit in first.manifest.units} & {unit.path for unit in second.manifest.units}
    assert len(untouched) >= 5, "units without a dead row are used again"


def test_other_keep_settings_run_no_model_again(make_job: MakeJob, tmp_path: Path):
    augment(make_job(LENIENT, shuffles(tmp_path)), Stages())
    (tmp_path / "journal").unlink()
    made = augment(make_job("augment.keep.length_ratio=[0.5, 1.02]", shuffles(tmp_path)), Stages())
    assert made.status == "augmented"
    assert made.outcome_counts()["back"]["too_long"] > 0
    assert worked_on(tmp_path / "journal") == []


def test_similarity_is_the_cosine_by_the_encoder_of_the_job(make_job: MakeJob, tmp_path: Path):
    job = make_job(
        "augment.keep.similarity=[0.2, 0.999]",
        "augment.variants.cut={method: crop, options: {share: 0.5}}",
        "augment.unit_rows=60",
    )
    rows = list(rows_of(augment(job, Stages())).values())
    found = np.array([row["similarity_cut"] for row in rows], float)
    assert np.isfinite(found).sum() > 150
    encoder = load_encoder(job.encoder, job.encode)
    texts, variants = (encoder.encode([row[name] or "" for row in rows]) for name in ("text", "variant_cut"))
    rejected = encoder.encode([row["rejected_cut"] or "" for row in rows])
    chosen = np.where(np.array([row["variant_cut"] is None for row in rows])[:, None], rejected, variants)
    cosines = (texts * chosen).sum(1) / np.linalg.norm(texts, axis=1) / np.linalg.norm(chosen, axis=1)
    np.testing.assert_allclose(found[np.isfinite(found)], cosines[np.isfinite(found)], atol=1e-5)
    for row in rows:
        assert (row["reason_cut"] in ("unlike", "alike")) == (
            row["similarity_cut"] is not None and not 0.2 <= row["similarity_cut"] <= 0.999
        )


@pytest.mark.slow
def test_killed_driver_loses_no_finished_unit(tmp_path: Path, encoder: Path):
    write_corpus(tmp_path / "corpus", count=1200)
    arguments = [
        *job_arguments(tmp_path, encoder),
        ON_RAY,
        LENIENT,
        "augment.unit_rows=20",
        shuffles(tmp_path),
    ]
    program = (
        "from tests.flows.augment.augmenting import Shuffles\n"
        "from pipeline.augment import AUGMENTERS\n"
        "import jobs.cli\n"
        "AUGMENTERS.register('test_shuffles')(Shuffles)\n"
        "jobs.cli.app()"
    )
    command = [sys.executable, "-c", program, "augment", "--json", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    killed = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    deadline = time.monotonic() + 120
    while (
        len(before := list((tmp_path / "releases" / "units" / "made").rglob("*.json"))) < 20
        and killed.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert 20 <= len(before) < 120
    times = {path: path.stat().st_mtime_ns for path in before}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, timeout=180)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["rows"] == 1200
    assert {path: path.stat().st_mtime_ns for path in before} == times
    open_store(tmp_path / "releases").sweep(time.time() + 60)
    undisturbed = [
        f"release.root={tmp_path / 'undisturbed'}" if argument.startswith("release.root") else argument
        for argument in command
    ]
    assert (
        subprocess.run(undisturbed, cwd=ROOT, capture_output=True, env=environment, timeout=180).returncode
        == 0
    )
    found = [
        {path.relative_to(root): path.read_bytes() for path in (root / "units").rglob("*.parquet")}
        for root in (tmp_path / "releases", tmp_path / "undisturbed")
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("override", "error", "words"),
    [
        ("augment.variants={}", ConfigError, "at least one variant"),
        ("augment.variants.x=no_such_method", ConfigError, "no_such_method"),
        ("augment.variants.x={method: crop, options: {shar: 0.5}}", ConfigError, "share"),
        ("augment.variants={a: {method: crop, options: {count: 2}}, a_1: crop}", ConfigError, "a_1"),
        ("augment.variants={lang: crop}", None, ""),
        ("augment.variants={x: {method: test_shuffles, options: {marks: ['']}}}", ModelError, "a word"),
        ("corpus.text=lang", ConfigError, "corpus.keep"),
        ("corpus.id=nothing", DataError, "nothing"),
    ],
)
def test_unusable_settings_are_refused_before_any_worker_starts(
    make_job: MakeJob, override: str, error: type[Exception] | None, words: str
):
    stages = Stages()
    if error is None:
        assert augment(make_job(override), stages).manifest.rows == 400
        return
    with pytest.raises(error, match=words):
        augment(make_job("augment.variants.cut=crop", override), stages)
    assert "cluster" not in stages.seconds()
