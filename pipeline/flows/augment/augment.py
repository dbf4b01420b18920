"""Augment a corpus: make variants of its texts, choose the good ones, and write a numbered manifest."""

from pipeline.flows.augment.check import check_augmenters
from pipeline.flows.augment.plan import VariantPlan
from pipeline.flows.augment.result import Augmentation
from pipeline.flows.corpus import fill_corpus, read_corpus
from pipeline.flows.run import Run
from pipeline.flows.workers.cluster import connect, local_workers
from pipeline.log import Stages, say
from pipeline.settings import Job
from pipeline.store.augmented import Augmented, Series
from pipeline.store.base import Store
from pipeline.store.lease import holders, lease
from pipeline.store.store import open_store
from pipeline.store.units import Corpus
from pipeline.text.corpus.corpus_record import corpus_digest
from pipeline.text.corpus.ingest import ParentCorpus
from pipeline.text.corpus.sources import list_files


def augment(job: Job, stages: Stages, *, verbose: bool = False) -> Augmentation:
    """Write the corpus of the job with variants of its texts, and a report page.

    Results of earlier runs are reused: by unit, and by text for texts that were known before.

    Raises:
        ConfigError, ModelError, DataError: settings, models or files cannot be used; raised before any worker
            starts.
    """
    named = check_augmenters(job)
    fill_corpus(job, stages)
    store = open_store(job.release.root)
    series = Series(store, job.augment.name)
    number, before = series.newest()
    plan = VariantPlan(job, named)
    if before and _is_current(job, store, before, plan):
        return _with_page(Augmentation("unchanged", store, series, number, before), plan, stages)
    for other in holders(store, series.folder):
        say(
            f"another command is writing {series.folder} ({other}): "
            "the command that ends first writes the manifest"
        )
    with lease(store, series.folder):
        parent = Corpus.load_intact(store, before.corpus.path) if before else None
        corpus = read_corpus(
            job.corpus,
            job.augment.unit_rows,
            store,
            ParentCorpus(parent, parent.next_ordinal if parent else 0),
            stages,
        )
        with (
            local_workers(plan.is_small(store, corpus), job.cluster.patience_s) as local,
            connect(job.cluster, stages, verbose=verbose, local=local) as workers,
        ):
            run = Run(job, store, workers, stages)
            worked = plan.run_models(run, corpus, parent)
            units = plan.write_variants(run, corpus)
        manifest = plan.manifest(store, corpus, units)
        if before and manifest.model_copy(update={"settings": before.settings}) == before:
            made = Augmentation("unchanged", store, series, number, before, corpus, worked)
        else:
            number = series.add(manifest, number)
            made = Augmentation("augmented", store, series, number, manifest, corpus, worked)
        return _with_page(made, plan, stages)


def _with_page(made: Augmentation, plan: VariantPlan, stages: Stages) -> Augmentation:
    """Write the page beside the manifest, unless the run that wrote the manifest has written it."""
    if made.status == "augmented" or not made.store.exists(made.series.page(made.number)):
        from pipeline.flows.augment.page import write_page  # here, because an unchanged run needs no charts

        seconds = sum(stages.seconds().values())
        with stages("report"):
            write_page(made, plan.named, plan.job, seconds)
    return made


def _is_current(job: Job, store: Store, before: Augmented, plan: VariantPlan) -> bool:
    """Return whether the job would write this manifest again, and its units are complete. Opens no unit."""
    if before.settings_digest != plan.digest:
        return False
    if before.corpus_digest != corpus_digest(job.corpus, list_files(job.corpus)):
        return False
    sizes = {entry.path: entry.size for entry in store.list(plan.folder)}
    return all(sizes.get(unit.path) == unit.bytes for unit in before.units)
