"""Augment a corpus: make variants of its texts, test which ones to keep, and write a numbered manifest."""

from pipeline.flows.augment.check import check_augmenters
from pipeline.flows.augment.plan import VariantPlan
from pipeline.flows.augment.result import Augmentation
from pipeline.flows.context import FlowContext
from pipeline.flows.corpus import harvest_corpus, read_corpus
from pipeline.flows.workers.cluster import connect, local_workers
from pipeline.log import Stages, announce
from pipeline.settings import Job
from pipeline.store.files.base import Store
from pipeline.store.files.lease import describe_holders, lease
from pipeline.store.files.open_store import open_store
from pipeline.store.records.augmented import Augmented, Series
from pipeline.store.records.units import Corpus
from pipeline.text.ingest.corpus_record import corpus_digest
from pipeline.text.ingest.ingest import ingest
from pipeline.text.ingest.tonights_files import ParentCorpus
from pipeline.text.sources.sources import list_files
from pipeline.text.task_map import TaskRunner


def augment(job: Job, stages: Stages, *, verbose: bool = False) -> Augmentation:
    """Write the corpus of the job with variants of its texts, and a report page.

    Complete units of earlier runs are reused, and also the models' outputs for texts of the previous corpus.

    Raises:
        ConfigError, ModelError, DataError: settings, models or files cannot be used; raised before any worker
            starts.
    """
    augmenters = check_augmenters(job)
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
        continued = ParentCorpus(parent, parent.next_ordinal if parent else 0)
        corpus = read_corpus(
            lambda on_progress: ingest(
                job.corpus, job.augment.unit_rows, store, continued, TaskRunner(on_progress=on_progress)
            ),
            stages,
        )
        with (
            local_workers(plan.is_small(store, corpus), job.cluster.patience_s) as local,
            connect(job.cluster, stages, verbose=verbose, local=local) as workers,
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
    """Return whether the job would write the same manifest again, and all its units exist with their size."""
    if previous.settings_digest != plan.digest:
        return False
    if previous.corpus_digest != corpus_digest(job.corpus, list_files(job.corpus)):
        return False
    sizes = {entry.path: entry.size for entry in store.list(plan.folder)}
    return all(sizes.get(unit.path) == unit.bytes for unit in previous.units)
