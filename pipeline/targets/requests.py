"""Cut rows into requests that servers accept."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

_MAX_ITEMS = 8_192
_MAX_BYTES = 8 << 20  # servers refuse more than 32 MiB (Qdrant), 64 MiB (Milvus) or 100 MiB (OpenSearch)


def in_requests(
    items: Iterable[Item], size: Callable[[Item], int], *, most: int = _MAX_ITEMS
) -> Iterator[list[Item]]:
    """Yield consecutive items in lists of at most 8 MiB. An item that is larger is in a list of its own.

    Args:
        size: returns the bytes of an item.
        most: largest number of items in a list.
    """
    pending: list[Item] = []
    total = 0
    for item in items:
        item_bytes = size(item)
        if pending and (total + item_bytes > _MAX_BYTES or len(pending) == most):
            yield pending
            pending, total = [], 0
        pending.append(item)
        total += item_bytes
    if pending:
        yield pending
