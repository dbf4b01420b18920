"""Write the report page of an augmented corpus from a sample of its units."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from pipeline.augment import NamedAugmenter
from pipeline.augment.comparison import as_mask, text_lengths
from pipeline.charts.augmentation import VariantHistogram
from pipeline.flows.augment.check import needs_encoder
from pipeline.flows.augment.result import Augmentation
from pipeline.flows.augment.variant_units import columns_of
from pipeline.log import packages
from pipeline.report.augmentation import render
from pipeline.report.augmentation_report import (
    AugmentationReport,
    AugmentedExample,
    ExampleVariant,
    RejectedVariant,
    VariantMethod,
    VariantSample,
)
from pipeline.settings import Job
from pipeline.stats.sample import sample_by_key
from pipeline.store.files.base import Store
from pipeline.store.records.units import Corpus, UnitRecord

T = TypeVar("T")

# Rows for histograms and proportions: the 95 % interval of a proportion is at most +-0.3 percentage points.
SAMPLE_ROWS = 100_000
_EXAMPLES = 20  # texts shown
_REJECTED_PER_REASON = 5  # rejected variants shown
_UNITS_PER_RARE_REASON = 2  # additional units to read if the sample has too few variants with a reason
_ROWS_AT_ONCE = 2_048  # size of the row groups of the units
_RATIO_EDGES = np.arange(61) / 20
_COSINE_EDGES = np.arange(-50, 51) / 50
_PACKAGES = ("manta-embeddings", "torch", "ray", "tokenizers", "transformers", "py3langid", "pyarrow")


def write_page(result: Augmentation, augmenters: Sequence[NamedAugmenter], job: Job, seconds: float) -> None:
    """Write the report page beside the manifest.

    Args:
        result: the result of the run.
        augmenters: augmenters of the job.
        job: settings of the run.
        seconds: duration of the run so far.
    """
    result.store.write(
        result.series.page(result.number), render(report_of(result, augmenters, job, seconds)).encode()
    )


def report_of(
    result: Augmentation,
    augmenters: Sequence[NamedAugmenter],
    job: Job,
    seconds: float,
    sample_rows: int = SAMPLE_ROWS,
) -> AugmentationReport:
    """Collect the contents of the page, from a sample of at most `sample_rows` rows."""
    manifest, store, data = result.manifest, result.store, _collect(result, augmenters, sample_rows)
    corpus = result.corpus or Corpus.read(store, manifest.corpus)
    folder = manifest.units[0].path.rpartition("/")[0] if manifest.units else ""
    return AugmentationReport(
        name=job.augment.name,
        number=result.number,
        uri=result.uri,
        units_uri=store.uri_of(folder) if folder else "",
        corpus=str(job.corpus.uri),
        rows=manifest.rows,
        units=len(manifest.units),
        counts=result.outcome_counts(),
        methods=tuple(data.methods()),
        sample=data.sample(result.outcome_counts()),
        quarantined=corpus.counts["quarantined"],
        changes=corpus.changes.model_dump(exclude={"unchanged"}) if result.number > 1 else {},
        encoder=job.encoder.path if needs_encoder(augmenters) else "",
        seed=job.augment.seed,
        model_work=result.model_work,
        seconds=seconds,
        created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        settings_text=_settings(job, needs_encoder(augmenters)),
        packages=packages(*_PACKAGES),
    )


def _settings(job: Job, encodes: bool) -> str:
    """Return the settings that decide the variants, as YAML for --config."""
    sections = ("corpus", "encoder", "augment") if encodes else ("corpus", "augment")
    tree = {name: getattr(job, name).model_dump(mode="json") for name in sections}
    tree["release"] = {"root": job.release.root}
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=110)


def _collect(result: Augmentation, augmenters: Sequence[NamedAugmenter], sample_rows: int) -> "_PageData":
    """Read the sample: units in the order of their hashes, then a few more units with rare reasons."""
    data = _PageData(augmenters)
    units = sorted(result.manifest.units, key=lambda unit: unit.sha256)
    read = 0
    while read < len(units) and data.rows < sample_rows:
        for batch in _batches(result.store, units[read], result.manifest.labels):
            data.add(batch.slice(0, sample_rows - data.rows))
            if data.rows == sample_rows:
                break
        read += 1
    for reason, count in _count_by_reason(result.manifest.counts()).items():
        for unit in _units_with(reason, units[read:]):
            if data.rejected_count(reason) < min(count, _REJECTED_PER_REASON):
                for batch in _batches(result.store, unit, result.manifest.labels):
                    data.add_rejected(batch, only=reason)
    return data


def _units_with(reason: str, units: Sequence[UnitRecord]) -> list[UnitRecord]:
    """Return the few units with the most variants rejected for this reason."""

    def count(unit: UnitRecord) -> int:
        return _count_by_reason(unit.counts)[reason]

    return sorted(filter(count, units), key=count, reverse=True)[:_UNITS_PER_RARE_REASON]


def _batches(store: Store, unit: UnitRecord, labels: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(unit.file.open(store)) as file:
        yield from file.iter_batches(
            _ROWS_AT_ONCE,
            columns=["text", "text_key", *(name for label in labels for name in columns_of(label))],
        )


def _count_by_reason(counts: Mapping[str, int]) -> Counter[str]:
    """Count the rejected variants by reason, from a record's counts by "label:outcome"."""
    rejected: Counter[str] = Counter()
    for name, count in counts.items():
        label, _, outcome = name.rpartition(":")
        if label and outcome != "kept":
            rejected[outcome] += count
    return rejected


def _extend_sample(
    sample: Mapping[bytes, T], keys: Sequence[bytes], item_at: Callable[[int], T], size: int
) -> dict[bytes, T]:
    """Keep the items with the `size` smallest hashes of their keys, and only the first item of each key.

    Args:
        sample: the items sampled so far, by key.
        keys: keys of more items.
        item_at: returns the item at an index of `keys`; called only for items that are kept.
        size: number of items to keep.
    """
    first_index = {key: index for index, key in reversed(list(enumerate(keys)))}
    candidates = list(dict.fromkeys([*sample, *first_index]))
    chosen = [candidates[index] for index in sample_by_key(candidates, size)] if candidates else []
    return {key: sample[key] if key in sample else item_at(first_index[key]) for key in chosen}


class _PageData:
    """Contents of the page, collected batch by batch."""

    def __init__(self, augmenters: Sequence[NamedAugmenter]) -> None:
        self.augmenters, self.rows = augmenters, 0
        self._labels = [label for each in augmenters for label in each.labels]
        # Number of texts with at least 1, 2 ... kept variants.
        self._texts_by_kept = np.zeros(len(self._labels), np.int64)
        self._ratios, self._cosines = dict[str, VariantHistogram](), dict[str, VariantHistogram]()
        self._examples: dict[bytes, AugmentedExample] = {}
        self._rejected = defaultdict[str, dict[bytes, RejectedVariant]](dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add a batch of rows to the histograms and to the examples."""
        self.rows += batch.num_rows
        is_kept = np.stack([as_mask(batch[columns_of(label).kept].is_valid()) for label in self._labels])
        self._texts_by_kept += (is_kept.sum(0)[:, None] > np.arange(len(self._labels))).sum(0)
        for each in self.augmenters:
            for label in each.labels:
                self._measure(batch, label, each)
        self._examples = _extend_sample(
            self._examples, batch["text_key"].to_pylist(), partial(_example, batch, self._labels), _EXAMPLES
        )
        self.add_rejected(batch)

    def add_rejected(self, batch: pa.RecordBatch, only: str | None = None) -> None:
        """Sample the rejected variants for each reason, or for the reason `only`."""
        for label in self._labels:
            reasons = np.array(batch[columns_of(label).reason].to_pylist(), object)
            for reason in {only} if only else {each for each in reasons if each is not None}:
                rows = batch.take(pa.array(np.flatnonzero(reasons == reason)))
                self._rejected[reason] = _extend_sample(
                    self._rejected[reason],
                    rows["text_key"].to_pylist(),
                    partial(_rejected, rows, label),
                    _REJECTED_PER_REASON,
                )

    def rejected_count(self, reason: str) -> int:
        """Number of sampled variants that were rejected for a reason."""
        return len(self._rejected[reason])

    def _measure(self, batch: pa.RecordBatch, label: str, augmenter: NamedAugmenter) -> None:
        """Add a label's length ratios and cosines to the histograms of its method."""
        kept, rejected, _, similarity = (batch[column] for column in columns_of(label))
        is_kept, variants = as_mask(kept.is_valid()), pc.coalesce(kept, rejected)
        exists, has_cosine = as_mask(variants.is_valid()), as_mask(similarity.is_valid())
        ratios = (text_lengths(variants) / np.maximum(text_lengths(batch["text"]), 1))[exists]
        cosines = similarity.to_numpy(zero_copy_only=False)[has_cosine].astype(np.float64)
        keep = augmenter.keep
        ratio_counts = VariantHistogram.of(ratios, is_kept[exists], _RATIO_EDGES, keep.length_ratio)
        cosine_counts = VariantHistogram.of(cosines, is_kept[has_cosine], _COSINE_EDGES, keep.similarity)
        for histograms, counts in ((self._ratios, ratio_counts), (self._cosines, cosine_counts)):
            so_far = histograms.get(augmenter.name)
            histograms[augmenter.name] = so_far + counts if so_far else counts

    def methods(self) -> Iterator[VariantMethod]:
        """Yield each method with its histograms."""
        for each in self.augmenters:
            yield VariantMethod(
                each.name,
                each.settings.method,
                each.labels,
                each.keep,
                self._ratios.get(each.name),
                self._cosines.get(each.name),
            )

    def sample(self, outcome_counts: Mapping[str, Mapping[str, int]]) -> VariantSample:
        """Return the sample, with the most frequent reasons first.

        Args:
            outcome_counts: number of variants of the whole corpus by label and by outcome.
        """
        sampled = {reason: tuple(each.values()) for reason, each in self._rejected.items() if each}
        totals = {
            reason: sum(counts.get(reason, 0) for counts in outcome_counts.values()) for reason in sampled
        }
        reasons = sorted(totals, key=lambda reason: (-totals[reason], reason))
        return VariantSample(
            self.rows,
            tuple(self._texts_by_kept.tolist()),
            tuple(self._examples.values()),
            {reason: sampled[reason] for reason in reasons},
        )


def _example(batch: pa.RecordBatch, labels: Sequence[str], row: int) -> AugmentedExample:
    variants = []
    for label in labels:
        kept, rejected, reason, _ = (batch[name][row].as_py() for name in columns_of(label))
        variants.append(ExampleVariant(label, rejected if kept is None else kept, reason))
    return AugmentedExample(batch["text"][row].as_py(), tuple(variants))


def _rejected(batch: pa.RecordBatch, label: str, row: int) -> RejectedVariant:
    return RejectedVariant(label, batch["text"][row].as_py(), batch[columns_of(label).rejected][row].as_py())
