"""The lexical overlap of pairs is measured when a training begins, and is in its record, page and answer."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.train.plan import measure_overlap
from pipeline.flows.train.run_folder import RUN
from pipeline.settings.training import SourceSettings
from pipeline.stats.geometry import Metric
from pipeline.text.rows.training_rows import open_training_rows
from tests.conftest import CommandResult
from tests.flows.train.training import rank_of, train, training_arguments

TRIPLES = {
    "anchor": ["A man runs.", "a a a b", "", None, "x"],
    "positive": ["a man is running", "a a c", "", "z", " "],
    "negative": ["Two dogs", "a", "y", "z", "x"],
}
# By hand: 2 * 2 / (4 + 4), where the sign "." is a word, and 2 * 2 / (4 + 3).
POSITIVE = (4 / 8 + 4 / 7) / 2
# 0, 2 * 1 / (4 + 1), and 1.
NEGATIVE = (0 + 2 / 5 + 1) / 3


def overlap_of(
    file: Path, texts: Mapping[str, Sequence[str | None]], columns: Mapping[str, str] | None = None
) -> dict[str, Metric]:
    pq.write_table(pa.table(texts), file, row_group_size=2)
    settings = SourceSettings(uri=str(file), columns=dict(columns or {}))
    return measure_overlap(open_training_rows(settings, list(columns or texts)))


def test_pairs_without_words_are_left_out_and_words_are_lowercased(tmp_path: Path):
    found = overlap_of(tmp_path / "triples.parquet", TRIPLES)
    assert {role: metric.value for role, metric in found.items()} == pytest.approx(
        {"positive": POSITIVE, "negative": NEGATIVE}
    )
    assert {role: (metric.count, metric.of, metric.seed) for role, metric in found.items()} == {
        "positive": (2, "pairs", None),
        "negative": (3, "pairs", None),
    }


def test_nothing_is_measured_without_pairs_of_different_columns(tmp_path: Path):
    file = tmp_path / "rows.parquet"
    assert overlap_of(file, {"text": ["a", "b"]}) == {}
    assert overlap_of(file, {"premise": ["a"], "hypothesis": ["a"]}) == {}
    assert overlap_of(file, {"anchor": [""], "positive": ["a"]}) == {}
    both = {"anchor": "text", "positive": "text"}
    assert overlap_of(file, {"text": ["a", "b"]}, both) == {}
    found = overlap_of(file, {"text": ["a", "b"], "other": ["a", "c"]}, both | {"negative": "other"})
    assert found == {"negative": Metric(value=0.5, count=2, of="pairs")}


def test_a_sample_estimates_the_mean_of_all_rows_of_many_files(tmp_path: Path):
    for number in range(5):
        texts = ["a b", "c d"] * 400
        pairs = {"anchor": texts, "positive": ["a b" if number < 2 else "b x"] * 800}
        pq.write_table(pa.table(pairs), tmp_path / f"{number}.parquet", row_group_size=300)
    rows = open_training_rows(SourceSettings(uri=str(tmp_path)), ["anchor", "positive"])
    whole, sample = measure_overlap(rows)["positive"], measure_overlap(rows, 1_000)["positive"]
    assert (whole.value, whole.count, whole.seed) == (pytest.approx((2 * 0.5 + 3 * 0.25) / 5), 4_000, None)
    assert (sample.count, sample.seed) == (1_000, 0)
    assert sample.value == pytest.approx(whole.value, abs=0.05)
    assert sample == measure_overlap(rows, 1_000)["positive"]


def test_a_training_shows_the_overlap_in_its_record_its_page_and_its_answer(
    tmp_path: Path, encoder: Path, manta: Callable[..., CommandResult]
):
    pq.write_table(pa.table({role: texts[:2] * 8 for role, texts in TRIPLES.items()}), tmp_path / "t.parquet")
    given = (f"train.data={tmp_path / 't.parquet'}", "train.objective=supervised", "train.max_steps=1")
    rank = rank_of(tmp_path, encoder, *given)
    train(rank)
    expected = {"positive": POSITIVE, "negative": 2 / 5 / 2}
    (recorded,) = rank.run.record().lexical_overlap
    assert {role: metric.value for role, metric in recorded.items()} == pytest.approx(expected)
    page = (tmp_path / "trainings" / "run" / "report.html").read_text()
    assert "Lexical overlap" in page
    cells = [f'<td class="num">{value:.2f}</td><td class="num">16</td>' for value in expected.values()]
    assert all(cell in page for cell in cells)
    answer = json.loads(manta("train", "--json", *training_arguments(tmp_path, encoder), *given).out)
    assert answer["status"] == "unchanged"
    assert answer["lexical_overlap"] == [
        {role: metric.model_dump(mode="json") for role, metric in recorded.items()}
    ]


def test_a_training_without_pairs_shows_no_overlap(tmp_path: Path, encoder: Path):
    rank = rank_of(tmp_path, encoder, "train.max_steps=1")
    train(rank)
    assert rank.run.record().lexical_overlap == ({},)
    assert "Lexical overlap" not in (tmp_path / "trainings" / "run" / "report.html").read_text()


def test_a_training_that_an_earlier_version_began_ends_without_an_overlap(tmp_path: Path, encoder: Path):
    rank = rank_of(tmp_path, encoder, "train.max_steps=1")
    rank.run.store.write(RUN, rank.run.record().model_copy(update={"lexical_overlap": ()}).to_json())
    train(rank)
    assert (tmp_path / "trainings" / "run" / "report.html").exists()
