"""Measure how frequency, sub-words and case bias the token embeddings of input and output tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pipeline.config import digest_of
from pipeline.errors import DataError, ModelError
from pipeline.evaluate.mask_words import pair_correlation
from pipeline.flows.context import FlowContext
from pipeline.flows.encode.encoder_copy import encoder_for_workers
from pipeline.flows.evaluate.candidates import ResolvedCandidate
from pipeline.flows.evaluate.geometry import human_scored_pairs
from pipeline.flows.workers.tasks import PlainTask
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.frequencies import locate_frequencies, read_frequencies
from pipeline.models.folder.token_filter import spellings, token_counts, unfiltered_tokens
from pipeline.settings import EncoderSettings
from pipeline.stats.space import ScoredPairs
from pipeline.stats.token_bias import (
    EncoderTokenBias,
    NamedTokenBias,
    ShownToken,
    TableBias,
    TokenAttribute,
    between_groups,
    groups_of,
    principal_plane,
    rank_attribute,
)
from pipeline.store.files.base import Store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import load_or_make, store_table_by_content
from pipeline.text.tokens.tokens import Tokenizer, Tokens

_VERSION = 1  # version of the measurement; raise it to measure again
_SHOWN = 600  # tokens in a chart
_SPELLINGS = ("subword", "case", "punctuation")  # filters that depend only on the spelling of a token


@dataclass(frozen=True, eq=False)
class MeasureTokenBias(PlainTask[EncoderSettings, EncoderTokenBias]):
    """Measure the tables of an encoder, read with the pooling `table`. Stored results are reused."""

    store: Store
    pairs: ScoredPairs

    def work(self, encoder: EncoderSettings) -> EncoderTokenBias:
        folder = open_folder(encoder)
        tokenizer = folder.tokenizer()
        tokens = tokenizer(self.pairs.sentences)
        size = max(tokenizer.vocabulary().values()) + 1
        if encoder.frequencies is None:
            counts, counted = np.bincount(tokens.ids, minlength=size), "the pairs' sentences"
        else:
            frequencies = read_frequencies(locate_frequencies(encoder.frequencies))
            counts, counted = token_counts(tokenizer, frequencies, words=False), encoder.frequencies
        measurement = _Measurement(self, encoder, tokenizer, tokens, counts)
        pairs = [self.pairs.left, self.pairs.right, self.pairs.gold.tolist()]
        digest = digest_of([_VERSION, folder.space_id, encoder.frequent, counted, counts.tolist(), pairs])

        def measure() -> EncoderTokenBias:
            tables, missing = _read_tables(folder)
            return EncoderTokenBias(
                space_id=folder.space_id,
                counted=counted,
                tables=tuple(measurement.measure(name, table) for name, table in tables.items()),
                missing=missing,
            )

        return load_or_make(self.store, f"token_bias/{digest[:24]}.json", EncoderTokenBias, measure)


@dataclass(frozen=True, eq=False)
class _Measurement:
    """The measurement of the tables of one encoder."""

    task: MeasureTokenBias
    """store and pairs"""
    encoder: EncoderSettings
    """settings of the encoder"""
    tokenizer: Tokenizer
    """the encoder's tokenizer"""
    tokens: Tokens
    """the tokens of the pairs' distinct sentences"""
    counts: np.ndarray
    """(vocabulary,) occurrences of each token"""

    def measure(self, name: str, table: np.ndarray) -> TableBias:
        """Measure one table, (rows, d). Rows after the last token of the vocabulary are left out."""
        special = [*self.tokenizer.prefix, *self.tokenizer.suffix]
        ids = np.setdiff1d(sorted(self.tokenizer.vocabulary().values()), special)
        points, explained = principal_plane(table[ids])
        attributes = self._attributes(ids)
        return TableBias(
            table=name,
            explained=(float(explained[0]), float(explained[1])),
            between={key: between_groups(points, each.codes) for key, each in attributes.items()},
            groups=groups_of(points, np.linalg.norm(table[ids], axis=1), attributes),
            shown=tuple(self._shown(ids, points, attributes)),
            correlations={key: self._correlation(table, kept) for key, kept in self._filters()},
            points=self._store_points(ids, points, attributes),
        )

    def _attributes(self, ids: np.ndarray) -> dict[str, TokenAttribute]:
        """Divide tokens by frequency rank, sub-word and case."""
        attributes = {"frequency rank": rank_attribute(self.counts[ids])}
        for name, spelling, groups in (
            ("sub-word", "subword", ("whole word", "piece of a word")),
            ("case", "case", ("lower case or none", "upper case")),
        ):
            without = unfiltered_tokens(self.tokenizer, (spelling,), words=False)
            attributes[name] = TokenAttribute(groups, (~without[ids]).astype(np.int64))
        return attributes

    def _shown(
        self, ids: np.ndarray, points: np.ndarray, attributes: dict[str, TokenAttribute]
    ) -> Iterator[ShownToken]:
        """Yield tokens at even steps of the frequency rank, the most frequent first."""
        order = np.argsort(-self.counts[ids], kind="stable")
        for index in order[np.linspace(0, len(order) - 1, min(_SHOWN, len(order))).astype(np.int64)]:
            (token,) = spellings(self.tokenizer, ids[index : index + 1], words=False)
            yield ShownToken(
                token=token,
                x=float(points[index, 0]),
                y=float(points[index, 1]),
                codes=tuple(int(each.codes[index]) for each in attributes.values()),
            )

    def _filters(self) -> Iterator[tuple[str, np.ndarray | None]]:
        """Yield the name of each filter, and the mask (vocabulary,) of the tokens it keeps; None: all."""
        frequent = np.ones(len(self.counts), bool)
        frequent[[*self.tokenizer.prefix, *self.tokenizer.suffix]] = False
        ranked = np.argsort(np.where(frequent, -self.counts, 1), kind="stable")[: self.encoder.frequent]
        frequent[ranked[self.counts[ranked] > 0]] = False
        yield "nothing", None
        yield f"the {self.encoder.frequent} most frequent", frequent
        for name, label in zip(_SPELLINGS, ("sub-words", "upper case", "punctuation"), strict=True):
            yield label, unfiltered_tokens(self.tokenizer, (name,), words=False)
        yield "all of these", frequent & unfiltered_tokens(self.tokenizer, _SPELLINGS, words=False)

    def _correlation(self, table: np.ndarray, kept: np.ndarray | None) -> float:
        """Correlate cosines of averages with human scores. A text that would keep no token keeps all."""
        averages = []
        for ids in np.split(self.tokens.ids, self.tokens.offsets[1:-1]):
            chosen = ids if kept is None or not kept[ids].any() else ids[kept[ids]]
            averages.append(table[chosen].mean(axis=0))
        row = {text: index for index, text in enumerate(self.task.pairs.sentences)}
        sides = (self.task.pairs.left, self.task.pairs.right)
        left, right = (np.stack([averages[row[text]] for text in side]) for side in sides)
        return pair_correlation(left, right, self.task.pairs.gold)

    def _store_points(
        self, ids: np.ndarray, points: np.ndarray, attributes: dict[str, TokenAttribute]
    ) -> FileRef:
        """Store all tokens with their groups and coordinates as a Parquet file."""
        columns = {
            "token": spellings(self.tokenizer, ids, words=False),
            "count": self.counts[ids].astype(np.int64),
            **{
                name.replace(" ", "_").replace("-", ""): np.array(each.groups)[each.codes]
                for name, each in attributes.items()
            },
            "x": points[:, 0],
            "y": points[:, 1],
        }
        return store_table_by_content(self.task.store, pa.table(columns), "token_bias/tokens")


def _read_tables(folder: EncoderFolder) -> tuple[dict[str, np.ndarray], str | None]:
    """Read the tables (float32) of token embeddings by name, and the reason if no output table is among them.

    Raises:
        ModelError: the encoder is not a Transformer whose language model head is known.
    """
    # imported here, because they import torch
    from pipeline.models.trainable.encoder import load_trainable
    from pipeline.models.trainable.mlm_head import can_be_saved, has_language_head, load_language_head

    if folder.parts or not can_be_saved(folder):
        raise ModelError(
            str(folder.path),
            "a Transformer with tables of token embeddings",
            f"an encoder of kind {folder.config.get('model_type', folder.family)}",
            "leave it out of evaluate.candidates, or set evaluate.geometry.token_bias to false",
        )
    encoder = load_trainable(folder, dropout=0.0)
    table = encoder.backbone.word_table.detach().numpy()
    if not has_language_head(encoder):
        return {"input": table}, "the folder has no language model head"
    head = load_language_head(encoder, tied=False)
    assert head.table is not None
    output = head.table.detach().numpy()
    if np.array_equal(table, output):
        return {"tied": table}, "it is the input table"
    return {"input": table, "output": output}, None


def measure_token_bias(
    context: FlowContext, candidates: Sequence[ResolvedCandidate]
) -> tuple[NamedTokenBias, ...]:
    """Measure the token embeddings of every candidate. Results of an earlier run are reused.

    Raises:
        DataError: there are no pairs with human scores.
        ModelError: an encoder is not a Transformer whose language model head is known.
    """
    job, store, workers = context.job, context.store, context.workers
    sample = human_scored_pairs(job)
    if sample.pairs is None:
        raise DataError(
            "evaluate.geometry.token_bias",
            "pairs with human scores",
            f"none: {sample.reason}",
            "set evaluate.tasks, or evaluate.own to pairs of kind sts",
        )
    named: dict[EncoderSettings, str] = {}
    for each in candidates:
        table = each.encoder.model_copy(update={"template": None, "pooling": "table", "exclude": ()})
        named.setdefault(table, each.name)
    targets = [encoder_for_workers(encoder, store, workers) for encoder in named]
    task = MeasureTokenBias(store, sample.pairs)
    with context.stages("token bias", len(targets), "encoders") as bar:
        results = dict(workers.map_units(task, targets, workers.pool(job.cluster, len(targets))))
        bar.add(len(targets))
    return tuple(
        NamedTokenBias(name=name, bias=results[number]) for number, name in enumerate(named.values())
    )
