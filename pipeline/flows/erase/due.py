"""The part of a night that erases rows that were deleted from the corpus release.erase_after_days ago.

This is a module of its own beside `deleted`, so that nights without the setting load no code of erasures.
"""

from functools import partial

from pipeline.flows.night.follow_up import Facts, run_step
from pipeline.log import Stages
from pipeline.settings import ReleaseSettings
from pipeline.store.releases.release import Releases
from pipeline.text.formats.excluded_ids import read_ids


def erase_due(settings: ReleaseSettings, releases: Releases, stages: Stages) -> list[Facts]:
    """Erase rows that were deleted long ago. Returns the step, which may have failed, if the setting is set.

    Raises:
        ConfigError, DataError: the file of protected ids cannot be read.
    """
    named = settings.protected
    protected = frozenset(read_ids(named, "release.protected") if named is not None else ())
    if (days := settings.erase_after_days) is None:
        return []
    from pipeline.flows.erase.deleted import erase_deleted  # other nights need not load it

    return [run_step("erase", partial(erase_deleted, releases, days, protected, stages))]
