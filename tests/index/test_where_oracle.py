"""Filters on columns of every type keep the rows that DuckDB keeps."""

import datetime
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from pipeline.where.parse import parse_where

ROWS = 150
DAY = datetime.datetime(2026, 11, 25)
TEXTS = [
    "a",
    "a\\",
    "\\a",
    "a\\\\",
    "ab",
    "a_b",
    "a%b",
    "a.b",
    "A",
    "é",
    "日本",
    "two\nlines",
    "",
    " ",
    "(a|b)*",
    "it's",
]
PIECES = [
    "a",
    "b",
    "\\",
    "%",
    "%",
    "_",
    "_",
    ".",
    "é",
    "日",
    "\n",
    "(",
    "*",
    "|",
    "'",
    "[",
    "^",
    "$",
    "0",
    " ",
]
# NaN is left out, because DuckDB regards it as equal to itself and as the largest number.
NUMBERS = {
    "i8": (pa.int8(), [-128, -3, 0, 7, 127]),
    "u16": (pa.uint16(), [0, 7, 65_535]),
    "i64": (pa.int64(), [-(2**40), -1, 0, 7, 2**40]),
    "u64": (pa.uint64(), [0, 7, 2**40]),
    "f32": (pa.float32(), [0.0, -0.0, 0.5, -2.25, 3.4e38, np.inf, -np.inf]),
    "f64": (pa.float64(), [0.0, -0.0, 0.5, -2.25, 1e300, np.inf, -np.inf]),
    "d9": (pa.decimal128(9, 2), [Decimal("0.50"), Decimal("-2.25"), Decimal("7.00")]),
    "d38": (pa.decimal128(38, 4), [Decimal("0.5000"), Decimal("-2.2500"), Decimal("7.0001")]),
}
TIMES = {
    "day": (pa.date32(), [DAY.date(), datetime.date(1969, 7, 20), datetime.date(1, 1, 1)]),
    "at_s": (pa.timestamp("s"), [DAY, DAY + datetime.timedelta(seconds=1)]),
    "at_us": (
        pa.timestamp("us"),
        [DAY, DAY + datetime.timedelta(microseconds=1), datetime.datetime(1, 1, 1)],
    ),
    "at_ns": (pa.timestamp("ns"), [DAY, DAY + datetime.timedelta(days=1)]),
}
LITERALS = ["0", "-0.0", ".5", "-2.25", "7", "7.0001", "65535", "127", "1e30", "-1e30", "1e39", "-1e39"]
LITERALS += ["1e300", "-1e300"]
DATES = ["2026-11-25", "1969-07-20", "0001-01-01", "2026-11-26", "9999-12-31"]


def random_table(rng: np.random.Generator) -> pa.Table:
    """Return a table of all columns, with nulls."""
    columns = {"n": pa.array(range(ROWS))}
    for name, (kind, values) in (NUMBERS | TIMES).items():
        chosen = [None if rng.random() < 0.2 else values[rng.integers(len(values))] for _ in range(ROWS)]
        columns[name] = pa.array(chosen, kind)
    made = ["".join(rng.choice(PIECES, rng.integers(0, 5))) for _ in range(ROWS)]
    texts = [TEXTS[rng.integers(len(TEXTS))] if rng.random() < 0.5 else text for text in made]
    columns["text"] = pa.array([None if rng.random() < 0.1 else text for text in texts])
    columns["long"] = columns["text"].cast(pa.large_string())
    columns["flag"] = pa.array([[True, False, None][rng.integers(3)] for _ in range(ROWS)])
    return pa.table(columns)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def random_condition(rng: np.random.Generator, depth: int = 3) -> str:
    """Return a condition on one column, or several of them joined."""
    if depth and rng.random() < 0.6:
        left, right = random_condition(rng, depth - 1), random_condition(rng, depth - 1)
        return str(rng.choice([f"not ({left})", f"({left} and {right})", f"({left} or {right})"]))
    operator, negation = rng.choice(["=", "!=", "<", "<=", ">", ">=", "<>"]), rng.choice(["", "not "])
    kind, text = rng.integers(5), rng.choice(["text", "long"])
    if kind == 0:
        number = rng.choice(list(NUMBERS))
        values = rng.choice(LITERALS, rng.integers(1, 4))
        listed = f"{number} {negation}in ({', '.join(values)})"
        return str(rng.choice([f"{number} {operator} {values[0]}", listed, f"{number} is {negation}null"]))
    if kind == 1:
        day = quoted(rng.choice(DATES[:-1] if (name := rng.choice(list(TIMES))) == "at_ns" else DATES))
        day = "'2026-11-25'" if name == "at_ns" and "0001" in day else day
        return str(rng.choice([f"{name} {operator} {day}", f"{name} {negation}in ({day})"]))
    if kind == 2:
        return str(
            rng.choice(["flag", f"flag {rng.choice(['=', '!=', '<>'])} true", f"flag is {negation}null"])
        )
    if kind == 3:
        return f"{text} {negation}like {quoted(''.join(rng.choice(PIECES, rng.integers(0, 6))))}"
    values = ", ".join(quoted(each) for each in rng.choice(TEXTS, rng.integers(1, 4)))
    return str(
        rng.choice([f"{text} {operator} {quoted(rng.choice(TEXTS))}", f"{text} {negation}in ({values})"])
    )


def kept_by_filter(table: pa.Table, where: str) -> list[int]:
    """Return the numbers of the rows for which the parsed filter is true."""
    [batch] = table.to_batches()
    answers = parse_where(where, table.schema).evaluate(batch).to_pylist()
    return [number for number, is_true in enumerate(answers) if is_true]


@pytest.mark.parametrize("seed", range(4))
def test_random_filters_keep_the_rows_that_duckdb_keeps(seed: int):
    rng = np.random.default_rng(seed)
    table = random_table(rng)
    with duckdb.connect() as database:
        database.register("rows", table)
        partial = 0
        for _ in range(150):
            where = random_condition(rng)
            kept = kept_by_filter(table, where)
            found = database.execute(f"select n from rows where {where} order by n").fetchall()
            assert kept == [number for (number,) in found], where
            partial += 0 < len(kept) < ROWS
    assert partial > 75, "many filters keep some of the rows"


@pytest.mark.parametrize("column", ["f32", "f64", "half"])
@pytest.mark.parametrize("operator", ["<", "<=", ">", ">=", "=", "!="])
def test_a_number_beyond_all_of_a_type_lies_between_them_and_infinity(column: str, operator: str):
    numbers = [0.5, -2.25, np.inf, -np.inf, None]
    batch = pa.record_batch(
        {
            "f32": pa.array(numbers, pa.float32()),
            "f64": pa.array(numbers),
            "half": pa.array(numbers, pa.float16()),
        }
    )
    for literal, rank in (("1e400", 1), ("-1e400", -1)):
        # finite numbers have rank 0 and infinities 2 and -2
        ranks = [0, 0, 2, -2]
        compare = {
            "<": int.__lt__,
            "<=": int.__le__,
            ">": int.__gt__,
            ">=": int.__ge__,
            "=": int.__eq__,
            "!=": int.__ne__,
        }
        found = parse_where(f"{column} {operator} {literal}", batch.schema).evaluate(batch).to_pylist()
        assert found == [*(compare[operator](each, rank) for each in ranks), None]
        found = parse_where(f"{column} in ({literal}, 0.5)", batch.schema).evaluate(batch).to_pylist()
        assert found == [True, False, False, False, None]


@pytest.mark.parametrize(
    "kind", [pa.decimal32(5, 2), pa.decimal64(9, 2), pa.decimal128(9, 2), pa.decimal256(40, 2)], ids=str
)
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("c in (3.5, 4.005, 1e70)", [True, None, False]),
        ("c not in (3.50)", [False, None, True]),
        ("c < 1e70", [True, None, True]),
        ("c = 4", [False, None, True]),
    ],
)
def test_decimals_of_any_width_are_compared_and_looked_up(kind: pa.DataType, where: str, expected):
    batch = pa.record_batch({"c": pa.array([Decimal("3.50"), None, Decimal("4.00")], kind)})
    assert parse_where(where, batch.schema).evaluate(batch).to_pylist() == expected
