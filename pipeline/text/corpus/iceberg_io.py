"""Read the metadata of Iceberg tables through the project's stores, with their retries and settings."""

import io
from typing import Any

from pyiceberg.io import FileIO, InputFile, OutputFile

from pipeline.store.store import store_of
from pipeline.text.corpus.listing import uri_of


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
        """Read the whole file. Returns a stream of its content."""
        store, name = store_of(uri_of(self.location))
        return io.BytesIO(store.read(name))


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
