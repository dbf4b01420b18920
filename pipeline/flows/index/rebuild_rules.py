"""Rules that decide whether a night extends last night's index or rebuilds it.

A rule returns its decision as a `Choice`, with the numbers that it compared. No rule reads files or measures.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from pipeline.flows.index.records import BuiltIndex
from pipeline.flows.index.survey import SurveyResult
from pipeline.index.build.index_shape import GIB, IndexPlan, codes_of
from pipeline.index.measure.metrics import IndexMetrics
from pipeline.settings import IndexSettings, Job
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.releases.manifest import Choice, IndexFiles, ReleaseManifest
from pipeline.transforms.transform import Transform

Numbers = dict[str, float | int | None]

# Values of Choice.chosen and Choice.what. Releases store them, so their words do not change.
KEPT, REBUILT = "kept", "built anew"
NEAR_DEAD, FOR_USERS = "search effort", "search effort for gates.queries"

# Limit of the delta as a proportion of the live rows. Every query searches the delta as well, and every night
# fills the whole delta again.
MAX_DELTA = 0.10
# Limit of the tombstones as a proportion of the live rows. Every query scores them and discards them.
MAX_TOMBSTONES = 0.05
# Limit of the imbalance, relative to the imbalance after training. The higher the imbalance, the more rows a
# query scans at the same nprobe.
MAX_IMBALANCE_GROWTH = 1.25
# Limit of the loss of recall@10 near dead rows. It is wide, since queries without close neighbours are hard
# for any index.
MAX_RECALL_LOSS_NEAR_DEAD = 0.1
# Limit of the loss of recall@10 since training: three standard errors of a measurement with 500 queries.
MAX_RECALL_LOSS = 0.01
# Limit of the growth or shrinkage of the rows since training. The number of lists should follow the square
# root of the rows; at this limit it is off by a factor of 1.4.
MAX_GROWTH = 2.0
# Least proportion of last night's rows that must remain. If fewer remain, removing the others is more work
# than adding the remaining ones to a new index.
MIN_KEPT = 0.5
# Limit of the proportion of queries whose rows are dead. With more, queries do not represent the live rows.
MAX_DEAD_QUERIES = 0.10
# Settings that do not change the index, or change only its plan, which is compared (memory_gib).
_IGNORED_SETTINGS = {"shards", "rewrite_gib", "memory_gib", "part_gib"}


def nothing_to_extend(
    previous: ReleaseManifest | None, space_id: str, *, new_addresses: bool
) -> Choice | None:
    """Decide to build an index if no release has vectors of this space at tonight's addresses; else None."""
    if previous is None:
        return _rebuilt("built from scratch: the first of this root")
    if new_addresses:
        return _rebuilt("built from scratch: all rows have new addresses")
    if previous.space_id != space_id:
        return _rebuilt("built from scratch: the vectors are of another space")
    return None


def changed_settings(
    job: Job, previous: ReleaseManifest, transform: Transform | None, dim: int
) -> Choice | None:
    """Decide to rebuild if the job asks for another index than the previous release's; else None.

    A setting that the version of that release did not have yet counts as the default.
    """
    defaults, wanted = (each.model_dump(mode="json") for each in (IndexSettings(), job.index))
    old = defaults | previous.settings.get("index", {})
    names = {*old, *wanted} - _IGNORED_SETTINGS
    changed = sorted(name for name in names if old.get(name) != wanted.get(name))
    target = previous.settings.get("gates", {}).get("recall_at_10")
    if changed:
        found = ", ".join(f"index.{name}" for name in changed)
        return _rebuilt(f"built from scratch: settings changed since release {previous.release}: {found}")
    if target != job.gates.recall_at_10:
        found = f"is {job.gates.recall_at_10} and was {target}"
        return _rebuilt(
            f"built from scratch: gates.recall_at_10, by which the search effort is chosen, {found}"
        )
    if previous.transform_id != (transform.transform_id if transform else None):
        return _rebuilt("built from scratch: the transform has changed, and with it every vector")
    if previous.index.dim != (dim_now := transform.k if transform else dim):
        sentence = "built from scratch: the indexed vectors have another dimension"
        return _rebuilt(sentence, dim=dim_now, dim_before=previous.index.dim)
    return None


def changed_units(units: Sequence[VectorUnit], previous: ReleaseManifest) -> Choice | None:
    """Decide to rebuild if an old unit was replaced, or a new one has an old ordinal; else None."""
    known = {unit.ordinal: unit.sha256 for unit in previous.units}
    replaced = sum(known.get(unit.ordinal, unit.sha256) != unit.sha256 for unit in units)
    late = sum(unit.ordinal not in known and unit.ordinal < previous.next_ordinal for unit in units)
    if not replaced and not late:
        return None
    sentence = f"built from scratch: {replaced:,} units hold other vectors than in release {previous.release}"
    sentence += f", {late:,} are new but have an ordinal that only old units have"
    return _rebuilt(sentence, replaced_units=replaced, late_units=late)


def changed_kind(plan: IndexPlan, index: IndexFiles) -> Choice | None:
    """Decide to rebuild if the plan differs from the index in kind, code or storage of the lists; else None.

    The number of lists is not compared.
    """
    on_disk = lists_on_disk(index)
    if (
        plan.kind == index.kind
        and codes_of(plan.factory) == codes_of(index.factory)
        and plan.on_disk == on_disk
    ):
        return None
    storage = {True: "with lists on disk", False: "in memory"}
    planned, found = f"{plan.factory} {storage[plan.on_disk]}", f"{index.factory} {storage[on_disk]}"
    return _rebuilt(
        f"built from scratch: {planned} instead of {found}: {plan.why}", memory_gib=plan.memory_bytes / GIB
    )


def turnover(kept: int, rows_before: int) -> Choice | None:
    """Decide to rebuild if less than half of last night's rows remain; else None."""
    bound = MIN_KEPT * rows_before
    if kept >= bound and kept:
        return None
    sentence = f"built from scratch: {kept:,} of last night's {rows_before:,} rows are left"
    return _rebuilt(sentence, rows_kept=kept, rows_before=rows_before, bound=bound)


def compaction(delta: int, tombstones: int, rows: int) -> Choice:
    """Decide to rebuild if the delta or the tombstones exceed their limits, else to keep the index."""
    delta_share, tombstone_share = delta / rows, tombstones / rows
    rebuilt = delta_share > MAX_DELTA or tombstone_share > MAX_TOMBSTONES
    sentence = (
        f"{'built from scratch: ' * rebuilt}the delta has {delta_share:.2%} of the rows "
        f"({MAX_DELTA:.0%} at most), tombstones are {tombstone_share:.2%} ({MAX_TOMBSTONES:.0%} at most)"
    )
    numbers: Numbers = {
        "delta_share": delta_share,
        "delta_bound": MAX_DELTA,
        "tombstone_share": tombstone_share,
        "tombstone_bound": MAX_TOMBSTONES,
    }
    chosen = REBUILT if rebuilt else KEPT
    return Choice(what="index compaction", chosen=chosen, sentence=sentence, numbers=numbers)


def quantizer_fit(index: IndexFiles, rows: int, measured: IndexMetrics | None) -> Choice:
    """Decide to rebuild if the quantizer no longer fits the rows, else to keep it.

    The number of rows, the imbalance of the lists, and recall@10 at the stored effort, also near dead rows,
    are compared with their values after the training. For an index without lists only recall is compared.

    No rule limits the proportion of rows that were added and removed since the training, because it does not
    predict whether a rebuild helps. Measured on 11 IVF-PQ indexes from which a topic of 4 to 30 % of the rows
    was deleted (nprobe 4, 600 queries in that topic): recall@10 was 0.18 to 0.35 when extended, 0.26 on
    average, and 0.12 to 0.37 when rebuilt, 0.24 on average. Trainings with different samples differed more.

    Args:
        index: last night's index.
        rows: number of tonight's live rows.
        measured: measurements of the extended index; None before it is measured.
    """
    rows_then = int(index.trained_on.get("rows") or 0)
    numbers: Numbers = {"rows": rows, "rows_trained_on": rows_then, "growth_bound": MAX_GROWTH}
    faults = []
    if index.settings.get("nlist") and not rows_then / MAX_GROWTH < rows < rows_then * MAX_GROWTH:
        faults.append(f"rows are {rows:,} and were {rows_then:,} when the quantizer was trained")
    if measured is not None:
        exceeded, compared = _compare_with_training(index, measured)
        faults += exceeded
        numbers |= compared
    has_quantizer = re.search("IVF|PQ|SQ", index.factory) is not None
    if faults:
        work = "trained and built from scratch" if has_quantizer else "built from scratch"
        sentence = f"{work}: {'; '.join(faults)}"
    elif measured is None:
        sentence = f"{rows:,} rows, {rows_then:,} at the training"
    else:
        sentence = _kept_sentence(index, measured, has_quantizer)
    chosen = REBUILT if faults else KEPT
    return Choice(what="index training", chosen=chosen, sentence=sentence, numbers=numbers)


def _compare_with_training(index: IndexFiles, measured: IndexMetrics) -> tuple[list[str], Numbers]:
    """Return a sentence on each metric beyond its limit, and the compared metrics with their limits."""
    then = _metrics_after_training(index)
    imbalance, recall = measured.imbalance, measured.recall["10"].value
    most, least = then.imbalance * MAX_IMBALANCE_GROWTH, then.recall_at_10 - MAX_RECALL_LOSS
    numbers: Numbers = {"imbalance": imbalance, "imbalance_bound": most}
    numbers |= {"recall_at_10": recall, "recall_bound": least}
    exceeded = []
    if imbalance > most:
        change = f"from {then.imbalance:.3f} to {imbalance:.3f}, by more than {MAX_IMBALANCE_GROWTH - 1:.0%}"
        exceeded.append(f"the lists' imbalance rose {change}")
    if recall < least:
        change = f"from {then.recall_at_10:.4f} to {recall:.4f}, by more than {MAX_RECALL_LOSS:g}"
        exceeded.append(f"recall@10 fell {change}")
    if (near := measured.recall_near_dead) is not None:
        numbers["recall_near_dead"] = near.value
        reference = then.recall_at_10
        if then.recall_near_dead is not None:
            reference = min(reference, then.recall_near_dead)
        if near.high < reference - MAX_RECALL_LOSS_NEAR_DEAD:
            interval = f"{near.value:.4f} (95 % interval up to {near.high:.4f})"
            loss = f"more than {MAX_RECALL_LOSS_NEAR_DEAD:g} below the {reference:.4f} after training"
            exceeded.append(f"recall@10 near dead rows is {interval}, {loss}")
    return exceeded, numbers


def _kept_sentence(index: IndexFiles, measured: IndexMetrics, has_quantizer: bool) -> str:
    then, recall = _metrics_after_training(index), measured.recall["10"].value
    if not has_quantizer:
        first = then.recall_at_10
        return f"recall@10 of the extended index is {recall:.4f}; it was {first:.4f} when it was built"
    found = f"imbalance {measured.imbalance:.3f} ({then.imbalance:.3f} after training)"
    return f"the quantizer is kept: {found}, recall@10 {recall:.4f} ({then.recall_at_10:.4f})"


class _TrainedMetrics(NamedTuple):
    """Metrics of an index after its training."""

    imbalance: float
    recall_at_10: float
    recall_near_dead: float | None
    """None if it was not measured"""


def _metrics_after_training(index: IndexFiles) -> _TrainedMetrics:
    then = index.trained_on
    return _TrainedMetrics(
        then.get("imbalance") or 1.0, then.get("recall_at_10") or 0.0, then.get("recall_near_dead")
    )


def near_dead(measured: IndexMetrics, wanted: float) -> Choice | None:
    """Describe how well the index answers queries near dead rows; None if there are too few such queries.

    Args:
        wanted: recall@10 that the search effort is chosen for.
    """
    if (found := measured.recall_near_dead) is None:
        return None
    value, raised_from = found.value, measured.raised_from
    effort = measured.effort if measured.rows_effort is None else measured.rows_effort
    sentence = f"recall@10 near dead rows is {value:.4f} ({found.trials:,} answers); the target is {wanted:g}"
    if raised_from:
        sentence += f"; {measured.effort_name} was raised from {raised_from} to {effort} for it"
    if value < wanted - MAX_RECALL_LOSS_NEAR_DEAD:
        sentence += "; raise index.nprobe, or choose a more exact index.kind"
    numbers = {"recall_near_dead": value, "wanted": wanted, "effort": effort, "raised_from": raised_from}
    chosen = "raised" if raised_from else KEPT
    return Choice(what=NEAR_DEAD, chosen=chosen, sentence=sentence, numbers=numbers)


def for_users(measured: IndexMetrics, wanted: float) -> Choice | None:
    """Describe the search effort that queries of gates.queries need, and its cost; None without such texts.

    Args:
        wanted: their recall@10 that the effort is chosen for.
    """
    if (found := measured.user_recall) is None:
        return None
    name, effort, rows_effort = measured.effort_name, measured.effort, measured.rows_effort
    points = {point.effort: point for point in measured.user_curve}
    before, now = points.get(rows_effort or 0), points.get(effort or 0)
    numbers: Numbers = {"recall_at_10": found.value, "wanted": wanted, "effort": effort}
    numbers |= {"rows_effort": rows_effort, "texts": measured.user_queries}
    if effort is None:
        sentence = f"recall@10 of gates.queries is {found.value:.4f}; a search scores all rows"
        return Choice(what=FOR_USERS, chosen=KEPT, sentence=sentence, numbers=numbers)
    if effort == rows_effort:
        target = f"the target is {wanted:g}" if wanted else "it is only reported"
        sentence = f"at {name} {effort}, recall@10 of gates.queries is {found.value:.4f}; {target}"
        return Choice(what=FOR_USERS, chosen=KEPT, sentence=sentence, numbers=numbers)
    sentence = (
        f"{name} is {effort}{f' of {measured.nlist:,} lists' if measured.nlist else ''} instead of "
        f"{rows_effort}, since gates.queries need more than rows"
    )
    if before and now:
        change = f"from {before.recall_at_10:.4f} to {now.recall_at_10:.4f}"
        cost = f"from {before.query_ms:.3g} to {now.query_ms:.3g} ms"
        sentence += f": on one half of them recall@10 rises {change}, and the time of a query {cost}"
        numbers |= {"recall_at_rows_effort": before.recall_at_10, "recall_at_effort": now.recall_at_10}
        numbers |= {"ms_at_rows_effort": before.query_ms, "ms": now.query_ms}
    return Choice(what=FOR_USERS, chosen="raised", sentence=sentence, numbers=numbers)


def near_dead_warnings(choices: Sequence[Choice]) -> list[str]:
    """Return a warning if, by a release's choices, recall near dead rows is far below the target."""
    found = [(choice, choice.numbers) for choice in choices if choice.what == NEAR_DEAD]
    return [
        f"searches near deleted rows miss live rows: {choice.sentence}"
        for choice, numbers in found
        if (numbers["recall_near_dead"] or 0.0) < (numbers["wanted"] or 0.0) - MAX_RECALL_LOSS_NEAR_DEAD
    ]


def unusable_files(reason: str | None) -> Choice | None:
    """Decide to rebuild, for the reason that last night's files cannot be used; None without a reason."""
    if reason is None:
        return None
    return _rebuilt(f"built from scratch: last night's index cannot be extended: {reason}")


def delta_reason(plan: IndexPlan, index: IndexFiles, rewrite_gib: float) -> str | None:
    """Return the reason to put new rows into a delta; None if they are added to last night's file."""
    if index.delta_ids:
        return "the index has a delta already, which only a rebuild joins with its base"
    if lists_on_disk(index):
        return "its lists are on disk"
    if not plan.removable:
        return f"rows cannot be removed from {index.factory}"
    size = sum(file.bytes for file in index.files) / GIB
    if size > rewrite_gib:
        return f"its file of {size:.1f} GiB is larger than index.rewrite_gib ({rewrite_gib:g})"
    return None


def extended(
    built: BuiltIndex, survey: SurveyResult, new_rows: int, reason: str | None, rewrite_gib: float
) -> Choice:
    """Describe how last night's index was extended: changed in place, or by a delta and tombstones.

    Args:
        new_rows: number of live rows in tonight's units.
        reason: reason for a delta; None if the index was changed in place.
    """
    removed, dead = survey.gone_rows, survey.tombstone_rows
    numbers: dict[str, float | int | None] = {
        "rows": built.rows,
        "new_rows": new_rows,
        "gone_rows": removed,
        "parts": built.parts,
        "file_gib": built.measured.file_bytes / GIB,
        "rewrite_bound_gib": rewrite_gib,
    }
    changed = f"{new_rows:,} rows added, {removed:,} removed"
    if reason is None:
        sentence = f"last night's index, changed in place: {changed}"
        return Choice(what="index", chosen="in place", sentence=sentence, numbers=numbers)
    numbers |= {"delta_rows": survey.delta, "tombstones": dead}
    sentence = f"base, delta and tombstones, since {reason}: {changed}"
    sentence += f"; the delta has {survey.delta:,} rows, the base {dead:,} dead ones"
    return Choice(what="index", chosen="base and delta", sentence=sentence, numbers=numbers)


def lists_on_disk(index: IndexFiles) -> bool:
    """Return whether the lists of the index are in a second file."""
    return any(file.path.endswith(".ivfdata") for file in index.files)


def _rebuilt(sentence: str, **numbers: float | int | None) -> Choice:
    return Choice(what="index", chosen=REBUILT, sentence=sentence, numbers=numbers)
