"""Settings of the gates that a corpus and a candidate must pass; each section has a module of its name."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config import Settings


class RelevanceSettings(Settings):
    """A gate on the results for queries of your own, or on sentence pairs with scores of your own."""

    queries: str | None = None
    """path or URI of a Parquet, JSON lines or CSV file. With the columns query and id, every row of it names
    a row of the corpus (with corpus.chunk, a document) that is relevant to the query, and nDCG@10 of the
    candidate's index is measured, from 0 to 1. With sentence1, sentence2 and score, Spearman's correlation of
    cosines with the scores is measured, from -1 to 1. null: no such file"""
    at_least: Annotated[float, Field(ge=-1, le=1)] | None = None
    """smallest nDCG@10, or correlation; null: no bound"""
    recall_at_least: Annotated[float, Field(ge=0, le=1)] | None = None
    """smallest recall@10 of queries: the proportion of their relevant rows among the ten found; null: no
    bound"""
    mrr_at_least: Annotated[float, Field(ge=0, le=1)] | None = None
    """smallest MRR@10 of queries, the mean of 1 / rank of the first relevant row; null: no bound"""
    slices: str | None = None
    """a column of the file, such as a language, a tenant or a kind of query: the scores are reported for each
    of its values too, with intervals; null: for all rows together only"""
    not_below: Literal["previous"] | None = None
    """previous: a candidate is refused if it is significantly worse than the previous release on the queries
    that both have: if the 95 % interval of the difference, from 1,000 paired bootstrap resamples with seed
    1111, is below 0; null: not compared"""

    @model_validator(mode="after")
    def _bounds_need_queries(self) -> Self:
        names = ("at_least", "recall_at_least", "mrr_at_least", "slices", "not_below")
        set_here = [name for name in names if getattr(self, name) is not None]
        if self.queries is None and set_here:
            raise ValueError(f"queries, a file, as {set_here[0]} has no effect without it")
        return self


class GateSettings(Settings):
    """Quality gates that a candidate must pass to be published; null switches a gate off.

    Row conservation, unique ids, finite vectors, and that a searcher can use all files, are always checked.
    """

    recall_at_10: Annotated[float, Field(ge=0, le=1)] | None = 0.95
    """smallest proportion of the exact ten nearest rows that the index finds. A candidate is refused if the
    upper end of the 95 % Wilson interval of its recall is below this"""
    queries: str | None = None
    """path or URI of a file with texts that users search for, one on each line, or Parquet with a column
    query or text. Rows without a text may have a raw vector of the encoder, in columns vector and space_id.
    The first 1,000 queries count: the search effort is chosen so that their recall@10 is high enough too, and
    a candidate is refused where no effort suffices. The gate recall_at_10 uses rows of the corpus as queries,
    which are easier to find. null: no such file"""
    recall_at_10_queries: Annotated[float, Field(ge=0, le=1)] | None = None
    """the same as recall_at_10 for the queries of gates.queries; null: as high as recall_at_10. 0: their
    recall is only reported, and the search effort is chosen by rows alone"""
    relevance: RelevanceSettings = RelevanceSettings()
    """judged queries of your own; by default there are none"""
    max_size_gib: Annotated[float, Field(gt=0)] | None = None
    """largest size of the index files"""
    p99_ms: Annotated[float, Field(gt=0)] | None = None
    """largest 99th percentile of the time of one query at the chosen nprobe, with one thread"""
    canary_cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    """lowest cosine of a canary text's vector with its vector in the previous release, if both are in the
    same space; null: 0.9999 in float32, 0.999 in half precision"""
    space: Literal["same", "set"] | None = "set"
    """whether the vectors may be in another space than those of the previous release, so that the queries of
    clients with its encoder find nothing. set: if a setting of `encoder` changed, not if only a file of the
    encoder did. same: never. null: always"""
    max_deleted: Annotated[float, Field(ge=0, le=1)] | None = 0.2
    """largest proportion of the previous release's rows (with corpus.chunk, documents) whose ids may be gone
    from the corpus. A corpus that is a window of n nights loses 1 / n of them every night. Rows that are in
    the files and are filtered now (corpus.where, corpus.exclude) are counted apart, in a gate of their own
    with this limit. This and the next three gates are judged before anything is encoded, from ten rows in the
    previous release on"""
    max_empty_texts: Annotated[float, Field(ge=0, le=1)] | None = 0.1
    """largest increase of the proportion of rows without a text since the previous release"""
    max_shorter_texts: Annotated[float, Field(ge=0, le=1)] | None = 0.5
    """largest decrease of the mean length of the texts, as a proportion of the previous release's"""
    max_repeated_texts: Annotated[float, Field(ge=0, le=1)] | None = 0.2
    """largest increase of the proportion of texts that repeat another row's, since the previous release"""
    unknown_tokens: Annotated[float, Field(ge=0, le=1)] | None = 0.2
    """largest proportion of the texts' tokens that are unknown to the encoder's tokenizer ([UNK], or the
    bytes that stand for an unknown character), over all units of the release. With word vectors, missing
    punctuation, numbers, single letters and English stop words do not count, because many files leave them
    out on purpose"""
    lost_tokens: Annotated[float, Field(ge=0, le=1)] | None = 0.95
    """largest proportion of the texts' tokens that truncation removed, over all units of the release. The
    default is high because the beginning of an article often suffices: articles lose half of their tokens or
    more with an encoder of 256 or 512 tokens"""

    @model_validator(mode="after")
    def _bound_needs_queries(self) -> Self:
        if self.queries is None and self.recall_at_10_queries is not None:
            raise ValueError("queries, a file, as recall_at_10_queries has no effect without it")
        return self

    @property
    def wanted_recall(self) -> float:
        """The recall@10 for which nprobe is chosen: the gate's, or 0.95 if the gate is off."""
        return 0.95 if self.recall_at_10 is None else self.recall_at_10

    @property
    def wanted_user_recall(self) -> float:
        """The recall@10 of the queries of gates.queries for which nprobe is chosen; 0: by rows alone."""
        return self.wanted_recall if self.recall_at_10_queries is None else self.recall_at_10_queries

    @property
    def user_recall_bound(self) -> float | None:
        """The recall@10 of these texts below which a candidate is refused; None: it is only reported."""
        return (self.recall_at_10 if self.recall_at_10_queries is None else self.recall_at_10_queries) or None
