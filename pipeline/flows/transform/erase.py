"""Compute the moments of a release again without erased rows."""

from pipeline.config import digest_of
from pipeline.flows.context import FlowContext
from pipeline.flows.rows import LiveRows
from pipeline.flows.transform.moments import live_moments
from pipeline.log import announce
from pipeline.store.records.sealed_json import FileRef, Stored
from pipeline.store.records.write_once import create_record, store_by_content
from pipeline.store.releases.manifest import ReleaseManifest


class _NewMoments(Stored):
    """The moments that replace those of a release."""

    moments: FileRef


def erase_from_moments(
    context: FlowContext, before: ReleaseManifest, after: ReleaseManifest, erased: FileRef, work: str
) -> ReleaseManifest:
    """Return a manifest whose moments are computed from the vectors of its own units.

    Nothing is subtracted from moments with the erased rows. The moments on which a whitening was decided are
    those of an earlier release; if that release is gone they stay, and a message says so.

    Args:
        before: the release with the erased rows.
        after: its manifest with the units and dead rows without them.
        erased: file of the addresses of erased rows.
        work: folder of records that all releases of one erasure share. Earlier releases must come first.
    """
    if before.moments is None:
        return after
    store = context.store
    rows = LiveRows(store, after.space_id, context.job.corpus.id, after.dead)
    moments, live = live_moments(context, rows, tuple(after.units), before)
    merged = store_by_content(store, moments.to_bytes(), "moments/merged", ".safetensors", moments.count)
    units = (
        unit.model_copy(update={"live_moments": file}) for unit, file in zip(after.units, live, strict=True)
    )
    after = after.model_copy(update={"units": tuple(units), "moments": merged})
    create_record(store, _record_path(before.moments, erased, work), _NewMoments(moments=merged))
    if (whitening := after.whitening) is None:
        return after
    new = _NewMoments.load(store, _record_path(whitening.fitted_on, erased, work))
    if new is None:
        announce(
            f"release {before.release}: its {whitening.fitted_on.path} stays. It has the mean and scatter of "
            f"{whitening.fitted_on.rows:,} rows of a release that was pruned, erased rows possibly among them"
        )
        return after
    decision = whitening.model_copy(update={"fitted_on": new.moments})
    return after.model_copy(update={"whitening": decision})


def _record_path(moments: FileRef, erased: FileRef, work: str) -> str:
    """Return the path of the record of the moments that replace a release's."""
    return f"{work}/moments-{digest_of([moments.sha256, erased.sha256])[:24]}.json"
