"""The interface of builders of training rows, and their registry.

A builder is a settings class whose fields are its options. It is given all rows of some groups at a time: a
group is the rows with the same value of one role, such as a document.
"""

from abc import abstractmethod
from typing import ClassVar, NamedTuple

import pyarrow as pa

from pipeline.config import Settings
from pipeline.registry import Registry
from pipeline.settings.training import Values
from pipeline.text.pairs.grouped import GroupedRows


class BuiltTable(NamedTuple):
    """Rows that were built from groups."""

    columns: dict[str, pa.Array]
    """texts by role, in the order of the groups; the roles are the same for all groups"""
    counts: dict[str, int]
    """numbers of groups and texts, and of groups and texts without a row, by reason"""


class Builder(Settings):
    """Builds training rows from the rows of a group."""

    columns: ClassVar[tuple[str, ...]]
    """roles of the columns that are read"""
    group: ClassVar[str]
    """role whose equal values make a group"""
    within: ClassVar[str | None] = None
    """role whose numbers order the rows of a group, or whose names divide them; None if there is none"""
    text: ClassVar[str] = "text"
    """role of the text that differs between the rows of a group"""
    needed: ClassVar[str]
    """rows that the data must have, as a phrase for error messages"""

    def check(self, values: Values, where: str) -> None:
        """Check that rows can be built from data with these labels. Raises ConfigError, naming `where`."""

    @abstractmethod
    def build(self, rows: GroupedRows) -> BuiltTable:
        """Build the rows of some groups. The result depends on each group alone.

        Raises:
            DataError: rows of a group contradict each other.
        """


BUILDERS: Registry[type[Builder]] = Registry("kind of pairs", "pipeline.text.pairs")
