"""New, changed and deleted rows of a night, by id, against sets in memory."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.changes import Changes, CompareKeys
from pipeline.settings import CorpusSettings
from pipeline.store.store import open_store
from pipeline.store.units import Corpus
from pipeline.text.ingest import ingest


def corpus(folder: Path, name: str, rows: dict[str, str]) -> Corpus:
    """Those rows ingested, with a second row for one id, which loses."""
    ids, texts = [*rows, next(iter(rows))], [*rows.values(), "loses"]
    (folder / name).mkdir()
    pq.write_table(pa.table({"id": ids, "text": texts}), folder / name / "a.parquet")
    return ingest(CorpusSettings(uri=str(folder / name)), 100, open_store(folder / "root"))


@pytest.mark.parametrize("bucket_rows", [1 << 18, 64])
def test_changes_are_those_of_the_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket_rows: int):
    rng = np.random.default_rng(0)
    before = {f"id-{number}": f"text {rng.integers(3)}" for number in rng.permutation(500)[:300]}
    now = {f"id-{number}": f"text {rng.integers(3)}" for number in rng.permutation(500)[:400]}
    first = corpus(tmp_path, "before", before)
    monkeypatch.setattr("pipeline.text.keys.BUCKET_ROWS", bucket_rows)      # the second corpus lies in more buckets than the first
    second = corpus(tmp_path, "now", now)
    common = before.keys() & now.keys()
    same = sum(before[name] == now[name] for name in common)
    expected = Changes(new=len(now.keys() - before.keys()), changed=len(common) - same, deleted=len(before.keys() - now.keys()), unchanged=same)
    compare = CompareKeys(open_store(tmp_path / "root")).start()
    assert compare((first, second)) == expected
    assert compare((second, first)) == Changes(new=expected.deleted, changed=expected.changed, deleted=expected.new, unchanged=same)
    assert compare((None, second)) == Changes(new=400)
    assert compare((second, second)) == Changes(unchanged=400)
