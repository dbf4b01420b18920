"""The comparison with the previous release in a night's report.

Fixed queries are asked of both releases; values that the previous one did not record are left out.
"""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.report.releases_page import load_summary
from pipeline.flows.night.report.report import _chosen_rows
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.change_examples import ChangedRow, ChangedRows
from pipeline.store.releases.summary import Summary, summary_path
from tests.flows.conftest import write_corpus

pytestmark = pytest.mark.usefixtures("cluster")


def page_of(job: Job, number: int) -> str:
    return (Path(job.release.root) / f"releases/{number:08d}/report.html").read_text()


def test_the_next_night_repeats_the_queries_and_shows_changed_answers(
    make_job: Callable[..., Job], tmp_path: Path
):
    job = make_job("whiten.mode=off")
    nightly(job, Stages())
    store = open_store(job.release.root)
    first = load_summary(store, 1)
    assert first is not None
    assert first.rows == 400
    assert len(first.answers) == 6
    write_corpus(tmp_path / "corpus", count=380)
    outcome = nightly(job, Stages())
    second = load_summary(store, 2)
    assert second is not None
    assert [answer.query for answer in second.answers] == [answer.query for answer in first.answers]
    found = (
        open_release(job.release.root, 2).search([answer.query for answer in second.answers], k=5).to_pylist()
    )
    for number, answer in enumerate(second.answers):
        others = [row["id"] for row in found if row["query"] == number and row["text"] != answer.query][:4]
        assert [hit.id for hit in answer.hits] == others
    page = page_of(job, 2)
    changed = sum(
        [hit.id for hit in before.hits] != [hit.id for hit in after.hits]
        for before, after in zip(first.answers, second.answers, strict=True)
    )
    assert page.count("<h4>release 1</h4>") == changed
    assert outcome.facts["queries"] == {"asked": 6, "changed": changed}
    assert "The same 6 queries are asked of every release." in page
    assert "\u221220 since release 1" in page
    assert len(re.findall(r"Deleted rows <span class=\"soft\">· 5 of 20", page)) == 1


@pytest.mark.parametrize(
    ("short", "expected"),
    [
        (lambda row: row % 2 == 0, {"long": 6}),
        (lambda row: row > 2, {"long": 3, "short": 3}),
    ],
)
def test_short_texts_are_fixed_queries_only_if_there_are_too_few_longer_ones(
    make_job: Callable[..., Job],
    tmp_path: Path,
    short: Callable[[int], bool],
    expected: dict[str, int],
):
    texts = [f"{row}" if short(row) else f"The text of row {row} is long enough." for row in range(40)]
    table = pa.table({"id": list(range(40)), "text": texts})
    pq.write_table(table, tmp_path / "short.parquet")
    job = make_job(f"corpus.uri={tmp_path / 'short.parquet'}", "corpus.keep=[]", "gates.unknown_tokens=null")
    nightly(job, Stages())
    summary = load_summary(open_store(job.release.root), 1)
    assert summary is not None
    assert Counter("long" if len(each.query) > 20 else "short" for each in summary.answers) == expected


def test_the_log_counts_special_tokens_and_the_page_says_that_it_does_not(
    make_job: Callable[..., Job], capfd: pytest.CaptureFixture[str]
):
    job = make_job("whiten.mode=off")
    tokens = nightly(job, Stages()).facts["tokens"]
    logged = re.search(r"encode: done, .* ([\d,]+) tokens with special ones", capfd.readouterr().err)
    assert logged is not None
    assert int(logged[1].replace(",", "")) == tokens["tokens"] + 2 * 400, "two in each of 400 texts"
    page = page_of(job, 1)
    assert f"{tokens['tokens']:,}</td>" in page
    assert "Special tokens, which begin and end each text, and prompts are not counted." in page


def test_a_damaged_file_of_changed_rows_leaves_them_out_of_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = open_store(tmp_path)
    assert _chosen_rows(store, "corpus") == ()
    store.write(ChangedRows.path("corpus"), ChangedRows(rows=(ChangedRow(now=7),)).to_json())
    assert _chosen_rows(store, "corpus") == (ChangedRow(now=7),)
    store.write(ChangedRows.path("corpus"), b'{"rows": 3}\n')
    assert _chosen_rows(store, "corpus") == ()
    assert "the report shows no new, changed and deleted rows" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"{", b"{}\n"], ids=["none", "cut off", "empty"])
def test_without_a_readable_summary_a_release_is_compared_by_its_manifest(
    content: bytes | None, make_job: Callable[..., Job], tmp_path: Path
):
    job = make_job("whiten.mode=off")
    nightly(job, Stages())
    store = open_store(job.release.root)
    store.delete(summary_path(1))
    if content is not None:
        store.write(summary_path(1), content)
    write_corpus(tmp_path / "corpus", count=390)
    nightly(job, Stages())
    page = page_of(job, 2)
    assert "\u221210 since release 1" in page
    assert "Release 1 kept no answers of fixed queries" in page
    assert "The same " not in page, "no answers are compared"
    summary = load_summary(store, 2)
    assert isinstance(summary, Summary)
    assert summary.answers
