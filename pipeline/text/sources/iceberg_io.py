"""Read the metadata of Iceberg tables through the project's stores, with their retries and settings.

A table is untrusted, and pyiceberg unpacks whole files at once, so their unpacked size is checked first. This
module cannot be imported without pyiceberg.
"""

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from pyiceberg.avro.decoder import StreamingBinaryDecoder
from pyiceberg.avro.file import META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.resolver import construct_reader
from pyiceberg.io import FileIO, InputFile, OutputFile

from pipeline.errors import DataError
from pipeline.store.files.open_store import store_of
from pipeline.text.sources.listing import uri_of

# Bytes of an unpacked file. A snapshot takes about 1 kB of a table's metadata, a data file some kB of a
# manifest; writers begin another manifest at 8 MB.
_MAX_UNPACKED = 128 << 20
_PIECE_BYTES = 1 << 20  # unpacked at once


class StoredInput(InputFile):
    """A file of metadata."""

    def __len__(self) -> int:
        store, name = store_of(uri_of(self.location))
        return store.size(name) or 0

    def exists(self) -> bool:
        """Return whether the file exists."""
        store, name = store_of(uri_of(self.location))
        return store.exists(name)

    def open(self, seekable: bool = True) -> Any:
        """Read the whole file. Returns a stream of its content.

        Raises:
            DataError: the unpacked content is larger than _MAX_UNPACKED.
        """
        store, name = store_of(uri_of(self.location))
        content = store.read(name)
        left = _MAX_UNPACKED
        for unpacked in _unpacked(content):
            while left >= 0 and (piece := unpacked.read(_PIECE_BYTES)):
                left -= len(piece)
        if left < 0:
            raise DataError(
                self.location,
                f"metadata of at most {_MAX_UNPACKED >> 20} MiB, unpacked",
                "more",
                "expire old snapshots and rewrite the manifests; do not read tables that you do not trust",
            )
        return io.BytesIO(content)


class _Unpacked(Protocol):
    """A stream of unpacked bytes."""

    def read(self, size: int, /) -> bytes: ...


class _Inflated:
    """A stream that unpacks a block of raw deflate."""

    def __init__(self, block: bytes) -> None:
        self._block, self._decompressor = block, zlib.decompressobj(-zlib.MAX_WBITS)

    def read(self, size: int, /) -> bytes:
        piece = self._decompressor.decompress(self._block, size)
        self._block = self._decompressor.unconsumed_tail
        return piece


def _zstandard(block: bytes) -> _Unpacked:
    import zstandard

    stream = zstandard.ZstdDecompressor().stream_reader(block, read_across_frames=True)

    class Stream:
        def read(self, size: int) -> bytes:
            try:
                return bytes(stream.read(size))
            except zstandard.ZstdError as error:  # derives from Exception directly
                raise ValueError(str(error)) from error

    return Stream()


def _snappy(block: bytes) -> _Unpacked:
    """Return a stream of as many bytes as snappy would allocate: the size stored before the content."""
    size = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(block[:5]))
    first_end = next((place for place, byte in enumerate(block[:5]) if byte < 0x80), 4)
    size &= (1 << 7 * (first_end + 1)) - 1
    return io.BytesIO(bytes(min(size, _MAX_UNPACKED + 1)))


# Streams that unpack blocks, by Avro's codec; blocks of other codecs are read as they are.
_CODECS: dict[str, Callable[[bytes], _Unpacked]] = {
    "deflate": _Inflated,
    "bzip2": lambda block: bz2.BZ2File(io.BytesIO(block)),
    "zstandard": _zstandard,
    "snappy": _snappy,
}


def _unpacked(content: bytes) -> Iterator[_Unpacked]:
    """Yield streams of a file of JSON or Avro, unpacked."""
    if content.startswith(b"\x1f\x8b"):
        yield gzip.GzipFile(fileobj=io.BytesIO(content))
    elif content.startswith(b"Obj\x01"):
        decoder = StreamingBinaryDecoder(content)
        header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
        unpack = _CODECS.get(header.meta.get("avro.codec", ""), io.BytesIO)
        while decoder.tell() < len(content):
            decoder.read_int()  # number of records
            yield unpack(decoder.read_bytes())
            decoder.skip(SYNC_SIZE)
    else:
        yield io.BytesIO(content)


class StoredFiles(FileIO):
    """Files of metadata in any store; nothing is written."""

    def new_input(self, location: str) -> StoredInput:
        """Return a file to read."""
        return StoredInput(location)

    def new_output(self, location: str) -> OutputFile:
        """Refuse to write."""
        raise NotImplementedError(f"{location}: tables are only read")

    def delete(self, location: Any) -> None:
        """Refuse to delete."""
        raise NotImplementedError(f"{location}: tables are only read")
