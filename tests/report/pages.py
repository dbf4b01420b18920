"""Checks of pages: whether they are well-formed, which words they show, and whether texts are escaped."""

import html
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "hr"}


class Page(HTMLParser):
    """Parser that checks that elements close in order, and collects words and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.names: set[str] = set()
        self.links: list[str] = []
        self.words = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.words += data


@dataclass
class HostileTexts:
    """Makes texts that would become elements if a page did not escape them.

    Attributes:
        tail: further characters at the end of every text.
        shown: the beginning of every text that was made, by which it is found on the page.
    """

    tail: str = ""
    shown: list[str] = field(default_factory=list)

    def __call__(self, name: str) -> str:
        self.shown.append(f"<script>{name}</script>")
        return self.shown[-1] + self.tail


def assert_shown_as_text(page: str, *texts: str) -> None:
    """Check that the page shows every text, and that no text with `<script>` became an element."""
    parsed = Page(page)
    assert [text for text in texts if text not in parsed.words] == []
    assert "script" not in parsed.names


def spaced_words_in(page: str) -> str:
    """Return the words of a page or of a part of it, with a space between elements."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
