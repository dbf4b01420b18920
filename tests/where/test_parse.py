"""Filters keep the rows that SQLite keeps, and invalid ones are refused at the position of the error."""

import datetime
import operator
import sqlite3
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import ConfigError
from pipeline.where.evaluate import comparable_type
from pipeline.where.parse import parse_where

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("price", pa.int64()),
        ("weight", pa.float64()),
        ("lang", pa.large_string()),
        ("in_stock", pa.bool_()),
        ("day", pa.date32()),
        ("a b", pa.int8()),
    ]
)
LANGS = ["de", "en", "dE", "d_", "50%", "it's", "a\\b", "two\nlines", "é", "", None]


def random_rows(rng: np.random.Generator, count: int) -> list[dict[str, object]]:
    """Make rows in which every column but the id is null in some rows."""

    def maybe(value: object) -> object:
        return None if rng.random() < 0.2 else value

    return [
        {
            "id": f"row-{number}",
            "price": maybe(int(rng.integers(-3, 12))),
            "weight": maybe(float(rng.integers(-4, 9)) / 2),
            "lang": LANGS[rng.integers(len(LANGS))],
            "in_stock": maybe(bool(rng.random() < 0.5)),
            "day": maybe(datetime.date(2026, 11, 1) + datetime.timedelta(int(rng.integers(0, 28)))),
            "a b": maybe(int(rng.integers(-128, 128))),
        }
        for number in range(count)
    ]


def kept_by_sqlite(rows: list[dict[str, object]], where: str) -> list[object]:
    """Return the ids that SQLite selects; its dates are strings in the same order."""
    database = sqlite3.connect(":memory:")
    database.execute("pragma case_sensitive_like = on")
    names = ", ".join(f'"{name}"' for name in SCHEMA.names)
    database.execute(f"create table rows ({names})")
    values = [
        [str(value) if isinstance(value, datetime.date) else value for value in row.values()] for row in rows
    ]
    database.executemany(f"insert into rows values ({', '.join('?' * len(SCHEMA.names))})", values)
    return [row[0] for row in database.execute(f"select id from rows where {where} order by rowid")]


def kept_by_filter(rows: list[dict[str, object]], where: str, schema: pa.Schema = SCHEMA) -> list[object]:
    """Return the ids of the rows for which the parsed filter is true."""
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    is_kept = parse_where(where, schema).evaluate(batch).to_pylist()
    return [row["id"] for row, kept in zip(rows, is_kept, strict=True) if kept]


def quoted(text: str | None) -> str:
    """Return a text as SQL writes it."""
    return "'" + (text or "").replace("'", "''") + "'"


def random_predicate(rng: np.random.Generator) -> str:
    """Make one condition on one column."""
    operator = rng.choice(["=", "!=", "<", "<=", ">", ">=", "<>"])
    negation = rng.choice(["", "not "])
    number = rng.choice(["3", "-2", "9.5", "1e30", "-1e30", "+2.0", "0.5", ".5", "200", "-129"])
    numbers = ", ".join(rng.choice(["1", "2", "3.5", "7", "-300", "1e30"], size=rng.integers(1, 4)))
    langs = ", ".join(quoted(LANGS[each]) for each in rng.integers(0, len(LANGS), size=rng.integers(1, 4)))
    pattern = rng.choice(["d%", "_", "%\\%", "50%", "%'%", "two_lines", "%", "", "D%"])
    name = rng.choice(["price", '"a b"', "weight"])
    day = f"'2026-11-{rng.integers(1, 29):02}'"
    predicates = [
        f"{name} {operator} {number}",
        f"{name} {negation}in ({numbers})",
        f"lang {operator} {quoted(LANGS[rng.integers(len(LANGS))])}",
        f"lang {negation}IN ({langs})",
        f"lang {negation}like {quoted(pattern)}",
        f"{rng.choice(SCHEMA.names[:-1])} is {negation}null",
        "in_stock",
        f"in_stock {rng.choice(['=', '!='])} {rng.choice(['true', 'FALSE'])}",
        f"day {operator} {day}",
        f"day {negation}in ({day})",
        f"id in ('row-3', 'row-4', {langs})",
    ]
    return predicates[rng.integers(len(predicates))]


def random_condition(rng: np.random.Generator, depth: int) -> str:
    """Make a condition, nested at most `depth` deep."""
    if depth == 0 or rng.random() < 0.3:
        return random_predicate(rng)
    left, right = random_condition(rng, depth - 1), random_condition(rng, depth - 1)
    forms = [
        f"not {left}",
        f"({left})",
        f"{left} and {right}",
        f"{left} OR {right}",
        f"not ({left} or {right})",
    ]
    return forms[rng.integers(len(forms))]


@pytest.mark.parametrize("seed", range(5))
def test_random_filters_keep_the_rows_that_sqlite_keeps(seed):
    rng = np.random.default_rng(seed)
    rows, kept = random_rows(rng, 120), []
    for _ in range(200):
        where = random_condition(rng, 4)
        kept.append(kept_by_filter(rows, where))
        assert kept[-1] == kept_by_sqlite(rows, where), where
    assert sum(0 < len(each) < len(rows) for each in kept) > 100, "many filters keep some of the rows"


UNUSUAL = pa.schema(
    [
        ("id", pa.int64()),
        ("big", pa.uint64()),
        ("half", pa.float16()),
        ("single", pa.float32()),
        ("cost", pa.decimal128(10, 2)),
        ("at", pa.timestamp("ms", "Europe/Berlin")),
        ("naive", pa.timestamp("us")),
        ("time", pa.time64("us")),
        ("tags", pa.list_(pa.string())),
    ]
)
UTC = datetime.UTC


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("id > 9007199254740992", [9007199254740993]),
        ("id >= 9007199254740992.5 and id < 1e400", [9007199254740993]),
        ("id in (9007199254740992)", []),
        ("big > 9223372036854775807", [1]),
        ("big < -1", []),
        ("big != -0.5", [1, 9007199254740993]),
        ("half = 0.1", [1]),
        ("single = 0.1", [1]),
        ("single < 0.1", []),
        ("cost < 3.999", [1]),
        ("cost in (3.50, 4)", [1, 9007199254740993]),
        ("cost in (1, 3.50, 4.005)", [1]),
        ("cost < 1e30 and cost > -1e300", [1, 9007199254740993]),
        ("cost = 3.5000000000000001", []),
        (f"cost > 3.4{'9' * 90} and cost < 3.5{'0' * 90}1", [1]),
        ("cost in (1e999999999, 350e-2)", [1]),
        ("big > 0e-500", [1, 9007199254740993]),
        ("single = -0e-500", []),
        ("at >= '2026-11-25'", [1]),
        ("at > '2026-11-25T12:30:00+01:00'", []),
        ("at = '2026-11-25T12:30:00+01:00'", [1]),
        ("naive < '2026-11-25 11:30'", []),
        ("time >= '11:30' and time < '12:00'", [1]),
        ("tags is not null", [1]),
    ],
)
def test_values_are_compared_exactly_in_the_type_of_the_column(where, expected):
    at = datetime.datetime(2026, 11, 25, 11, 30)
    rows = [
        {
            "id": 1,
            "big": 2**64 - 1,
            "half": np.float16(0.1),
            "single": 0.1,
            "cost": Decimal("3.50"),
            "at": at.replace(tzinfo=UTC),
            "naive": at,
            "time": at.time(),
            "tags": ["a"],
        },
        {"id": 2**53 + 1, "big": 3, "half": np.float16(2), "single": 2.0, "cost": Decimal("4.00")},
    ]
    assert kept_by_filter(rows, where, UNUSUAL) == expected


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal32(5, 2),
        pa.decimal64(9, 0),
        pa.decimal128(38, 37),
        pa.decimal256(76, 70),
    ],
    ids=str,
)
def test_decimals_are_compared_exactly_with_any_number(kind):
    rng = np.random.default_rng(0)
    largest = 10**kind.precision - 1
    steps = [0, 1, -1, 120, largest, -largest, *map(int, rng.integers(-9_999, 9_999, 20))]
    values = [Decimal((each < 0, tuple(map(int, str(abs(each)))), -kind.scale)) for each in steps]
    batch = pa.record_batch({"x": pa.array(values, comparable_type(kind)).cast(kind)})
    with localcontext(prec=200):
        numbers = [format(each, "f") for each in (*values[:8], values[6] + Decimal("1e-90"))]
    numbers += ["1e30", "-1e300", "1e-399", "0.5", "1.2500000000000001", "2e80", "-1e-999999999"]
    compare = {
        "=": operator.eq,
        "!=": operator.ne,
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
    for number in numbers:
        exact = Fraction(Decimal(number.replace("e-999999999", "e-500")))
        for sign, is_true in compare.items():
            answers = parse_where(f"x {sign} {number}", batch.schema).evaluate(batch).to_pylist()
            assert answers == [is_true(Fraction(each), exact) for each in values], (sign, number)
        answers = parse_where(f"x in (7, {number})", batch.schema).evaluate(batch).to_pylist()
        assert answers == [Fraction(each) in (7, exact) for each in values], number


EDGES = pa.table(
    {
        "zero": pa.array([0.0, -0.0, None, 1.0]),
        "half": pa.array([0.0, -0.0, None, 1.0], pa.float16()),
        "ns": pa.array([1_700_000_000_123_456_789, 0, None, 1], pa.timestamp("ns")),
        "far": pa.array([-62_167_219_200_000_000, 0, None, 1], pa.timestamp("us", "Europe/Berlin")),
        "time": pa.array([43_200_123_456_789, 43_200_123_456_000, None, 0], pa.time64("ns")),
        "second": pa.array([43_200, 43_201, None, 0], pa.time32("s")),
    }
)


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("zero", "0", [0, 1]),
        ("zero", "-0.0", [0, 1]),
        ("half", "0", [0, 1]),
        ("ns", "'2023-11-14 22:13:20.123456789'", [0]),
        ("far", "'0000-01-01'", [0]),  # before the first year of Python
        ("time", "'12:00:00.123456789'", [0]),
        ("time", "'12:00:00.123456'", [1]),
        ("second", "'12:00'", [0]),
    ],
)
def test_a_value_in_a_list_is_compared_as_with_equality(column, value, expected):
    [batch] = EDGES.to_batches()
    for where in (f"{column} = {value}", f"{column} in ({value})", f"not {column} not in ({value})"):
        answers = parse_where(where, EDGES.schema).evaluate(batch).to_pylist()
        assert [row for row, is_true in enumerate(answers) if is_true] == expected, where


@pytest.mark.parametrize("value", ["12:00:00.5", "12:00+02:00", "24:00", "", "noon"])
def test_a_time_of_day_that_the_column_cannot_have_is_refused(value):
    """Digits and offsets are not dropped, because other rows would pass than those that were meant."""
    with pytest.raises(ConfigError, match="position 10: expected a point in time like '23:59:00'"):
        parse_where(f"second < '{value}'", EDGES.schema)


@pytest.mark.parametrize(
    ("where", "position", "sentence"),
    [
        ("prise < 3", 1, "one of the columns id, price, weight, lang, in_stock, day, a b, found 'prise'"),
        ("prise < 3", 1, "did you mean 'price'?"),
        ("price < 'x'", 9, "expected a number, because column price is of type int64, found 'x'"),
        ("lang = 3", 8, "expected a text in quotes, like 'de', because column lang is of type large_string"),
        ("lang in ('de', 3)", 16, "because column lang is of type large_string, found 3"),
        ("lang = de", 8, "found de; write 'de' if it is a text"),
        ('lang = "de"', 8, "write 'de' if it is a text"),
        ("lang == 'x'", 7, "found ="),
        ("lang = null", 8, "write `is null` or `is not null`"),
        ("price is nul", 10, "expected null or not null, found nul"),
        ("(price < 3", 11, "for the ( at position 1, found the end"),
        ("price < 3)", 10, "expected and, or, or the end, found )"),
        ("price < 3 lang = 'de'", 11, "expected and, or, or the end, found lang"),
        ("day > 'soon'", 7, "a point in time like '2026-11-25', because column day is of type date32[day]"),
        ("in_stock < true", 12, "= or != before it"),
        ("in_stock = 1", 12, "true or false"),
        ("price like '3%'", 12, "a column of strings before like"),
        ("'de' = lang", 1, "write the column first"),
        ("price", 6, "in, like or is after price, found the end"),
        ("price not 3", 11, "in or like after price"),
        ("price in 3", 10, "( after in"),
        ("price in (3 4)", 13, ", or ) after a value"),
        ("price ~ 3", 7, "found ~ 3"),
        ("price '=' 3", 7, "found '='"),
        ("lang = 'x", 8, "a closing ', found none"),
        ("price < 3abc", 9, "found 3abc"),
        ("price < 1e9999999999", 9, "found 1e9999999999"),
        (200 * "(" + "in_stock" + 200 * ")", 102, "at most 100 nested"),
        (200 * "not " + "in_stock", 405, "at most 100 nested"),
        ("__import__('os')", 1, "one of the columns"),
    ],
)  # fmt: skip
def test_an_invalid_filter_is_refused_at_its_position(where, position, sentence):
    with pytest.raises(ConfigError) as refused:
        parse_where(where, SCHEMA)
    assert str(refused.value).startswith(f"where, position {position}: expected ")
    assert sentence in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        (" or ".join(["price = 1"] * 1_001), "at most 1,000 conditions, found more; write several values"),
        (f"lang like '{'%a' * 501}'", "at most 1,000 characters, .* found 1,002 characters, and 0 _ so far"),
        (f"lang like '%{'_' * 60}' or id like '{'_' * 60}'", "found 60 characters, and 120 _ so far"),
        (f"{'x' * 19_000} = 1", r"found 'x{199}\.\.\. \(19,002 characters\)"),
    ],
    ids=("conditions", "pattern", "underscores", "name"),
)
def test_a_filter_that_a_row_cannot_be_compared_with_in_a_short_time_is_refused(where, sentence):
    with pytest.raises(ConfigError, match=sentence) as refused:
        parse_where(where, SCHEMA)
    assert len(str(refused.value)) < 500


def test_lists_of_any_length_are_looked_up_at_once():
    values = ", ".join(map(str, range(0, 200_000, 2)))
    batch = pa.RecordBatch.from_pylist([{"price": 199_998}, {"price": 3}, {"price": None}], schema=SCHEMA)
    condition = parse_where(f"price in ({values})", SCHEMA)
    assert condition.evaluate(batch).to_pylist() == [True, False, None]


@pytest.mark.parametrize("where", ["", "  \n"])
def test_an_empty_filter_is_refused(where):
    with pytest.raises(ConfigError, match="leave it out to take all rows"):
        parse_where(where, SCHEMA)


def test_a_column_that_cannot_be_compared_is_named_with_its_type():
    with pytest.raises(ConfigError, match=r"position 8: .* found tags of type list<item: string>"):
        parse_where("tags = 'a'", UNUSUAL)


def test_random_texts_are_parsed_or_refused():
    """No text crashes the parser."""
    rng = np.random.default_rng(3)
    pieces = ["price", "and", "not", "in", "is", "null", "like", *"<3'\"(), \x00é"]
    for _ in range(2_000):
        text = " ".join(rng.choice(pieces, size=rng.integers(0, 9)))
        try:
            parse_where(text, SCHEMA)
        except ConfigError:
            continue
