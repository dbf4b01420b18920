"""Manifests of augmented corpora: below augmented/<name> of a root, numbered, each created once; readers take the highest."""

from dataclasses import dataclass
from typing import Any

from pipeline.errors import TransientError
from pipeline.store.base import Store
from pipeline.store.units import Corpus, FileRef, Manifest

TOP = "augmented"


class Augmented(Manifest):
    """What `manta augment` made of a corpus: a unit for each of the corpus's, with the variants of its live rows."""

    labels: tuple[str, ...]
    """what stands behind variant_, reason_ ... in the names of columns"""
    corpus: FileRef
    """the corpus's record: the next run goes on from it"""
    corpus_digest: str
    """of the input's listing: by it an input that did not change is known"""
    makings: dict[str, tuple[str, ...]] = {}
    """name of variants that models made -> folder of each model's units, which a later run takes over"""
    settings: dict[str, Any] = {}

    def paths(self, store: Store) -> set[str]:
        """Every file that it and a later run need, its own excepted."""
        try:
            corpus = Corpus.from_json(
                store.read_checked(self.corpus.path, self.corpus.sha256), store.uri_of(self.corpus.path)
            )
        except FileNotFoundError:
            return {self.corpus.path, *self._own()}
        units = frozenset(unit.sha256[:24] for unit in corpus.units)
        folders = {folder for each in self.makings.values() for folder in each}
        made = (entry.path for folder in folders for entry in store.list(folder))
        return {
            self.corpus.path,
            *corpus.paths(),
            *self._own(),
            *(path for path in made if path.rpartition("/")[2][:24] in units),
        }

    def _own(self) -> set[str]:
        return {path for unit in self.units for path in (unit.path, f"{unit.name}.json")}


@dataclass(frozen=True)
class Series:
    """The manifests of one name."""

    store: Store
    name: str

    @property
    def folder(self) -> str:
        return f"{TOP}/{self.name}"

    def path(self, number: int) -> str:
        return f"{self.folder}/{number:08d}.json"

    def page(self, number: int) -> str:
        """Of the page for people beside that manifest."""
        return f"{self.folder}/{number:08d}.html"

    def numbers(self) -> list[int]:
        """Ascending."""
        stems = (
            entry.path.rpartition("/")[2].removesuffix(".json")
            for entry in self.store.list(self.folder, ".json")
        )
        return sorted(int(stem) for stem in stems if stem.isdigit())

    def newest(self) -> tuple[int, Augmented | None]:
        """(its number, the manifest); (0, None) before the first. DataError for one that is damaged."""
        number = max(self.numbers(), default=0)
        return number, self.get(number) if number else None

    def get(self, number: int) -> Augmented:
        """That manifest. DataError for one that is damaged."""
        return Augmented.from_json(self.store.read(self.path(number)), self.store.uri_of(self.path(number)))

    def add(self, manifest: Augmented, after: int) -> int:
        """The number that the manifest has from now on, the one behind `after`, which was the newest when the run began. TransientError where another run took it."""
        number = after + 1
        if (
            not self.store.create(self.path(number), manifest.to_json())
            and self.store.read(self.path(number)) != manifest.to_json()
        ):
            found, remedy = "another run's", "run again: what both have made is taken over"
            raise TransientError(
                self.store.uri_of(self.path(number)),
                f"no manifest after number {after}, as when this run began",
                found,
                remedy,
            )
        return number


def every(store: Store) -> list[Series]:
    """The series of a root, by name."""
    names = {entry.path.split("/")[1] for entry in store.list(TOP, ".json") if entry.path.count("/") == 2}
    return [Series(store, name) for name in sorted(names)]
