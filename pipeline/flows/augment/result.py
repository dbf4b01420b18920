"""The result of an augmentation run."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from pipeline.augment import ModelWork
from pipeline.store.files.base import Store
from pipeline.store.records.augmented import Augmented, Series
from pipeline.store.records.units import Corpus


@dataclass(frozen=True)
class Augmentation:
    """The manifest of a run, with the work of its models."""

    status: Literal["augmented", "unchanged"]
    """unchanged if the newest manifest, of an earlier run, already has the same content"""
    store: Store
    series: Series
    number: int
    """number of the manifest"""
    manifest: Augmented
    corpus: Corpus | None = None
    """None if the run did not read the corpus, because neither its files nor the settings had changed"""
    model_work: tuple[ModelWork, ...] = ()

    @property
    def uri(self) -> str:
        """URI of the manifest."""
        return self.store.uri_of(self.series.path(self.number))

    @property
    def report(self) -> str:
        """URI of the report page."""
        return self.store.uri_of(self.series.page(self.number))

    def outcome_counts(self) -> dict[str, dict[str, int]]:
        """Count the variants of each label by outcome ("kept" or a reason), the most frequent first."""
        counts: dict[str, Counter[str]] = {label: Counter(kept=0) for label in self.manifest.labels}
        for name, count in self.manifest.counts().items():
            label, colon, outcome = name.rpartition(":")
            if colon:
                counts[label][outcome] += count
        return {label: dict(each.most_common()) for label, each in counts.items()}
