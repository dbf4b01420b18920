"""Divide rows into requests that servers accept, and recognize answers after which a repetition
cannot help.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")

_TRY_AGAIN = (408, 425, 429)  # Request Timeout, Too Early, Too Many Requests
_MAX_ITEMS = 8_192
_MAX_BYTES = 8 << 20  # servers refuse more than 32 MiB (Qdrant), 64 MiB (Milvus) or 100 MiB (OpenSearch)


def is_refusal(status: int | None) -> bool:
    """Return whether a server that answers with this status of HTTP would refuse the request again."""
    return status is not None and 400 <= status < 500 and status not in _TRY_AGAIN


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
