"""Divide a corpus into buckets, and the buckets into groups whose new rows are written together."""

from collections.abc import Sequence

import numpy as np

from pipeline.store.files.base import Store, in_threads
from pipeline.text.ingest.read_rows import ReadPart
from pipeline.text.ingest.resolve_bucket import BucketRecord
from pipeline.text.ingest.unit_writer import most_units
from pipeline.text.ingest.write_units import BucketGroup
from pipeline.text.key_tables.keys import bucket_count
from pipeline.text.key_tables.partitions import read_offsets

_MAX_BUCKETS = 64  # buckets in one group: writing a group takes 9 bytes of memory for each row read


def bucket_bytes(work: Store, parts: Sequence[ReadPart], partitions: int, buckets: int) -> np.ndarray:
    """Return (buckets,) int64: bytes of texts and kept columns in each bucket, from the parts' offsets."""
    offsets = in_threads(lambda part: read_offsets(work, part.contents, 0, partitions), parts)
    sizes = sum(map(np.diff, offsets), np.zeros(partitions, dtype=np.int64))
    return sizes.reshape(buckets, partitions // buckets).sum(axis=1)


def shuffle_requests(rows: int, parts: int, unit_rows: int, workers: int) -> int:
    """Return the number of requests by which a first night reads buckets from the files of all tasks.

    Lines are read from each part to resolve ids; lines and contents to write units; and texts from each group
    of buckets. A process reads the offsets of a file once.

    Args:
        rows: number of rows read.
        parts: number of parts in which they are stored.
        unit_rows: largest number of rows of a unit.
        workers: number of processes.
    """
    buckets = bucket_count(rows)
    in_group = min(_MAX_BUCKETS, -(-unit_rows * buckets // rows))
    files = 3 * parts + -(-buckets // in_group)
    return (buckets + workers) * files


def group_buckets(
    records: Sequence[BucketRecord],
    read_bytes: np.ndarray,
    revived_bytes: np.ndarray,
    unit_rows: int,
    first: int,
) -> list[BucketGroup]:
    """Divide buckets into groups of consecutive buckets that have about a unit of new rows or more.

    So a night with few changes writes few units, even if it changes rows of every bucket.

    Args:
        records: all buckets, in order.
        read_bytes: (buckets,) bytes of the rows read tonight.
        revived_bytes: (buckets,) bytes of the revived rows.
        unit_rows: largest number of rows of a unit.
        first: first ordinal of the first group.
    """
    groups, pending = list[BucketGroup](), list[BucketRecord]()
    for record in records:
        pending.append(record)
        is_last = record.bucket + 1 == len(records)
        new_rows = sum(bucket.rows_written for bucket in pending)
        if is_last or len(pending) == _MAX_BUCKETS or new_rows >= unit_rows:
            numbers = [bucket.bucket for bucket in pending]
            revived = sum(bucket.revived.rows for bucket in pending if bucket.revived)
            read = sum(bucket.rows_read for bucket in pending)
            most = most_units(read, int(read_bytes[numbers].sum()), unit_rows)
            most += most_units(revived, int(revived_bytes[numbers].sum()), unit_rows)
            groups.append(BucketGroup(len(groups), first, most, tuple(pending)))
            first, pending = first + most, []
    return groups
