"""Write the report page of an augmented corpus from a sample of its units."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from pipeline.augment import NamedAugmenter
from pipeline.charts.augmentation import VariantHistogram
from pipeline.flows.augment.result import Augmentation
from pipeline.flows.augment.variant_units import columns_of
from pipeline.log import packages
from pipeline.report.augmentation import render
from pipeline.report.augmentation_report import (
    AugmentationReport,
    AugmentedExample,
    Method,
    ModelWork,
    RejectedVariant,
    VariantSample,
)
from pipeline.settings import Job
from pipeline.settings.augment import KeepSettings
from pipeline.stats.sample import sample_by_key
from pipeline.store.base import Store
from pipeline.store.units import Corpus, UnitRecord

T = TypeVar("T")
Batch: TypeAlias = pa.RecordBatch

SAMPLE = 100_000  # rows of histograms and proportions: an error of at most 0.3 %, if rows are independent
_EXAMPLES, _REJECTED = 20, 5  # texts shown, and rejected variants shown for each reason
_EXTRA_UNITS = 2  # more units to read for a reason with too few variants in the sample
_ROWS = 2_048  # read at once: the row groups that are written
_RATIOS = np.arange(61) / 20
_COSINES = np.arange(-50, 51) / 50
_PACKAGES = ("manta-embeddings", "torch", "ray", "tokenizers", "transformers", "py3langid", "pyarrow")


def write_page(made: Augmentation, named: Sequence[NamedAugmenter], job: Job, seconds: float) -> None:
    """Write the page of a manifest beside it. seconds: of the run so far."""
    made.store.write(made.series.page(made.number), render(report_of(made, named, job, seconds)).encode())


def report_of(
    made: Augmentation, named: Sequence[NamedAugmenter], job: Job, seconds: float, most: int = SAMPLE
) -> AugmentationReport:
    """The contents of the page.

    Reads units until there are `most` rows, and of them only the columns that are shown.
    """
    manifest, store, data = made.manifest, made.store, _collect(made, named, job, most)
    corpus = made.corpus or Corpus.read(store, manifest.corpus)
    changes = corpus.changes if made.number > 1 else None
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
        changes={name: getattr(changes, name) for name in ("new", "changed", "deleted")}
        if changes is not None
        else {},
        encoder=job.encoder.path if any(keep.similarity for keep in data.keeps) else "",
        seed=job.augment.seed,
        worked=tuple(ModelWork(each.title, each.stats, each.seconds) for each in made.worked),
        seconds=seconds,
        created=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        settings_text=_settings(job, data.keeps),
        packages=packages(*_PACKAGES),
    )


def _settings(job: Job, keeps: Sequence[KeepSettings]) -> str:
    """The settings that decide the variants, as YAML that can be used with --config."""
    sections = ("corpus", *(("encoder",) if any(keep.similarity for keep in keeps) else ()), "augment")
    tree = {
        **{name: getattr(job, name).model_dump(mode="json") for name in sections},
        "release": {"root": job.release.root},
    }
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=110)


def _collect(made: Augmentation, named: Sequence[NamedAugmenter], job: Job, most: int) -> "_PageData":
    """Collect the sample: whole units in the order of their hashes, and a few more with rare reasons."""
    data = _PageData(named, [each.settings.keep or job.augment.keep for each in named])
    units = sorted(made.manifest.units, key=lambda unit: unit.sha256)
    read = 0
    while read < len(units) and data.rows < most:
        for batch in _batches(made.store, units[read], made.manifest.labels):
            data.add(batch.slice(0, most - data.rows))
            if data.rows == most:
                break
        read += 1
    for reason, count in _by_reason(made.manifest.counts()).items():
        holding = [unit for unit in units[read:] if _by_reason(unit.counts).get(reason)]
        for unit in sorted(holding, key=lambda unit: -_by_reason(unit.counts)[reason])[:_EXTRA_UNITS]:
            if data.found(reason) < min(count, _REJECTED):
                for batch in _batches(made.store, unit, made.manifest.labels):
                    data.add_rejected(batch, only=reason)
    return data


def _batches(store: Store, unit: UnitRecord, labels: Sequence[str]) -> Iterator[Batch]:
    columns = ["text", "text_key", *(name for label in labels for name in columns_of(label))]
    with pq.ParquetFile(unit.file.open(store)) as file:
        yield from file.iter_batches(_ROWS, columns=columns)


def _by_reason(counts: Mapping[str, int]) -> dict[str, int]:
    """Number of rejected variants by reason, over all labels of a record's counts."""
    found: dict[str, int] = {}
    for name, count in counts.items():
        label, _, reason = name.rpartition(":")
        if label and reason != "kept":
            found[reason] = found.get(reason, 0) + count
    return found


class _KeySample(Generic[T]):
    """The items with the smallest hashes of their keys; for equal keys the first one."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.found: dict[bytes, T] = {}

    def offer(self, keys: Sequence[bytes], at: Callable[[int], T]) -> None:
        """Offer items by their keys; `at` returns the item at an index and is called only for chosen ones."""
        places = {key: place for place, key in reversed(list(enumerate(keys)))}
        every = list({**dict.fromkeys(self.found), **dict.fromkeys(places)})
        chosen = [every[number] for number in sample_by_key(every, self.size)] if every else []
        self.found = {key: self.found[key] if key in self.found else at(places[key]) for key in chosen}


class _PageData:
    """Contents of the page, collected batch by batch."""

    def __init__(self, named: Sequence[NamedAugmenter], keeps: Sequence[KeepSettings]) -> None:
        self.named, self.keeps, self.rows = named, keeps, 0
        self._labels = [label for each in named for label in each.labels]
        self._texts = np.zeros(len(self._labels), np.int64)
        self._ratios, self._cosines = dict[str, VariantHistogram](), dict[str, VariantHistogram]()
        self._examples: _KeySample[AugmentedExample] = _KeySample(_EXAMPLES)
        self._rejected: dict[str, _KeySample[RejectedVariant]] = {}

    def add(self, batch: Batch) -> None:
        """Count the rows and sample examples."""
        self.rows += batch.num_rows
        kept = np.stack([_mask(batch[columns_of(label)[0]].is_valid()) for label in self._labels])
        self._texts += (kept.sum(0)[:, None] > np.arange(len(self._labels))).sum(0)
        for each, keep in zip(self.named, self.keeps, strict=True):
            for label in each.labels:
                self._measure(batch, label, each.name, keep)
        self._examples.offer(batch["text_key"].to_pylist(), partial(_example, batch, self._labels))
        self.add_rejected(batch)

    def add_rejected(self, batch: Batch, only: str | None = None) -> None:
        """Sample rejected variants only. only: of this reason."""
        for label in self._labels:
            reasons = np.array(batch[columns_of(label)[2]].to_pylist(), object)
            for reason in {only} if only else {each for each in reasons if each is not None}:
                rows = batch.take(pa.array(np.flatnonzero(reasons == reason)))
                self._rejected.setdefault(reason, _KeySample(_REJECTED)).offer(
                    rows["text_key"].to_pylist(), partial(_rejected, rows, label)
                )

    def found(self, reason: str) -> int:
        """Number of sampled variants that were rejected for that reason."""
        return len(self._rejected[reason].found) if reason in self._rejected else 0

    def _measure(self, batch: Batch, label: str, name: str, keep: KeepSettings) -> None:
        variant, rejected, _, similarity = (batch[column] for column in columns_of(label))
        kept, shown = _mask(variant.is_valid()), pc.coalesce(variant, rejected)
        there, measured = _mask(shown.is_valid()), _mask(similarity.is_valid())
        ratios = _lengths(shown)[there] / np.maximum(_lengths(batch["text"])[there], 1)
        _add(self._ratios, name, VariantHistogram.of(ratios, kept[there], _RATIOS, keep.length_ratio))
        _add(
            self._cosines,
            name,
            VariantHistogram.of(
                similarity.to_numpy(zero_copy_only=False)[measured].astype(np.float64),
                kept[measured],
                _COSINES,
                keep.similarity,
            ),
        )

    def methods(self) -> Iterator[Method]:
        for each, keep in zip(self.named, self.keeps, strict=True):
            yield Method(
                each.name,
                each.settings.method,
                each.labels,
                keep,
                self._ratios.get(each.name),
                self._cosines.get(each.name),
            )

    def sample(self, rates: Mapping[str, Mapping[str, int]]) -> VariantSample:
        """The sample, with reasons in the order of their frequency. rates: from the manifest."""
        total = {reason: sum(counts.get(reason, 0) for counts in rates.values()) for reason in self._rejected}
        order = sorted(total, key=lambda reason: (-total[reason], reason))
        rejected = {
            reason: tuple(self._rejected[reason].found.values())
            for reason in order
            if self._rejected[reason].found
        }
        return VariantSample(
            self.rows, tuple(self._texts.tolist()), tuple(self._examples.found.values()), rejected
        )


def _example(batch: Batch, labels: Sequence[str], place: int) -> AugmentedExample:
    cells = {label: tuple(batch[name][place].as_py() for name in columns_of(label)) for label in labels}
    made = (
        (label, rejected if variant is None else variant, reason)
        for label, (variant, rejected, reason, _) in cells.items()
    )
    return AugmentedExample(batch["text"][place].as_py(), tuple(made))


def _rejected(batch: Batch, label: str, place: int) -> RejectedVariant:
    return RejectedVariant(label, batch["text"][place].as_py(), batch[columns_of(label)[1]][place].as_py())


def _add(spreads: dict[str, VariantHistogram], name: str, spread: VariantHistogram) -> None:
    spreads[name] = spreads[name] + spread if name in spreads else spread


def _lengths(texts: pa.Array) -> np.ndarray:
    """(n,) characters, counted as for `length_ratio`."""
    return np.asarray(
        pc.utf8_length(pc.utf8_trim_whitespace(texts)).fill_null(0).to_numpy(zero_copy_only=False)
    )


def _mask(found: pa.Array) -> np.ndarray:
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)
