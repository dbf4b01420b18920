"""Results of the fixed queries, stored in a release's summary so that the next night can compare its own."""

from pipeline.config import Settings


class Hit(Settings):
    """One result of a query."""

    id: str
    score: float
    text: str
    """the beginning of the row's text"""


class Answers(Settings):
    """A fixed query and its results in the release, best first."""

    query: str
    hits: tuple[Hit, ...]
