"""Run the models and write the units of an augmented corpus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

from pipeline.augment import ModelAugmenter, ModelStage, ModelStats, ModelWork, NamedAugmenter
from pipeline.config import digest_of
from pipeline.flows.augment.check import needs_encoder
from pipeline.flows.augment.model_units import MakeUnit, stage_folders, total_rows, units_to_do
from pipeline.flows.augment.variant_units import AssembleUnit
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.run import Run
from pipeline.flows.workers.cluster import is_local
from pipeline.models.folder.folder import open_folder
from pipeline.settings import ClusterSettings, Job, WorkerSettings
from pipeline.settings.augment import ModelSettings
from pipeline.store.augmented import Augmented
from pipeline.store.base import Store
from pipeline.store.stored import FileRef
from pipeline.store.units import Corpus, UnitRecord
from pipeline.text.corpus.corpus_record import record_path

_FORMAT = 1  # of the units written here
_MODEL_COST = 10  # a model's output for a text takes this many times as long as the text's vector
_EDITS_PER_VECTOR = 20  # edits that take as long as one vector


@dataclass(frozen=True)
class VariantPlan:
    """The models and folders of a job's variants, for any corpus."""

    job: Job
    named: tuple[NamedAugmenter, ...]

    @cached_property
    def model_stages(self) -> Mapping[str, tuple[ModelStage, ...]]:
        """Stages of each augmenter with models, by the name of its variants."""
        return {
            each.name: each.augmenter.model_stages()
            for each in self.named
            if isinstance(each.augmenter, ModelAugmenter)
        }

    @cached_property
    def folders(self) -> Mapping[str, tuple[str, ...]]:
        """Folders for the outputs of those stages, by the name of the variants."""
        return {name: stage_folders(each, self.job.augment.seed) for name, each in self.model_stages.items()}

    @cached_property
    def digest(self) -> str:
        """sha256 (hex) of everything that decides the variants of a row."""
        own = [
            [
                each.name,
                list(each.labels),
                self.folders.get(each.name) or each.augmenter.identity(),
                each.keep.model_dump(mode="json"),
            ]
            for each in self.named
        ]
        return digest_of(
            [
                _FORMAT,
                self.job.augment.seed,
                open_folder(self.job.encoder).space_id if needs_encoder(self.named) else None,
                self.job.corpus.id,
                own,
            ]
        )

    @property
    def folder(self) -> str:
        """Folder of the units of variants."""
        return f"units/augmented/{self.digest[:16]}"

    def is_small(self, store: Store, corpus: Corpus) -> bool:
        """Return whether one local process would finish before Ray has started."""
        todo = sum(
            total_rows(list(units_to_do(store, folder, corpus.units)))
            for folders in self.folders.values()
            for folder in folders
        )
        variants = len(self.named) * corpus.rows
        cost = _MODEL_COST * todo + variants // _EDITS_PER_VECTOR
        cost += variants if needs_encoder(self.named) else 0
        return is_local(self.job.cluster) and cost <= self.job.cluster.small_rows

    def run_models(self, run: Run, corpus: Corpus, parent: Corpus | None) -> tuple[ModelWork, ...]:
        """Pass every unit of the corpus through the models of each augmenter."""
        known = {unit.ordinal: unit.sha256 for unit in parent.units} if parent is not None else {}
        worked = []
        for each in self.named:
            if not isinstance(each.augmenter, ModelAugmenter):
                continue
            stages, folders = self.model_stages[each.name], self.folders[each.name]
            size = len(stages) if each.augmenter.together else 1
            for first in range(0, len(stages), size):
                part, reads = slice(first, first + size), folders[first - 1] if first else None
                task = MakeUnit(run.store, stages[part], folders[part], first, reads, self.job.augment, known)
                worked.append(self._run_model_stages(run, each.name, task, corpus))
        return tuple(worked)

    def _run_model_stages(self, run: Run, name: str, task: MakeUnit, corpus: Corpus) -> ModelWork:
        title = f"{name}: {', '.join(stage.title for stage in task.model_stages)}"
        todo = list(units_to_do(task.store, task.folders[-1], corpus.units))
        rows, stats = len(task.model_stages) * total_rows(corpus.units), ModelStats()
        with run.stages(title, rows) as bar:
            bar.skip(rows - len(task.model_stages) * total_rows(todo))
            if todo:
                cluster = _cluster_for(self.job.cluster, [stage.model for stage in task.model_stages])
                for _, spent in run.workers.map_units(task, todo, run.workers.pool(cluster, len(todo)), bar):
                    stats = stats.merge(spent)
            bar.reach(len(task.model_stages) * total_rows(todo))
            bar.stage.note = _describe(stats)
        return ModelWork(title, stats, run.stages.seconds()[title])

    def write_variants(self, run: Run, corpus: Corpus) -> tuple[UnitRecord, ...]:
        """Write the units of variants, in the corpus's order; units without a live row are left out."""
        store, workers = run.store, run.workers
        task = AssembleUnit(
            store,
            self.named,
            {name: folders[-1] for name, folders in self.folders.items()},
            self.folder,
            self.job.augment.seed,
            self.job.corpus.id,
            corpus.dead,
            encoder_for_workers(self.job.encoder, store, workers) if needs_encoder(self.named) else None,
            workers.encode_settings(self.job.encode),
        )
        live = [unit for unit in corpus.units if unit.rows > unit.dead]
        todo = sorted(live, key=lambda unit: (-unit.bytes, unit.sha256))
        made: dict[str, UnitRecord] = {}
        pool = workers.pool(self.job.cluster, len(todo))
        with run.stages("variants", total_rows(todo)) as bar:
            for number, record in workers.map_units(task, todo, pool, bar):
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
    own = [model.model_dump(include={"cpus_per_worker", "gpus_per_worker", "workers"}) for model in models]
    named = {name: [each[name] for each in own if each[name] is not None] for name in own[0]}
    changes = {name: max(values) for name, values in named.items() if values}
    if "workers" in changes:
        changes["workers"] = WorkerSettings(min=1, max=changes["workers"])
    return cluster.model_copy(update=changes)


def _describe(stats: ModelStats) -> str:
    """The work of a stage as a phrase for people."""
    if not stats.texts or not stats.seconds:
        return ""
    work = ModelWork("", stats, stats.seconds)
    return (
        f"{stats.texts:,} texts; {work.per_s('texts'):,.0f} texts and {work.per_s('tokens_out'):,.0f} tokens "
        f"written a second of a worker; padding {work.padding:.1%}"
    )
