"""The language of corpus.text: the name of a column, or a template such as "{title}: {body}".

It is parsed here, because wrong templates are wrong settings.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_TOKEN = re.compile(r"(?P<brace>\{\{|\}\})|\{(?P<column>[^{}]+)\}|(?P<literal>[^{}]+)|(?P<wrong>[{}])")
_SEPARATOR = re.compile(r"\A\W+")


@dataclass(frozen=True)
class TextTemplate:
    """Columns, and the text around them."""

    columns: tuple[str, ...]
    before: tuple[str, ...]
    """text before each column, from the previous one on"""
    after: str = ""
    """text after the last column"""
    is_column: bool = False
    """True if corpus.text is the name of one column, whose values are taken as they are"""

    def render(self, values: Sequence[str | None]) -> str | None:
        r"""Return the text of a row; None if all columns are null or blank.

        A column that is null or blank is left out with the text before it, and the last one with the text
        after it, too. If all columns before a column are left out, the text before it loses its separator:
        everything up to its first letter or digit.

        Args:
            values: a value for each column.

        >>> template = parse_template("{title}\n\n{body} ({year})")
        >>> [template.render(row) for row in (["A", "b", "1999"], [None, "b", None], ["A", " ", None])]
        ['A\n\nb (1999)', 'b', 'A']
        >>> parse_template("Title: {title}. Body: {body}").render([None, "b"])
        'Body: b'
        """
        parts, is_first = list[str](), True
        for before, value in zip(self.before, values, strict=True):
            is_present = value is not None and bool(value.strip())
            if is_present:
                label = before if parts or is_first else _SEPARATOR.sub("", before)
                parts.append(f"{label}{value}")
            is_first = False
        if not parts:
            return None
        return "".join(parts) + (self.after if is_present else "")


@lru_cache
def parse_template(text: str) -> TextTemplate:
    """Parse corpus.text. In a template, {{ and }} are braces.

    Raises:
        ValueError: a brace is not closed or not opened, or the template names no column.

    >>> parse_template("{title}: {{{body}}}").columns
    ('title', 'body')
    """
    if "{" not in text and "}" not in text:
        return TextTemplate((text,), ("",), is_column=True)
    columns, literals = list[str](), [""]
    for token in _TOKEN.finditer(text):
        if token["wrong"]:
            raise ValueError(
                f"columns in braces, like {{title}}, and other braces doubled, {{{{ or }}}}, "
                f"not a single {token['wrong']} at position {token.start() + 1}"
            )
        if token["column"]:
            columns.append(token["column"])
            literals.append("")
        else:
            literals[-1] += token["brace"][0] if token["brace"] else token["literal"]
    if not columns:
        raise ValueError("a column, or a template with a column in braces, like {title}")
    return TextTemplate(tuple(columns), tuple(literals[:-1]), literals[-1])
