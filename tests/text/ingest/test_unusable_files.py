"""Files that cannot be read are an error with a remedy, or skipped and counted."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.store.files.open_store import open_store
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from tests.text.ingest.outcomes import outcome, write_bytes, write_parquet


def damage(path, change):
    Path(path).write_bytes(change(Path(path).read_bytes()))


def write_column_not_utf8(corpus):
    path = Path(corpus.uri, "z.parquet")
    pq.write_table(pa.table({"id": ["x"], "text": ["y"], "o-er": ["z"]}), path, store_schema=False)
    damage(path, lambda content: content.replace(b"o-er", b"o\xe9er"))


OTHER_ID = "name another column in corpus.id, fix the file, or skip such files with corpus.bad_files=skip"
OTHER_TEXT = OTHER_ID.replace("corpus.id", "corpus.text")
UNREADABLE = "fix or remove the file, or its permissions; corpus.bad_files=skip leaves such files out"

# Kind of file: a function that writes it, parts of the error, and its remedy.
UNUSABLE = {
    "missing text": (
        lambda corpus: write_parquet(corpus, "z.parquet", id=["x"], txt=["y"]),
        ["'text' (corpus.text)", "the columns id, txt"],
        "set corpus.text: txt?",
    ),
    "missing id": (
        lambda corpus: write_parquet(corpus, "z.parquet", text=["y"]),
        ["'id' (corpus.id)", "the columns text"],
        "set corpus.id to one of them",
    ),
    "float id": (
        lambda corpus: write_parquet(corpus, "z.parquet", id=[1.0], text=["y"]),
        ["'id' (corpus.id) of type string or integer", "found double"],
        OTHER_ID,
    ),
    "text of numbers": (
        lambda corpus: write_parquet(corpus, "z.parquet", id=["x"], text=[5]),
        ["'text' (corpus.text) of type string", "found int64"],
        OTHER_TEXT,
    ),
    "list of texts": (
        lambda corpus: write_parquet(corpus, "z.parquet", id=["x"], text=[["y"]]),
        ["found list<"],
        OTHER_TEXT,
    ),
    "integer id beside strings": (
        lambda corpus: write_parquet(corpus, "z.parquet", id=[1], text=["y"]),
        ["'id' (corpus.id) of type string, as in a.parquet", "found integer"],
        OTHER_ID,
    ),
    "integer id in JSON": (
        lambda corpus: write_bytes(corpus, "z.jsonl", b'{"id":1,"text":"y"}'),
        ["string, as in a.parquet", "found integer"],
        OTHER_ID,
    ),
    "zero bytes": (
        lambda corpus: write_bytes(corpus, "z.parquet", b""),
        ["a readable file", "Parquet file size is 0 bytes"],
        UNREADABLE,
    ),
    "name of a column not UTF-8": (
        write_column_not_utf8,
        ["a readable file", "UnicodeDecodeError"],
        UNREADABLE,
    ),
    "zero bytes of gzip": (
        lambda corpus: write_bytes(corpus, "z.jsonl.gz", b""),
        ["a gzip file", "0 bytes"],
        "it is damaged or truncated: write it again",
    ),
    "not Parquet": (
        lambda corpus: write_bytes(corpus, "z.parquet", b"id,text\n1,one\n"),
        ["a readable file", "Parquet magic bytes not found"],
        UNREADABLE,
    ),
    "cut off": (
        lambda corpus: damage(
            write_parquet(corpus, "z.parquet", id=["x"], text=["y"]), lambda content: content[:-9]
        ),
        ["a readable file"],
        UNREADABLE,
    ),
    "hole in the middle": (
        lambda corpus: damage(
            write_parquet(corpus, "z.parquet", id=[f"{n}" for n in range(9999)], text=["y"] * 9999),
            lambda content: content[:60] + b"\xff" * 400 + content[460:],
        ),
        ["a readable file"],
        UNREADABLE,
    ),
    "damaged gzip": (
        lambda corpus: write_bytes(
            corpus, "z.jsonl.gz", gzip.compress(b'{"id":"x","text":"y"}\n' * 99999)[:-9]
        ),
        ["a complete gzip file"],
        "it is damaged or truncated: write it again",
    ),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_unusable_file_is_an_error_or_is_skipped_as_a_whole(corpus, store, kind, capsys):
    write_file, words, remedy = UNUSABLE[kind]
    write_parquet(corpus, id=["a", "b"], text=["one", "two"])
    write_file(corpus)
    with pytest.raises(DataError) as caught:
        ingest(corpus, 100, store)
    assert caught.value.exit_code == 3
    assert all(part in str(caught.value) for part in [f"{corpus.uri}/z.", *words])
    assert caught.value.remedy == remedy

    live, bad, counts = outcome(corpus, store, bad_files="skip")
    assert (
        "warning: 1 file left out (corpus.bad_files=skip), because they cannot be read: z."
        in capsys.readouterr().err
    )
    assert live == [("a", "one"), ("b", "two")]
    assert [(file[:2], row, reason) for file, row, reason in bad] == [("z.", -1, "bad_file")]
    assert counts | {"bad_files": 1, "rows": 2, "good": 2, "quarantined": 0} == counts


def test_file_with_string_ids_among_integer_ids_is_skipped(corpus, store):
    write_parquet(corpus, "a.parquet", id=[1, 2], text=["x", "y"])
    write_parquet(corpus, "b.parquet", id=["1"], text=["z"])
    assert outcome(corpus, store, bad_files="skip")[0] == [(1, "x"), (2, "y")]


@pytest.mark.parametrize(
    ("first_ids", "ids", "good"),
    [((-1, 7), '"x" "y" 5 -3', [-3, 5]), (("a", "b"), '1 2 "c" 3', ["c"])],
)
def test_a_json_file_with_mostly_the_other_kind_of_id_loses_only_those_rows(
    corpus, store, first_ids, ids, good
):
    write_parquet(corpus, "a.parquet", id=first_ids, text=["one", "two"])
    write_bytes(
        corpus, "z.jsonl", "\n".join(f'{{"id":{value},"text":"t"}}' for value in ids.split()).encode()
    )
    live, bad, _ = outcome(corpus, store)
    assert sorted(row_id for row_id, text in live if text == "t") == good
    expected = [line for line, value in enumerate(ids.split()) if json.loads(value) not in good]
    assert bad == [("z.jsonl", line, "wrong_type") for line in expected]


def test_corpus_without_rows_is_refused(corpus, store):
    write_parquet(corpus, id=pa.array([], pa.string()), text=pa.array([], pa.string()))
    write_bytes(corpus, "b.jsonl", b"")
    with pytest.raises(
        DataError, match=r"at least one row with an id and a text, found 0 rows; check corpus\.uri"
    ) as caught:
        ingest(corpus, 100, store)
    assert caught.value.exit_code == 3


def test_only_bad_files_are_named_in_the_error(corpus, store):
    write_bytes(corpus, "a.parquet", b"")
    with pytest.raises(DataError, match="found 0 rows, 1 unusable files; see"):
        ingest(corpus.model_copy(update={"bad_files": "skip"}), 100, store)


def test_missing_file_is_named_in_the_error(corpus, store, tmp_path):
    (tmp_path / "in" / "a.parquet").symlink_to(tmp_path / "in" / "gone.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: expected a file or directory, found a link"):
        ingest(corpus, 100, store)


def test_a_skipped_file_is_read_when_the_others_fit_it(corpus, store, tmp_path):
    corpus = corpus.model_copy(update={"bad_files": "skip"})
    write_parquet(corpus, "a.parquet", id=["1"], text=["one"])
    write_parquet(corpus, "z.parquet", id=[2], text=["two"])
    first = ingest(corpus, 100, store)
    assert (first.rows, first.counts["bad_files"]) == (1, 1)
    write_parquet(corpus, "a.parquet", id=[1, 3], text=["one", "three"])
    second = ingest(corpus, 100, store, PreviousCorpus(first, 1))
    assert second.counts == ingest(corpus, 100, open_store(tmp_path / "scratch")).counts
    assert (second.rows, second.id_type) == (3, "int64")
