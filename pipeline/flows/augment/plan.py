"""Run the models and write the units of an augmented corpus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from hashlib import sha256

from pipeline.augment import ModelAugmenter, ModelStage, ModelStats, NamedAugmenter
from pipeline.config import digest_of
from pipeline.flows.augment.check import needs_encoder
from pipeline.flows.augment.model_units import MakeUnit, stage_folders, total_rows, units_to_do
from pipeline.flows.augment.result import StageWork
from pipeline.flows.augment.variant_units import AssembleUnit
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.run import Run
from pipeline.flows.workers.cluster import is_local
from pipeline.models.folder.folder import open_folder
from pipeline.settings import ClusterSettings, Job, WorkerSettings
from pipeline.settings.augment import ModelSettings
from pipeline.store.augmented import Augmented
from pipeline.store.base import Store
from pipeline.store.units import Corpus, FileRef, UnitRecord
from pipeline.text.corpus.corpus_record import record_path

_FORMAT = 1  # of the units written here
_MODEL_COST = 10  # a model's output for a text takes this many times as long as the text's vector
_EDITS_PER_VECTOR = 20  # edits that take as long as one vector


@dataclass(frozen=True)
class VariantPlan:
    """The models and folders of a job's variants, for any corpus."""

    job: Job
    named: tuple[NamedAugmenter, ...]
    model_stages: Mapping[str, tuple[ModelStage, ...]] = field(init=False)
    """stages of each augmenter, by the name of its variants"""
    folders: Mapping[str, tuple[str, ...]] = field(init=False)
    """folders for the outputs of those stages, by the name of the variants"""
    digest: str = field(init=False)
    """of everything that decides the variants of a row"""

    def __post_init__(self) -> None:
        model_stages = {
            each.name: each.augmenter.model_stages()
            for each in self.named
            if isinstance(each.augmenter, ModelAugmenter)
        }
        folders = {name: stage_folders(each, self.job.augment.seed) for name, each in model_stages.items()}
        own = [
            [
                each.name,
                list(each.labels),
                folders.get(each.name) or each.augmenter.identity(),
                (each.settings.keep or self.job.augment.keep).model_dump(mode="json"),
            ]
            for each in self.named
        ]
        space = (
            open_folder(self.job.encoder).space_id if needs_encoder(self.named, self.job.augment) else None
        )
        digest = digest_of([_FORMAT, self.job.augment.seed, space, self.job.corpus.id, own])
        for name, value in (("model_stages", model_stages), ("folders", folders), ("digest", digest)):
            object.__setattr__(self, name, value)

    @property
    def folder(self) -> str:
        """Folder of the units of variants."""
        return f"units/augmented/{self.digest[:16]}"

    def is_small(self, store: Store, corpus: Corpus) -> bool:
        """Whether one local process would finish before Ray has started."""
        todo = sum(
            total_rows(list(units_to_do(store, folder, corpus.units)))
            for folders in self.folders.values()
            for folder in folders
        )
        vectors = len(self.named) * corpus.rows if needs_encoder(self.named, self.job.augment) else 0
        edits = len(self.named) * corpus.rows // _EDITS_PER_VECTOR
        return (
            is_local(self.job.cluster) and _MODEL_COST * todo + vectors + edits <= self.job.cluster.small_rows
        )

    def run_models(self, run: Run, corpus: Corpus, parent: Corpus | None) -> tuple[StageWork, ...]:
        """Pass every unit of the corpus through the models of each augmenter."""
        known = {unit.ordinal: unit.sha256 for unit in parent.units} if parent is not None else {}
        worked = []
        for each in self.named:
            model_stages, folders = self.model_stages.get(each.name, ()), self.folders.get(each.name, ())
            together = isinstance(each.augmenter, ModelAugmenter) and each.augmenter.together
            bounds = [(number, number + 1) for number in range(len(model_stages))]
            if together and model_stages:
                bounds = [(0, len(model_stages))]
            for first, last in bounds:
                reads = folders[first - 1] if first else None
                task = MakeUnit(
                    run.store,
                    model_stages[first:last],
                    folders[first:last],
                    first,
                    reads,
                    self.job.augment,
                    known,
                )
                worked.append(self._run_model_stages(run, each.name, task, corpus))
        return tuple(worked)

    def _run_model_stages(self, run: Run, name: str, task: MakeUnit, corpus: Corpus) -> StageWork:
        title = f"{name}: {', '.join(stage.title for stage in task.model_stages)}"
        todo = list(units_to_do(task.store, task.folders[-1], corpus.units))
        rows = len(task.model_stages) * total_rows(corpus.units)
        stats = ModelStats()
        with run.stages(title, rows) as bar:
            bar.skip(rows - len(task.model_stages) * total_rows(todo))
            if todo:
                pool = run.workers.pool(
                    _cluster_for(self.job.cluster, [stage.model for stage in task.model_stages]), len(todo)
                )
                for _, (_, spent) in run.workers.map_units(task, todo, pool, bar):
                    stats = reduce(ModelStats.merge, spent, stats)
            bar.reach(len(task.model_stages) * total_rows(todo))
            bar.stage.note = _describe(stats)
        return StageWork(title, stats, run.stages.seconds()[title])

    def write_variants(self, run: Run, corpus: Corpus) -> tuple[UnitRecord, ...]:
        """Write the units of variants, in the corpus's order; units without a live row are left out."""
        store, workers = run.store, run.workers
        encodes = needs_encoder(self.named, self.job.augment)
        encoder = encoder_for_workers(self.job.encoder, store, workers) if encodes else None
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
        with run.stages("variants", total_rows(todo)) as bar:
            for number, record in workers.map_units(
                task, todo, workers.pool(self.job.cluster, len(todo)), bar
            ):
                made[todo[number].sha256] = record
            bar.reach(total_rows(todo))
        return tuple(made[unit.sha256] for unit in live)

    def manifest(self, store: Store, corpus: Corpus, units: tuple[UnitRecord, ...]) -> Augmented:
        """The manifest of a run."""
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


def _cluster_for(cluster: ClusterSettings, models: Sequence[ModelSettings]) -> ClusterSettings:
    """The cluster's settings for workers that hold these models; settings of a model take precedence."""
    cpus = [model.cpus_per_worker for model in models if model.cpus_per_worker]
    gpus = [model.gpus_per_worker for model in models if model.gpus_per_worker is not None]
    workers = [model.workers for model in models if model.workers]
    changes: dict[str, object] = {
        "cpus_per_worker": max(cpus, default=cluster.cpus_per_worker),
        "gpus_per_worker": max(gpus, default=cluster.gpus_per_worker),
    }
    if workers:
        changes["workers"] = WorkerSettings(min=1, max=max(workers))
    return cluster.model_copy(update=changes)


def _describe(stats: ModelStats) -> str:
    """The work of a stage as a phrase for people."""
    if not stats.texts:
        return ""
    rate = ""
    if stats.seconds:
        texts, tokens = stats.texts / stats.seconds, stats.tokens_out / stats.seconds
        rate = f"{texts:,.0f} texts and {tokens:,.0f} tokens written a second of a worker"
    padding = stats.padding / max(stats.tokens_in + stats.padding, 1)
    return f"{stats.texts:,} texts; {rate}; padding {padding:.1%}"
