"""After any edits on any number of nights, the corpus equals that of a first night that reads all files."""

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.ingest import sorted_rows
from pipeline.text.key_tables import keys
from pipeline.text.task_map import map_here
from tests.text.ingest.editing import Nights, apply, check, edits_of, rebuild_reason, rows
from tests.text.ingest.task_maps import map_in_other_processes

edits = edits_of(rows)


@pytest.mark.parametrize("map_tasks", [map_here, map_in_other_processes])
@settings(max_examples=settings.default.max_examples // 2)
@given(
    st.lists(st.lists(edits, min_size=1, max_size=3), min_size=1, max_size=5),
    st.integers(1, 5),
    st.sampled_from([1 << 18, 12, 4]),
)
def test_any_sequence_of_edits_equals_reading_everything_again(
    tmp_path, map_tasks, nights_edits, unit_rows, bucket_rows
):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys, "BUCKET_ROWS", bucket_rows)
        patch.setattr(sorted_rows, "RANGE_ROWS", bucket_rows)
        run_nights(Nights(tmp_path / uuid.uuid4().hex, unit_rows=unit_rows), nights_edits, map_tasks)


def run_nights(nights, nights_edits, map_tasks):
    nights.map_tasks = map_tasks
    nights.put("0.parquet", [("always", "there", "en")])
    live: dict[int, tuple[str, str, str | None]] = check(nights, nights.night(), {})
    for night in nights_edits:
        for edit in night:
            apply(nights, edit)
        live = check(nights, nights.night(rebuild_reason(night)), live)
