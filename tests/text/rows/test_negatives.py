"""Several hard negatives of a row, in columns or in lists of texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import DataError
from pipeline.log import listening
from pipeline.settings.training import NEGATIVES, OrderSettings, SourceSettings
from pipeline.text.rows.batches import rank_rows
from pipeline.text.rows.mixture import BlendedOrder
from pipeline.text.rows.negatives import ColumnName, element_of
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.training_rows import TrainingRows, open_training_rows

ROLES, BLANK, NANS = ("anchor", "positive"), " ", [np.nan] * 3
LISTS: list[list[str | None] | None] = [["n0", "n1", "n2"], ["m0"], None, ["k0", None], []]


def write(path: Path, negatives: dict[str, Any]) -> SourceSettings:
    rows = len(next(iter(negatives.values())))
    columns = {"anchor": [f"a{row}" for row in range(rows)], "positive": [f"p{row}" for row in range(rows)]}
    pq.write_table(pa.table({**columns, **negatives}), path, row_group_size=2)
    return SourceSettings(uri=str(path))


def negatives_of(rows: TrainingRows) -> list[list[str]]:
    """Read the negatives of each row, without the missing ones."""
    table = pa.concat_tables(rows.read(rows.spans()))
    roles = [role for role in NEGATIVES if role in table.column_names]
    texts = zip(*(table[role].to_pylist() for role in roles), strict=True)
    return [[text for text in row if text != BLANK] for row in texts]


@pytest.mark.parametrize("names", [["negative_1", "negative_2", "negative_3"], ["negative", *NEGATIVES[1:3]]])
def test_numbered_columns_are_the_hard_negatives_of_a_row_in_their_order(tmp_path: Path, names: list[str]):
    texts = {name: [f"{number} of {row}" for row in range(4)] for number, name in enumerate(names)}
    settings = write(tmp_path / "rows.parquet", dict(reversed(texts.items())))
    with listening() as said:
        rows = open_training_rows(settings, ROLES, NEGATIVES)
    assert rows.roles == (*ROLES, *NEGATIVES[:3])
    assert negatives_of(rows) == [[f"{number} of {row}" for number in range(3)] for row in range(4)]
    assert not said


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
@pytest.mark.parametrize("values", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("name", ["negative", "negatives", "hard"])
def test_lists_are_as_many_roles_as_the_longest_one_has_texts(
    tmp_path: Path, kind: Any, values: pa.DataType, name: str
):
    column = pa.array(LISTS, pa.list_(pa.string())).cast(pa.list_(values)).cast(kind(values))
    settings = write(tmp_path / "rows.parquet", {name: column})
    if name == "hard":
        settings = settings.model_copy(update={"columns": {"negative": name}})
    rows = open_training_rows(settings, ROLES, NEGATIVES)
    assert rows.roles == (*ROLES, *NEGATIVES[:3])
    assert negatives_of(rows) == [[text for text in each or [] if text] for each in LISTS]
    batch = next(rank_rows(ShuffledOrder(rows, OrderSettings(batch_rows=5)), 0))
    assert batch.counts["without_negative"] == 15 - 5
    assert batch.false_negatives["anchor"].shape == (5, 20)
    assert (~batch.false_negatives["anchor"][:, 5:]).sum() == 5 * 5


def test_lists_of_a_fixed_size_are_read(tmp_path: Path):
    column = pa.array([["a", "b"], None, ["c", "d"]], pa.list_(pa.string(), 2))
    rows = open_training_rows(write(tmp_path / "rows.parquet", {"negative": column}), ROLES, NEGATIVES)
    assert negatives_of(rows) == [["a", "b"], [], ["c", "d"]]


def test_an_objective_with_one_negative_reads_the_first_of_a_list_and_the_rest_is_said(tmp_path: Path):
    settings = write(tmp_path / "rows.parquet", {"negatives": pa.array(LISTS)})
    with listening() as said:
        rows = open_training_rows(settings, (*ROLES, "negative"))
    assert negatives_of(rows) == [["n0"], ["m0"], ["k0"]]
    assert rows.counts["missing"] == 2
    assert any("not used: elements 2 to 3 of the lists in negatives" in sentence for sentence in said)


def test_an_element_of_lists_can_be_named(tmp_path: Path):
    settings = write(tmp_path / "rows.parquet", {"hard": pa.array(LISTS), "hard[0]": ["its own"] * 5})
    named = settings.model_copy(update={"columns": {"negative": "hard[1]", "negative2": "hard[0]"}})
    rows = open_training_rows(named, ROLES, NEGATIVES)
    assert negatives_of(rows) == [["n1", "its own"], *[["its own"]] * 4]


@pytest.mark.parametrize(
    ("columns", "named", "message"),
    [
        ({"negative3": ["x"]}, {}, "a column with the role negative, beside that of negative3"),
        (
            {"x": ["x"]},
            {"negative": "x[0]"},
            "a column of lists of strings for the role negative.*'x' of type",
        ),
        ({"x": [[1]]}, {"negative": "x"}, "a column of lists of strings for the role negative.*'x' of type"),
        (
            {"x": [["x"]]},
            {"positive": "x"},
            "a column of strings for the role positive, found 'x' of type list",
        ),
    ],
)
def test_columns_that_cannot_be_read_are_refused(
    tmp_path: Path, columns: dict[str, Any], named: dict[str, str], message: str
):
    settings = write(tmp_path / "rows.parquet", columns).model_copy(update={"columns": named})
    with pytest.raises(DataError, match=message):
        open_training_rows(settings, ROLES, NEGATIVES)


def test_a_column_that_some_files_lack_is_no_negative(tmp_path: Path):
    write(tmp_path / "1.parquet", {"negative_1": ["x"], "negative_2": ["y"]})
    write(tmp_path / "2.parquet", {"negative_1": ["z"]})
    with listening() as said:
        rows = open_training_rows(SourceSettings(uri=str(tmp_path)), ROLES, NEGATIVES)
    assert negatives_of(rows) == [["x"], ["z"]]
    assert any("not used: negative_2" in sentence for sentence in said)


@given(
    lists=st.lists(st.none() | st.lists(st.none() | st.text(max_size=3), max_size=4), max_size=8),
    index=st.integers(0, 4),
    first=st.integers(0, 3),
)
def test_elements_of_lists_are_those_of_python(lists: list[list[str | None] | None], index: int, first: int):
    column = pa.array(lists, pa.list_(pa.string())).slice(first)
    expected = [each[index] if each is not None and index < len(each) else None for each in lists[first:]]
    assert element_of(column, index).to_pylist() == expected
    padded = [[*(each or []), *[None] * 4][:4] for each in lists[first:]]
    assert element_of(pa.array(padded, pa.list_(pa.string(), 4)), index).to_pylist() == (
        expected if index < 4 else [None] * len(padded)
    )


def test_a_column_of_that_name_comes_before_an_element():
    assert ColumnName.parse("x[2]", ["x"]) == ("x", 2)
    assert ColumnName.parse("x[2]", ["x", "x[2]"]) == ("x[2]", None)
    assert ColumnName.parse("x", ["x"]) == ("x", None)
    assert np.array_equal(ColumnName("x", None).values(pa.array([1, 2])), [1, 2])


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.int64()])
def test_scores_are_those_of_the_positive_and_of_each_negative_that_a_row_has(
    tmp_path: Path, kind: pa.DataType
):
    scores = [[9, 1, 2, 3], [8, 4], [7], [6, 5, None, None], [5]]
    settings = write(
        tmp_path / "rows.parquet",
        {"negatives": pa.array(LISTS), "scores": pa.array(scores, pa.list_(kind))},
    )
    rows = open_training_rows(settings, (*ROLES, "scores"), NEGATIVES)
    batch = next(rank_rows(ShuffledOrder(rows, OrderSettings(batch_rows=5)), 0))
    expected = np.array([[9, 1, 2, 3], [8, 4, *NANS[:2]], [7, *NANS], [6, 5, *NANS[:2]], [5, *NANS]])
    np.testing.assert_array_equal(batch.columns["scores"], expected[batch.rows])


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (
            [[1.0, 2.0], [1.0]],
            r"row 1 .*scores: expected finite scores of the positive and of each hard negative",
        ),
        ([[1.0, 2.0], [1.0, float("nan")]], r"row 1 .*scores: expected finite scores"),
        ([[1.0, 2.0], None], r"row 1 .*scores: expected finite scores"),
        ([[1.0, 2.0, 3.0], [1.0, 2.0]], r"row 0 .*at most 2.*\[1.0, 2.0, 3.0\]"),
        ([["x"], ["y"]], r"a column of lists of numbers for the role scores"),
        ([1.0, 2.0], r"a column of lists of numbers for the role scores"),
    ],
)
def test_scores_that_do_not_fit_the_texts_are_refused(tmp_path: Path, scores: list[Any], message: str):
    settings = write(tmp_path / "rows.parquet", {"negative": ["x", "y"], "scores": scores})

    def read() -> None:
        rows = open_training_rows(settings, (*ROLES, "scores"), NEGATIVES)
        list(rows.read(rows.spans()))

    with pytest.raises(DataError, match=message):
        read()


def test_blended_sources_have_scores_of_the_negatives_that_all_of_them_have(tmp_path: Path):
    sources = []
    for count in (1, 3):
        negatives = {f"negative_{number}": [f"n{number}"] * 4 for number in range(1, count + 1)}
        scores = [[float(count), *range(count)]] * 4
        settings = write(tmp_path / f"{count}.parquet", {**negatives, "scores": scores})
        sources.append(open_training_rows(settings, (*ROLES, "scores"), NEGATIVES))
    orders = tuple(ShuffledOrder(rows, OrderSettings(batch_rows=2)) for rows in sources)
    blended = BlendedOrder(orders, (*ROLES, "negative", "scores"), (4, 4))
    found = next(rank_rows(blended, 0)).columns["scores"]
    assert sorted(found.tolist()) == [[1.0, 0.0]] * 2 + [[3.0, 0.0]] * 2
