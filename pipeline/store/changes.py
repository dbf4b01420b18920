"""Examples of the rows that a night changed, for its report."""

from pipeline.config import Settings
from pipeline.store.stored import Stored


class ChangedRow(Settings):
    """The addresses of one new, changed or deleted row, as an example of the changes."""

    before: int | None = None
    """address in the previous corpus; None for a new row"""
    now: int | None = None
    """address in this corpus; None for a deleted row"""


class ChangedRows(Stored):
    """Examples of new, changed and deleted rows of a corpus, sampled by the hash of their texts.

    Only the report of the night needs the file, so prune may remove it.
    """

    rows: tuple[ChangedRow, ...] = ()

    @staticmethod
    def path(corpus_id: str) -> str:
        """Return the path of the examples of the corpus `corpus_id`."""
        return f"candidates/changes/{corpus_id}.json"
