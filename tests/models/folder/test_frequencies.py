"""Word counts are read completely, or refused with the reason."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ModelError
from pipeline.models.folder.frequencies import locate_frequencies, read_frequencies
from pipeline.store.files.open_store import open_store
from tests.models.folder.wordfiles import write_counts


def test_words_and_counts_of_any_numeric_type_are_read_in_order(tmp_path):
    for kind in (pa.int32(), pa.uint64(), pa.float32(), pa.float64()):
        table = pa.table(
            {
                "count": pa.array([3, 0, 4], kind),
                "more": [1, 2, 3],
                "word": pa.array(["a", "b", "a"]).dictionary_encode(),
            }
        )
        pq.write_table(table, tmp_path / "counts.parquet")
        found = read_frequencies(tmp_path / "counts.parquet")
        assert found.counts.sum() == 7
        assert [
            (word, count)
            for words, counts in found.batches()
            for word, count in zip(words, counts, strict=True)
        ] == [("a", 3), ("b", 0), ("a", 4)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"word": ["a"], "n": [1]}, "expected the columns word and count, found no count among word, n"),
        ({"tokens": ["a"], "count": [1]}, "found no word among tokens, count"),
        ({"token": ["a"], "n": [1]}, "expected the columns token and count, found no count among token, n"),
        ({"word": ["a", None], "count": [1, 2]}, "expected a word and a count in every row, found 1 missing"),
        (
            {"word": ["a"], "count": ["many"]},
            "expected words as strings and counts as numbers, found string and string",
        ),
        ({"word": [[1]], "count": [1]}, "expected words as strings and counts as numbers"),
        (
            {"word": ["a", "b"], "count": [1, -1]},
            "expected counts from 0 on, not all of them 0, found -1 for 'b'",
        ),
        ({"word": ["a", "b"], "count": [1.0, np.inf]}, "expected counts from 0 on, .* found inf for 'b'"),
        ({"word": ["a"], "count": [0]}, "expected counts from 0 on, not all of them 0, found only zeros"),
        (
            {"word": [7], "count": [1]},
            "expected words as strings and counts as numbers, found int64 and int64",
        ),
        ({"word": pa.array([], pa.string()), "count": pa.array([], pa.int64())}, "found no row"),
    ],
)
def test_invalid_counts_are_named(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "counts.parquet")
    with pytest.raises(ModelError, match=rf"encoder\.frequencies .*counts\.parquet: .*{message}"):
        read_frequencies(tmp_path / "counts.parquet")


def test_other_and_missing_files_are_refused(tmp_path, s3):
    (tmp_path / "counts.parquet").write_text("word,count\na,1\n")
    with pytest.raises(ModelError, match="expected a readable Parquet file"):
        read_frequencies(locate_frequencies(str(tmp_path / "counts.parquet")))
    for path in (str(tmp_path / "none"), f"file://{tmp_path}/none", str(tmp_path), f"{s3}/none.parquet"):
        with pytest.raises(
            ModelError, match=r"encoder\.frequencies: expected a Parquet file .* found no such file"
        ):
            locate_frequencies(path)


def test_counts_at_a_uri_are_copied_to_the_cache(tmp_path, s3, monkeypatch):
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    content = write_counts(tmp_path / "counts.parquet", {"a": 1, "b": 2}).read_bytes()
    open_store(f"{s3}/counts").write("counts.parquet", content)
    assert locate_frequencies(f"{s3}/counts/counts.parquet").read_bytes() == content
    assert locate_frequencies(f"file://{tmp_path}/counts.parquet") == tmp_path / "counts.parquet"
