"""Choose the rows to erase: by ids, or by a condition. Ids that the corpus still has are refused."""

from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ConfigError
from pipeline.flows.context import FlowContext, map_in_order
from pipeline.flows.erase.corpora import quarantined_rows
from pipeline.flows.erase.find import ErasedIds, ErasedRows, find_ids, find_rows
from pipeline.flows.erase.root import Root
from pipeline.flows.erase.tables import RewriteKeyBucket, sum_removed
from pipeline.log import announce, counted
from pipeline.store.records.units import Corpus


class EraseRequest(NamedTuple):
    """Rows that a user wants to erase, and how."""

    ids: frozenset[str] = frozenset()
    """ids as strings; with corpus.chunk those of documents"""
    where: str = ""
    """condition on id and kept columns, if no ids are given: all ids of which a stored version passes"""
    expect: int | None = None
    """number of ids that pass the condition, if it was counted before"""
    reason: str = ""
    forever: bool = False
    """also erase ids that the corpus still has, and let nights leave them out"""
    ignore_leases: bool = False
    dry_run: bool = False
    protected: frozenset[str] = frozenset()
    """ids that must not be erased"""


def choose_rows(root: Root, context: FlowContext, request: EraseRequest) -> ErasedRows:
    """Find the rows, and refuse protected ids, and ids that the corpus still has.

    Raises:
        ConfigError: an id is protected, or the current release's corpus has an id.
    """
    erased = ErasedIds(_ids_that_pass(root, context, request) if request.where else request.ids)
    if held := erased.ids & request.protected:
        raise ConfigError(
            f"{context.store.uri}: erase",
            "ids that are not protected (release.protected)",
            f"{counted(len(held), 'protected id')} of {len(erased.ids):,}",
            "leave them out; or, if they may be erased, remove them from the file of protected ids",
        )
    live = _count_in_corpus(context, root.current.corpus, erased)
    if live and not (request.forever or request.dry_run):
        raise ConfigError(
            f"{context.store.uri}: erase",
            "ids that are not in the corpus any more",
            f"{counted(live, 'row')} of the current release's corpus with such an id",
            "remove the rows from the corpus and run manta nightly, then erase them; or let nights leave "
            "them out from now on (--forever)",
        )
    with context.stages("find"):
        return find_rows(context, root.units(), erased)


def _ids_that_pass(root: Root, context: FlowContext, request: EraseRequest) -> frozenset[str]:
    """Find the ids that pass the condition.

    Raises:
        ConfigError: their number is not the expected one, or the condition does not fit the columns.
    """
    unit = root.current.corpus.units[0]
    schema = pq.ParquetFile(unit.file.open(context.store)).schema_arrow
    with context.stages("where"):
        found = find_ids(context, root.units(), request.where, schema)
    if found.failed:
        announce(
            f"the condition cannot be evaluated for {counted(found.failed, 'stored row')}, which count as "
            "not passing: their columns have another type or are missing"
        )
    if not request.dry_run and request.expect != len(found.ids):
        raise ConfigError(
            f"{context.store.uri}: erase --where",
            "--expect with the number of ids that pass the condition"
            if request.expect is None
            else f"{request.expect:,} ids that pass the condition (--expect)",
            f"{len(found.ids):,}",
            f"look at the condition; to erase these rows, pass --expect {len(found.ids)}",
        )
    return frozenset(found.ids)


def _count_in_corpus(context: FlowContext, corpus: Corpus, erased: ErasedIds) -> int:
    """Count the input rows of a corpus that have one of the ids, quarantined ones included."""
    numbers = sorted(erased.buckets(len(corpus.keys)))
    task = RewriteKeyBucket(context.store, erased, "", writes=False)
    buckets = map_in_order(context, task, [corpus.keys[number] for number in numbers])
    rows = sum(sum_removed(bucket.removed)["documents"] for bucket in buckets)
    if corpus.quarantine is not None:
        table = pq.read_table(corpus.quarantine.open(context.store))
        is_other = np.asarray(pc.not_equal(table["reason"], "duplicate_id"))
        rows += int((quarantined_rows(erased, table) & is_other).sum())
    return rows
