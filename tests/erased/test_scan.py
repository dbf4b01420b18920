"""The search for erased rows finds them in every coding and file, and nothing where they never were."""

import base64
import bz2
import gzip
import html
import io
import json
import lzma
import zipfile
import zlib
from hashlib import blake2b
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.erased.patterns import BytePatterns
from tests.erased.roots import Nights, people, person
from tests.erased.scan import Sought, Trace, places, traces

NAME, TEXT = "person-00013", "Zyqqo Fremdwort lives in the third house of a very quiet street."
VECTOR = np.random.default_rng(7).normal(size=(1, 24)).astype(np.float32)
KINDS = ("ivf_sq8", "flat", "ivf_flat", "opq_ivf_pq", "ivf_rabitq_refine", "hnsw", "IVF4,PQ8x4fs")


def parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def arrow(table: pa.Table, compression: str | None = None, *, stream: bool = False) -> bytes:
    sink = io.BytesIO()
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def zipped(data: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner.bin", data)
    return sink.getvalue()


def behind_a_null() -> pa.Table:
    """A column whose only value is null, with the text still in its buffer."""
    data = TEXT.encode()
    buffers = [pa.py_buffer(b"\0"), pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data)]
    return pa.table({"text": pa.Array.from_buffers(pa.string(), 1, buffers)})


def index(factory: str, rows: int = 400) -> bytes:
    """An index of random vectors, the last of which is VECTOR."""
    others = np.random.default_rng(0).normal(size=(rows - 1, 24)).astype(np.float32)
    made, vectors = faiss.index_factory(24, factory), np.concatenate([others, VECTOR])
    made.train(vectors)
    made.add(vectors)
    return faiss.serialize_index(made).tobytes()


ROWS = pa.table({"nested": [[{"who": TEXT}], []]})
KEY = blake2b(TEXT.encode(), digest_size=16).digest()
PLANTED: dict[str, bytes] = {
    "plain.bin": b"\x01\x02" + TEXT.encode() + b"\x03",
    "excerpt.txt": TEXT[11:43].encode(),
    "word.log": b"unknown word: Fremdwort.",
    "utf16.bin": TEXT.encode("utf-16-le"),
    "nested.parquet": parquet(ROWS),
    "dictionary.parquet": parquet(ROWS, use_dictionary=True, compression="zstd"),
    "metadata.parquet": parquet(pa.table({"a": [1]}).replace_schema_metadata({"note": TEXT})),
    "statistics.parquet": parquet(pa.table({"id": [NAME]}), compression="none"),
    "rows.arrow": arrow(ROWS),
    "packed.arrow": arrow(ROWS, "zstd"),
    "null.arrow": arrow(behind_a_null()),
    "partitions": b"\x08\0\0\0\0\0\0\0" + arrow(ROWS, "lz4", stream=True),
    "escaped.json": json.dumps({"a": [{"b": "\u00e9" + TEXT}]}).encode(),
    "key.json": json.dumps({NAME: 1}).encode(),
    "lines.jsonl": b'{"a": 1}\n' + json.dumps({"id": NAME}).encode(),
    "vector.json": json.dumps({"v": VECTOR[0].astype(float).tolist()}).encode(),
    "page.html": f"<p>{html.escape(TEXT)}</p>".encode(),
    "marked.html": f"<p>{TEXT[:9]}<mark>{TEXT[9:20]}</mark>\n  {TEXT[21:]}</p>".encode(),
    "link.html": f'<a href="/near?id={NAME}">'.encode(),
    "rows.json.gz": gzip.compress(json.dumps({"id": NAME}).encode()),
    "rows.bz2": bz2.compress(TEXT.encode()),
    "rows.xz": lzma.compress(TEXT.encode()),
    "rows.z": zlib.compress(TEXT.encode()),
    "rows.zip": zipped(TEXT.encode()),
    "twice.gz": gzip.compress(gzip.compress(TEXT.encode())),
    "coded.txt": b"data:text/plain;base64," + base64.b64encode(b"12" + TEXT.encode()),
    "key.bin": b"\x07" + KEY,
    "key.txt": KEY.hex().encode(),
    "keys.parquet": parquet(pa.table({"text_key": pa.array([KEY], pa.binary(16))})),
    "float32.bin": b"\0" + VECTOR.tobytes(),
    "float16.bin": VECTOR.astype(np.float16).tobytes(),
    "float64.bin": VECTOR.astype(np.float64).tobytes(),
    "unit.bin": (VECTOR / np.linalg.norm(VECTOR)).tobytes(),
    "vectors.parquet": parquet(pa.table({"v": pa.FixedSizeListArray.from_arrays(VECTOR[0], 24)})),
    "halves.parquet": parquet(
        pa.table({"v": pa.FixedSizeListArray.from_arrays(VECTOR[0].astype(np.float16), 24)})
    ),
    "one-of-its-own.faiss": index("Flat"),
    **{
        f"{number}.faiss": index(factory)
        for number, factory in enumerate(
            ["HNSW8", "IVF4,Flat", "IVF4,SQ8", "IVF4,SQ6", "SQ8", "PQ8x4", "IVF4,PQ8x4fs", "IVF4,RaBitQ"]
        )
    },
    f"named-{NAME}.bin": b"",
}


def sought_alone() -> Sought:
    """Seek one row that is described by its values."""
    patterns, values = list[tuple[bytes, str]](), dict[Any, str]()
    for value, what in ((NAME, "id"), (TEXT, "text")):
        Sought.add_value(patterns, values, value, what, "")
    none = np.zeros((0, 24), np.float32)
    return Sought(BytePatterns(patterns), values, VECTOR, none, frozenset())


@pytest.mark.parametrize("name", PLANTED)
def test_a_row_is_found_in_every_coding(tmp_path: Path, name: str):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / name).write_bytes(PLANTED[name])
    found = traces([tmp_path], sought_alone())
    assert {trace.path for trace in found} == {f"deep/{name}"}
    assert "unreadable" not in {trace.what for trace in found}


def test_a_file_that_cannot_be_decoded_is_named(tmp_path: Path):
    (tmp_path / "cut.parquet").write_bytes(PLANTED["nested.parquet"][:-20])
    (tmp_path / "cut.faiss").write_bytes(PLANTED["0.faiss"][:99])
    assert {(each.path, each.what) for each in traces([tmp_path], sought_alone())} >= {
        ("cut.parquet", "unreadable"),
        ("cut.faiss", "unreadable"),
    }


def expected_places(kind: str) -> dict[str, set[str]]:
    """Return what must be found of rows that lived, changed and died, by the beginning of a path."""
    exact = {"flat", "ivf_flat", "hnsw"}
    return {
        "units/corpus/": {"id", "text", "value", "key"},
        "units/vectors/": {"id", "key", "value", "vector"},
        "keys/": {"id", "key"},
        "ids/": {"id", "value"},
        "indexes/": {"vector" if kind in exact else "code"} | ({"address"} if kind != "hnsw" else set()),
        "releases/": {"id", "text"},
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_found_everywhere_before_their_erasure_and_nowhere_in_a_root_without_them(
    kind: str, tmp_path: Path, cluster: object
):
    nights = Nights(tmp_path / "with", f"index.kind={kind}", "whiten.mode=on")
    nights.night(people(range(300)))
    changed = [person(number, version=number in (13, 40, 170)) for number in range(320)]
    nights.night(changed)
    gone = {person(number)["id"] for number in (13, 120, 310)}
    nights.night([row for row in changed if row["id"] not in gone])
    root = Path(nights.root)
    sought = Sought.of(root, gone)
    found = places(traces([root], sought))
    for beginning, kinds in expected_places(kind).items():
        assert kinds <= set().union(*(found[path] for path in found if path.startswith(beginning))), beginning

    never = Nights(tmp_path / "without", f"index.kind={kind}", "whiten.mode=on")
    never.night([row for row in people(range(300)) if row["id"] not in gone])
    never.night([row for row in changed if row["id"] not in gone])
    left = traces([Path(never.root)], sought.learn(Path(never.root)))
    assert [each for each in left if each.what != "address"] == list[Trace](), "addresses are of other rows"
