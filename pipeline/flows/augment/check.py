"""Check the augmenters of a job before any worker starts."""

from collections import Counter
from collections.abc import Sequence

from pipeline.augment import NamedAugmenter, build_augmenters
from pipeline.augment.keep import check_keep
from pipeline.errors import ConfigError
from pipeline.flows.augment.variant_units import columns_of
from pipeline.models.folder.folder import announce_warnings, open_folder
from pipeline.settings import Job


def check_augmenters(job: Job) -> tuple[NamedAugmenter, ...]:
    """Build the augmenters of the job, and check their options, models and column names.

    Raises:
        ConfigError, DataError, ModelError: options, files or models cannot be used, or no variant is set.
    """
    augmenters = build_augmenters(job.augment)
    if not augmenters:
        raise ConfigError(
            "augment.variants",
            "at least one variant to make",
            "none",
            "name one, such as augment.variants.crop=crop, or give a config of jobs/configs/augment",
        )
    _refuse_chunks(job)
    labels = [label for each in augmenters for label in each.labels]
    if repeated := sorted(label for label, count in Counter(labels).items() if count > 1):
        raise ConfigError(
            "augment.variants",
            "names of variants whose columns differ",
            f"the columns of {', '.join(repeated)} twice",
            "rename one of the variants",
        )
    written = {"text_key", *(column for label in labels for column in columns_of(label))}
    if job.corpus.text != "text":
        written.add("text")
    if clashes := written & {job.corpus.id, *job.corpus.keep}:
        raise ConfigError(
            "corpus.keep",
            "columns whose names differ from those that the augmented units get",
            ", ".join(sorted(clashes)),
            "rename the columns",
        )
    for each in augmenters:
        check_keep(
            each.keep, "augment.keep" if each.settings.keep is None else f"augment.variants.{each.name}.keep"
        )
    for each in augmenters:
        each.augmenter.check()
    if needs_encoder(augmenters):
        announce_warnings(open_folder(job.encoder))
    return augmenters


def _refuse_chunks(job: Job) -> None:
    if job.corpus.chunk.by is not None:
        raise ConfigError(
            "corpus.chunk.by",
            "null: variants are made of whole texts",
            job.corpus.chunk.by,
            "remove it; to chunk, set it in the job that indexes the variants",
        )


def needs_encoder(augmenters: Sequence[NamedAugmenter]) -> bool:
    """Return whether any augmenter's settings bound the similarity, so that the job's encoder is needed."""
    return any(each.keep.similarity is not None for each in augmenters)
