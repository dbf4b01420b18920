"""The drift of the vectors from one release to another, and the settings that differ."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.errors import DataError
from pipeline.log import announce
from pipeline.settings import Job
from pipeline.stats.drift import Drift, drift
from pipeline.stats.moments import Moments
from pipeline.store.files.base import Store
from pipeline.store.releases.manifest import ReleaseManifest


def measure_drift(store: Store, before: ReleaseManifest, after: ReleaseManifest) -> Drift | None:
    """Return the drift of the vectors; None if it is unknown.

    It is unknown if the spaces differ, moments are missing, there are too few rows, or all earlier vectors
    are equal.

    If there are no more rows than dimensions, their covariance is singular: a single changed row, in a
    direction without variance before, would then count as a huge spread.
    """
    if before.moments is None or after.moments is None or before.space_id != after.space_id:
        return None
    try:
        earlier, later = (Moments.from_bytes(each.read(store)) for each in (before.moments, after.moments))
    except FileNotFoundError as error:
        announce(f"the drift is not measured: {error.filename or error} is gone")
        return None
    if min(earlier.count, later.count) <= len(earlier.mean):
        return None
    try:
        return drift(earlier, later)
    except DataError:  # the earlier vectors are equal
        return None


def differing_settings(before: ReleaseManifest, after: ReleaseManifest) -> dict[str, tuple[Any, Any]]:
    """Return `differing_values` of the settings of two releases."""
    return differing_values(before.settings, after.settings)


def differing_values(before: dict[str, Any], after: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the (earlier, later) values of the settings that differ, by their full names, in order.

    A setting that an earlier version of Manta did not have counts as its default.
    """
    settings = pair_values(*(dict(_flatten(_with_defaults(each))) for each in (before, after)))
    return {name: (old, new) for name, (old, new) in sorted(settings.items()) if old != new}


def _with_defaults(settings: dict[str, Any]) -> dict[str, Any]:
    """Return all settings of a release; only the stored ones if this version cannot read them."""
    try:
        return Job.model_validate(settings).model_dump(mode="json")
    except ValueError:
        return settings


def pair_values(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the (before, after) values by name; None for a name that one of them lacks."""
    return {name: (before.get(name), after.get(name)) for name in {**before, **after}}


def _flatten(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield settings by their full names, such as whiten.k."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
