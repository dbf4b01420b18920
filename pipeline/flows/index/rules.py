"""Rules that decide whether a night extends last night's index or rebuilds it.

Each rule is a function that returns a `Choice` with its numbers; nothing here reads files or measures.
"""

import re
from collections.abc import Sequence

from pipeline.flows.rows import PlacedUnit
from pipeline.index.measured import Measured
from pipeline.index.plan import GIB, IndexPlan
from pipeline.post import Transform
from pipeline.settings import Job
from pipeline.store.manifest import Choice, IndexFiles, ReleaseManifest

Numbers = dict[str, float | int | None]

# As stored in releases.
KEPT, REBUILT = "kept", "built anew"
NEAR_DEAD = "search effort"

# Of the live rows: every query searches the delta too, and every night fills the whole delta again.
MOST_DELTA = 0.10
MOST_TOMBSTONES = 0.05  # of the live rows: they are found, scored and thrown away at every query
MOST_UNEVEN = 1.25  # times the imbalance after training: as many more rows are scanned at the same nprobe
# Recall@10 lost near dead rows: queries there have no neighbours close by, which is harder for any index.
MOST_RECALL_LOST_NEAR_DEAD = 0.1
# Recall@10 lost since the training: a point is three standard errors of the measurement at 500 queries.
MOST_RECALL_LOST = 0.01
# Times the rows at training, or a fraction of them: the number of lists, which should follow their square
# root, is then off by 1.4.
MOST_GROWTH = 2.0
LEAST_KEPT = 0.5  # of last night's rows: if fewer remain, removing rows is more work than adding them
MOST_DEAD_QUERIES = 0.10  # of the queries: with more, they no longer represent the live rows
# Settings that do not change the index itself; the effect of memory_gib shows in the plan.
_NOT_SHAPING = {"shards", "rewrite_gib", "memory_gib"}


def other_settings(job: Job, before: ReleaseManifest, transform: Transform | None, dim: int) -> Choice | None:
    """Rebuild if the job asks for another index than last night's; else None."""
    then, now = before.settings.get("index", {}), job.index.model_dump(mode="json")
    changed = sorted(name for name in {*then, *now} - _NOT_SHAPING if then.get(name) != now.get(name))
    target = before.settings.get("gates", {}).get("recall_at_10")
    if changed:
        names = ", index.".join(changed)
        return _rebuilt(f"built anew: index.{names} is not what release {before.release} was built with")
    if target != job.gates.recall_at_10:
        found = f"is {job.gates.recall_at_10} and was {target}"
        return _rebuilt(f"built anew: gates.recall_at_10, by which the search effort is chosen, {found}")
    if before.transform_id != (transform.transform_id if transform else None):
        return _rebuilt("built anew: the transform is another one, and it moves every vector")
    if before.index.dim != (wanted := transform.k if transform else dim):
        sentence = "built anew: the indexed vectors have another dimension"
        return _rebuilt(sentence, dim=wanted, dim_before=before.index.dim)
    return None


def other_units(units: Sequence[PlacedUnit], before: ReleaseManifest) -> Choice | None:
    """Rebuild if an old unit was replaced, or a new one has an ordinal of last night; else None."""
    known = {unit.ordinal: unit.sha256 for unit in before.units}
    replaced = sum(known.get(placed.ordinal, placed.unit.sha256) != placed.unit.sha256 for placed in units)
    late = sum(placed.ordinal not in known and placed.ordinal < before.next_ordinal for placed in units)
    if not replaced and not late:
        return None
    sentence = f"built anew: {replaced:,} units hold other vectors than in release {before.release}"
    sentence += f", {late:,} are new with an ordinal of before"
    return _rebuilt(sentence, replaced_units=replaced, late_units=late)


def other_kind(plan: IndexPlan, index: IndexFiles) -> Choice | None:
    """Rebuild if tonight's plan has another kind, code or place of the lists than the index; else None.

    The number of lists is not compared.
    """
    on_disk = lists_on_disk(index)
    if plan.kind == index.kind and _codes(plan.factory) == _codes(index.factory) and plan.on_disk == on_disk:
        return None
    places = {True: "with lists on disk", False: "in memory"}
    now, then = f"{plan.factory} {places[plan.on_disk]}", f"{index.factory} {places[on_disk]}"
    return _rebuilt(f"built anew: {now} instead of {then}: {plan.why}", memory_gib=plan.memory_bytes / GIB)


def turnover(kept: int, rows_before: int) -> Choice | None:
    """Rebuild if less than half of last night's rows remain; else None."""
    bound = LEAST_KEPT * rows_before
    if kept >= bound and kept:
        return None
    sentence = f"built anew: {kept:,} of last night's {rows_before:,} rows are left"
    return _rebuilt(sentence, rows_kept=kept, rows_before=rows_before, bound=bound)


def compaction(delta: int, tombstones: int, rows: int) -> Choice:
    """Rebuild if the delta or the tombstones are too large a proportion of the live rows."""
    delta_share, tombstone_share = delta / rows, tombstones / rows
    rebuilt = delta_share > MOST_DELTA or tombstone_share > MOST_TOMBSTONES
    sentence = (
        f"{'built anew: ' * rebuilt}the delta has {delta_share:.2%} of the rows ({MOST_DELTA:.0%} at most), "
        f"tombstones are {tombstone_share:.2%} ({MOST_TOMBSTONES:.0%} at most)"
    )
    numbers: Numbers = {
        "delta_share": delta_share,
        "delta_bound": MOST_DELTA,
        "tombstone_share": tombstone_share,
        "tombstone_bound": MOST_TOMBSTONES,
    }
    chosen = REBUILT if rebuilt else KEPT
    return Choice(what="index compaction", chosen=chosen, sentence=sentence, numbers=numbers)


def training(index: IndexFiles, rows: int, measured: Measured | None) -> Choice:
    """Rebuild if the quantizer no longer fits, by comparison with the values after its training.

    Compared are the number of rows, the imbalance of the lists, and recall@10 at the stored effort, near dead
    rows too. Without lists, rows may come and go, and only recall is compared. There is no rule about the
    proportion of rows that were added and removed since the training, because it does not show whether a
    rebuild would help: in 11 IVF-PQ indexes from which a topic of 4 to 30 % of the rows was deleted (nprobe
    4, 600 queries in that topic), recall@10 was 0.18 to 0.35 when extended, 0.26 on average, and 0.12 to 0.37
    when rebuilt, 0.24 on average. Two trainings differ more than an old and a new one.

    Args:
        index: last night's.
        measured: None before the index is measured.
    """
    then = index.trained_on
    rows_then, near_then = int(then.get("rows") or 0), then.get("recall_near_dead")
    imbalance_then, recall_then = then.get("imbalance") or 1.0, then.get("recall_at_10") or 0.0
    numbers: Numbers = {"rows": rows, "rows_trained_on": rows_then, "growth_bound": MOST_GROWTH}
    faults = []
    if index.settings.get("nlist") and not rows_then / MOST_GROWTH < rows < rows_then * MOST_GROWTH:
        faults.append(f"rows are {rows:,} and were {rows_then:,} when the quantizer was trained")
    kept = f"{rows:,} rows, {rows_then:,} at the training"
    trains = re.search("IVF|PQ|SQ", index.factory) is not None
    if measured is not None:
        imbalance, recall = measured.imbalance, measured.recall["10"].value
        most, least = imbalance_then * MOST_UNEVEN, recall_then - MOST_RECALL_LOST
        numbers |= {"imbalance": imbalance, "imbalance_bound": most}
        numbers |= {"recall_at_10": recall, "recall_bound": least}
        if imbalance > most:
            change = f"from {imbalance_then:.3f} to {imbalance:.3f}, by more than {MOST_UNEVEN - 1:.0%}"
            faults.append(f"the lists' imbalance rose {change}")
        if recall < least:
            change = f"from {recall_then:.4f} to {recall:.4f}, by more than {MOST_RECALL_LOST:g}"
            faults.append(f"recall@10 fell {change}")
        if (near := measured.recall_near_dead) is not None:
            numbers["recall_near_dead"] = near.value
            after = recall_then if near_then is None else min(recall_then, near_then)
            if near.high < after - MOST_RECALL_LOST_NEAR_DEAD:
                bound = f"by more than {MOST_RECALL_LOST_NEAR_DEAD:g} with its whole interval"
                found = f"{near.value:.4f}, below the {after:.4f} after training {bound}"
                faults.append(f"recall@10 near dead rows is {found}")
        kept = f"the quantizer is kept: imbalance {imbalance:.3f} ({imbalance_then:.3f} after training)"
        kept += f", recall@10 {recall:.4f} ({recall_then:.4f})"
        if not trains:
            kept = f"Recall@10 of the extended index is {recall:.4f}; "
            kept += f"it was {recall_then:.4f} when it was built."
    sentence = f"{'trained and ' * trains}built anew: {'; '.join(faults)}" if faults else kept
    chosen = REBUILT if faults else KEPT
    return Choice(what="index training", chosen=chosen, sentence=sentence, numbers=numbers)


def near_dead(measured: Measured, wanted: float) -> Choice | None:
    """Record how the index answers queries near dead rows; None if there are too few such queries.

    Args:
        wanted: recall@10 that the search effort is chosen for.
    """
    if (found := measured.recall_near_dead) is None:
        return None
    value, effort, before = found.value, measured.effort, measured.raised_from
    sentence = f"recall@10 near dead rows is {value:.4f} ({found.trials:,} answers), {wanted:g} is wanted"
    if before:
        sentence += f"; {measured.effort_name} was raised from {before} to {effort} for it"
    if value < wanted - MOST_RECALL_LOST_NEAR_DEAD:
        sentence += "; a higher index.nprobe or a more exact index.kind finds more"
    numbers = {"recall_near_dead": value, "wanted": wanted, "effort": effort, "raised_from": before}
    chosen = "raised" if before else KEPT
    return Choice(what=NEAR_DEAD, chosen=chosen, sentence=sentence, numbers=numbers)


def near_dead_warnings(choices: Sequence[Choice]) -> list[str]:
    """Warn if recall near dead rows is far below the wanted one, by the choices of a release."""
    found = [(choice, choice.numbers) for choice in choices if choice.what == NEAR_DEAD]
    bound = MOST_RECALL_LOST_NEAR_DEAD
    return [
        f"searches for what was deleted miss rows that live: {choice.sentence}"
        for choice, numbers in found
        if (numbers["recall_near_dead"] or 0.0) < (numbers["wanted"] or 0.0) - bound
    ]


def unusable(reason: str) -> Choice:
    """Rebuild because last night's files are damaged or do not fit."""
    return _rebuilt(f"built anew: last night's index cannot be extended: {reason}")


def stands_apart(plan: IndexPlan, index: IndexFiles, rewrite_gib: float) -> str:
    """Return why new rows get a delta beside the base; empty if they are added to last night's index."""
    if index.parts > 1:
        return "the index has two parts until they are built into one"
    if lists_on_disk(index):
        return "its lists are on disk"
    if not plan.removable:
        return f"{index.factory} cannot forget rows"
    size = sum(file.bytes for file in index.files) / GIB
    if size > rewrite_gib:
        return f"its file of {size:.1f} GiB is larger than index.rewrite_gib ({rewrite_gib:g})"
    return ""


def lists_on_disk(index: IndexFiles) -> bool:
    """Return whether the index keeps its lists in a second file."""
    return any(file.path.endswith(".ivfdata") for file in index.files)


def _rebuilt(sentence: str, **numbers: float | int | None) -> Choice:
    return Choice(what="index", chosen=REBUILT, sentence=sentence, numbers=numbers)


def _codes(factory: str) -> str:
    """Return the factory string without the coarse quantizer, which follows the number of rows."""
    return re.sub(r"IVF\d+(_HNSW\d+)?", "IVF", factory)
