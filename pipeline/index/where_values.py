"""Convert the values in a filter to the types of the columns that they are compared with."""

import decimal
import math
from fractions import Fraction

import pyarrow as pa

from pipeline.index.conditions import ColumnComparison, Condition, Known, OneOf, comparable_type
from pipeline.index.where_tokens import Token, where_error


def comparison(field: pa.Field, operator: str, token: Token) -> Condition:
    """Return the comparison of a column with the value that a token has.

    An integer column is compared exactly with any number, such as 9.5 or 1e30.

    Raises:
        ConfigError: the value does not fit the column's type.
    """
    if pa.types.is_integer(field.type):
        return _integer_comparison(field, operator, _number(field, token))
    if pa.types.is_boolean(field.type) and operator not in ("=", "!="):
        raise where_error(token, f"= or != before it, because {field.name} is boolean", operator)
    value = scalar_of(field, token)
    if pa.types.is_floating(field.type) and math.isinf(value.as_py()):
        return _beyond_all_numbers(field, operator, value)
    return ColumnComparison(field.name, operator, value)


def membership(field: pa.Field, tokens: list[Token]) -> Condition:
    """Return the condition that a column's value is one of some values; see `comparison`."""
    if pa.types.is_decimal(field.type):
        exact = [
            each for token in tokens if (each := _exact(scalar_of(field, token), field.type)) is not None
        ]
        return OneOf(field.name, pa.array(exact, field.type))
    if pa.types.is_floating(field.type):
        scalars = [scalar_of(field, token) for token in tokens]
        finite = [each for each in scalars if not math.isinf(each.as_py())]
        if any(each.as_py() == 0 for each in finite):  # a lookup distinguishes 0 and -0
            finite += [pa.scalar(zero, scalars[0].type) for zero in (0.0, -0.0)]
        return OneOf(field.name, pa.array(finite, scalars[0].type))
    if not pa.types.is_integer(field.type):
        scalars = [scalar_of(field, token) for token in tokens]
        return OneOf(field.name, pa.array(scalars, scalars[0].type))
    low, high = _bounds(field.type)
    numbers = [_number(field, token) for token in tokens]
    whole = [int(number) for number in numbers if number.denominator == 1 and low <= number <= high]
    return OneOf(field.name, pa.array(whole, field.type))


def scalar_of(field: pa.Field, token: Token) -> pa.Scalar:
    """Return the value of a token in the type of a column that is not of integers.

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
    if pa.types.is_decimal(kind):
        return _decimal(field, token)
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return _point_in_time(field, token)
    raise where_error(
        token, "a column of numbers, strings, booleans, dates or times", f"{field.name} of type {kind}"
    )


def _beyond_all_numbers(field: pa.Field, operator: str, infinity: pa.Scalar) -> Condition:
    """Compare a column of floats with a number that is beyond all finite ones of its type.

    The number rounds to infinity, but is less than infinity, as which a row may be stored.
    """
    if operator in ("=", "!="):
        return Known(field.name, operator == "!=")
    is_positive = infinity.as_py() > 0
    if operator in ("<", "<="):
        return ColumnComparison(field.name, "<" if is_positive else "<=", infinity)
    return ColumnComparison(field.name, ">=" if is_positive else ">", infinity)


def _exact(number: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    """Return a decimal in the type of a column; None if no value of the type equals it."""
    try:
        return number.cast(kind)
    except pa.ArrowInvalid:
        return None


def _decimal(field: pa.Field, token: Token) -> pa.Scalar:
    number = decimal.Decimal(_written(field, token, "number", "a number, like 9.99"))
    try:
        return pa.scalar(number)
    except (pa.ArrowException, ValueError):
        raise _mismatch(field, token, "a number of at most 76 digits") from None


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
    """Return a date, a time of day or a timestamp; without an offset, a timestamp with a zone is in UTC."""
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
        # An offset is missing. pyarrow takes none after a date alone.
        return pa.scalar(text).cast(pa.timestamp(kind.unit)).cast(kind)


def _number(field: pa.Field, token: Token) -> Fraction:
    """Return the exact number that a token has."""
    number = decimal.Decimal(_written(field, token, "number", "a number"))
    # The digits of 1e999999999 would fill the memory; beyond 64 bits all numbers compare alike.
    if number and number.adjusted() > 20:
        return Fraction(10**20 if number > 0 else -(10**20))
    if number and number.adjusted() < -400:
        return Fraction(1 if number > 0 else -1, 10**20)
    return Fraction(number if number else 0)


def _integer_comparison(field: pa.Field, operator: str, number: Fraction) -> Condition:
    """Compare an integer column with a number that may be outside its type, or between two integers."""
    low, high = _bounds(field.type)
    if number > high:
        return Known(field.name, operator in ("<", "<=", "!="))
    if number < low:
        return Known(field.name, operator in (">", ">=", "!="))
    if number.denominator != 1 and operator in ("=", "!="):
        return Known(field.name, operator == "!=")
    if number.denominator != 1:  # x < 9.5 and x <= 9.5 are both x <= 9; x > 9.5 and x >= 9.5 are x > 9
        operator = "<=" if operator in ("<", "<=") else ">"
    return ColumnComparison(field.name, operator, pa.scalar(math.floor(number), field.type))


def _bounds(kind: pa.DataType) -> tuple[int, int]:
    """Return the lowest and the highest integer of a type."""
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1
