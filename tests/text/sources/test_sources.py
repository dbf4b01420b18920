"""Listings of files, directories, globs and hive partitions, on a disk, in memory and in S3."""

import errno
import gzip
import os
import uuid

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError, TransientError
from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.files.s3 import S3Store, client
from pipeline.text.formats.reader import read_batches
from pipeline.text.sources.sources import (
    is_in_corpus,
    is_unchanged,
    list_corpus,
    list_files,
    open_file,
    open_ranges,
)


def write_files(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())


def names(uri, **settings):
    return [file.name for file in list_files(CorpusSettings(uri=str(uri), **settings))]


def test_directory_gives_all_files_by_name_except_hidden_and_foreign_ones(tmp_path):
    write_files(
        tmp_path,
        "b.parquet",
        "a/z.jsonl",
        "a/b/c.json.gz",
        "_SUCCESS",
        "_tmp/x.parquet",
        ".x.parquet",
        "a/.y/z.parquet",
        "notes.md",
        "B.PARQUET",
    )
    assert names(tmp_path) == ["B.PARQUET", "a/b/c.json.gz", "a/z.jsonl", "b.parquet"]
    assert names(tmp_path, format="jsonl") == ["a/b/c.json.gz", "a/z.jsonl"]
    assert names(f"file://{tmp_path}") == names(f"{tmp_path}/") == names(tmp_path)


def test_glob_names_are_relative_to_its_fixed_part(tmp_path):
    write_files(tmp_path, "x/1.parquet", "x/2.parquet", "y/1.parquet", "y/deep/3.parquet")
    assert names(tmp_path / "*" / "1.parquet") == ["x/1.parquet", "y/1.parquet"]
    assert names(tmp_path / "**" / "*.parquet") == [
        "x/1.parquet",
        "x/2.parquet",
        "y/1.parquet",
        "y/deep/3.parquet",
    ]
    assert names(tmp_path / "y" / "[0-9].parquet") == ["1.parquet"]


def test_single_file_may_have_any_name_if_the_format_is_set(tmp_path):
    write_files(tmp_path, "_hidden", "with [brackets]*.parquet", "part-0", "data.csv")
    assert names(tmp_path / "_hidden", format="parquet") == ["_hidden"]
    assert names(tmp_path / "with [brackets]*.parquet") == ["with [brackets]*.parquet"]
    assert names(tmp_path, format="jsonl") == ["part-0"]
    assert names(f"file://{tmp_path}/with%20[brackets]*.parquet") == ["with [brackets]*.parquet"]


def test_hive_directories_become_values(tmp_path):
    write_files(tmp_path, "lang=en/day=2024-01-01%2F2/a.parquet", "lang=__HIVE_DEFAULT_PARTITION__/b.parquet")
    files = list_files(CorpusSettings(uri=str(tmp_path)))
    assert {file.name.rsplit("/", 1)[1]: file.partitions for file in files} == {
        "a.parquet": {"lang": "en", "day": "2024-01-01/2"},
        "b.parquet": {"lang": None},
    }


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("", "lang=en/day=2/a.parquet"),
        ("lang=en", "day=2/a.parquet"),
        ("lang=en/*/a.parquet", "day=2/a.parquet"),
        ("lang=en/day=2/*.parquet", "a.parquet"),
        ("lang=en/day=2/a.parquet", "a.parquet"),
        ("lang=*/day=2/a.parquet", "lang=en/day=2/a.parquet"),
    ],
)
def test_hive_directories_in_the_uri_become_values(tmp_path, uri, name):
    write_files(tmp_path, "lang=en/day=2/a.parquet")
    memory = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe(f"{memory}/lang=en/day=2/a.parquet", b"content")
    for root in (tmp_path, memory):
        files = list_files(CorpusSettings(uri=f"{root}/{uri}"))
        assert [(file.name, file.partitions) for file in files] == [(name, {"lang": "en", "day": "2"})]


def test_files_in_another_hive_directory_of_the_uri_are_other_files_if_rows_get_its_value(tmp_path):
    stamps = []
    for day in (1, 2):
        (tmp_path / f"day={day}").mkdir()
        (tmp_path / f"day={day}" / "a.parquet").write_bytes(b"content")
        for keep in ((), ("day",)):
            corpus = CorpusSettings(uri=str(tmp_path / f"day={day}"), fingerprint="full", keep=keep)
            (file,) = list_files(corpus)
            stamps.append((file.name, file.stamp))
    assert stamps[0] == stamps[2]
    assert stamps[1][0] == stamps[3][0]
    assert stamps[1][1] != stamps[3][1]


def test_the_innermost_of_two_directories_of_a_partition_key_gives_its_value(tmp_path):
    write_files(tmp_path, "k=1/k=2/a.parquet")
    assert list_files(CorpusSettings(uri=str(tmp_path / "k=1")))[0].partitions == {"k": "2"}


def test_links_are_followed_and_cycles_end(tmp_path):
    write_files(tmp_path, "real/a.parquet")
    (tmp_path / "corpus").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "corpus" / "link")
    os.symlink(tmp_path / "corpus", tmp_path / "corpus" / "circle")
    assert names(tmp_path / "corpus") == ["link/a.parquet"]


@pytest.mark.parametrize("uri", ["", "*/*.parquet", "**/*.parquet", "[ab_l]*/*"])
@pytest.mark.parametrize(("number", "error"), [(errno.EACCES, DataError), (errno.ESTALE, TransientError)])
def test_a_directory_that_cannot_be_read_is_not_an_empty_one(tmp_path, monkeypatch, uri, number, error):
    """Else the next night would delete its rows."""
    write_files(tmp_path, "a/x.parquet", "b/y.parquet", "_hidden/z.parquet", "lost+found/u")
    scandir, unreadable = os.scandir, {"b", "_hidden", "lost+found"}

    def refuse(path):
        if os.path.basename(os.path.normpath(path)) in unreadable:
            raise OSError(number, os.strerror(number), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(error, match=f"{os.strerror(number)}.*/b"):
        names(tmp_path / uri)
    unreadable.remove("b")
    assert names(tmp_path / uri) == ["a/x.parquet", "b/y.parquet"]


def test_a_link_that_leads_to_nothing_is_refused_unless_its_name_is_hidden(tmp_path):
    write_files(tmp_path, "a.parquet")
    os.symlink(tmp_path / "gone", tmp_path / ".#lock.parquet")
    assert names(tmp_path) == ["a.parquet"]
    os.symlink(tmp_path / "not mounted", tmp_path / "more")
    for uri in (tmp_path, tmp_path / "*"):
        with pytest.raises(DataError, match="more: expected a file or directory, found a link"):
            names(uri)


def test_file_name_with_invalid_utf8_is_refused(tmp_path):
    with (
        open(os.path.join(os.fsencode(tmp_path), b"\xff.parquet"), "wb"),
        pytest.raises(DataError, match="file names in UTF-8"),
    ):
        names(tmp_path)


def test_the_stamp_changes_with_the_time_of_a_file_or_with_its_content_as_set(tmp_path):
    write_files(tmp_path, "a.parquet")
    fast, full = (CorpusSettings(uri=str(tmp_path), fingerprint=kind) for kind in ("fast", "full"))
    before = {kind: list_files(kind)[0].stamp for kind in (fast, full)}
    files = list_files(full)
    os.utime(tmp_path / "a.parquet", ns=(1, 1))
    assert list_files(fast)[0].stamp != before[fast]
    assert list_files(full)[0].stamp == before[full]
    assert not is_unchanged(files, full)
    (tmp_path / "a.parquet").write_bytes(b"A.parquet")
    assert list_files(full)[0].stamp != before[full]


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("nowhere", "nothing there"),
        ("*.nothing", "nothing there"),
        ("", "only files of other names (data.csv)"),
    ],
)
def test_empty_listing_names_the_suffixes_wanted(tmp_path, uri, found):
    write_files(tmp_path, "data.csv")
    with pytest.raises(DataError) as caught:
        names(tmp_path / uri)
    assert str(tmp_path) in str(caught.value)
    assert ".parquet" in caught.value.expected
    assert caught.value.found == found


def test_unknown_scheme_is_a_configuration_error():
    with pytest.raises(ConfigError, match="Protocol not known"):
        names("nowhere9://bucket/x")


def test_other_file_systems_are_listed_and_read_by_fsspec():
    base = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe({f"{base}/k=1/a.parquet": b"content", f"{base}2/b.parquet": b""})
    files = list_files(CorpusSettings(uri=base))
    assert [(file.name, file.size, file.partitions) for file in files] == [("k=1/a.parquet", 7, {"k": "1"})]
    with open_file(files[0]) as stream:
        assert stream.read() == b"content"


def test_s3_is_listed_like_a_directory(s3, tmp_path):
    base = f"{s3}/{uuid.uuid4().hex}"
    system = fsspec.filesystem("s3", use_listings_cache=False)
    system.pipe(
        {
            f"{base}/{name}": b"x"
            for name in ("a b.parquet", "k=1/c.jsonl", "_x/d.parquet", "q?.parquet", "z+ü.parquet")
        }
    )
    system.pipe(f"{base}2/other.parquet", b"x")
    assert names(base) == names(f"{base}/") == ["a b.parquet", "k=1/c.jsonl", "q?.parquet", "z+ü.parquet"]
    assert names(f"{base}/*/*") == ["k=1/c.jsonl"]
    assert names(f"{base}/a b.parquet") == ["a b.parquet"]
    corpus = CorpusSettings(uri=base)
    files = list_files(corpus)
    assert is_unchanged(files, corpus)
    for file in files:
        with open_file(file) as stream:
            assert stream.read() == b"x"
    system.pipe(f"{base}/a b.parquet", b"y")
    assert not is_unchanged(files, corpus)  # no listing is remembered


def test_large_object_is_read_by_ranges(s3, monkeypatch):
    monkeypatch.setattr("pipeline.store.files.remote._MAX_MEMORY_READ", 10)
    for module in ("sources.sources", "formats.parquet"):
        monkeypatch.setattr(f"pipeline.text.{module}.LARGE_BYTES", 10)
    base = f"{s3}/{uuid.uuid4().hex}"
    lines = b"".join(b'{"id":%d,"text":"number %d"}\n' % (number, number) for number in range(1000))
    table = pa.table({"id": range(1000), "text": [f"number {number}" for number in range(1000)]})
    pq.write_table(table, sink := pa.BufferOutputStream())
    fsspec.filesystem("s3", use_listings_cache=False).pipe(
        {
            f"{base}/a.jsonl": lines,
            f"{base}/b.jsonl.gz": gzip.compress(lines),
            f"{base}/c.parquet": sink.getvalue().to_pybytes(),
        }
    )
    corpus = CorpusSettings(uri=base)
    for file in list_files(corpus):
        assert [row["id"] for batch in read_batches(file, corpus) for row in batch.good.to_pylist()] == list(
            range(1000)
        )


def test_missing_bucket_is_named_in_the_error(s3):
    with pytest.raises(DataError, match="no-such-bucket"):
        names("s3://no-such-bucket/x")


DELTA, ICEBERG = "_delta_log/00000000000000000000.json", "metadata/v1.metadata.json"


DELTA_TABLE = ("t/a.parquet", f"t/{DELTA}")
ICEBERG_TABLE = ("t/data/day=1/a.parquet", f"t/{ICEBERG}")
INNER_TABLE = ("t/a.parquet", f"t/metadata/other/{ICEBERG}")


@pytest.mark.parametrize(
    ("files", "uri", "table"),
    [
        *((DELTA_TABLE, uri, "Delta") for uri in ("", "t/*.parquet", "t/a.parquet")),
        (("t/day=1/a.parquet", f"t/{DELTA}"), "t/day=1", "Delta"),
        *((ICEBERG_TABLE, uri, "Iceberg") for uri in ("", "t/data", "t/data/*/*.parquet")),
        (("t/data/a.parquet", f"t/{ICEBERG}"), "t/data/a.parquet", "Iceberg"),
        (("other/a.parquet", "t/b.txt", f"t/{DELTA}"), "", None),
        (("t/a.parquet", "t/metadata/about.json"), "t", None),
        (("t/a.parquet", "t/_delta_log/notes.txt"), "t", None),
        *((INNER_TABLE, uri, None) for uri in ("t/a.parquet", "t/*.parquet", "t")),
        (("t/a.parquet", "t/metadata"), "t/a.parquet", None),
    ],
)
@pytest.mark.parametrize("file_system", ["disk", "s3", "memory"])
def test_parts_of_delta_and_iceberg_tables_are_refused(tmp_path, s3, file_system, files, uri, table):
    root = {"disk": tmp_path, "s3": f"{s3}/{uuid.uuid4().hex}", "memory": f"memory:///{uuid.uuid4().hex}"}[
        file_system
    ]
    if file_system == "disk":
        write_files(tmp_path, *files)
    elif file_system == "memory":
        fsspec.filesystem("memory").pipe({f"{root}/{name}": b"content" for name in files})
    else:
        store = open_store(root)
        for name in files:
            store.write(name, b"content")
    corpus = CorpusSettings(uri=f"{root}/{uri}".rstrip("/"))
    if table is None:
        assert list_files(corpus)
        return
    with pytest.raises(
        DataError, match=rf"{root}.*a table of {table} .*set corpus.uri to the folder of the table"
    ):
        list_files(corpus)


def test_json_lines_beside_the_log_of_a_table_are_read_if_the_format_is_set(tmp_path):
    write_files(tmp_path, "t/a.jsonl", f"t/{DELTA}")
    assert names(tmp_path / "t", format="jsonl") == ["a.jsonl"]


def test_only_names_directly_in_a_log_folder_are_listed(s3: str):
    """A folder beside it, called metadata, may hold millions of other objects."""
    store = S3Store(f"{s3}/{uuid.uuid4().hex}")
    for name in (
        "metadata/1.json",
        "metadata/2.json",
        "metadata/deep/3.json",
        "metadata-of/4.json",
        "5.json",
    ):
        store.write(name, b"content")
    assert store.names("metadata") == ("1.json", "2.json")
    assert store.names("nothing") == ()


def test_files_that_may_hold_rows_and_are_not_read_are_named_and_counted(tmp_path):
    write_files(tmp_path, "a.parquet", "_SUCCESS", ".a.parquet.crc", "_delta/x", "b.csv", "c.jsonl.zst")
    write_files(tmp_path, "_day=1/x.parquet", "_day=1/y/z.jsonl", "k=1/.hidden.json")
    write_files(tmp_path, "_out/commits/00000001.json", "_out/corpus/a.parquet")  # a release root
    listed = list_corpus(CorpusSettings(uri=str(tmp_path)))
    assert [file.name for file in listed.files] == ["a.parquet"]
    assert listed.left_out == {"_day=1/": 2, "b.csv": 1, "c.jsonl.zst": 1, "k=1/.hidden.json": 1}
    assert listed.warning == (
        "5 files below corpus.uri not read, by the names: _day=1/, b.csv, c.jsonl.zst and 1 more"
    )
    assert list_corpus(CorpusSettings(uri=str(tmp_path / "*.parquet"))).warning is None
    assert list_corpus(CorpusSettings(uri=str(tmp_path / "a.parquet"))).warning is None


KEYS = ["a.jsonl", "/a.jsonl", "//a.jsonl", "x/./a.jsonl", "x/a.jsonl", "x/../a.jsonl", "b\\c.jsonl"]


def test_objects_in_s3_of_any_key_are_read_by_their_own_names(s3):
    bucket, prefix = s3.removeprefix("s3://").partition("/")[0], uuid.uuid4().hex
    for key in [*KEYS, "x/"]:
        client().call_s3("put_object", Bucket=bucket, Key=f"{prefix}/{key}", Body=key.encode())
    check_keys(f"s3://{bucket}/{prefix}")
    (single,) = list_files(CorpusSettings(uri=f"s3://{bucket}/{prefix}//a.jsonl"))
    with open_file(single) as stream:
        assert stream.read() == b"/a.jsonl"


def check_keys(uri):
    files = list_files(CorpusSettings(uri=uri))
    assert {file.name for file in files} == {*KEYS}
    for file in files:
        with open_file(file) as whole, open_ranges(file) as ranges:
            assert whole.read() == ranges.read() == file.name.encode()


def test_objects_of_other_systems_are_read_by_their_own_names():
    class Objects(fsspec.AbstractFileSystem):
        protocol = "anykeys"
        content = {f"bucket/docs/{key}": key.encode() for key in KEYS}

        def find(self, path, **_):
            return {
                key: {"name": key, "size": len(content), "type": "file", "etag": "1"}
                for key, content in self.content.items()
            }

        def ls(self, path, **_):
            return []

        def cat_file(self, path, start=None, end=None, **_):
            return self.content[path][start:end]

    fsspec.register_implementation("anykeys", Objects, clobber=True)
    check_keys("anykeys://bucket/docs")


@pytest.mark.parametrize(
    ("uri", "folder", "is_read"),
    [
        ("/data/**/*.parquet", "/data/root", True),
        ("/data/**", "/data", True),
        ("/data/*/*/*.parquet", "/data/root", True),
        ("/data/ro*/**/*.json", "/data/root/exports", True),
        ("s3://bucket/data/**/*.parquet", "s3://bucket/data/root/", True),
        ("/data/*.parquet", "/data/root", False),
        ("/data/*.parquet", "/data", False),
        ("/data/**/part-*.parquet", "/data/root", False),
        ("/data/**/raw/*.parquet", "/data/root", False),
        ("/data/**/*.parquet", "/data/_root", False),
        ("/data/**/*.parquet", "/database", False),
        ("/data/corpus/**", "/data", False),
    ],
)
def test_releases_in_a_folder_are_in_the_corpus_if_its_glob_matches_them(
    uri: str, folder: str, is_read: bool
):
    assert is_in_corpus(uri, folder) == is_read
