"""Quarantined rows of units are listed with the file and the row number that they have now."""

import pytest

from pipeline.store.rows.schema import QUARANTINE
from pipeline.text.formats.quarantine import with_places
from pipeline.text.key_tables import keys
from tests.text.ingest.cut_nights import CutNights
from tests.text.ingest.editing import addresses


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("bucket_rows", [keys.BUCKET_ROWS, 4])
def test_rows_of_units_have_their_present_places(tmp_path, monkeypatch, size, bucket_rows):
    monkeypatch.setattr(keys, "BUCKET_ROWS", bucket_rows)
    nights = CutNights(tmp_path, size)
    nights.put("a.parquet", [(f"{number}", f"text {number} of a file", "en") for number in range(30)])
    before = addresses(nights.store, nights.night())
    nights.rename("a.parquet", "b.parquet")
    nights.put("b.parquet", [("first", "one more row", "en"), *nights.files["b.parquet"]])
    corpus = nights.night()
    assert (len(corpus.keys) > 1) == (bucket_rows == 4)
    of_units = [
        dict.fromkeys(QUARANTINE.names) | {"file": "a.parquet", "row": 0, "id": row[0], "address": address}
        for address, row in before.items()
    ]
    rejected = dict.fromkeys(QUARANTINE.names) | {"file": "c.parquet", "row": 7}
    *found, other = with_places(nights.store, corpus, [*of_units, rejected])
    assert other == rejected
    assert [(row["file"], row["row"]) for row in found] == [
        ("b.parquet", int(row["id"].split("#")[0]) + 1) for row in of_units
    ]
    assert all(list(row) == QUARANTINE.names for row in found)
