"""Manifests of augmented corpora: numbered files below augmented/<name>, each created once.

Readers use the manifest with the highest number.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pipeline.errors import TransientError
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus, StageRecord

AUGMENTED_FOLDER = "augmented"


class Augmented(StageRecord):
    """Result of `manta augment`: for each unit of the corpus one unit with the variants of its live rows."""

    labels: tuple[str, ...]
    """suffixes of the column names variant_<label>, reason_<label> ..."""
    corpus: FileRef
    """record of the corpus, with which the next run compares its input"""
    corpus_digest: str
    """digest of the input's listing; an equal digest means that the input did not change"""
    makings: dict[str, tuple[str, ...]] = {}
    """name of an augmentation that uses models -> folders with the models' output, for later runs"""
    settings: dict[str, Any] = {}

    def paths(self, store: Store) -> set[str]:
        """Return the paths of the files that this manifest names, and of files that a later run reuses."""
        needed = {self.corpus.path}
        needed |= {path for unit in self.units for path in (unit.path, f"{unit.name}.json")}
        try:
            corpus = Corpus.read(store, self.corpus)
        except FileNotFoundError:
            return needed
        digests = {unit.sha256[:24] for unit in corpus.units}  # file names in these folders begin with one
        for folder in set().union(*self.makings.values()):
            paths = (entry.path for entry in store.list(folder))
            needed |= {path for path in paths if PurePosixPath(path).name[:24] in digests}
        return needed | {file.path for file in corpus.references()}


@dataclass(frozen=True)
class Series:
    """The numbered manifests of one augmented corpus."""

    store: Store
    name: str

    @property
    def folder(self) -> str:
        """Path of the folder that holds the manifests."""
        return f"{AUGMENTED_FOLDER}/{self.name}"

    def path(self, number: int) -> str:
        """Return the path of manifest `number`."""
        return f"{self.folder}/{number:08d}.json"

    def page(self, number: int) -> str:
        """Return the path of the HTML report of manifest `number`."""
        return f"{self.folder}/{number:08d}.html"

    def numbers(self) -> list[int]:
        """Return the numbers of the stored manifests, ascending."""
        stems = (PurePosixPath(entry.path).stem for entry in self.store.list(self.folder, ".json"))
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def newest(self) -> tuple[int, Augmented | None]:
        """Return the newest manifest and its number, or (0, None) before the first.

        Raises:
            DataError: the manifest is damaged.
        """
        number = max(self.numbers(), default=0)
        return number, (self.get(number) if number else None)

    def get(self, number: int) -> Augmented:
        """Return manifest `number`. Raises DataError if it is damaged."""
        return Augmented.from_json(self.store.read(self.path(number)), self.store.uri_of(self.path(number)))

    def files(self, number: int) -> set[str]:
        """Return the paths of manifest `number`, its report, and the files that it needs."""
        return {self.path(number), self.page(number), *self.get(number).paths(self.store)}

    def add(self, manifest: Augmented, after: int) -> int:
        """Store the manifest under the number after `after`.

        Args:
            after: number of the newest manifest when the run began.

        Returns:
            The manifest's number.

        Raises:
            TransientError: another run has stored a manifest under that number.
        """
        number = after + 1
        path, content = self.path(number), manifest.to_json()
        if not self.store.create(path, content) and self.store.read(path) != content:
            raise TransientError(
                self.store.uri_of(path),
                f"no manifest with a number above {after}, as when this run began",
                "the manifest of another run",
                "run again: finished units of both runs are reused",
            )
        return number


def list_series(store: Store) -> list[Series]:
    """List the augmented corpora of a root, by name."""
    paths = (PurePosixPath(entry.path).parts for entry in store.list(AUGMENTED_FOLDER, ".json"))
    return [Series(store, name) for name in sorted({parts[1] for parts in paths if len(parts) == 3})]
