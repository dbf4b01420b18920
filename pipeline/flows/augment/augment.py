"""Augment a corpus: make variants of its texts, test which ones to keep, and write a numbered manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.augment import ModelAugmenter, ModelStage, ModelStats, ModelWork, NamedAugmenter
from pipeline.config import digest_of
from pipeline.flows.augment.check import check_augmenters, needs_encoder
from pipeline.flows.augment.model_units import MakeUnit, stage_folders, total_rows, units_to_do
from pipeline.flows.augment.result import Augmentation
from pipeline.flows.augment.variant_units import AssembleUnit
from pipeline.flows.context import FlowContext, map_kept_units
from pipeline.flows.corpus import corpus_of, harvest_corpus, read_corpus
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.night.steps import check_root
from pipeline.flows.workers.cluster import connect, is_local, local_workers
from pipeline.log import Stages, announce
from pipeline.models.folder.folder import open_folder
from pipeline.settings import ClusterSettings, Job, WorkerSettings
from pipeline.settings.augment import ModelSettings
from pipeline.store.files.base import Store
from pipeline.store.files.lease import describe_holders, lease
from pipeline.store.files.open_store import open_store
from pipeline.store.records.augmented import Augmented, Series
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus, UnitRecord
from pipeline.text.ingest.corpus_record import corpus_digest, record_path
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import PreviousCorpus
from pipeline.text.sources.sources import list_files
from pipeline.text.task_map import TaskRunner

_FORMAT = 1  # version of the units of variants
# Estimated costs, in units of the time to encode one text:
_MODEL_COST = 10  # one output of a model
_EDITS_PER_VECTOR = 20  # this many edits of words cost as much as one vector


@dataclass(frozen=True)
class VariantPlan:
    """The models and folders for a job's variants, and the steps that run the models.

    It does not depend on the corpus.
    """

    job: Job
    augmenters: tuple[NamedAugmenter, ...]

    @cached_property
    def model_stages(self) -> Mapping[str, tuple[ModelStage, ...]]:
        """Stages of each augmenter with models, by the name of its variants."""
        return {
            each.name: each.augmenter.model_stages()
            for each in self.augmenters
            if isinstance(each.augmenter, ModelAugmenter)
        }

    @cached_property
    def folders(self) -> Mapping[str, tuple[str, ...]]:
        """Folders for the outputs of the model stages, by the name of the variants."""
        return {name: stage_folders(each, self.job.augment.seed) for name, each in self.model_stages.items()}

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of everything that decides the variants of a row."""
        variants = [
            [
                each.name,
                list(each.labels),
                self.folders.get(each.name) or each.augmenter.identity(),
                each.keep.model_dump(mode="json"),
            ]
            for each in self.augmenters
        ]
        return digest_of(
            [
                _FORMAT,
                self.job.augment.seed,
                open_folder(self.job.encoder).space_id if needs_encoder(self.augmenters) else None,
                self.job.corpus.id,
                variants,
            ]
        )

    @property
    def folder(self) -> str:
        """Folder for the units of variants."""
        return f"units/augmented/{self.digest[:16]}"

    def is_small(self, store: Store, corpus: Corpus) -> bool:
        """Return whether the work is so small that one local process is faster than starting Ray."""
        missing_outputs = sum(
            total_rows(list(units_to_do(store, folder, corpus.units)))
            for folders in self.folders.values()
            for folder in folders
        )
        variants = len(self.augmenters) * corpus.rows
        vectors = variants if needs_encoder(self.augmenters) else 0
        cost = _MODEL_COST * missing_outputs + variants // _EDITS_PER_VECTOR + vectors
        return is_local(self.job.cluster) and cost <= self.job.cluster.small_rows

    def run_models(
        self, context: FlowContext, corpus: Corpus, parent: Corpus | None
    ) -> tuple[ModelWork, ...]:
        """Pass every unit of the corpus through the models of each augmenter.

        Args:
            context: the context of the command.
            corpus: the corpus.
            parent: the corpus of the previous manifest; outputs for its texts are copied.
        """
        earlier_units = {unit.ordinal: unit.sha256 for unit in parent.units} if parent is not None else {}
        model_work = []
        for each in self.augmenters:
            if not isinstance(each.augmenter, ModelAugmenter):
                continue
            stages, folders = self.model_stages[each.name], self.folders[each.name]
            stages_per_task = len(stages) if each.augmenter.together else 1
            for first in range(0, len(stages), stages_per_task):
                part = slice(first, first + stages_per_task)
                task = MakeUnit(
                    store=context.store,
                    model_stages=stages[part],
                    folders=folders[part],
                    first_stage=first,
                    input_folder=folders[first - 1] if first else None,
                    settings=self.job.augment,
                    earlier_units=earlier_units,
                )
                model_work.append(self._run_model_stages(context, each.name, task, corpus))
        return tuple(model_work)

    def _run_model_stages(self, context: FlowContext, name: str, task: MakeUnit, corpus: Corpus) -> ModelWork:
        title = f"{name}: {', '.join(stage.title for stage in task.model_stages)}"
        todo = list(units_to_do(task.store, task.folders[-1], corpus.units))
        outputs = len(task.model_stages) * total_rows(corpus.units)
        new_outputs, stats = len(task.model_stages) * total_rows(todo), ModelStats()
        with context.stages(title, outputs) as bar:
            bar.skip(outputs - new_outputs)
            if todo:
                cluster = _cluster_for(self.job.cluster, [stage.model for stage in task.model_stages])
                pool = context.workers.pool(cluster, len(todo))
                for _, unit_stats in map_kept_units(context, task, todo, pool, bar):
                    stats = stats.merge(unit_stats)
            bar.reach(new_outputs)
            bar.stage.note = _describe(stats)
        return ModelWork(title, stats, context.stages.seconds()[title])

    def write_variants(self, context: FlowContext, corpus: Corpus) -> tuple[UnitRecord, ...]:
        """Write the units of variants, and return their records in the order of the corpus.

        A corpus unit without a live row gets no unit of variants.
        """
        store, workers = context.store, context.workers
        task = AssembleUnit(
            store,
            self.augmenters,
            {name: folders[-1] for name, folders in self.folders.items()},
            self.folder,
            self.job.augment.seed,
            self.job.corpus.id,
            corpus.dead,
            encoder_for_workers(self.job.encoder, store, workers) if needs_encoder(self.augmenters) else None,
            workers.encode_settings(self.job.encode),
        )
        live = [unit for unit in corpus.units if unit.rows > unit.dead]
        todo = sorted(live, key=lambda unit: (-unit.bytes, unit.sha256))
        records: dict[str, UnitRecord] = {}
        pool = workers.pool(self.job.cluster, len(todo))
        with context.stages("variants", total_rows(todo)) as bar:
            for number, record in map_kept_units(context, task, todo, pool, bar):
                records[todo[number].sha256] = record
            bar.reach(total_rows(todo))
        return tuple(records[unit.sha256] for unit in live)

    def manifest(self, store: Store, corpus: Corpus, units: tuple[UnitRecord, ...]) -> Augmented:
        """Build the manifest for the written units."""
        path = record_path(corpus.id)
        return Augmented(
            stage="augmented",
            units=units,
            parents=(corpus.id,),
            settings_digest=self.digest,
            labels=tuple(label for each in self.augmenters for label in each.labels),
            corpus=FileRef.of(path, store.read(path)),
            corpus_digest=corpus.digest,
            makings=self.folders,
            settings=self.job.augment.model_dump(mode="json"),
        )


def _cluster_for(cluster: ClusterSettings, models: Sequence[ModelSettings]) -> ClusterSettings:
    """Adapt the cluster's settings to workers that have these models loaded.

    If models set their own CPUs, GPUs or workers, the largest of these values replaces the cluster's.
    """
    changes: dict[str, Any] = {}
    for name in ("cpus_per_worker", "gpus_per_worker", "workers"):
        values = [value for model in models if (value := getattr(model, name)) is not None]
        if values:
            changes[name] = max(values)
    if "workers" in changes:
        changes["workers"] = WorkerSettings(min=1, max=changes["workers"])
    return cluster.model_copy(update=changes)


def _describe(stats: ModelStats) -> str:
    """Describe the texts, speed and padding of a stage in one line for people; empty if there was no work."""
    if not stats.texts or not stats.seconds:
        return ""
    work = ModelWork("", stats, stats.seconds)
    return (
        f"{stats.texts:,} texts; {work.per_s(stats.texts):,.0f} texts and "
        f"{work.per_s(stats.tokens_out):,.0f} tokens "
        f"written a second of a worker; padding {work.padding:.1%}"
    )


def augment(job: Job, stages: Stages, *, verbose: bool = False) -> Augmentation:
    """Write the corpus of the job with variants of its texts, and a report page.

    Complete units of earlier runs are reused, and also the models' outputs for texts of the previous corpus.

    Raises:
        ConfigError, ModelError, DataError: settings, models or files cannot be used; raised before any worker
            starts.
    """
    augmenters = check_augmenters(job)
    check_root(job)
    harvest_corpus(job, stages)
    store = open_store(job.release.root)
    series = Series(store, job.augment.name)
    number, previous = series.newest()
    plan = VariantPlan(job, augmenters)
    if previous and _is_current(job, store, previous, plan):
        return _with_page(Augmentation("unchanged", store, series, number, previous), plan, stages)
    for other in describe_holders(store, series.folder):
        announce(
            f"another command is writing {series.folder} ({other}): "
            "the command that ends first writes the manifest"
        )
    with lease(store, series.folder):
        parent = Corpus.load_intact(store, previous.corpus.path) if previous else None
        continued = PreviousCorpus(parent, parent.next_ordinal if parent else 0)
        corpus = read_corpus(
            lambda on_progress: ingest(
                corpus_of(job), job.augment.unit_rows, store, continued, TaskRunner(on_progress=on_progress)
            ),
            stages,
        )
        with (
            local_workers(plan.is_small(store, corpus), job.cluster.patience_s) as local,
            connect(
                job.cluster, stages, verbose=verbose, local=local, stores={"release.root": store}
            ) as workers,
        ):
            context = FlowContext(job, store, workers, stages)
            model_work = plan.run_models(context, corpus, parent)
            units = plan.write_variants(context, corpus)
        manifest = plan.manifest(store, corpus, units)
        # Settings that change a variant change settings_digest; others need no new manifest.
        if previous and manifest.model_copy(update={"settings": previous.settings}) == previous:
            result = Augmentation("unchanged", store, series, number, previous, corpus, model_work)
        else:
            number = series.add(manifest, number)
            result = Augmentation("augmented", store, series, number, manifest, corpus, model_work)
        return _with_page(result, plan, stages)


def _with_page(result: Augmentation, plan: VariantPlan, stages: Stages) -> Augmentation:
    """Write the report page beside the manifest, unless the manifest's own run has already written it."""
    if result.status == "augmented" or not result.store.exists(result.series.page(result.number)):
        from pipeline.flows.augment.page import write_page  # imports charts, needed only here

        seconds = sum(stages.seconds().values())
        with stages("report"):
            write_page(result, plan.augmenters, plan.job, seconds)
    return result


def _is_current(job: Job, store: Store, previous: Augmented, plan: VariantPlan) -> bool:
    """Return whether the job would write the same manifest again, and whether its units are complete."""
    if previous.settings_digest != plan.digest:
        return False
    if previous.corpus_digest != corpus_digest(corpus_of(job), list_files(job.corpus)):
        return False
    sizes = {entry.path: entry.size for entry in store.list(plan.folder)}
    return all(sizes.get(unit.path) == unit.bytes for unit in previous.units)
