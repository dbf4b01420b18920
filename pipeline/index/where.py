"""Parse a filter of search results, such as `price < 10 and (lang = 'de' or lang is null)`.

The grammar is the part of SQL that one row decides by itself. pyarrow parses no text into expressions (it
reads Substrait, a binary format that other programs write), its expressions treat null in is_in as false, and
faiss knows ids only; so a short parser makes conditions that pyarrow.compute evaluates. Nothing is executed.
"""

import pyarrow as pa

from pipeline.errors import ConfigError, did_you_mean
from pipeline.index.conditions import COMPARISONS, Condition, Either, Every, Flag, Like, Missing, Negation
from pipeline.index.where_tokens import Token, tokenize, where_error
from pipeline.index.where_values import comparison, membership

# Nesting of parentheses and not; each level takes some frames of Python's stack.
_MAX_DEPTH = 100
# Limits of what a row costs. A comparison takes up to a microsecond. A pattern with ten or more _ after a %
# takes some microseconds for each character of the row's text.
_MAX_CONDITIONS = 1_000
_MAX_PATTERN = 1_000  # characters
_MAX_SINGLE = 100  # _ in all patterns


def parse_where(text: str, schema: pa.Schema) -> Condition:
    """Parse a filter on the columns of a schema.

    Raises:
        ConfigError: the text is not a filter, names an unknown column, or compares a column with a value of
            another type. The error names the position, from 1.
    """
    if not text.strip():
        raise ConfigError("where", "a condition", "an empty text", "leave it out to search all rows")
    parser = _Parser(tokenize(text), schema)
    condition = parser.disjunction(0)
    parser.expect_end()
    return condition


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
        return conditions[0] if len(conditions) == 1 else Either(tuple(conditions))

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
        return conditions[0] if len(conditions) == 1 else Every(tuple(conditions))

    def _negation(self, depth: int) -> Condition:
        if depth > _MAX_DEPTH:
            raise where_error(self._token, f"at most {_MAX_DEPTH} nested parentheses", "more")
        if self._skip("not"):
            return Negation(self._negation(depth + 1))
        opening = self._token
        if not self._skip("("):
            return self._predicate()
        condition = self.disjunction(depth + 1)
        if not self._skip(")"):
            raise where_error(self._token, f"and, or, or ) for the ( at position {opening.position}")
        return condition

    def _predicate(self) -> Condition:
        """Read a column and what is said about it."""
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
            return Negation(Missing(field.name)) if is_negated else Missing(field.name)
        is_negated = self._skip("not")
        if self._skip("in"):
            condition = membership(field, self._list())
        elif self._skip("like"):
            condition = self._like(field)
        elif pa.types.is_boolean(field.type) and not is_negated:
            return Flag(field.name)
        else:
            expected = "in or like" if is_negated else "=, !=, <, <=, >, >=, in, like or is"
            raise where_error(self._token, f"{expected} after {field.name}")
        return Negation(condition) if is_negated else condition

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
        token = self._take()
        if not (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
            raise where_error(token, f"a column of strings before like, {field.name} is {field.type}")
        if token.kind != "string":
            raise where_error(token, "a pattern in single quotes, like 'Wi-Fi%'")
        self._single += token.value.count("_")
        if len(token.value) > _MAX_PATTERN or self._single > _MAX_SINGLE:
            expected = f"a pattern of at most {_MAX_PATTERN:,} characters, and at most {_MAX_SINGLE} _ in all"
            found = f"{len(token.value):,} characters, and {self._single:,} _ so far"
            raise where_error(token, expected, found, "write % for several characters")
        return Like(field.name, token.value)
