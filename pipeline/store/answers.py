"""Answers of a release to the fixed queries, kept in its summary for the next night to compare itself with."""

from pipeline.config import Settings


class Hit(Settings):
    """An answer to a query. text: its beginning."""

    id: str
    score: float
    text: str


class Answers(Settings):
    """A fixed query and the release's answers to it, best first."""

    query: str
    hits: tuple[Hit, ...]
