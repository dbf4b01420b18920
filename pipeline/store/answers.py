"""A release's answers to the fixed queries, kept in its summary for the next night to compare its own."""

from pipeline.config import Settings


class Hit(Settings):
    """One answer to a query. text: the beginning of the row's text."""

    id: str
    score: float
    text: str


class Answers(Settings):
    """A fixed query and the release's answers to it, best first."""

    query: str
    hits: tuple[Hit, ...]
