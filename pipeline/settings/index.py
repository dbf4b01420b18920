"""Settings of the index."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pipeline.config import Settings
from pipeline.settings.index_kinds import KIND_NAMES


def _kind_or_factory(kind: str) -> str:
    """Check a kind. A name with a capital may be a factory string; parsing it here would load faiss."""
    if kind not in KIND_NAMES and not kind[:1].isupper():
        raise ValueError(
            f"one of {', '.join(map(repr, KIND_NAMES))} or a faiss factory string such as IVF1024,PQ48x8"
        )
    return kind


class IndexSettings(Settings):
    """The faiss index; its metric is the cosine (inner product of normalised vectors)."""

    kind: Annotated[str, AfterValidator(_kind_or_factory)] = Field(
        "auto", description=f"{', '.join(KIND_NAMES)}, or a faiss factory string such as IVF1024,PQ48x8"
    )
    memory_gib: Annotated[float, Field(gt=0)] = 8.0
    """memory that a searcher has for the index. auto chooses a kind that does not compress vectors if it
    fits; else the smallest that fits among the kinds whose codes, measured on a sample of the rows, are exact
    enough for gates.recall_at_10"""
    shards: Annotated[int, Field(ge=1)] | None = None
    """pieces of the index that are filled in parallel, then merged; null: chosen by the numbers of rows and
    lists"""
    nlist: Annotated[int, Field(ge=1)] | None = None
    """lists of an IVF index; null: about 4 * sqrt(rows)"""
    train_rows: Annotated[int, Field(ge=1)] | None = None
    """rows that the quantizer is trained on; null: 64 per list, and at least 20,000 if there are so many"""
    nprobe: Annotated[int, Field(ge=1)] | None = None
    """lists that a query visits; null: the smallest number for which the whole 95 % interval of the recall is
    above gates.recall_at_10, or up to eight times that number if queries near deleted rows need it"""
    queries: Annotated[int, Field(ge=2)] = 1_000
    """rows sampled as queries; nprobe is chosen on one half, recall reported on the other"""
    on_disk: Literal["auto", "never", "always"] = "auto"
    """whether the lists of an IVF index are in a second file, which searchers map into memory; auto: if the
    index exceeds memory_gib"""
    seed: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    """seed of the quantizer's training"""
    part_gib: Annotated[float, Field(gt=0)] = 8.0
    """size of one file of the index; a larger index is several files, which are searched together"""
    rewrite_gib: Annotated[float, Field(gt=0)] = 64.0
    """size of the largest index file that a night rewrites, to take deleted rows out and to add new ones. A
    larger file is kept, and new rows are written to a second file"""
