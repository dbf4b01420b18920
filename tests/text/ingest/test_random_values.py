"""Kept values of any Arrow type are stored and exported as they are, or are null and counted."""

import json
import os
import re
from collections.abc import Iterable
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.index.files.ids import Ids, write_ids
from pipeline.settings import CorpusSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Changes, Corpus
from pipeline.store.rows.address import to_addresses
from pipeline.store.rows.arrays import plain_type, plain_values
from pipeline.targets.values import json_rows
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from tests.text.ingest.random_values import Drawn, draw, encoded_kinds, kinds, meaning


class Written:
    """Parquet files of random kept columns, and the rows that a corpus of them has to have."""

    def __init__(
        self, folder: Path, kinds: list[pa.DataType], seed: int, faulty: float, texts: Iterable[str] = ()
    ) -> None:
        self.folder, self.kinds, self.faulty = folder, kinds, faulty
        self.texts = chain(texts, (f"text {number}" for number in count()))
        self.names = tuple(f"kept{number}" for number in range(len(kinds)))
        self.rng = np.random.default_rng(seed)
        self.good: dict[str, list[object]] = {}
        self.bad = self.nulled = 0
        folder.mkdir()

    def add(self, name: str, rows: int) -> None:
        """Write one more file; skip the test for types that Parquet files cannot have."""
        columns = [draw(kind, rows, self.rng, self.faulty) for kind in self.kinds]
        ids = [f"{name}-{number}" for number in range(rows)]
        arrays = [
            pa.array(ids),
            pa.array(list(islice(self.texts, rows))),
            *(each.array for each in columns),
        ]
        file = self.folder / f"{name}.parquet"
        try:
            pq.write_table(pa.table(arrays, names=["id", "text", *self.names]), file, row_group_size=5)
            pq.read_table(file)
        except (pa.ArrowException, OSError):
            assume(False)
        for row, row_id in enumerate(ids):
            self._expect(row_id, row, columns)

    def _expect(self, row_id: str, row: int, columns: list[Drawn]) -> None:
        faults = [column.faults[row] for column in columns]
        if any("utf8" in each for each in faults):
            self.bad += 1
            return
        self.nulled += sum(map(bool, faults))
        values = zip(columns, faults, strict=True)
        self.good[row_id] = [None if fault else column.values[row] for column, fault in values]


def check(corpus: Corpus, written: Written, folder: Path) -> None:
    """Compare the stored rows with those that were written, in every form in which they leave the corpus."""
    store, tables = open_store(folder / "out"), list[pa.Table]()
    for unit in corpus.units:
        table = pq.read_table(store.open(unit.path)).select(["id", *written.names])
        addresses = pa.array(to_addresses(unit.ordinal, np.arange(unit.rows)))
        tables.append(table.add_column(0, "address", addresses))
    write_ids(folder / "ids.arrow", tables)
    ids = Ids([folder / "ids.arrow"])
    ids.validate()
    rows = ids.take(np.concatenate([table["address"].to_numpy() for table in tables]))
    columns = [[meaning(value) for value in rows[name]] for name in written.names]
    assert (
        dict(zip(rows["id"].to_pylist(), map(list, zip(*columns, strict=True)), strict=True)) == written.good
    )
    assert (corpus.rows, corpus.counts["quarantined"]) == (len(written.good), written.bad)
    assert corpus.counts.get("kept_values_dropped", 0) == written.nulled
    for row in json_rows(rows):
        json.dumps(row, allow_nan=False)


@pytest.mark.hypothesis
@settings(max_examples=settings.default.max_examples // 4)
@example(kept=[pa.list_(pa.dictionary(pa.int8(), pa.string()))], counts=[9], seed=0, faulty=0)
@example(kept=[pa.struct([("a", pa.string())]), pa.json_()], counts=[12, 12], seed=0, faulty=0.2)
@example(
    kept=[pa.time64("us"), pa.decimal128(5, 2), pa.timestamp("us", "Local")], counts=[9], seed=0, faulty=0.2
)
@given(
    kept=st.lists(kinds, min_size=1, max_size=3),
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
    faulty=st.sampled_from([0, 0.05]),
)
def test_values_of_any_type_are_kept(tmp_path_factory, kept, counts, seed, faulty):
    """Two nights over several files in units of four rows; all files but the last are written again."""
    folder = tmp_path_factory.mktemp("random")
    written = Written(folder / "in", kept, seed, faulty)
    corpus_settings = CorpusSettings(uri=str(written.folder), keep=written.names, max_quarantined=1)
    for number, rows in enumerate(counts):
        written.add(f"file-{number}", rows)
    if not written.good:
        with pytest.raises(DataError, match="at least one row"):
            ingest(corpus_settings, 4, open_store(folder / "out"))
        return
    first = ingest(corpus_settings, 4, open_store(folder / "out"))
    check(first, written, folder)
    before = len(written.good)
    written.add("last", 3)
    for file in written.folder.iterdir():
        os.utime(file, ns=(1, 1))
    second = ingest(corpus_settings, 4, open_store(folder / "out"), PreviousCorpus(first, first.next_ordinal))
    check(second, written, folder)
    assert not second.rebuild_reason
    assert second.changes == Changes(new=len(written.good) - before, unchanged=before)


@pytest.mark.hypothesis
@given(first=kinds, second=kinds | st.none(), seed=st.integers(0, 2**32))
def test_files_of_two_types_are_united_or_refused(tmp_path_factory, first, second, seed):
    folder = tmp_path_factory.mktemp("random")
    written = Written(folder / "in", [first], seed, 0.05)
    written.add("first", 9)
    written.kinds = [second or first]
    written.add("second", 9)
    corpus_settings = CorpusSettings(uri=str(written.folder), keep=written.names, max_quarantined=1)
    try:
        corpus = ingest(corpus_settings, 4, open_store(folder / "out"))
    except DataError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert second not in (None, first)
        assert re.search(r"parquet: expected column 'kept0'|at least one row", refused), refused
        return
    assert (corpus.rows, corpus.counts["quarantined"]) == (len(written.good), written.bad)
    assert corpus.counts.get("kept_values_dropped", 0) == written.nulled
    for unit in corpus.units:
        pq.read_table(open_store(folder / "out").open(unit.path)).validate(full=True)


@pytest.mark.hypothesis
@given(kind=encoded_kinds, seed=st.integers(0, 2**32), start=st.integers(0, 9), stop=st.integers(0, 9))
def test_arrays_of_any_type_are_decoded(kind, seed, start, stop):
    drawn = draw(kind, 9, np.random.default_rng(seed), 0)
    plain = plain_values(drawn.array.slice(start, stop))
    plain.validate(full=True)
    assert plain.type == plain_type(kind) == plain_type(plain.type)
    assert list(map(meaning, plain)) == drawn.values[start : start + stop]
