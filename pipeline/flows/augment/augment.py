"""A corpus augmented: variants of its texts made on pools of workers, those worth keeping chosen, and a numbered manifest of units left behind."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from hashlib import sha256
from typing import Literal

from pipeline.augment import ModelAugmenter, ModelStage, ModelStats, NamedAugmenter, build_augmenters
from pipeline.augment.keep import check_keep
from pipeline.config import digest_of
from pipeline.errors import ConfigError
from pipeline.flows.augment.model_units import MakeUnit, makings, rows_of, waiting
from pipeline.flows.augment.variant_units import AssembleUnit, columns_of
from pipeline.flows.corpus import fill_corpus, read_corpus
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.run import Run
from pipeline.flows.workers.cluster import connect, is_local, local_workers
from pipeline.log import Stages, say
from pipeline.models.folder.folder import open_folder
from pipeline.settings import ClusterSettings, Job, WorkerSettings
from pipeline.settings.augment import AugmentSettings, KeepSettings, ModelSettings
from pipeline.store.augmented import Augmented, Series
from pipeline.store.base import Store
from pipeline.store.lease import holders, lease
from pipeline.store.store import open_store
from pipeline.store.units import Corpus, FileRef, UnitRecord
from pipeline.text.corpus.corpus_record import corpus_digest, record_path
from pipeline.text.corpus.ingest import ParentCorpus
from pipeline.text.corpus.sources import list_files

_FORMAT = 1  # of the units written here
_TRANSLATION, _EDITS = (
    10,
    20,
)  # what a model makes of a text takes so many times as long as its vector; so many edits take as long


@dataclass(frozen=True)
class Worked:
    """What a stage with models did in this run. title: of the variants and the models."""

    title: str
    stats: ModelStats
    seconds: float


@dataclass(frozen=True)
class Augmentation:
    """What a run left. unchanged: an earlier run had made it."""

    status: Literal["augmented", "unchanged"]
    store: Store
    series: Series
    number: int
    manifest: Augmented
    corpus: Corpus | None = None
    worked: tuple[Worked, ...] = ()

    @property
    def uri(self) -> str:
        return self.store.uri_of(self.series.path(self.number))

    @property
    def report(self) -> str:
        """URI of the page for people."""
        return self.store.uri_of(self.series.page(self.number))

    def rates(self) -> dict[str, dict[str, int]]:
        """Variants by label: how many are kept, and how many were rejected for what reason, the most frequent first."""
        counts: dict[str, Counter[str]] = {label: Counter(kept=0) for label in self.manifest.labels}
        for name, count in self.manifest.counts().items():
            label, sign, what = name.rpartition(":")
            if sign:
                counts[label][what] += count
        return {label: dict(each.most_common()) for label, each in counts.items()}


def augment(job: Job, stages: Stages, *, verbose: bool = False) -> Augmentation:
    """The corpus of the job with variants of its texts, and a page that tells people of it. What earlier runs made is taken over: by unit, and by text for texts that
    were there before.

    ConfigError, ModelError and DataError for settings, models and files that cannot be used, before any worker starts.
    """
    named = _checked(job)
    fill_corpus(job, stages)
    store = open_store(job.release.root)
    series = Series(store, job.augment.name)
    number, before = series.newest()
    making = _Making(job, named)
    if before is not None and _same(job, store, before, making):
        return _shown(Augmentation("unchanged", store, series, number, before), making, stages)
    for other in holders(store, series.folder):
        say(
            f"another command is at work on {series.folder} ({other}): the one that ends first leaves the manifest"
        )
    with lease(store, series.folder):
        parent = Corpus.left(store, before.corpus.path) if before is not None else None
        corpus = read_corpus(
            job.corpus,
            job.augment.unit_rows,
            store,
            ParentCorpus(parent, parent.next_ordinal if parent is not None else 0),
            stages,
        )
        with (
            local_workers(making.is_small(store, corpus), job.cluster.patience_s) as local,
            connect(job.cluster, stages, verbose=verbose, local=local) as workers,
        ):
            run = Run(job, store, workers, stages)
            worked = making.models(run, corpus, parent)
            units = making.assembled(run, corpus)
        manifest = making.manifest(store, corpus, units)
        if before is not None and manifest.model_copy(update={"settings": before.settings}) == before:
            return _shown(
                Augmentation("unchanged", store, series, number, before, corpus, worked), making, stages
            )
        return _shown(
            Augmentation("augmented", store, series, series.add(manifest, number), manifest, corpus, worked),
            making,
            stages,
        )


def _shown(made: Augmentation, making: "_Making", stages: Stages) -> Augmentation:
    """With its page beside the manifest; one that is there stays, for it tells of the run that left the manifest."""
    if made.status == "augmented" or not made.store.exists(made.series.page(made.number)):
        from pipeline.flows.augment.page import (
            write_page,
        )  # here: most runs that find nothing new draw nothing

        seconds = sum(stages.seconds().values())
        with stages("report"):
            write_page(made, making.named, making.job, seconds)
    return made


def _checked(job: Job) -> tuple[NamedAugmenter, ...]:
    """The augmenters, fit for use."""
    named = build_augmenters(job.augment)
    if not named:
        remedy = "name one, such as augment.variants.crop=crop, or give a config of jobs/configs/augment"
        raise ConfigError("augment.variants", "at least one variant to make", "none", remedy)
    labels = [label for each in named for label in each.labels]
    if twice := sorted(label for label, count in Counter(labels).items() if count > 1):
        raise ConfigError(
            "augment.variants",
            "names that give each column once",
            f"{', '.join(twice)} twice",
            "rename one of them",
        )
    own = {
        "text_key",
        *(["text"] if job.corpus.text != "text" else []),
        *(column for label in labels for column in columns_of(label)),
    }
    taken = own & {job.corpus.id, *job.corpus.keep}
    if taken:
        raise ConfigError(
            "corpus.keep",
            f"names other than {', '.join(sorted(taken))}, which the augmented units use",
            "these",
            "rename the column",
        )
    for each, keep in zip(named, keeps(named, job.augment), strict=True):
        check_keep(
            keep, "augment.keep" if each.settings.keep is None else f"augment.variants.{each.name}.keep"
        )
    for each in named:
        each.augmenter.check()
    if measures(named, job.augment):
        open_folder(job.encoder)
    return named


def keeps(named: Sequence[NamedAugmenter], settings: AugmentSettings) -> list[KeepSettings]:
    """The rules of each."""
    return [each.settings.keep or settings.keep for each in named]


def measures(named: Sequence[NamedAugmenter], settings: AugmentSettings) -> bool:
    """Whether any of them asks for similarities."""
    return any(keep.similarity is not None for keep in keeps(named, settings))


def _same(job: Job, store: Store, before: Augmented, making: "_Making") -> bool:
    """Whether the newest manifest is what the job would make, and its files are there. Opens no unit."""
    if before.settings_digest != making.digest or before.corpus_digest != corpus_digest(
        job.corpus, list_files(job.corpus)
    ):
        return False
    there = {entry.path: entry.size for entry in store.list(making.folder)}
    return all(there.get(unit.path) == unit.bytes for unit in before.units)


@dataclass(frozen=True)
class _Making:
    """What a job makes, whatever the corpus."""

    job: Job
    named: tuple[NamedAugmenter, ...]
    legs: Mapping[str, tuple[ModelStage, ...]] = field(init=False)
    folders: Mapping[str, tuple[str, ...]] = field(init=False)
    """of what each model of an augmenter makes, by the name of the variants"""
    digest: str = field(init=False)
    """of all that decides what is made of a row"""

    def __post_init__(self) -> None:
        legs = {
            each.name: each.augmenter.model_stages()
            for each in self.named
            if isinstance(each.augmenter, ModelAugmenter)
        }
        folders = {name: makings(each, self.job.augment.seed) for name, each in legs.items()}
        own = [
            [
                each.name,
                list(each.labels),
                folders.get(each.name) or each.augmenter.identity(),
                (each.settings.keep or self.job.augment.keep).model_dump(mode="json"),
            ]
            for each in self.named
        ]
        space = open_folder(self.job.encoder).space_id if measures(self.named, self.job.augment) else None
        digest = digest_of([_FORMAT, self.job.augment.seed, space, self.job.corpus.id, own])
        for name, value in (("legs", legs), ("folders", folders), ("digest", digest)):
            object.__setattr__(self, name, value)

    @property
    def folder(self) -> str:
        """Of the units of variants."""
        return f"units/augmented/{self.digest[:16]}"

    def is_small(self, store: Store, corpus: Corpus) -> bool:
        """Whether one process of this machine is done before Ray has started."""
        todo = sum(
            rows_of(list(waiting(store, folder, corpus.units)))
            for folders in self.folders.values()
            for folder in folders
        )
        vectors = len(self.named) * corpus.rows if measures(self.named, self.job.augment) else 0
        edits = len(self.named) * corpus.rows // _EDITS
        return (
            is_local(self.job.cluster)
            and _TRANSLATION * todo + vectors + edits <= self.job.cluster.small_rows
        )

    def models(self, run: Run, corpus: Corpus, parent: Corpus | None) -> tuple[Worked, ...]:
        """Every unit of the corpus taken through the models of each augmenter; what that took."""
        known = {unit.ordinal: unit.sha256 for unit in parent.units} if parent is not None else {}
        worked = []
        for each in self.named:
            legs, folders = self.legs.get(each.name, ()), self.folders.get(each.name, ())
            together = isinstance(each.augmenter, ModelAugmenter) and each.augmenter.together
            for first, last in (
                [(0, len(legs))]
                if together and legs
                else [(number, number + 1) for number in range(len(legs))]
            ):
                reads = folders[first - 1] if first else None
                task = MakeUnit(
                    run.store, legs[first:last], folders[first:last], first, reads, self.job.augment, known
                )
                worked.append(self._worked(run, each.name, task, corpus))
        return tuple(worked)

    def _worked(self, run: Run, name: str, task: MakeUnit, corpus: Corpus) -> Worked:
        title = f"{name}: {', '.join(leg.title for leg in task.legs)}"
        todo, rows = (
            list(waiting(task.store, task.folders[-1], corpus.units)),
            len(task.legs) * rows_of(corpus.units),
        )
        stats = ModelStats()
        with run.stages(title, rows) as bar:
            bar.skip(rows - len(task.legs) * rows_of(todo))
            if todo:
                pool = run.workers.pool(
                    _placed(self.job.cluster, [leg.model for leg in task.legs]), len(todo)
                )
                for _, (_, spent) in run.workers.map_units(task, todo, pool, bar):
                    stats = reduce(ModelStats.merge, spent, stats)
            bar.reach(len(task.legs) * rows_of(todo))
            bar.stage.note = _rate(stats)
        return Worked(title, stats, run.stages.seconds()[title])

    def assembled(self, run: Run, corpus: Corpus) -> tuple[UnitRecord, ...]:
        """The units of variants, in the corpus's order; those without a live row are left out."""
        store, workers = run.store, run.workers
        asks = measures(self.named, self.job.augment)
        encoder = encoder_for_workers(self.job.encoder, store, workers) if asks else None
        makings = {name: folders[-1] for name, folders in self.folders.items()}
        task = AssembleUnit(
            store,
            self.named,
            makings,
            self.folder,
            self.job.augment,
            self.job.corpus.id,
            corpus.dead,
            encoder,
            workers.encode_settings(self.job.encode),
        )
        live = [unit for unit in corpus.units if unit.rows > unit.dead]
        todo = sorted(live, key=lambda unit: (-unit.bytes, unit.sha256))
        made: dict[str, UnitRecord] = {}
        with run.stages("variants", rows_of(todo)) as bar:
            for number, record in workers.map_units(
                task, todo, workers.pool(self.job.cluster, len(todo)), bar
            ):
                made[todo[number].sha256] = record
            bar.reach(rows_of(todo))
        return tuple(made[unit.sha256] for unit in live)

    def manifest(self, store: Store, corpus: Corpus, units: tuple[UnitRecord, ...]) -> Augmented:
        path = record_path(corpus.id)
        content = store.read(path)
        return Augmented(
            stage="augmented",
            units=units,
            parents=(corpus.id,),
            settings_digest=self.digest,
            labels=tuple(label for each in self.named for label in each.labels),
            corpus=FileRef(path=path, sha256=sha256(content).hexdigest(), bytes=len(content)),
            corpus_digest=corpus.digest,
            makings=self.folders,
            settings=self.job.augment.model_dump(mode="json"),
        )


def _placed(cluster: ClusterSettings, models: Sequence[ModelSettings]) -> ClusterSettings:
    """The cluster's settings for workers that hold these models: what one of them asks for goes before."""
    cpus, gpus = (
        [model.cpus_per_worker for model in models if model.cpus_per_worker],
        [one for model in models if (one := model.gpus_per_worker) is not None],
    )
    workers = [model.workers for model in models if model.workers]
    own = {
        "cpus_per_worker": max(cpus, default=cluster.cpus_per_worker),
        "gpus_per_worker": max(gpus, default=cluster.gpus_per_worker),
    }
    return cluster.model_copy(
        update={**own, **({"workers": WorkerSettings(min=1, max=max(workers))} if workers else {})}
    )


def _rate(stats: ModelStats) -> str:
    """What a stage did, in words."""
    if not stats.texts:
        return ""
    per_s = (
        f"{stats.texts / stats.seconds:,.0f} texts and {stats.tokens_out / stats.seconds:,.0f} tokens written a second of a worker"
        if stats.seconds
        else ""
    )
    return f"{stats.texts:,} texts; {per_s}; padding {stats.padding / max(stats.tokens_in + stats.padding, 1):.1%}"
