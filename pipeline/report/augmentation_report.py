"""Types of the values that the page of an augmented corpus shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.augment import ModelWork
from pipeline.charts.augmentation import VariantHistogram
from pipeline.settings.augment import KeepSettings
from pipeline.store.records.units import sum_counts


@dataclass(frozen=True)
class VariantMethod:
    """An entry of `augment.variants`: a method with its options."""

    name: str
    """name of the entry in the settings"""
    kind: str
    """registered name of the method"""
    labels: tuple[str, ...]
    """labels of the method's variants, after which their columns are named"""
    keep: KeepSettings
    """limits that the variants must meet"""
    ratios: VariantHistogram | None = None
    """histogram of length ratios of sampled variants, or None"""
    similarities: VariantHistogram | None = None
    """histogram of cosines of sampled variants, or None"""


class ExampleVariant(NamedTuple):
    """A variant of an example, kept or rejected."""

    label: str
    """label of the variant"""
    text: str | None
    """the variant; None if the method made none"""
    rejection: str | None
    """reason of the rejection; None if the variant is kept"""


@dataclass(frozen=True)
class AugmentedExample:
    """A text with its variants, in the order of the columns."""

    text: str
    variants: tuple[ExampleVariant, ...]


@dataclass(frozen=True)
class RejectedVariant:
    """A variant that is not kept."""

    label: str
    """label of the variant"""
    text: str
    """the text that it varies"""
    variant: str | None
    """the variant; None if the method made none"""


@dataclass(frozen=True)
class VariantSample:
    """A sample of rows, whose variants were read for histograms and examples."""

    rows: int = 0
    """number of rows in the sample"""
    texts_by_kept: tuple[int, ...] = ()
    """entry i is the number of texts with at least i + 1 kept variants"""
    examples: tuple[AugmentedExample, ...] = ()
    """texts with their variants"""
    rejected: Mapping[str, tuple[RejectedVariant, ...]] = field(default_factory=dict)
    """examples of rejected variants, by reason"""

    def proportion_with(self, variants: int) -> float:
        """Proportion of the sample's texts with at least `variants` kept variants.

        `variants` must be at least 1, and the sample must have rows.
        """
        return self.texts_by_kept[variants - 1] / self.rows


@dataclass(frozen=True, kw_only=True)
class AugmentationReport:
    """Values of the page; sections without values are left out."""

    name: str
    number: int
    """number of the manifest"""
    uri: str
    """address of the manifest"""
    units_uri: str
    corpus: str
    """corpus.uri of the job"""
    rows: int
    """rows of the augmented corpus"""
    units: int
    counts: Mapping[str, Mapping[str, int]]
    """number of variants by label, and by "kept" or the reason of rejection"""
    methods: tuple[VariantMethod, ...]
    sample: VariantSample = VariantSample()
    quarantined: int = 0
    changes: Mapping[str, int] = field(default_factory=dict)
    """new, changed and deleted rows since the previous manifest; empty for the first"""
    encoder: str = ""
    """encoder that measured the similarities"""
    seed: int = 0
    model_work: tuple[ModelWork, ...] = ()
    """statistics of each model stage"""
    seconds: float = 0.0
    """duration of the whole run"""
    created: str | None = None
    settings_text: str = ""
    """settings of the job, as YAML"""
    packages: Mapping[str, str] = field(default_factory=dict)

    @property
    def variant_count(self) -> int:
        """Number of all variants, kept or not."""
        return sum(sum(counts.values()) for counts in self.counts.values())

    @property
    def kept_count(self) -> int:
        """Number of kept variants."""
        return sum(counts.get("kept", 0) for counts in self.counts.values())

    @property
    def reasons(self) -> dict[str, int]:
        """Number of rejected variants by reason, in descending order."""
        ordered = sorted(sum_counts(self.counts.values()).items(), key=lambda item: (-item[1], item[0]))
        return {name: count for name, count in ordered if name != "kept" and count}
