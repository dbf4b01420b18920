"""A stream that reads ranges of an object."""

import io
from collections.abc import Callable
from typing import Any


class RangeReader(io.RawIOBase):
    """An object as a seekable stream. Each read requests a range of the object."""

    def __init__(self, read_range: Callable[[int, int], bytes], size: int) -> None:
        self._read_range, self._size, self._position = read_range, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next byte to read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, origin + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as fit into the buffer, and return their number."""
        end = min(self._size, self._position + len(buffer))
        if end <= self._position:
            return 0
        content = self._read_range(self._position, end)
        buffer[: len(content)] = content
        self._position = end
        return len(content)
