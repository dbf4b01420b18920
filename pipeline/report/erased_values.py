"""Remove the ids and texts of erased rows from pages that are stored already."""

import html
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from pipeline.report.formats import excerpt

ERASED = "[erased]"
_PREFIX = 16  # characters at the beginning of a text by which a longer passage is recognized
_SEGMENT = re.compile(r"(<[^>]*>)([^<]*)")
_ATTRIBUTE = re.compile(r"((?:title|aria-label|href|alt|content)=)(\"[^\"]*\"|'[^']*')")
_NOTE = (
    '<p style="margin:16px;padding:12px;border:1px solid" class="erased">Rows were erased from this root '
    f"after this page was written. Their ids and texts are shown as {ERASED}: {{count}} on this page.</p>"
)
_LEAST_ID = 4  # characters of an id that is also looked for inside other text


class ErasedValues:
    """Ids and texts of erased rows, to be found in what people read."""

    def __init__(self, ids: Iterable[str], texts: Iterable[str]) -> None:
        self._ids = {" ".join(each.split()) for each in ids} - {""}
        self._texts = {" ".join(each.split()) for each in texts} - {""}

    @cached_property
    def _whole(self) -> frozenset[str]:
        """The values, as a page shows them if it shows nothing else in the same place."""
        values = self._ids | self._texts
        return frozenset(values | set(map(excerpt, values)))

    @cached_property
    def _prefixes(self) -> frozenset[str]:
        return frozenset(text[:_PREFIX] for text in self._texts if len(text) >= _PREFIX)

    @cached_property
    def _words(self) -> frozenset[str]:
        """Ids that are looked for inside other text: those that are no plain numbers."""
        return frozenset(each for each in self._ids if len(each) >= _LEAST_ID and not each.isdecimal())

    def shows(self, text: str, *, is_id: bool = False) -> bool:
        """Return whether a passage shows an id or a text, or the beginning of a text.

        Args:
            is_id: the passage begins with an id: an id that is a number is recognized, too.
        """
        line = " ".join(text.split())
        if not line:
            return False
        if line in self._whole and (is_id or not line.isdecimal()):
            return True
        if is_id and line.partition(", ")[0] in self._whole:
            return True
        if not self._words.isdisjoint(re.split(r"[\s,;:()\"'<>=/&?]+", line)):
            return True
        ends = range(len(line) - _PREFIX + 1)
        return any(line[start : start + _PREFIX] in self._prefixes for start in ends)

    def in_page(self, page: str) -> tuple[str, int]:
        """Replace the values in an HTML page. Returns the page, with a note, and their number.

        Text between tags, and what tags show themselves (titles and links), is replaced as a whole.
        """
        count = 0

        def replace(match: re.Match[str]) -> str:
            nonlocal count
            tag, text = match.groups()
            if tag.startswith(("<style", "<script")):
                return match[0]
            before = tag.count(ERASED)
            tag = _ATTRIBUTE.sub(self._replace_attribute, tag)
            changed = tag.count(ERASED) - before
            if self.shows(html.unescape(text), is_id="mono" in tag or tag.startswith(("<dt", "<code"))):
                text, changed = ERASED, changed + 1
            count += changed
            return tag + text

        result = _SEGMENT.sub(replace, page)
        if not count:
            return page, 0
        return re.sub(
            r"(<body[^>]*>)", lambda body: body[1] + _NOTE.format(count=count), result, count=1
        ), count

    def _replace_attribute(self, match: re.Match[str]) -> str:
        name, quoted = match.groups()
        value = html.unescape(quoted[1:-1])
        return f"{name}{quoted[0]}{ERASED}{quoted[0]}" if self.shows(value) else match[0]

    def in_json(self, value: Any) -> Any:
        """Return a parsed JSON value with the strings replaced that show an id or a text."""
        if isinstance(value, str):
            return ERASED if self.shows(value, is_id=True) else value
        if isinstance(value, Mapping):
            return {name: self.in_json(each) for name, each in value.items()}
        return [self.in_json(each) for each in value] if isinstance(value, list) else value
