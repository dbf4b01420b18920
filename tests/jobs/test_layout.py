"""Texts and columns do not exceed their width, whatever characters they hold."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from jobs.layout import cells, divide_width, table, truncate

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)


@given(TEXTS, st.integers(0, 30))
@example("雪が川の上に積もっている", 7)
@example("e\u0301" * 10, 5)
def test_a_truncated_text_is_a_prefix_within_its_width(text: str, width: int):
    shown = truncate(text, width)
    if cells(text) <= width:
        assert shown == text
        return
    assert cell_len(shown) <= width
    assert shown.endswith("." * min(3, width))
    assert text.startswith(shown.removesuffix("." * min(3, width)))


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("a quick fox", 10, "a quick..."),
        ("a quick fox", 11, "a quick fox"),
        ("a     quick fox", 8, "a..."),
        ("abcdef", 2, ".."),
        ("雪が川の上に", 8, "雪が..."),
        ("雪が川の上に", 9, "雪が川..."),
    ],
)
def test_as_much_of_a_text_is_kept_as_fits(text: str, width: int, expected: str):
    assert truncate(text, width) == expected


@given(st.lists(st.integers(0, 100), min_size=1, max_size=6), st.integers(0, 300))
def test_column_widths_fill_the_terminal_without_exceeding_it(wanted: list[int], room: int):
    widths = divide_width(wanted, room)
    assert all(0 <= width <= wish for width, wish in zip(widths, wanted, strict=True))
    assert sum(widths) <= room
    if sum(wanted) <= room:
        assert widths == wanted
    else:
        assert sum(widths) > room - len(wanted), "only a remainder of the division is lost"


@given(st.lists(st.tuples(TEXTS, TEXTS, st.integers(0, 99).map(str)), min_size=1, max_size=4))
def test_columns_are_aligned(rows: list[tuple[str, str, str]]):
    lines = table(rows, ("first", "second", "n")).split("\n")
    assert len(lines) == 1 + len(rows)
    ends = {cell_len(line) for line in lines}
    assert len(ends) == 1, "the last column holds numbers, which are aligned right, so lines are equally wide"


def test_columns_of_numbers_with_units_are_aligned_right():
    rows = [("812 B", "-1,024", "99 %", "a 1"), ("1.1 TB", "3.5", "", "b 12")]
    assert table(rows, ("size", "n", "%", "name")) == (
        "  size       n     %  name\n 812 B  -1,024  99 %  a 1\n1.1 TB     3.5        b 12"
    )
