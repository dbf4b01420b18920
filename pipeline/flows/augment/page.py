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
    RejectedVariant,
    VariantMethod,
    VariantSample,
)
from pipeline.settings import Job
from pipeline.stats.sample import sample_by_key
from pipeline.store.base import Store
from pipeline.store.units import Corpus, UnitRecord

T = TypeVar("T")

SAMPLE = 100_000  # rows of histograms and proportions: an error of at most 0.3 %, if rows are independent
_EXAMPLES, _REJECTED = 20, 5  # texts shown, and rejected variants shown for each reason
_EXTRA_UNITS = 2  # more units to read for a reason with too few variants in the sample
_ROWS = 2_048  # read at once: the row groups that are written
_RATIOS = np.arange(61) / 20
_COSINES = np.arange(-50, 51) / 50
_PACKAGES = ("manta-embeddings", "torch", "ray", "tokenizers", "transformers", "py3langid", "pyarrow")


def write_page(made: Augmentation, named: Sequence[NamedAugmenter], job: Job, seconds: float) -> None:
    """Write the page of a manifest beside it. seconds: duration of the run so far."""
    made.store.write(made.series.page(made.number), render(report_of(made, named, job, seconds)).encode())


def report_of(
    made: Augmentation, named: Sequence[NamedAugmenter], job: Job, seconds: float, most: int = SAMPLE
) -> AugmentationReport:
    """The contents of the page.

    Reads units until there are `most` rows, and of them only the columns that are shown.
    """
    manifest, store, data = made.manifest, made.store, _collect(made, named, most)
    corpus = made.corpus or Corpus.read(store, manifest.corpus)
    folder = manifest.units[0].path.rpartition("/")[0] if manifest.units else ""
    return AugmentationReport(
        name=job.augment.name,
        number=made.number,
        uri=made.uri,
        units_uri=store.uri_of(folder) if folder else "",
        corpus=str(job.corpus.uri),
        rows=manifest.rows,
        units=len(manifest.units),
        counts=made.rates(),
        methods=tuple(data.methods()),
        sample=data.sample(made.rates()),
        quarantined=corpus.counts["quarantined"],
        changes=corpus.changes.model_dump(exclude={"unchanged"}) if made.number > 1 else {},
        encoder=job.encoder.path if needs_encoder(named) else "",
        seed=job.augment.seed,
        model_work=made.model_work,
        seconds=seconds,
        created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        settings_text=_settings(job, needs_encoder(named)),
        packages=packages(*_PACKAGES),
    )


def _settings(job: Job, encodes: bool) -> str:
    """The settings that decide the variants, as YAML that can be used with --config."""
    sections = ("corpus", "encoder", "augment") if encodes else ("corpus", "augment")
    tree = {name: getattr(job, name).model_dump(mode="json") for name in sections}
    tree["release"] = {"root": job.release.root}
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=110)


def _collect(made: Augmentation, named: Sequence[NamedAugmenter], most: int) -> "_PageData":
    """Collect the sample: whole units in the order of their hashes, and a few more with rare reasons."""
    data = _PageData(named)
    units = sorted(made.manifest.units, key=lambda unit: unit.sha256)
    read = 0
    while read < len(units) and data.rows < most:
        for batch in _batches(made.store, units[read], made.manifest.labels):
            data.add(batch.slice(0, most - data.rows))
            if data.rows == most:
                break
        read += 1
    for reason, count in _by_reason(made.manifest.counts()).items():
        holding = [unit for unit in units[read:] if _by_reason(unit.counts)[reason]]
        for unit in sorted(holding, key=lambda unit: -_by_reason(unit.counts)[reason])[:_EXTRA_UNITS]:
            if data.found(reason) < min(count, _REJECTED):
                for batch in _batches(made.store, unit, made.manifest.labels):
                    data.add_rejected(batch, only=reason)
    return data


def _batches(store: Store, unit: UnitRecord, labels: Sequence[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(unit.file.open(store)) as file:
        yield from file.iter_batches(
            _ROWS, columns=["text", "text_key", *(name for label in labels for name in columns_of(label))]
        )


def _by_reason(counts: Mapping[str, int]) -> Counter[str]:
    """Number of rejected variants by reason, over all labels of a record's counts."""
    found: Counter[str] = Counter()
    for name, count in counts.items():
        label, _, reason = name.rpartition(":")
        if label and reason != "kept":
            found[reason] += count
    return found


def _with_sample(
    found: Mapping[bytes, T], keys: Sequence[bytes], at: Callable[[int], T], size: int
) -> dict[bytes, T]:
    """Keep the items with the `size` smallest hashes of their keys; for equal keys the first one.

    Args:
        found: the items kept so far, by key.
        keys: keys of more items.
        at: returns the item at an index of `keys`; called only for items that are kept.
        size: number of items to keep.
    """
    indices = {key: index for index, key in reversed(list(enumerate(keys)))}
    every = list({**dict.fromkeys(found), **dict.fromkeys(indices)})
    chosen = [every[number] for number in sample_by_key(every, size)] if every else []
    return {key: found[key] if key in found else at(indices[key]) for key in chosen}


class _PageData:
    """Contents of the page, collected batch by batch."""

    def __init__(self, named: Sequence[NamedAugmenter]) -> None:
        self.named, self.rows = named, 0
        self._labels = [label for each in named for label in each.labels]
        self._texts = np.zeros(len(self._labels), np.int64)
        self._ratios, self._cosines = dict[str, VariantHistogram](), dict[str, VariantHistogram]()
        self._examples: dict[bytes, AugmentedExample] = {}
        self._rejected = defaultdict[str, dict[bytes, RejectedVariant]](dict)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the rows and sample examples."""
        self.rows += batch.num_rows
        kept = np.stack([as_mask(batch[columns_of(label)[0]].is_valid()) for label in self._labels])
        self._texts += (kept.sum(0)[:, None] > np.arange(len(self._labels))).sum(0)
        for each in self.named:
            for label in each.labels:
                self._measure(batch, label, each)
        self._examples = _with_sample(
            self._examples, batch["text_key"].to_pylist(), partial(_example, batch, self._labels), _EXAMPLES
        )
        self.add_rejected(batch)

    def add_rejected(self, batch: pa.RecordBatch, only: str | None = None) -> None:
        """Sample the rejected variants; `only` those of one reason, if it is given."""
        for label in self._labels:
            reasons = np.array(batch[columns_of(label)[2]].to_pylist(), object)
            for reason in {only} if only else {each for each in reasons if each is not None}:
                rows = batch.take(pa.array(np.flatnonzero(reasons == reason)))
                keys, rejected = rows["text_key"].to_pylist(), partial(_rejected, rows, label)
                self._rejected[reason] = _with_sample(self._rejected[reason], keys, rejected, _REJECTED)

    def found(self, reason: str) -> int:
        """Number of sampled variants that were rejected for that reason."""
        return len(self._rejected[reason])

    def _measure(self, batch: pa.RecordBatch, label: str, of: NamedAugmenter) -> None:
        """Add a label's length ratios and cosines to the histograms of its method."""
        variant, rejected, _, similarity = (batch[column] for column in columns_of(label))
        kept, shown = as_mask(variant.is_valid()), pc.coalesce(variant, rejected)
        exists, measured = as_mask(shown.is_valid()), as_mask(similarity.is_valid())
        ratios = (text_lengths(shown) / np.maximum(text_lengths(batch["text"]), 1))[exists]
        cosines = similarity.to_numpy(zero_copy_only=False)[measured].astype(np.float64)
        for histograms, values, is_kept, edges, bounds in (
            (self._ratios, ratios, kept[exists], _RATIOS, of.keep.length_ratio),
            (self._cosines, cosines, kept[measured], _COSINES, of.keep.similarity),
        ):
            new = VariantHistogram.of(values, is_kept, edges, bounds)
            histograms[of.name] = histograms[of.name] + new if of.name in histograms else new

    def methods(self) -> Iterator[VariantMethod]:
        """Yield each method with its histograms."""
        for each in self.named:
            yield VariantMethod(
                each.name,
                each.settings.method,
                each.labels,
                each.keep,
                self._ratios.get(each.name),
                self._cosines.get(each.name),
            )

    def sample(self, rates: Mapping[str, Mapping[str, int]]) -> VariantSample:
        """The sample, with reasons in the order of their frequency. rates: counts from the manifest."""
        found = {reason: tuple(each.values()) for reason, each in self._rejected.items() if each}
        total = {reason: sum(counts.get(reason, 0) for counts in rates.values()) for reason in found}
        rejected = {reason: found[reason] for reason in sorted(total, key=lambda name: (-total[name], name))}
        return VariantSample(self.rows, tuple(self._texts.tolist()), tuple(self._examples.values()), rejected)


def _example(batch: pa.RecordBatch, labels: Sequence[str], row: int) -> AugmentedExample:
    made = []
    for label in labels:
        variant, rejected, reason, _ = (batch[name][row].as_py() for name in columns_of(label))
        made.append((label, rejected if variant is None else variant, reason))
    return AugmentedExample(batch["text"][row].as_py(), tuple(made))


def _rejected(batch: pa.RecordBatch, label: str, row: int) -> RejectedVariant:
    return RejectedVariant(label, batch["text"][row].as_py(), batch[columns_of(label)[1]][row].as_py())
