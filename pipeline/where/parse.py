"""Parse a filter of rows, such as `price < 10 and (lang = 'de' or lang is null)`.

The grammar is the part of SQL that can be decided from one row alone. pyarrow parses no text into expressions
(it reads Substrait, a binary format that other programs write), its expressions treat null in is_in as false,
and faiss knows ids only; so a short parser makes conditions that pyarrow.compute evaluates. Values are
converted to the types of the columns that they are compared with. Nothing is executed.
"""

import decimal
import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple

import pyarrow as pa

from pipeline.errors import ConfigError, did_you_mean
from pipeline.where.evaluate import (
    COMPARISONS,
    And,
    ColumnComparison,
    Condition,
    Flag,
    IsNotNull,
    IsNull,
    Like,
    Not,
    OneOf,
    Or,
    comparable_type,
)

Kind = Literal["keyword", "name", "string", "number", "symbol", "end"]

_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "like", "true", "false"})
_MAX_SHOWN = 200  # characters of a token in an error
_PATTERN = re.compile(
    r"""(?P<space>\s+)
    |(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,9})?)(?!\w)
    |(?P<string>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<word>[^\W\d]\w*)
    |(?P<symbol><>|!=|<=|>=|[=<>(),])""",
    re.VERBOSE,
)


class Token(NamedTuple):
    """A token of a filter."""

    kind: Kind
    text: str
    """the token as it is written"""
    value: str
    """keyword in lower case, name of a column, content of a string, or the token as it is written"""
    position: int
    """position of its first character, from 1"""


def where_error(token: Token, expected: str, found: str = "", remedy: str = "") -> ConfigError:
    """Create the error about a token.

    Args:
        found: what was found; "": the token itself.
        remedy: what to do; "": the grammar in a few words.
    """
    return ConfigError(
        f"where, position {token.position}",
        expected,
        _shortened(found or ("the end" if token.kind == "end" else token.text)),
        remedy or "conditions are like price < 10 and lang in ('de', 'en'), joined by and, or, not",
    )


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text):,} characters)"


def tokenize(text: str) -> list[Token]:
    """Split a filter into tokens, the last of which is the end.

    Raises:
        ConfigError: a character cannot begin a token, or a quote is not closed.

    >>> [(token.kind, token.value) for token in tokenize("price < 10")]
    [('name', 'price'), ('symbol', '<'), ('number', '10'), ('end', '')]
    """
    tokens, start = [], 0
    while start < len(text):
        match = _PATTERN.match(text, start)
        if match is None:
            raise _unknown(text, start)
        if match.lastgroup != "space":
            tokens.append(_token(str(match.lastgroup), match.group(), start + 1))
        start = match.end()
    return [*tokens, Token("end", "", "", len(text) + 1)]


def _token(group: str, text: str, position: int) -> Token:
    if group == "word":
        lower = text.lower()
        return Token("keyword", text, lower, position) if lower in _KEYWORDS else _name(text, text, position)
    if group == "quoted":
        return _name(text, text[1:-1].replace('""', '"'), position)
    if group == "string":
        return Token("string", text, text[1:-1].replace("''", "'"), position)
    return Token("number" if group == "number" else "symbol", text, text, position)


def _name(text: str, name: str, position: int) -> Token:
    return Token("name", text, name, position)


def _unknown(text: str, start: int) -> ConfigError:
    """Return the error for a character that begins no token."""
    character = text[start]
    token = Token("symbol", text[start : start + 20], "", start + 1)
    if character in "'\"":
        return where_error(
            token, f"a closing {character}", "none", f"a {character} within the quotes is written twice"
        )
    return where_error(token, "a column, a value or an operator")


def comparison(field: pa.Field, operator: str, token: Token) -> Condition:
    """Return the comparison of a column with the value of a token.

    A column of integers or decimals is compared exactly with any number, such as 9.5 or 1e30. A column of the
    null type, which has no value, can be compared with anything.

    Raises:
        ConfigError: the value does not fit the column's type.
    """
    if pa.types.is_null(field.type):
        return IsNotNull(field.name, True)
    if pa.types.is_integer(field.type) or pa.types.is_decimal(field.type):
        return _exact_comparison(field, operator, _number(field, token))
    if pa.types.is_boolean(field.type) and operator not in ("=", "!="):
        raise where_error(token, f"= or != before it, because {field.name} is boolean", operator)
    value = scalar_of(field, token)
    if pa.types.is_floating(field.type) and math.isinf(value.as_py()):
        return _beyond_all_numbers(field, operator, value)
    return ColumnComparison(field.name, operator, value)


def membership(field: pa.Field, tokens: list[Token]) -> Condition:
    """Return the condition that a column's value is one of some values; see `comparison`."""
    if pa.types.is_null(field.type):
        return IsNotNull(field.name, True)
    if pa.types.is_floating(field.type):
        scalars = [scalar_of(field, token) for token in tokens]
        finite = [each for each in scalars if not math.isinf(each.as_py())]
        if any(each.as_py() == 0 for each in finite):  # a lookup distinguishes 0 and -0
            finite += [pa.scalar(zero, scalars[0].type) for zero in (0.0, -0.0)]
        return OneOf(field.name, pa.array(finite, scalars[0].type))
    if not (pa.types.is_integer(field.type) or pa.types.is_decimal(field.type)):
        scalars = [scalar_of(field, token) for token in tokens]
        return OneOf(field.name, pa.array(scalars, scalars[0].type))
    low, high = _bounds(field.type)
    numbers = [_number(field, token) for token in tokens]
    whole = [int(number) for number in numbers if number.denominator == 1 and low <= number <= high]
    kind = comparable_type(field.type)
    return OneOf(field.name, pa.array([_exact(number, field.type) for number in whole], kind))


def scalar_of(field: pa.Field, token: Token) -> pa.Scalar:
    """Return the value of a token in the type of a column, which must not be one of integers or decimals.

    Raises:
        ConfigError: the value does not fit the type.
    """
    kind = field.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.scalar(_written(field, token, "string", "a text in quotes, like 'de'"), kind)
    if pa.types.is_boolean(kind):
        if token.kind == "keyword" and token.value in ("true", "false"):
            return pa.scalar(token.value == "true")
        raise _mismatch(field, token, "true or false")
    if pa.types.is_floating(kind):
        number = float(_written(field, token, "number", "a number, like 9.99"))
        return pa.scalar(number, kind).cast(comparable_type(kind))
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return _point_in_time(field, token)
    raise where_error(
        token, "a column of numbers, strings, booleans, dates or times", f"{field.name} of type {kind}"
    )


def _beyond_all_numbers(field: pa.Field, operator: str, infinity: pa.Scalar) -> Condition:
    """Compare a column of floats with a number beyond all finite numbers of its type.

    The number rounds to infinity, but is less than infinity, which a row may contain.
    """
    if operator in ("=", "!="):
        return IsNotNull(field.name, operator == "!=")
    is_positive = infinity.as_py() > 0
    if operator in ("<", "<="):
        return ColumnComparison(field.name, "<" if is_positive else "<=", infinity)
    return ColumnComparison(field.name, ">=" if is_positive else ">", infinity)


def _exact(steps: int, kind: pa.DataType) -> pa.Scalar:
    """Return the number of some steps: of 1 for integers, and of the last digit for decimals."""
    if pa.types.is_integer(kind):
        return pa.scalar(steps, kind)
    digits = tuple(map(int, str(abs(steps))))
    return pa.scalar(decimal.Decimal((steps < 0, digits, -kind.scale)), comparable_type(kind))


def _written(field: pa.Field, token: Token, kind: str, expected: str) -> str:
    """Return the value of a token that must be of the given kind."""
    if token.kind != kind:
        raise _mismatch(field, token, expected)
    return token.value


def _mismatch(field: pa.Field, token: Token, expected: str) -> Exception:
    return where_error(
        token,
        f"{expected}, because column {field.name} is of type {field.type}",
        remedy="compare with a value of the column's type",
    )


def _point_in_time(field: pa.Field, token: Token) -> pa.Scalar:
    """Return a date, a time of day or a timestamp. If the type has a zone, a text without offset is UTC."""
    kind, example = field.type, "'2026-11-25'"
    if pa.types.is_time(kind):
        example = "'23:59:00'"
    elif pa.types.is_timestamp(kind):
        example = "'2026-11-25' or '2026-11-25 23:59:00'"
    text = _written(field, token, "string", f"a point in time in quotes, like {example}")
    try:
        return _cast_time(text.strip(), kind)
    except (ValueError, pa.ArrowException):
        raise _mismatch(field, token, f"a point in time like {example}") from None


def _cast_time(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return a point in time exactly. Raises ArrowInvalid for more digits than the type has."""
    if pa.types.is_time(kind):  # pyarrow casts no texts to times of day
        return pa.scalar(f"1970-01-01 {text}").cast(pa.timestamp(kind.unit)).cast(kind)
    try:
        return pa.scalar(text).cast(kind)
    except pa.ArrowInvalid:
        if not (pa.types.is_timestamp(kind) and kind.tz):
            raise
        # The text has no offset. None can be appended, because pyarrow takes no offset after a date alone.
        return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(kind)


def _number(field: pa.Field, token: Token) -> Fraction:
    """Return the exact number that a token has, in steps of the column's type; see `_exact`."""
    scale, expected = (
        (field.type.scale, "a number, like 9.99") if pa.types.is_decimal(field.type) else (0, "a number")
    )
    number, step = decimal.Decimal(_written(field, token, "number", expected)), Fraction(10) ** -scale
    # The digits of 1e999999999 would fill the memory; beyond 400 digits all numbers compare alike.
    if number and abs(number.adjusted()) > _MAX_DIGITS:
        size = Fraction(10) ** (_MAX_DIGITS if number.adjusted() > 0 else -_MAX_DIGITS)
        return (size if number > 0 else -size) / step
    return Fraction(number if number else 0) / step


def _exact_comparison(field: pa.Field, operator: str, number: Fraction) -> Condition:
    """Compare a column with a number that may be outside its type, or between two of its values.

    Args:
        number: the number in steps of the type.
    """
    low, high = _bounds(field.type)
    if number > high:
        return IsNotNull(field.name, operator in ("<", "<=", "!="))
    if number < low:
        return IsNotNull(field.name, operator in (">", ">=", "!="))
    if number.denominator != 1 and operator in ("=", "!="):
        return IsNotNull(field.name, operator == "!=")
    if number.denominator != 1:  # x < 9.5 and x <= 9.5 are both x <= 9; x > 9.5 and x >= 9.5 are x > 9
        operator = "<=" if operator in ("<", "<=") else ">"
    return ColumnComparison(field.name, operator, _exact(math.floor(number), field.type))


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    """Return the lowest and the highest value of a type of integers or decimals, in steps of the type."""
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


_MAX_DIGITS = 400  # more than any type of Arrow has before or after the point
# Levels of nested parentheses and `not`; each level takes some frames of Python's stack.
_MAX_DEPTH = 100
# Limits of the time that a row takes. A comparison takes up to a microsecond. A pattern with ten or more _
# after a % takes some microseconds for each character of the row's text.
_MAX_CONDITIONS = 1_000
_MAX_PATTERN = 1_000  # characters
_MAX_SINGLE = 100  # _ in all patterns


def parse_where(text: str, schema: pa.Schema) -> Condition:
    """Parse a filter on the columns of a schema.

    Raises:
        ConfigError: the text is not a filter, names an unknown column, or compares a column with a value of
            another type. The error names the position, from 1.

    >>> rows = pa.record_batch({"price": [5, 20, None], "lang": ["de", "de", "en"]})
    >>> condition = parse_where("price < 10 or lang = 'en'", rows.schema)
    >>> condition.evaluate(rows).to_pylist()
    [True, False, True]
    >>> parse_where("price < 10", rows.schema).evaluate(rows).to_pylist()
    [True, False, None]
    """
    if not text.strip():
        raise ConfigError("where", "a condition", "an empty text", "leave it out to take all rows")
    parser = _Parser(tokenize(text), schema)
    condition = parser.disjunction(0)
    parser.expect_end()
    return condition


@lru_cache
def columns_of(text: str) -> tuple[str, ...]:
    """Return the columns that a filter names, each once, after a check of all that does not need their types.

    Raises:
        ConfigError: the text is not a filter of any columns.

    >>> columns_of("price < 10 and (lang = 'de' or price is null)")
    ('price', 'lang')
    """
    names = tuple(dict.fromkeys(token.value for token in tokenize(text) if token.kind == "name"))
    parse_where(text, pa.schema([(name, pa.null()) for name in names]))
    return names


class _Parser:
    """Recursive descent: a method for each rule of the grammar, which reads its tokens."""

    def __init__(self, tokens: list[Token], schema: pa.Schema) -> None:
        self._tokens, self._schema, self._next = tokens, schema, 0
        self._conditions = self._single = 0

    def disjunction(self, depth: int) -> Condition:
        """Read conditions joined by or."""
        conditions = [self._conjunction(depth)]
        while self._skip("or"):
            conditions.append(self._conjunction(depth))
        return conditions[0] if len(conditions) == 1 else Or(tuple(conditions))

    def expect_end(self) -> None:
        """Raise ConfigError if there are further tokens."""
        if self._token.kind != "end":
            raise where_error(self._token, "and, or, or the end")

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _skip(self, value: str) -> bool:
        """Skip the next token if it is this keyword or symbol; return whether it was."""
        is_next = self._token.kind in ("keyword", "symbol") and self._token.value == value
        self._next += is_next
        return is_next

    def _conjunction(self, depth: int) -> Condition:
        conditions = [self._negation(depth)]
        while self._skip("and"):
            conditions.append(self._negation(depth))
        return conditions[0] if len(conditions) == 1 else And(tuple(conditions))

    def _negation(self, depth: int) -> Condition:
        if depth > _MAX_DEPTH:
            raise where_error(self._token, f"at most {_MAX_DEPTH} nested parentheses", "more")
        if self._skip("not"):
            return Not(self._negation(depth + 1))
        opening = self._token
        if not self._skip("("):
            return self._predicate()
        condition = self.disjunction(depth + 1)
        if not self._skip(")"):
            raise where_error(self._token, f"and, or, or ) for the ( at position {opening.position}")
        return condition

    def _predicate(self) -> Condition:
        """Read a column and the condition on it."""
        self._conditions += 1
        if self._conditions > _MAX_CONDITIONS:
            remedy = "write several values of one column as a list: lang in ('de', 'en')"
            raise where_error(self._token, f"at most {_MAX_CONDITIONS:,} conditions", "more", remedy)
        field = self._column()
        if self._token.kind == "symbol" and self._token.value in {*COMPARISONS, "<>"}:
            operator = self._take().value.replace("<>", "!=")
            return comparison(field, operator, self._value())
        if self._skip("is"):
            is_negated = self._skip("not")
            if not self._skip("null"):
                raise where_error(self._token, "null" if is_negated else "null or not null")
            return Not(IsNull(field.name)) if is_negated else IsNull(field.name)
        is_negated = self._skip("not")
        if self._skip("in"):
            condition = membership(field, self._list())
        elif self._skip("like"):
            condition = self._like(field)
        elif pa.types.is_boolean(field.type) and not is_negated:
            return Flag(field.name)
        elif pa.types.is_null(field.type) and not is_negated:
            return IsNotNull(field.name, True)
        else:
            expected = "in or like" if is_negated else "=, !=, <, <=, >, >=, in, like or is"
            raise where_error(self._token, f"{expected} after {field.name}")
        return Not(condition) if is_negated else condition

    def _column(self) -> pa.Field:
        token, names = self._take(), self._schema.names
        columns = f"one of the columns {', '.join(names)}"
        if token.kind in ("string", "number"):
            raise where_error(token, columns, remedy="write the column first, like price < 10")
        if token.kind != "name":
            raise where_error(token, f"a condition on {columns}")
        if token.value not in names:
            remedy = did_you_mean(
                token.value, names, "only the id and the columns of corpus.keep can be filtered"
            )
            raise where_error(token, columns, repr(token.value), remedy)
        return self._schema.field(names.index(token.value))

    def _value(self) -> Token:
        """Read a number, a string, true or false."""
        token = self._take()
        if token.kind in ("number", "string") or token.value in ("true", "false"):
            return token
        expected = "a value: a number, a text in single quotes, true or false"
        if token.kind == "keyword" and token.value == "null":
            raise where_error(token, expected, remedy="write `is null` or `is not null`")
        if token.kind == "name":
            name = token.value.replace("'", "''")
            raise where_error(token, expected, remedy=f"write '{name}' if it is a text")
        raise where_error(token, expected)

    def _list(self) -> list[Token]:
        """Read values in parentheses."""
        if not self._skip("("):
            raise where_error(self._token, "( after in")
        values = [self._value()]
        while self._skip(","):
            values.append(self._value())
        if not self._skip(")"):
            raise where_error(self._token, ", or ) after a value")
        return values

    def _like(self, field: pa.Field) -> Condition:
        token, kind = self._take(), field.type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_null(kind)):
            raise where_error(token, f"a column of strings before like, {field.name} is {kind}")
        if token.kind != "string":
            raise where_error(token, "a pattern in single quotes, like 'Wi-Fi%'")
        self._single += token.value.count("_")
        if len(token.value) > _MAX_PATTERN or self._single > _MAX_SINGLE:
            expected = f"a pattern of at most {_MAX_PATTERN:,} characters, and at most {_MAX_SINGLE} _ in all"
            found = f"{len(token.value):,} characters, and {self._single:,} _ so far"
            raise where_error(token, expected, found, "write % for several characters")
        return IsNotNull(field.name, True) if pa.types.is_null(kind) else Like(field.name, token.value)
