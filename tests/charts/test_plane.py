"""Colours of points say which value or range a row has."""

import pytest

from pipeline.charts.plane import PlanePoint, group_numbers, plane_chart


def test_frequent_values_have_colours_of_their_own_and_the_rest_share_one():
    values = [
        letter for letter, count in zip("abcdefghij", range(10, 0, -1), strict=True) for _ in range(count)
    ]
    numbers, labels = group_numbers(values)
    assert labels == ["a", "b", "c", "d", "e", "f", "g", "3 others"]
    assert [labels[number] for number in numbers[:10]] == ["a"] * 10
    assert {labels[number] for value, number in zip(values, numbers, strict=True) if value in "hij"} == {
        "3 others"
    }


@pytest.mark.parametrize("values", [["b", None, "b"], [True, False, True], [3, 3, 1]])
def test_few_values_are_shown_one_by_one(values: list[object]):
    numbers, labels = group_numbers(values)
    shown = ["none" if value is None else str(value) for value in values]
    assert [labels[number] for number in numbers] == shown


def test_numbers_are_divided_into_ranges_of_as_many_rows():
    values = [float(number**3) for number in range(600)]
    numbers, labels = group_numbers(values)
    assert len(labels) == 6
    assert [numbers.count(group) for group in range(6)] == pytest.approx([100] * 6, abs=1)
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_rows_without_a_number_are_a_group_of_their_own(missing: float | None):
    numbers, labels = group_numbers([*range(20), missing])
    assert labels[-1] == "none"
    assert (numbers[-1], len(labels)) == (6, 7)
    assert max(numbers[:-1]) == 5


def test_a_number_that_most_rows_have_leaves_ranges_for_the_others():
    numbers, labels = group_numbers([0] * 200 + list(range(1, 10)))
    assert len(set(numbers)) > 3
    assert labels[0] == "0 to 1.5"


def test_ids_and_texts_are_escaped():
    chart = plane_chart([PlanePoint(0, 0, '"><script>&/ü', "<script>alert(1)</script>", 0)])
    assert "<script>" not in chart
    assert 'href="/?near=%22%3E%3Cscript%3E%26%2F%C3%BC"' in chart
