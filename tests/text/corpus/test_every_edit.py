"""After any edits on any number of nights, the corpus equals that of a first night that reads all files."""

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text.corpus import keys, sorted_rows
from pipeline.text.corpus.task_map import map_here
from tests.text.corpus.editing import Nights, check, rows
from tests.text.corpus.task_maps import map_in_other_processes

names = st.sampled_from(["1.parquet", "2.parquet", "3.parquet"])


edits = st.one_of(
    st.tuples(st.just("put"), names, rows),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("drop"), names, st.just(None)),
    st.tuples(st.just("append"), names, rows),
    st.tuples(st.just("rebuild"), st.just(""), st.just(None)),
)


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
        rebuild = ""
        for kind, name, argument in night:
            if kind == "put":
                nights.put(name, argument)
            elif kind == "append":
                nights.put(name, [*nights.files.get(name, []), *argument])
            elif kind == "rename" and name in nights.files and argument not in nights.files:
                nights.rename(name, argument)
            elif kind == "drop" and name in nights.files:
                nights.drop(name)
            elif kind == "rebuild":
                rebuild = "the test says so"
        live = check(nights, nights.night(rebuild), live)
