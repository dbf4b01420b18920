"""Examples of the rows that a night changed, for its report, and the number of deleted documents."""

from pipeline.config import Settings
from pipeline.store.records.sealed_json import Stored


class ChangedRow(Settings):
    """The addresses of one new, changed or deleted row, as an example of the changes."""

    before: int | None = None
    """address in the previous corpus; None for a new row"""
    now: int | None = None
    """address in this corpus; None for a deleted row"""


class ChangedRows(Stored):
    """Examples of new, changed and deleted rows of a corpus, sampled by the hash of their texts.

    Only the gates and the report of the night need the file, so prune may remove it.
    """

    rows: tuple[ChangedRow, ...] = ()
    deleted_documents: int | None = None
    """number of input rows that are no longer live; a row that was cut into chunks counts once. None in files
    of earlier versions"""
    filtered_documents: int = 0
    """number of these rows that corpus.where and corpus.exclude leave out"""

    @staticmethod
    def path(corpus_id: str) -> str:
        """Return the path of the examples of the corpus `corpus_id`."""
        return f"candidates/changes/{corpus_id}.json"
