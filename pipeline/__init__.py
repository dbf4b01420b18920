"""Manta: from a corpus of text to a published, versioned, searchable index.

`open_release(uri)` opens a published release.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.index.search.search import open_release

__all__ = ["open_release"]


def __getattr__(name: str) -> Any:
    """Import `open_release` at first use, so that importing the package loads neither torch nor faiss."""
    if name == "open_release":
        from pipeline.index.search.search import open_release

        return open_release
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
