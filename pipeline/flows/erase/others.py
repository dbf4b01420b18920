"""Files below a root besides those of releases: pages, summaries, and results of other commands."""

import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

import pyarrow.parquet as pq

from pipeline.errors import DataError
from pipeline.log import announce
from pipeline.report.erased_values import ErasedValues
from pipeline.store.files.base import Store, in_threads
from pipeline.store.files.lease import is_lease
from pipeline.store.records.augmented import list_series
from pipeline.store.records.units import Corpus
from pipeline.store.releases.summary import Summary, summary_path
from pipeline.store.releases.unpublished import NIGHTS, UnpublishedNight
from pipeline.store.rows.arrays import is_text

_DUPLICATES = "duplicates"
_RESULTS = ("evaluations", "counts")


class ReplacedPages(NamedTuple):
    """Pages without the erased values."""

    contents: Mapping[str, bytes]
    """new content by path; only pages that change"""


@dataclass(frozen=True)
class Pages:
    """The pages of a root that people read."""

    store: Store
    values: ErasedValues

    def replaced(self, numbers: list[int]) -> ReplacedPages:
        """Return the pages that show an erased value, without it.

        Args:
            numbers: numbers of the releases.
        """
        changed = dict[str, bytes]()
        folders = ("releases", *_RESULTS)
        paths = [entry.path for folder in folders for entry in self.store.list(folder, ".html")]
        for path, content in zip(paths, in_threads(self.store.read, paths), strict=True):
            page, count = self.values.in_page(content.decode(errors="replace"))
            if count:
                changed[path] = page.encode()
        for number in numbers:
            if (summary := self._summary(number)) is not None:
                changed[summary_path(number)] = summary.to_json()
        return ReplacedPages(changed | dict(self._nights()))

    def _summary(self, number: int) -> Summary | None:
        """Return the summary of a release without the values; None if it has none of them."""
        try:
            summary = Summary.load(self.store, summary_path(number))
        except DataError as error:
            announce(f"the summary of release {number} is removed, because it cannot be read: {error}")
            self.store.delete(summary_path(number))
            return None
        if summary is None:
            return None
        answers = tuple(
            answer.model_copy(
                update={
                    "hits": tuple(
                        hit
                        for hit in answer.hits
                        if not (self.values.shows(hit.id, is_id=True) or self.values.shows(hit.text))
                    )
                }
            )
            for answer in summary.answers
            if not self.values.shows(answer.query)
        )
        return summary.model_copy(update={"answers": answers}) if answers != summary.answers else None

    def _nights(self) -> Iterator[tuple[str, bytes]]:
        """Yield the records of nights whose reason shows a value."""
        for entry in self.store.list(NIGHTS, ".json"):
            night = UnpublishedNight.load(self.store, entry.path)
            if night is not None and self.values.shows(night.reason):
                reason = f"{night.status}; its reason showed an erased row"
                yield entry.path, night.model_copy(update={"reason": reason}).to_json()


def augmented_of(store: Store, units: Set[str]) -> Iterator[str]:
    """Yield the manifests of augmented corpora, and their pages, that have one of the corpus units.

    Units of variants that were made from other corpus units stay, and the next `manta augment` uses them.
    """
    for series in list_series(store):
        for number in series.numbers():
            try:
                paths = {unit.path for unit in Corpus.read(store, series.get(number).corpus).units}
            except FileNotFoundError:  # nobody knows what its units have
                paths = set(units)
            if paths & units:
                yield from (series.path(number), series.page(number))


def results_with(store: Store, values: ErasedValues) -> Iterator[str]:
    """Yield the files of evaluations and counts that have an id or a text; later commands make them again."""
    for folder in _RESULTS:
        for entry in store.list(folder):
            suffix = PurePosixPath(entry.path).suffix
            if suffix == ".json":
                value = json.loads(store.read(entry.path))
                if values.in_json(value) != value:
                    yield entry.path
            elif suffix == ".parquet" and _table_shows(store, entry.path, values):
                yield entry.path


def _table_shows(store: Store, path: str, values: ErasedValues) -> bool:
    file = pq.ParquetFile(store.open(path))
    names = [field.name for field in file.schema_arrow if is_text(field.type)]
    for number in range(file.num_row_groups if names else 0):
        for column in file.read_row_group(number, columns=names).columns:
            if any(text is not None and values.shows(text, is_id=True) for text in column.to_pylist()):
                return True
    return False


def duplicates_of(store: Store, releases: set[int]) -> dict[str, list[str]]:
    """Return the folders of near-duplicates of these releases, each with its files.

    Their names depend on the manifest, so nothing finds them after it was replaced. A search that was stopped
    has no record yet; its folder is among them, too.
    """
    folders = dict[str, list[str]]()
    for entry in store.list(_DUPLICATES):
        parts = PurePosixPath(entry.path).parts
        if not is_lease(entry.path) and len(parts) > 2:
            folders.setdefault("/".join(parts[:2]), []).append(entry.path)

    def is_of(folder: str) -> bool:
        record = f"{folder}/duplicates.json"
        if record not in folders[folder]:
            return True
        return json.loads(store.read(record)).get("release") in releases

    return {folder: paths for folder, paths in folders.items() if is_of(folder)}
