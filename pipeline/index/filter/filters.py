"""Evaluate filters over the ids of a release, and keep the latest results."""

import threading
from collections import OrderedDict
from collections.abc import Callable

import pyarrow as pa

from pipeline.errors import ConfigError
from pipeline.index.files.ids import Ids
from pipeline.index.files.parts import Parts
from pipeline.index.files.unit_vectors import UnitVectors
from pipeline.index.filter.address_set import AddressSet
from pipeline.index.filter.selection import SelectedRows, select
from pipeline.where.parse import parse_where

# Filters whose rows are kept: up to 15 MB of vectors each, at 384 dimensions, and a bit for each row.
_MAX_KEPT = 16
_ADDRESS_SPACE = 1 << 17  # units, for all kept filters: half of the 2^47 bytes that a process may map


class Filters:
    """The rows that filters select from one release. Threads may share an object."""

    def __init__(self, ids: Ids, parts: Parts, units: UnitVectors) -> None:
        self._ids, self._parts, self._units = ids, parts, units
        self._kept: OrderedDict[str, SelectedRows] = OrderedDict()
        self._lock = threading.Lock()

    def select(self, where: str, proceed: Callable[[], None] = lambda: None) -> SelectedRows:
        """Return the rows that a filter lets pass. They are evaluated once, unless many filters come between.

        Args:
            proceed: is called often while the filter is evaluated; it may raise, to end this.

        Raises:
            ConfigError: the filter is invalid.
        """
        with self._lock:
            if (kept := self._kept.get(where)) is not None:
                self._kept.move_to_end(where)
                return kept
        selection = self.evaluate(where, proceed)
        with self._lock:
            self._kept[where] = selection
            while len(self._kept) > max(1, min(_MAX_KEPT, _ADDRESS_SPACE // self._ids.next_ordinal)):
                self._kept.popitem(last=False)
        return selection

    def evaluate(self, where: str, proceed: Callable[[], None] = lambda: None) -> SelectedRows:
        """Return the rows that a filter lets pass, without keeping them for the next search."""
        condition = parse_where(where, self._ids.schema)
        members = AddressSet(self._ids.next_ordinal)
        try:
            for addresses in self._ids.matching(condition, proceed):
                members.add(addresses)
        except pa.ArrowInvalid as error:  # a comparison of decimals needs more than 76 digits
            raise ConfigError(
                "where", "values with which the columns can be compared", str(error), "write fewer digits"
            ) from None
        return select(self._parts, members, self._units)
