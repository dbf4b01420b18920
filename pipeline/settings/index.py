"""Settings of the index, of the gates before a release, and of the root that holds releases."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from pipeline.config import Settings
from pipeline.settings.corpus import Uri
from pipeline.settings.index_kinds import INDEX_KINDS


def _kind_or_factory(kind: str) -> str:
    """Return `kind`. faiss is not loaded here: every name with a capital may be a factory string."""
    if kind not in INDEX_KINDS and not kind[:1].isupper():
        known = ", ".join(map(repr, INDEX_KINDS))
        raise ValueError(f"one of {known} or a faiss factory string such as IVF1024,PQ48x8")
    return kind


class IndexSettings(Settings):
    """The faiss index; its metric is the cosine (inner product of normalised vectors)."""

    kind: Annotated[str, AfterValidator(_kind_or_factory)] = "auto"
    """auto, flat, ivf_flat, ivf_sq8, opq_ivf_pq, hnsw, or a faiss factory string such as IVF1024,PQ48x8"""
    memory_gib: Annotated[float, Field(gt=0)] = 8.0
    """memory a searcher has for the index; auto picks the most exact kind that fits"""
    shards: Annotated[int, Field(ge=1)] | None = None
    """parts filled in parallel, then merged; null: one per index worker"""
    nlist: Annotated[int, Field(ge=1)] | None = None
    """lists of an IVF index; null: about 4 * sqrt(rows)"""
    train_rows: Annotated[int, Field(ge=1)] | None = None
    """rows the quantizer is trained on; null: 64 per list, at least 20,000 where there are so many"""
    nprobe: Annotated[int, Field(ge=1)] | None = None
    """lists a query visits; null: the fewest whose recall is above gates.recall_at_10 with its whole 95 %
    interval, and up to eight times as many if queries near deleted rows need them for that recall"""
    queries: Annotated[int, Field(ge=2)] = 1_000
    """rows sampled as queries; nprobe is chosen on one half, recall reported on the other"""
    on_disk: Literal["auto", "never", "always"] = "auto"
    """keep the lists of an IVF index in a second file that searchers map; auto: where the index exceeds
    memory_gib"""
    seed: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    """of the quantizer's training"""
    rewrite_gib: Annotated[float, Field(gt=0)] = 64.0
    """index file up to which a night takes rows out of last night's index and adds the new ones; a larger one
    stays, and new rows get a file beside it"""


class GateSettings(Settings):
    """Demands on a candidate before it is published; null switches a gate off.

    Row conservation, unique ids and finite vectors are always checked.
    """

    recall_at_10: Annotated[float, Field(ge=0, le=1)] | None = 0.95
    """share of the exact ten nearest found; refused when even the upper end of its 95 % Wilson interval stays
    below"""
    queries: str | None = None
    """a file of texts that people ask, one on each line, or Parquet with a column query or text; a path or a
    URI. Their recall@10 is measured and reported beside that of rows of the corpus, which recall_at_10 asks
    for, at the cost of one exact search of all rows each night; null: rows only"""
    max_size_gib: Annotated[float, Field(gt=0)] | None = None
    """size of the index files"""
    p99_ms: Annotated[float, Field(gt=0)] | None = None
    """99th percentile of one query's time at the set nprobe, one thread"""
    canary_cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    """lowest cosine of the canary texts' vectors with the previous release's, same space; null: 0.9999 in
    float32, 0.999 in half precision"""
    unknown_tokens: Annotated[float, Field(ge=0, le=1)] | None = 0.2
    """proportion of the texts' tokens that the encoder's tokenizer does not know ([UNK], or the bytes that it
    falls back to), over all units of the release. Of what word vectors lack, punctuation, numbers, single
    letters and English stop words do not count: many files leave them out on purpose"""
    lost_tokens: Annotated[float, Field(ge=0, le=1)] | None = 0.95
    """proportion of the texts' tokens that lie beyond the encoder's limit and are in no vector, over all
    units of the release. Whole articles by an encoder of 256 or 512 tokens lose half or more, and their
    beginnings often serve: only where 19 of 20 tokens are lost does search hardly find more than titles"""

    @property
    def wanted_recall(self) -> float:
        """The recall@10 that the search effort is chosen for: that of the gate, or 0.95 if it is off."""
        return 0.95 if self.recall_at_10 is None else self.recall_at_10


class ReleaseSettings(Settings):
    """The place of releases."""

    root: Uri = "releases"
    """a directory or an s3:// URI"""
    commits_root: str | None = None
    """a store that has create-once, for commits, when `root` has not"""
