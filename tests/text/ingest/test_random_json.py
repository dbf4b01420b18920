"""Kept values of JSON lines of any shape are stored as they are, or are null and counted."""

import json
import math
import os
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Changes, Corpus
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from pipeline.text.normalize import replace_surrogates

keys = st.sampled_from(["a", "b", "", "é", "a.b", "\ud800", "id"])
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**30]),
    st.floats(),
    st.sampled_from(["", "x", "2026-01-01", "\ud800", "\udc00 y"]),
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=6
)
files = st.lists(st.lists(values, min_size=1, max_size=5), min_size=1, max_size=3)


def is_kept(value: Any, stored: Any) -> bool:
    """Return whether nothing of a value was lost: keys that others have are null, and 3 may be 3.0."""
    if isinstance(value, dict) and isinstance(stored, dict):
        return value.keys() <= stored.keys() and all(
            is_kept(value.get(key), each) for key, each in stored.items()
        )
    if isinstance(value, list) and isinstance(stored, list):
        return len(value) == len(stored) and all(map(is_kept, value, stored))
    if isinstance(value, str) and isinstance(stored, str):
        return replace_surrogates(value) == stored
    if isinstance(value, float) and isinstance(stored, float) and math.isnan(value):
        return math.isnan(stored)
    if isinstance(value, int) and isinstance(stored, float) and not isinstance(value, bool):
        return float(value) == stored
    return type(value) is type(stored) and bool(value == stored)


def stored_values(corpus: Corpus, folder: Any) -> dict[str, Any]:
    """Kept values by id."""
    tables = [pq.read_table(open_store(folder / "out").open(unit.path)) for unit in corpus.units]
    return {row["id"]: row["kept"] for table in tables for row in table.to_pylist()}


@pytest.mark.hypothesis
@settings(max_examples=settings.default.max_examples // 4)
@example([[True, 1, {}, [True]], ["yes", True]])
@example([[{}, [{}], {"a": {}}], [None]])
@example([[{"\ud800": 1}, {"a": {"\ud800": 1}}]])
@given(files)
def test_values_of_any_shape_are_kept_or_counted(tmp_path_factory, files):
    """Two nights, in units of two rows; in the second one all files are written again, and one is new."""
    folder, written = tmp_path_factory.mktemp("random"), dict[str, Any]()
    (folder / "in").mkdir()
    for number, rows in enumerate(files):
        lines = {f"{number}-{row}": value for row, value in enumerate(rows)}
        content = (json.dumps({"id": name, "text": "t", "kept": value}) for name, value in lines.items())
        (folder / "in" / f"{number}.jsonl").write_text("\n".join(content) + "\n")
        written |= lines
    corpus, store = CorpusSettings(uri=str(folder / "in"), keep=("kept",)), open_store(folder / "out")
    first = ingest(corpus, 2, store)
    stored = stored_values(first, folder)
    assert stored.keys() == written.keys()
    lost = [name for name in written if not is_kept(written[name], stored[name])]
    assert len(lost) == first.counts.get("kept_values_dropped", 0), (written, stored)
    for file in (folder / "in").iterdir():
        os.utime(file, ns=(1, 1))
    (folder / "in" / "new.jsonl").write_text('{"id": "new", "text": "t"}\n')
    second = ingest(corpus, 2, store, PreviousCorpus(first, first.next_ordinal))
    assert not second.rebuild_reason
    assert second.changes == Changes(new=1, unchanged=len(written))
