"""Nights over Delta and Iceberg tables equal a first night over Parquet files of the same rows."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flows.conftest import sentences
from tests.flows.night.test_chunked import FLAT, run_killed
from tests.flows.night.test_incremental import Night, assert_equal_releases, live_vectors
from tests.text.ingest.lake_tables import delete_by_positions, delete_by_vector
from tests.text.ingest.table_nights import DeltaNights, IcebergNights, TableNights

pytestmark = pytest.mark.usefixtures("cluster")
TEXTS = sentences(60, seed=8)


def rows(*numbers: int) -> pa.Table:
    return pa.table(
        {"id": [f"id-{number}" for number in numbers], "text": [TEXTS[number] for number in numbers]}
    )


def delta(folder: Path) -> DeltaNights:
    made = DeltaNights(folder)
    made.write(rows(*range(30)), configuration={"delta.enableDeletionVectors": "true"})
    return made


def iceberg(folder: Path) -> IcebergNights:
    return IcebergNights(folder, rows(*range(30)))


def edit(made: TableNights) -> None:
    """Delete rows from the first data file, and append and change others."""
    made.set(keep=())
    file = made.file_of("id-0")
    if isinstance(made, DeltaNights):
        delete_by_vector(made.root, file.table.location, [3, 20])
        made.write(rows(*range(30, 40)))
        made.table.update(updates={"text": f"'{TEXTS[59]}'"}, predicate="id = 'id-31'")
    else:
        (task,) = made.table.scan().plan_files()
        delete_by_positions(made.table, {file.table.location: [3, 20]}, task.file)
        made.table.append(rows(*range(30, 40)))
        changed = pa.table({"id": ["id-31"], "text": [TEXTS[59]]})
        made.table.upsert(changed, ["id"])


@pytest.mark.parametrize("make", [delta, iceberg])
def test_a_night_over_a_table_equals_one_over_its_rows(
    tmp_path: Path, encoder: Path, make: Callable[[Path], TableNights]
):
    made = make(tmp_path / "made")
    night = Night(tmp_path / "night", encoder, *FLAT, f"corpus.uri={made.root}")
    assert night.run().status == "published"
    edit(made)
    run_killed(night, 2)
    outcome = night.run()
    assert outcome.status == "published"
    plain = Night(tmp_path / "plain", encoder, *FLAT)
    pq.write_table(made.read(["id", "text"]).select(["id", "text"]), plain.input / "rows.parquet")
    plain.run()
    assert_equal_releases(night, plain)
    assert len(live_vectors(night)) == 38
    choice = next(choice for choice in night.current().choices if choice.what == "corpus")
    assert f"files were read of {made.snapshot()}" in choice.sentence
    assert night.run().status == "unchanged"
