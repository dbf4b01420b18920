"""Findings of preflight about the corpus and the workers, compared with what the files contain."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.planning.preflight import preflight
from pipeline.flows.night.single_stage import encode_corpus
from pipeline.flows.night.steps import check_index_and_transform, check_root
from pipeline.log import Stages, packages
from pipeline.settings import Job

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.parametrize("kind", [int, str])
def test_repeated_ids_are_counted_across_files_and_batches(
    make_job: Callable[..., Job], tmp_path: Path, kind: type
):
    corpus = tmp_path / "repeated"
    corpus.mkdir()
    rows_of = [[*range(first, first + 60), first + 5, max(0, first - 7)] for first in (0, 50, 100)]
    for number, rows in enumerate(rows_of):
        table = pa.table({"id": [kind(row) for row in rows], "text": [f"the text {row}" for row in rows]})
        pq.write_table(table, corpus / f"{number}.parquet", row_group_size=20)
    job = make_job(f"corpus.uri={corpus}", "corpus.keep=[]")
    found = {check.name: check for check in preflight(job, Stages())}["corpus"].found
    rows = [row for rows_of_file in rows_of for row in rows_of_file]
    repeated = len(rows) - len(set(rows))
    assert found == (
        f"3 files; of {len(rows)} sampled rows 0 would be quarantined, {repeated} repeated ids (the first of "
        "each is kept)"
    )


@pytest.mark.skipif("faiss-gpu" in packages("faiss-gpu"), reason="faiss-gpu is installed")
def test_gpus_that_fill_an_index_need_faiss_gpu_before_any_work(make_job: Callable[..., Job]):
    with pytest.raises(
        ConfigError, match=r"cluster\.index_gpus: 0\.5: expected the package faiss-gpu, found"
    ):
        check_index_and_transform(make_job("cluster.index_gpus=0.5"))


def test_one_worker_and_one_core_are_named_in_the_singular(make_job: Callable[..., Job]):
    """The local child is one worker on one core."""
    found = {check.name: check.found for check in preflight(make_job(), Stages())}
    assert found["cluster"] == "1 CPU and 0 GPUs: 1 encode worker"
    assert found["corpus"] == "3 files; of 400 sampled rows 0 would be quarantined, ids unique"


def test_a_corpus_that_alternates_between_languages_is_sampled_in_their_proportions(
    make_job: Callable[..., Job], tmp_path: Path
):
    """Three quarters of 1,024 rows are English; every fourth row alone would be Chinese only."""
    texts = [
        f"一个人在弹吉他 {row}" if row % 4 == 0 else f"a man plays a guitar {row}" for row in range(1024)
    ]
    pq.write_table(pa.table({"id": list(range(1024)), "text": texts}), tmp_path / "a.parquet")
    job = make_job(f"corpus.uri={tmp_path / 'a.parquet'}", "corpus.keep=[]", "gates.unknown_tokens=null")
    checks = {check.name: check for check in preflight(job, Stages())}
    facts = checks["tokens"].facts
    assert facts["rows"] == 256
    assert 0.15 < facts["scripts"]["chinese"]["rows"] / facts["rows"] < 0.35


@pytest.mark.parametrize("root", ["corpus", "corpus/releases", "corpus/a/b"])
def test_a_root_among_the_files_of_the_corpus_is_refused(
    make_job: Callable[..., Job], tmp_path: Path, root: str
):
    """Its files would be read as rows, those of a running night first."""
    job = make_job(f"release.root={tmp_path / root}")
    before = sorted((tmp_path / "corpus").rglob("*"))
    for command in (nightly, encode_corpus):
        with pytest.raises(
            ConfigError, match=r"release\.root: .*expected a folder that is not below corpus\.uri"
        ):
            command(job, Stages())
    assert sorted((tmp_path / "corpus").rglob("*")) == before
    problems = {check.name: check.problem for check in preflight(job, Stages())}
    assert "release.root" in str(problems["corpus"])


@pytest.mark.parametrize("root", ["corpus2", "corpus/_releases", "corpus/.cache/releases", "."])
def test_another_root_is_not_refused(make_job: Callable[..., Job], tmp_path: Path, root: str):
    check_root(make_job(f"release.root={tmp_path / root}"))
    check_root(make_job(f"release.root=s3://bucket/{root}", "corpus.uri=s3://bucket/corpus/"))
