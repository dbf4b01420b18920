"""The result of an augmentation run."""

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from pipeline.augment import ModelWork
from pipeline.store.augmented import Augmented, Series
from pipeline.store.base import Store
from pipeline.store.units import Corpus


@dataclass(frozen=True)
class Augmentation:
    """The result of a run."""

    status: Literal["augmented", "unchanged"]
    """unchanged if an earlier run had already made it"""
    store: Store
    series: Series
    number: int
    """number of the manifest"""
    manifest: Augmented
    corpus: Corpus | None = None
    model_work: tuple[ModelWork, ...] = ()

    @property
    def uri(self) -> str:
        """URI of the manifest."""
        return self.store.uri_of(self.series.path(self.number))

    @property
    def report(self) -> str:
        """URI of the report page."""
        return self.store.uri_of(self.series.page(self.number))

    def rates(self) -> dict[str, dict[str, int]]:
        """Variants by label: number kept, and number rejected by reason, the most frequent first."""
        counts: dict[str, Counter[str]] = {label: Counter(kept=0) for label in self.manifest.labels}
        for name, count in self.manifest.counts().items():
            label, colon, outcome = name.rpartition(":")
            if colon:
                counts[label][outcome] += count
        return {label: dict(each.most_common()) for label, each in counts.items()}
