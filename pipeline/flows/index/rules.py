"""By what numbers a night extends last night's index or builds it anew.

Each rule is a `Choice` with its numbers; nothing here reads or measures.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.flows.rows import Placed
from pipeline.index.measured import Measured
from pipeline.index.plan import GIB, IndexPlan
from pipeline.post import Transform
from pipeline.settings import Job
from pipeline.store.manifest import Choice, IndexFiles, ReleaseManifest

KEPT, ANEW = "kept", "built anew"
NEAR_DEAD = "search effort"

MOST_DELTA = (
    0.10  # of the live rows: every query searches the delta too, and every night fills it again as a whole
)
MOST_TOMBSTONES = 0.05  # of the live rows: they are found, scored and thrown away at every query
MOST_UNEVEN = 1.25  # imbalance over that after training: scanned rows grow by as much at the same nprobe
# as much where rows were taken out: queries there have no neighbours close by, which is harder for any index
MOST_RECALL_LOST_NEAR_DEAD = 0.1
# recall@10 below that after training: a point, three standard errors of the measurement at 500 queries
MOST_RECALL_LOST = 0.01
# rows over those at training, or under: the number of lists goes with their square root and is then off by
# 1.4
MOST_GROWTH = 2.0
LEAST_KEPT = 0.5  # of last night's rows: with fewer left, taking rows out is more work than putting them in
MOST_DEAD_QUERIES = (
    0.10  # of the rows asked as queries: beyond that they no longer stand for what is searched
)
_NOT_SHAPING = (
    "shards",
    "rewrite_gib",
    "memory_gib",
)  # how it is built; what memory_gib allows shows in the plan


def other_settings(job: Job, before: ReleaseManifest, transform: Transform | None, dim: int) -> Choice | None:
    """Built anew, where the job asks for another index than last night's; else None."""
    was, now = before.settings.get("index", {}), job.index.model_dump(mode="json")
    changed = sorted(name for name in {*was, *now} - set(_NOT_SHAPING) if was.get(name) != now.get(name))
    target = before.settings.get("gates", {}).get("recall_at_10")
    if changed:
        return _anew(
            f"built anew: index.{', index.'.join(changed)} is not what release {before.release} was "
            "built with"
        )
    if target != job.gates.recall_at_10:
        return _anew(
            "built anew: gates.recall_at_10, by which the search effort is chosen, is "
            f"{job.gates.recall_at_10} and was {target}"
        )
    if before.transform_id != (transform.transform_id if transform else None):
        return _anew("built anew: the transform is another one, and it moves every vector")
    wanted = transform.k if transform else dim
    if before.index.dim != wanted:
        return _anew(
            "built anew: the indexed vectors have another dimension", dim=wanted, dim_before=before.index.dim
        )
    return None


def other_units(units: Sequence[Placed], before: ReleaseManifest) -> Choice | None:
    """Built anew, where a unit of last night's index was replaced, or stands where no new one can; else None."""
    known = {unit.ordinal: unit.sha256 for unit in before.units}
    replaced = sum(known.get(placed.ordinal, placed.unit.sha256) != placed.unit.sha256 for placed in units)
    late = sum(placed.ordinal not in known and placed.ordinal < before.next_ordinal for placed in units)
    if replaced or late:
        sentence = (
            f"built anew: {replaced:,} units hold other vectors than in release {before.release}, {late:,} "
            "are new with an ordinal of before"
        )
        return _anew(sentence, replaced_units=replaced, late_units=late)
    return None


def other_kind(plan: IndexPlan, index: IndexFiles) -> Choice | None:
    """Built anew, where tonight's plan is of another kind, code or place than the index there is; else None.

    The number of lists is not compared.
    """
    on_disk = lists_on_disk(index)
    if plan.kind == index.kind and _codes(plan.factory) == _codes(index.factory) and plan.on_disk == on_disk:
        return None
    places = {True: "with lists on disk", False: "in memory"}
    sentence = (
        f"built anew: {plan.factory} {places[plan.on_disk]} instead of {index.factory} {places[on_disk]}: "
        f"{plan.why}"
    )
    return _anew(sentence, memory_gib=plan.memory_bytes / GIB)


def turnover(kept: int, rows_before: int) -> Choice | None:
    """Built anew, where fewer than half of last night's rows are left; else None."""
    if kept >= LEAST_KEPT * rows_before and kept:
        return None
    return _anew(
        f"built anew: {kept:,} of last night's {rows_before:,} rows are left",
        rows_kept=kept,
        rows_before=rows_before,
        bound=LEAST_KEPT * rows_before,
    )


def compaction(delta: int, tombstones: int, rows: int) -> Choice:
    """Whether base and delta become one again: delta and tombstones as shares of the live rows."""
    shares = delta / rows, tombstones / rows
    anew = shares[0] > MOST_DELTA or shares[1] > MOST_TOMBSTONES
    sentence = (
        f"{'built anew: ' if anew else ''}the delta has {shares[0]:.2%} of the rows ({MOST_DELTA:.0%} "
        "at most), "
        f"tombstones are {shares[1]:.2%} ({MOST_TOMBSTONES:.0%} at most)"
    )
    numbers = {
        "delta_share": shares[0],
        "delta_bound": MOST_DELTA,
        "tombstone_share": shares[1],
        "tombstone_bound": MOST_TOMBSTONES,
    }
    return Choice(what="index compaction", chosen=ANEW if anew else KEPT, sentence=sentence, numbers=numbers)


def training(index: IndexFiles, rows: int, measured: Measured | None) -> Choice:
    """Whether the quantizer still fits: rows, imbalance of the lists and recall@10 at the stored effort
    against those after its training.

    index: last night's. measured: None before anything was measured. Where there are no lists, rows may come
        and go, and recall alone is asked for.
    """
    then = _After.training(index.trained_on)
    numbers: dict[str, float | int | None] = {
        "rows": rows,
        "rows_trained_on": then.rows,
        "growth_bound": MOST_GROWTH,
    }
    faults = then.growth(rows) if index.settings.get("nlist") else []
    if measured is not None:
        imbalance, recall = measured.imbalance, measured.recall["10"].value
        numbers |= {
            "imbalance": imbalance,
            "imbalance_bound": then.imbalance * MOST_UNEVEN,
            "recall_at_10": recall,
            "recall_bound": then.recall - MOST_RECALL_LOST,
        }
        faults += then.wear(imbalance, recall)
        if (near := measured.recall_near_dead) is not None:
            numbers["recall_near_dead"] = near.value
            faults += then.holes(near.value, near.high)
    trains = re.search("IVF|PQ|SQ", index.factory) is not None
    sentence = (
        f"{'trained and ' * trains}built anew: {'; '.join(faults)}" if faults else then.fits(numbers, trains)
    )
    return Choice(what="index training", chosen=ANEW if faults else KEPT, sentence=sentence, numbers=numbers)


def near_dead(measured: Measured, wanted: float) -> Choice | None:
    """Record how the index answers queries near dead rows; None if too few queries are.

    Args:
        measured: of the index.
        wanted: recall@10 that the search effort is chosen for.
    """
    if (near := measured.recall_near_dead) is None:
        return None
    name, effort, before = measured.effort_name, measured.effort, measured.raised_from
    raised = f"; {name} was raised from {before} to {effort} for it" if before else ""
    found = f"recall@10 near dead rows is {near.value:.4f} ({near.trials:,} answers)"
    low = near.value < wanted - MOST_RECALL_LOST_NEAR_DEAD
    remedy = "; a higher index.nprobe or a more exact index.kind finds more" if low else ""
    return Choice(
        what=NEAR_DEAD,
        chosen="raised" if before else KEPT,
        sentence=f"{found}, {wanted:g} is wanted{raised}{remedy}",
        numbers={
            "recall_near_dead": near.value,
            "wanted": wanted,
            "effort": effort,
            "raised_from": before,
        },
    )


def near_dead_warnings(choices: Sequence[Choice]) -> list[str]:
    """Warnings about recall near dead rows that is far from what is wanted, by the choices of a release."""
    found = [(choice, choice.numbers) for choice in choices if choice.what == NEAR_DEAD]
    bound = MOST_RECALL_LOST_NEAR_DEAD
    return [
        f"searches for what was deleted miss rows that live: {choice.sentence}"
        for choice, numbers in found
        if (numbers["recall_near_dead"] or 0.0) < (numbers["wanted"] or 0.0) - bound
    ]


def unusable(reason: str) -> Choice:
    """Built anew, because last night's files are not what they should be."""
    return _anew(f"built anew: last night's index cannot be extended: {reason}")


def stands_apart(plan: IndexPlan, index: IndexFiles, rewrite_gib: float) -> str:
    """Why the new rows get a part of their own beside the base; empty where they go into last night's index."""
    if index.parts > 1:
        return "the index has two parts until they are built into one"
    if lists_on_disk(index):
        return "its lists are on disk"
    if not plan.removable:
        return f"{index.factory} cannot forget rows"
    size = sum(reference.bytes for reference in index.files) / GIB
    return (
        f"its file of {size:.1f} GiB is larger than index.rewrite_gib ({rewrite_gib:g})"
        if size > rewrite_gib
        else ""
    )


def lists_on_disk(index: IndexFiles) -> bool:
    """Whether the index keeps its lists in a second file."""
    return any(reference.path.endswith(".ivfdata") for reference in index.files)


@dataclass(frozen=True)
class _After:
    """The figures after training."""

    rows: int
    imbalance: float
    recall: float
    near_dead: float | None = None

    @classmethod
    def training(cls, trained_on: dict[str, float | int | None]) -> "_After":
        return cls(
            int(trained_on.get("rows") or 0),
            trained_on.get("imbalance") or 1.0,
            trained_on.get("recall_at_10") or 0.0,
            trained_on.get("recall_near_dead"),
        )

    def growth(self, rows: int) -> list[str]:
        fits = self.rows / MOST_GROWTH < rows < self.rows * MOST_GROWTH
        return [] if fits else [f"rows are {rows:,} and were {self.rows:,} when the quantizer was trained"]

    def wear(self, imbalance: float, recall: float) -> list[str]:
        faults = []
        if imbalance > self.imbalance * MOST_UNEVEN:
            faults.append(
                f"the lists' imbalance rose from {self.imbalance:.3f} to {imbalance:.3f}, by more than "
                f"{MOST_UNEVEN - 1:.0%}"
            )
        if recall < self.recall - MOST_RECALL_LOST:
            faults.append(
                f"recall@10 fell from {self.recall:.4f} to {recall:.4f}, by more than {MOST_RECALL_LOST:g}"
            )
        return faults

    def holes(self, recall: float, high: float) -> list[str]:
        """Faults by recall@10 of queries whose own row is dead; high: the upper end of its 95 % interval."""
        after = self.recall if self.near_dead is None else min(self.recall, self.near_dead)
        lost = high < after - MOST_RECALL_LOST_NEAR_DEAD
        bound = f"by more than {MOST_RECALL_LOST_NEAR_DEAD:g} with its whole interval"
        return (
            [f"recall@10 near dead rows is {recall:.4f}, below the {after:.4f} after training {bound}"]
            if lost
            else []
        )

    def fits(self, numbers: dict[str, float | int | None], trains: bool) -> str:
        """Why the index is kept. trains: whether its kind has anything that was trained."""
        if not trains and "recall_at_10" in numbers:
            return (
                f"Recall@10 of the extended index is {numbers['recall_at_10']:.4f}; it was "
                f"{self.recall:.4f} when it was built."
            )
        if "imbalance" not in numbers:
            return f"{numbers['rows']:,} rows, {self.rows:,} at the training"
        found = (
            f"imbalance {numbers['imbalance']:.3f} ({self.imbalance:.3f} after training), recall@10 "
            f"{numbers['recall_at_10']:.4f} ({self.recall:.4f})"
        )
        return f"the quantizer is kept: {found}"


def _anew(sentence: str, **numbers: float | int | None) -> Choice:
    return Choice(what="index", chosen=ANEW, sentence=sentence, numbers=numbers)


def _codes(factory: str) -> str:
    """The factory string without the number of lists and how they are found, which follow the rows."""
    return re.sub(r"IVF\d+(_HNSW\d+)?", "IVF", factory)
