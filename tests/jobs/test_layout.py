"""Columns keep within their width, whatever characters are in them."""

from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from jobs.layout import cells, cut, shared, table

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)


@given(TEXTS, st.integers(0, 30))
@example("雪が川の上に積もっている", 7)
@example("e\u0301" * 10, 5)
def test_a_cut_text_takes_at_most_its_cells_and_begins_as_it_did(text: str, width: int):
    shown = cut(text, width)
    assert cell_len(shown) <= width
    assert text.startswith(shown.removesuffix("." * min(3, width)).rstrip())
    if cells(text) <= width:
        assert shown == text


@given(st.lists(st.integers(0, 100), min_size=1, max_size=6), st.integers(0, 300))
def test_shares_use_the_room_that_there_is_and_no_more(wanted: list[int], room: int):
    given_ = shared(wanted, room)
    assert all(0 <= found <= wish for found, wish in zip(given_, wanted, strict=True))
    assert sum(given_) <= room
    assert sum(wanted) <= room or sum(given_) > room - len(wanted), "at most rounding is lost"


@given(st.lists(st.tuples(TEXTS, TEXTS, st.integers(0, 99).map(str)), min_size=1, max_size=4))
def test_columns_stand_below_each_other(rows: list[tuple[str, str, str]]):
    lines = table(rows, ("first", "second", "n")).split("\n")
    assert len(lines) == 1 + len(rows)
    ends = {cell_len(line) for line in lines}
    assert len(ends) == 1, "the last column is of numbers, so all lines end in one place"
