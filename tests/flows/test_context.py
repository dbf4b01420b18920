"""Work on units that is stopped says how many of them are finished."""

import contextlib
from pathlib import Path

import pytest

from pipeline.flows.context import FlowContext, map_kept_units
from pipeline.flows.workers.local import LocalWorkers
from pipeline.flows.workers.tasks import Pool
from pipeline.log import Stages, listening
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import UnitRecord
from tests.flows.tasks import NameUnit


@pytest.mark.parametrize(
    ("finished", "note"),
    [
        (1, "1 of 3 units finished; the other 270 rows start again"),
        (2, "2 of 3 units finished; the other 150 rows start again"),
    ],
)
def test_a_stage_that_is_stopped_says_how_many_units_are_finished(
    child: LocalWorkers, tmp_path: Path, finished: int, note: str
):
    units = [UnitRecord(name=f"u{rows}", path="", rows=rows, bytes=1, sha256="") for rows in (90, 120, 150)]
    context = FlowContext(Job(), open_store(tmp_path), child, Stages())
    with listening() as said, contextlib.suppress(KeyboardInterrupt), context.stages("encode", 360) as bar:
        results = map_kept_units(context, NameUnit(), units, Pool(1), bar)
        assert [next(results)[1] for _ in range(finished)] == ["u90", "u120"][:finished]
        results.throw(KeyboardInterrupt)
    assert note in said[-1]
