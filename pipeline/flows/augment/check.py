"""Check the augmenters of a job before any worker starts."""

from collections import Counter
from collections.abc import Sequence

from pipeline.augment import NamedAugmenter, build_augmenters
from pipeline.augment.keep import check_keep
from pipeline.errors import ConfigError
from pipeline.flows.augment.variant_units import columns_of
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
from pipeline.settings.augment import AugmentSettings, KeepSettings


def check_augmenters(job: Job) -> tuple[NamedAugmenter, ...]:
    """Build the augmenters of the job, and check them with their models and columns."""
    named = build_augmenters(job.augment)
    if not named:
        remedy = "name one, such as augment.variants.crop=crop, or give a config of jobs/configs/augment"
        raise ConfigError("augment.variants", "at least one variant to make", "none", remedy)
    labels = [label for each in named for label in each.labels]
    if twice := sorted(label for label, count in Counter(labels).items() if count > 1):
        expected, found = "names that give each column once", f"{', '.join(twice)} twice"
        raise ConfigError("augment.variants", expected, found, "rename one of them")
    own = {
        "text_key",
        *(["text"] if job.corpus.text != "text" else []),
        *(column for label in labels for column in columns_of(label)),
    }
    taken = own & {job.corpus.id, *job.corpus.keep}
    if taken:
        expected = f"names other than {', '.join(sorted(taken))}, which the augmented units use"
        raise ConfigError("corpus.keep", expected, "these names", "rename the column")
    for each, keep in zip(named, keep_settings(named, job.augment), strict=True):
        own_keep = f"augment.variants.{each.name}.keep"
        check_keep(keep, "augment.keep" if each.settings.keep is None else own_keep)
    for each in named:
        each.augmenter.check()
    if needs_encoder(named, job.augment):
        open_folder(job.encoder)
    return named


def keep_settings(named: Sequence[NamedAugmenter], settings: AugmentSettings) -> list[KeepSettings]:
    """For each augmenter, which of its variants are kept."""
    return [each.settings.keep or settings.keep for each in named]


def needs_encoder(named: Sequence[NamedAugmenter], settings: AugmentSettings) -> bool:
    """Whether a similarity is bounded for any variant."""
    return any(keep.similarity is not None for keep in keep_settings(named, settings))
