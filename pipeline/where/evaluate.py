"""Conditions on the columns of rows, with the null semantics of SQL.

A condition is true, false or null (unknown) for a row. A comparison with null is null, and `and`, `or` and
`not` follow Kleene's logic; a filter keeps the rows for which its condition is true.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


class Condition(Protocol):
    """A condition on the columns of rows."""

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Return true, false or null for each row: a boolean array (n,)."""
        ...


@dataclass(frozen=True)
class ColumnComparison:
    """Comparison of a column with a value of its type."""

    column: str
    operator: str
    value: pa.Scalar

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Compare; null where the column is null."""
        return COMPARISONS[self.operator](_comparable(rows[self.column]), self.value)


@dataclass(frozen=True)
class IsNotNull:
    """A condition with the same answer for every row that has a value, such as int8 < 1,000; else null."""

    column: str
    answer: bool

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the answer, null where the column is null."""
        return pc.if_else(rows[self.column].is_valid(), self.answer, pa.scalar(None, pa.bool_()))


@dataclass(frozen=True)
class OneOf:
    """Membership of a column's value in some values of its type, none of which is null."""

    column: str
    values: pa.Array

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Look up the values; null where the column is null, for which pyarrow's is_in is false."""
        column = _comparable(rows[self.column])
        found = pc.is_in(column, value_set=self.values)
        return pc.if_else(column.is_valid(), found, pa.scalar(None, pa.bool_()))


@dataclass(frozen=True)
class Like:
    """Match of a string with a pattern, in which % stands for any text and _ for any character."""

    column: str
    pattern: str

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Match; null where the column is null. As in the SQL standard, a backslash is a plain character."""
        return self._match(rows[self.column])

    @functools.cached_property
    def _match(self) -> Callable[[pa.Array], pa.Array]:
        """The function for the pattern; pyarrow's match_like errs if a backslash is before the last %."""
        first, *others = self.pattern.split("%")
        if "_" not in self.pattern:
            if not others:
                return lambda column: pc.equal(column, first)
            if others == [""]:
                return lambda column: pc.starts_with(column, first)
            if not first and len(others) == 1:
                return lambda column: pc.ends_with(column, others[0])
            if not first and others[1:] == [""]:
                return lambda column: pc.match_substring(column, others[0])
        signs = {"%": ".*", "_": "."}
        expression = "".join(signs.get(character) or re.escape(character) for character in self.pattern)
        return lambda column: pc.match_substring_regex(column, rf"(?s)\A{expression}\z")


@dataclass(frozen=True)
class Flag:
    """Value of a boolean column."""

    column: str

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the column."""
        return rows[self.column]


@dataclass(frozen=True)
class IsNull:
    """Test for null."""

    column: str

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Return true or false for each row."""
        return rows[self.column].is_null()


@dataclass(frozen=True)
class Not:
    """Negation of a condition."""

    condition: Condition

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Return the opposite; null stays null."""
        return pc.invert(self.condition.evaluate(rows))


@dataclass(frozen=True)
class And:
    """All of some conditions."""

    conditions: tuple[Condition, ...]

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Return false if a condition is false, else null if one is null."""
        return functools.reduce(pc.and_kleene, (each.evaluate(rows) for each in self.conditions))


@dataclass(frozen=True)
class Or:
    """At least one of some conditions."""

    conditions: tuple[Condition, ...]

    def evaluate(self, rows: pa.RecordBatch) -> pa.Array:
        """Return true if a condition is true, else null if one is null."""
        return functools.reduce(pc.or_kleene, (each.evaluate(rows) for each in self.conditions))


def comparable_type(kind: pa.DataType) -> pa.DataType:
    """Return a type that can hold the values of a type, and in which pyarrow can look up and compare them."""
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _comparable(column: pa.Array) -> pa.Array:
    return column.cast(comparable_type(column.type))
