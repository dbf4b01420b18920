"""The page of all releases describes rollbacks and holds in words, with their times to the minute."""

from dataclasses import replace
from typing import Literal

import pytest

from pipeline.report.releases import Overview, ReleaseRow, render
from pipeline.store.releases.commits import Approval, Commit
from pipeline.store.releases.summary import Summary
from tests.report.pages import Page, spaced_words_in

PUBLISHED = Commit(commit=2, kind="publish", release=2, committed_at="2026-11-22T11:24:05Z")
ROW = ReleaseRow(Summary(release=2, rows=300, index_kind="flat", index_bytes=0), PUBLISHED, has_report=True)
OVERVIEW = Overview("/srv/manta", 2, None, (ROW,), (), 0, "", "5747e")


def words(overview: Overview) -> str:
    return " ".join(Page(render(overview)).words.split())


def test_the_page_asks_which_release_is_current_and_answers():
    shown = spaced_words_in(render(OVERVIEW))
    answer = "Release 2 , published at 2026-11-22 11:24 UTC: 300 texts can be searched."
    assert f"Which release is current? {answer}" in shown
    assert "Which release is current? None." in spaced_words_in(render(replace(OVERVIEW, current=None)))


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("rollback", "2026-11-23 07:01: rolled back to release 1"),
        ("hold", "2026-11-23 07:01: release 1 held: a bad encoder"),
        ("unhold", "2026-11-23 07:01: release 1 held no more"),
    ],
)
def test_a_rollback_and_a_hold_are_described(kind: Literal["rollback", "hold", "unhold"], sentence: str):
    commit = Commit(commit=3, kind=kind, release=1, committed_at="2026-11-23T07:01:59Z")
    if kind == "hold":
        commit = commit.model_copy(update={"reason": "a bad encoder"})
    assert sentence in words(replace(OVERVIEW, events=(commit,)))


def test_a_hold_is_shown_with_its_time_and_reason():
    hold = Commit(commit=3, kind="hold", release=2, committed_at="2026-11-23T07:01:59Z", reason="<audit>")
    shown = words(replace(OVERVIEW, held=hold))
    assert "Held since 2026-11-23 07:01: <audit>. Nights publish nothing" in shown
    assert "current, held" in shown
    assert "Held since" not in words(OVERVIEW)


def test_who_approved_a_release_has_a_row_of_its_own_so_that_the_table_fits_the_page():
    approval = Approval(candidate=24 * "a", by="Ann <a@b>", note="a long reason " * 30, user="ann", host="h")
    row = replace(ROW, commit=PUBLISHED.model_copy(update={"approval": approval}))
    page = render(replace(OVERVIEW, rows=(row, ROW)))
    assert (
        page.count('<tr class="approval current"><td></td><td colspan="9"><div>by Ann &lt;a@b&gt;: a long')
        == 1
    )
    assert " ".join(approval.note.split()) in words(replace(OVERVIEW, rows=(row,)))
    assert page.count("by Ann") == 1
