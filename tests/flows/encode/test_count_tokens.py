"""Counts of a corpus are those of the encoder's own tokenizer; averages leave out its frequent tokens."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers

from pipeline.errors import DataError
from pipeline.flows.night.single_stage import count_corpus_tokens
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.frequencies import read_frequencies
from pipeline.models.folder.token_filter import load_filter
from pipeline.settings import Job
from tests.flows.conftest import sentences
from tests.models.folder.wordfiles import write_words

pytestmark = pytest.mark.usefixtures("cluster")


def expected_counts(encoder: Path, texts: list[str]) -> Counter[str]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    return Counter(token for text in texts for token in tokenizer.tokenize(text))


def test_every_token_of_every_row_is_counted(make_job: Callable[..., Job], encoder: Path):
    store, path, table = count_corpus_tokens(make_job(), Stages())
    assert table.column_names == ["token", "count"]
    found = dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
    assert found == expected_counts(encoder, sentences(400))
    assert table["count"].to_pylist() == sorted(found.values(), reverse=True)
    assert pq.read_table(store.open(path)).equals(table)


def test_the_frequent_tokens_of_the_corpus_are_left_out_of_averages(
    make_job: Callable[..., Job], encoder: Path
):
    store, path, _ = count_corpus_tokens(make_job(), Stages())
    uri = store.uri_of(path)
    settings = make_job("encoder.exclude=[frequent]", f"encoder.frequencies={uri}", "encoder.frequent=5")
    folder = open_folder(settings.encoder)
    vocabulary, kept = folder.tokenizer().vocabulary(), load_filter(folder, folder.tokenizer())
    assert kept is not None
    counts = expected_counts(encoder, sentences(400))
    left_out = {token for token in counts if not kept[vocabulary[token]]}
    assert len(left_out) == 5
    assert min(counts[token] for token in left_out) >= max(
        count for token, count in counts.items() if token not in left_out
    )
    _, _, again = count_corpus_tokens(settings, Stages())
    assert again.column("count").to_pylist() == sorted(counts.values(), reverse=True)


def test_counts_of_whole_words_serve_sif_too(make_job: Callable[..., Job], tmp_path: Path):
    words = write_words(tmp_path / "words.txt", ("the", "dog", "runs"), np.eye(3, dtype=np.float32))
    store, path, table = count_corpus_tokens(make_job(f"encoder.path={words}"), Stages())
    expected = Counter(
        word for text in sentences(400) for word in text.split() if word in ("the", "dog", "runs")
    )
    assert dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True)) == expected
    assert not read_frequencies(Path(store.local(path))).are_tokens


def test_a_corpus_without_tokens_is_refused(make_job: Callable[..., Job], tmp_path: Path):
    pq.write_table(pa.table({"id": ["a"], "text": ["dog"]}), tmp_path / "one.parquet")
    words = write_words(tmp_path / "words.txt", ("the", "runs"), np.eye(2, dtype=np.float32))
    with pytest.raises(DataError, match="expected texts with tokens, found none"):
        count_corpus_tokens(
            make_job(f"encoder.path={words}", f"corpus.uri={tmp_path / 'one.parquet'}", "corpus.keep=[]"),
            Stages(),
        )
