"""Check the augmenters of a job before any worker starts."""

from collections import Counter
from collections.abc import Sequence

from pipeline.augment import NamedAugmenter, build_augmenters
from pipeline.augment.keep import check_keep
from pipeline.errors import ConfigError
from pipeline.flows.augment.variant_units import columns_of
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job


def check_augmenters(job: Job) -> tuple[NamedAugmenter, ...]:
    """Build the augmenters of the job, and check them with their models and columns."""
    named = build_augmenters(job.augment)
    if not named:
        raise ConfigError(
            "augment.variants",
            "at least one variant to make",
            "none",
            "name one, such as augment.variants.crop=crop, or give a config of jobs/configs/augment",
        )
    labels = [label for each in named for label in each.labels]
    if twice := sorted(label for label, count in Counter(labels).items() if count > 1):
        raise ConfigError(
            "augment.variants",
            "names that give each column once",
            f"{', '.join(twice)} twice",
            "rename one of them",
        )
    own = {"text_key", *(column for label in labels for column in columns_of(label))}
    if job.corpus.text != "text":
        own.add("text")
    if taken := own & {job.corpus.id, *job.corpus.keep}:
        raise ConfigError(
            "corpus.keep",
            f"names other than {', '.join(sorted(taken))}, which the augmented units use",
            "these names",
            "rename the column",
        )
    for each in named:
        check_keep(
            each.keep, "augment.keep" if each.settings.keep is None else f"augment.variants.{each.name}.keep"
        )
    for each in named:
        each.augmenter.check()
    if needs_encoder(named):
        open_folder(job.encoder)
    return named


def needs_encoder(named: Sequence[NamedAugmenter]) -> bool:
    """Return whether a similarity is bounded for any variant."""
    return any(each.keep.similarity is not None for each in named)
