"""The release report is well-formed without any optional value, escapes texts, and shows code that runs."""

import contextlib
import html
import io
import re
from dataclasses import replace
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pytest

from pipeline.log import Stage
from pipeline.report.changes import ChangedAnswers, QuarantinedRow, ReleaseChange, RowChange
from pipeline.report.night import NightReport, render
from pipeline.report.relevance import QueryScores, RelevanceSection
from pipeline.store.releases.fixed_query_results import Answers, Hit
from pipeline.store.releases.manifest import Gate
from pipeline.store.releases.summary import Summary
from pipeline.transforms.choose import Curve
from tests.report.nights import FULL, REFUSED, SMALLEST
from tests.report.pages import HostileTexts, Page, assert_shown_as_text, spaced_words_in


def words(report: NightReport) -> str:
    return " ".join(Page(render(report)).words.split())


def spaced_words(report: NightReport) -> str:
    """Return the words of the page, with a space between elements."""
    return spaced_words_in(re.sub(r"<style>.*?</style>", "", render(report), flags=re.DOTALL))


@pytest.mark.parametrize("report", [SMALLEST, FULL, REFUSED], ids=["smallest", "full", "refused"])
def test_the_page_is_well_formed_and_self_contained(report: NightReport) -> None:
    page = render(report)
    parsed = Page(page)
    previous = {"../../releases/00000041/report.html", "#answers"} if report is not SMALLEST else set()
    assert set(parsed.links) == {"../../index.html", *previous}
    assert "script" not in parsed.names
    assert not re.search(r"https?:|@import|url\(", page)
    assert len(page.encode()) < 200_000
    assert page == render(report)


@pytest.mark.parametrize(
    "name",
    [
        "throughput",
        "lengths",
        "created",
        "parent",
        "transform_id",
        "max_length",
        "previous",
        "relevance",
        "change",
    ],
)
def test_the_page_is_well_formed_without_an_optional_value(name: str) -> None:
    Page(render(replace(FULL, **{name: None})))


@pytest.mark.parametrize(
    "name", ["decisions", "stages", "examples", "gates", "changed_rows", "quarantined", "answers"]
)
def test_the_page_is_well_formed_with_an_empty_list(name: str) -> None:
    Page(render(replace(FULL, **{name: type(getattr(FULL, name))()})))


@pytest.mark.parametrize("name", ["spectrum", "spectrum_whitened", "cosines", "cosines_whitened"])
def test_the_page_is_well_formed_without_one_part_of_the_geometry(name: str) -> None:
    Page(render(replace(FULL, geometry=replace(FULL.geometry, **{name: None}))))


def test_the_page_shows_all_metrics() -> None:
    shown = words(FULL)
    expected = [
        "Release 42",
        "19,048",
        "95.7 %",
        "95.1 to 96.2 %",
        "32.5 MB",
        "nprobe 4",
        "3 min 3 s",
        "MRR 0.6124 raw",
        "17,844",
        "duplicate id",
        "512 rows/s",
    ]
    expected += [
        "0.9999998",
        "at least 0.9999",
        "recall@10",
        "latency (p99), ms",
        "not measured",
        "0.812",
        "−0.100",
        "posixpath.join",
        "after release 41",
        "tokens",
    ]
    assert [text for text in expected if text not in shown] == []
    assert render(FULL).count("<svg") == 1 + 4


@pytest.mark.parametrize(
    ("report", "question", "answer"),
    [
        (SMALLEST, "What can be searched in release 1?", "✓ published 300 texts can now be searched;"),
        (FULL, "What changed in release 42?", "Since release 41 : 900 rows new, 304 changed, 55 deleted."),
        (REFUSED, "Why was candidate c0ffeec0 refused?", "recall@10 is 0.91; at least 0.95 is required"),
        (
            replace(FULL, status="held", number=None),
            "Why was candidate c0ffeec0 not published?",
            "The root is held, so this candidate waits for its approval; it passed every gate.",
        ),
    ],
)
def test_the_heading_is_a_question_and_its_answer_follows(
    report: NightReport, question: str, answer: str
) -> None:
    shown = spaced_words(report)
    assert question in shown
    assert 0 < shown.index(answer) - shown.index(question) - len(question) < 70


def test_differences_from_the_previous_release_are_summarized_with_a_link() -> None:
    shown = spaced_words(FULL)
    assert "Since release 41 Rows 900 rows new, 304 changed, 55 deleted Vectors drift 0.0234:" in shown
    assert "Answers 1 of 2 fixed queries has other answers, shown below" in shown
    assert 'encoder.path : "old" → "new <model>" whiten.k : null → 4' in html.unescape(shown)
    assert render(FULL).count('<a href="../../releases/00000041/report.html">release 41</a>') == 2
    unknown = replace(FULL, change=ReleaseChange(41, "link"))
    assert "the drift is not known: another space, or too few rows" in spaced_words(unknown)
    assert "Settings the same" in spaced_words(unknown)


def test_tokens_are_shown_by_script_and_warnings_before_them() -> None:
    shown = words(FULL)
    assert shown.index(FULL.warnings[0]) < shown.index("Tokens")
    assert "Thai texts489090 %0 %0 %" in shown  # rows, tokens, unknown, cut, lost
    assert "Tokens" not in words(replace(FULL, token_coverage=None, warnings=()))


def test_every_tile_shows_the_difference_from_the_previous_release() -> None:
    tiles = [spaced_words_in(tile) for tile in re.findall(r"<div>(<dt>.*?)</div>", render(FULL), re.DOTALL)]
    assert [tile.split(" ")[0] for tile in tiles] == ["Rows", "Recall@10", "Latency", "Index", "Time"]
    differences = ["+845 since", "+0.3 points since", "+0.01 ms since", "+1.6 % since", "+12 s since"]
    assert [
        tile for tile, each in zip(tiles, differences, strict=True) if f"{each} release 41" not in tile
    ] == []
    assert FULL.previous is not None
    assert "as in release 41" in spaced_words(
        replace(FULL, previous=FULL.previous.model_copy(update={"rows": 19_048}))
    )
    assert "since release" not in spaced_words(replace(FULL, previous=None))
    without = spaced_words(
        replace(
            FULL,
            previous=Summary(release=41, rows=18_203, index_kind="flat", index_bytes=32_000_000),
            answers=(),
        )
    )
    assert "since release 41" in without
    assert without.count("not known of release 41") == 3, "recall, latency and time"
    assert "Release 41 kept no answers of fixed queries, and no latency and time of its night" in without
    assert "kept no answers" not in spaced_words(FULL)


def test_the_latency_tile_names_a_changed_p99_beside_an_equal_median() -> None:
    latency = FULL.index.metrics.latency
    assert FULL.previous is not None
    before = FULL.previous.model_copy(update={"p50_ms": latency.p50_ms, "p99_ms": latency.p99_ms - 0.5})
    assert "median as in release 41; p99 +0.50 ms since release 41" in spaced_words(
        replace(FULL, previous=before)
    )
    same = before.model_copy(update={"p99_ms": latency.p99_ms})
    assert "median as" not in spaced_words(replace(FULL, previous=same))


def test_exact_search_is_not_described_as_lossy() -> None:
    flat, compressed = (replace(FULL.index, kind=kind) for kind in ("flat", "ivf_pq"))
    assert "compares each query with every row" in spaced_words(replace(FULL, index=flat))
    assert "above all if the index compresses" not in spaced_words(replace(FULL, index=flat))
    assert "above all if the index compresses" in spaced_words(replace(FULL, index=compressed))


def test_exhaustive_search_has_a_latency_and_no_curve() -> None:
    shown = spaced_words(replace(FULL, index=SMALLEST.index))
    assert "Latency 0.183 ms" in shown
    assert "against the time of a query" not in shown
    assert "nprobe" not in shown


def test_gates_are_described() -> None:
    gate = Gate(value=0, threshold=0, passed=True, relation="exactly")
    counted = dict.fromkeys(("finite_vectors", "unique_ids"), gate)
    shown = spaced_words(replace(FULL, gates=counted))
    assert "non-finite vectors 0 exactly 0 passed repeated ids 0 exactly 0 passed" in shown
    assert "finite vectors is 3; exactly 0" in spaced_words(
        replace(FULL, gates={"finite_vectors": gate.model_copy(update={"value": 3, "passed": False})})
    )


def test_new_changed_deleted_and_quarantined_rows_are_shown() -> None:
    shown = spaced_words(FULL)
    expected = [
        "New rows · 1 of 900 n1 a new text",
        "Changed rows · 1 of 304 c1 the text before the text after",
        "Deleted rows · 1 of 55 d1 a deleted text",
    ]
    expected += [
        "Quarantined rows · 2 of 827 empty e1, part-0.parquet, row 17",
        "duplicate id twice a.parquet row 1 has it first; x, b.parquet, row 3",
    ]
    assert [each for each in expected if each not in shown] == []


def test_changed_results_are_shown_side_by_side() -> None:
    shown = spaced_words(FULL)
    assert (
        "The same 2 queries are asked of every release. 1 of them has other answers than in release 41."
        in shown
    )
    assert "same question" not in shown
    assert "release 41 0.900 one 1 0.800 gone answer 2 release 42 0.950 fresh answer 3 0.900 one 1" in shown
    page = render(FULL)
    assert page.count('<li class="gone">') == page.count('<li class="fresh">') == 1
    assert "All have the answers of release 41." in spaced_words(replace(FULL, answers=FULL.answers[:1]))


def test_judged_queries_are_shown_with_both_scores() -> None:
    page = spaced_words(FULL)
    assert "Your own queries nDCG@10 of 40 queries is 0.8125. nDCG@10 changed by -0.0125." in page
    assert "query release 41 release 42 lost question 1 0.63 won question 0 0.5" in page
    assert "3 differ from release 41; those that changed most are shown." in page
    assert "Your own queries" not in spaced_words(SMALLEST)


def test_a_refusal_is_shown_first() -> None:
    shown = words(REFUSED)
    assert "refused, not published" in shown
    assert "recall@10 is 0.91; at least 0.95 is required" in shown
    assert (
        "cosine of unchanged texts with the previous release not measured; at least 0.9999 is required"
        in shown
    )
    assert "Release 41 still serves" in shown
    assert "manta search" not in shown


def test_a_transform_that_was_not_chosen_is_marked() -> None:
    assert "(not used)" in words(replace(FULL, transform_id=None))
    assert "(not used)" not in words(FULL)


def test_transforms_are_named_and_their_curves_drawn() -> None:
    curves = (
        Curve("k", "MRR", 1_000, "texts", ((8, 0.4), (15, 0.6)), 15),
        Curve("remove", "MRR", 1_000, "texts", ((0, 0.5), (1, 0.4)), 0),
    )
    other = replace(
        FULL,
        transform="standardize+components, 16 dimensions",
        geometry=replace(FULL.geometry, transformed_name="transformed"),
        curves=curves,
    )
    shown = words(other)
    expected = [
        "standardize+components, 16 dimensions",
        "transformed, mean",
        "Components kept, k, chosen by MRR",
        "Directions removed, chosen by MRR",
    ]
    assert [words for words in expected if words not in shown] == []
    assert render(other).count("<svg") == 1 + 6
    assert "whitened, mean" in words(FULL)


def test_all_texts_are_escaped() -> None:
    unprintable = "\x00\u202e & \"q\" 'x' $(rm -rf ~)"
    hostile = HostileTexts(unprintable + "\ud800")
    stored = HostileTexts(unprintable)  # a stored text has no lone surrogate
    changed = RowChange(hostile("id of a row"), hostile("text before"), hostile("text now"))
    quarantined = QuarantinedRow(
        hostile("reason"),
        hostile("file"),
        1,
        hostile("quarantined id"),
        hostile("detail"),
        hostile("quarantined text"),
    )
    hit = Hit(id=stored("id of an answer"), score=0.5, text=stored("text of an answer"))
    page = render(
        replace(
            FULL,
            changed_rows=(changed,),
            quarantined=(quarantined,),
            answers=(ChangedAnswers(hostile("asked query"), (hit,), ()),),
            relevance=RelevanceSection("nDCG@10", (), 1, (QueryScores(hostile("judged query"), 0, 1),)),
        )
    )
    assert_shown_as_text(page, *hostile.shown, *stored.shown)
    assert not re.search("[\u202e\x00]", page)

    hostile, stored = HostileTexts(hostile.tail), HostileTexts(unprintable)
    hit = Hit(id=stored("id of a neighbour"), score=0.5, text=stored("text of a neighbour"))
    page = render(
        replace(
            FULL,
            root=f"/srv/{hostile('root')}",
            encoder=hostile("encoder"),
            transform=hostile("transform"),
            decisions=(hostile("decision"),),
            warnings=(hostile("warning"),),
            stages=(Stage(hostile("stage"), seconds=1.0),),
            examples=(Answers(query=stored("query"), hits=(hit,)),),
            settings=hostile("settings"),
            packages={hostile("package"): hostile("version")},
        )
    )
    assert_shown_as_text(page, *hostile.shown, *stored.shown)
    page.encode("utf-8")  # no lone surrogate is left
    assert "\u202e" not in page.split("Example searches")[1].split("<h2>Time</h2>")[0]
    command = html.unescape(re.search(r"<pre>(manta search .*?)</pre>", page, re.DOTALL)[1])  # type: ignore[index]
    assert "'\"'\"'" in command  # quoted for a shell: the dollar sign stays a dollar sign


def test_long_texts_are_cut() -> None:
    hit = Hit(id="i", score=0.5, text="word " * 300_000)
    page = render(replace(FULL, examples=(Answers(query="q", hits=(hit,)),)))
    assert len(page) < 60_000
    assert "word…" in page


def test_the_code_for_plain_faiss_runs(tmp_path: Path) -> None:
    """The code searches a small index on disk; for a vector of the index it finds the id of this vector."""
    vectors = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
    index = faiss.index_factory(16, "L2norm,IVF4,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    addresses = (np.arange(200) % 2 << 32) | np.arange(200)
    index.add_with_ids(vectors, addresses)
    faiss.write_index(index, str(tmp_path / "a.faiss"))
    order = np.argsort(addresses)
    table = pa.table({"address": addresses[order], "id": [f"text {row}" for row in order]})
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table, max_chunksize=50)
    stored = replace(
        FULL, root=str(tmp_path), index=replace(FULL.index, files=("a.faiss",), ids=("a.arrow",))
    )
    code = html.unescape(re.findall(r"<pre>(import faiss.*?)</pre>", render(stored), re.DOTALL)[0])
    exec(code, {})  # as it is on the page
    own = re.sub(r"^vectors = .*$", "", code, flags=re.MULTILINE)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(own, {"vectors": vectors[17:18]})
    assert '"text 17"' in printed.getvalue().split("id:")[-1].split(",")[0]


def test_the_code_for_a_remote_root_uses_local_copies() -> None:
    shown = html.unescape(render(replace(FULL, root="s3://bucket/manta")))
    assert "manta search s3://bucket/manta " in shown
    assert "faiss.read_index('indexes/a.faiss')" in shown
