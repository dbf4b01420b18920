"""Evaluation on a development set during training, with early stopping."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import nn

from pipeline.config import validated
from pipeline.errors import ConfigError, DataError, ModelError
from pipeline.evaluate.similarity import row_similarities
from pipeline.evaluate.sts import StsTask, correlation
from pipeline.objectives import OBJECTIVES, ClassifiesPairs, MasksWords, Objective, TrainedModel
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.settings.training import DevSettings, Measure, SourceSettings, TrainSettings, Values
from pipeline.stats.correlation import spearman
from pipeline.stats.geometry import alignment, uniformity
from pipeline.store.files.open_store import store_of
from pipeline.text.rows.training_rows import open_training_rows
from pipeline.text.tokens.budget import deduplicate, plan_buffers
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gather import Ranks, world_size

_LABELLED = ("premise", "hypothesis", "label")
# Pairs above this proportion of the highest score are positive. SimCSE's figures use the same limit: above 4
# of 5 (Gao et al. 2021, section 5).
_POSITIVE = 0.8
_MAX_TOKENS = {"cpu": 1_024, "cuda": 32_768}  # tokens of one forward pass, as in encoding; by type of device

DIVERGED = "the weights have diverged; lower the learning rate, or use another precision"
"""what to do if the values of a trained model are not finite"""


class DevMetrics(NamedTuple):
    """Metrics of the trained model on a dev set."""

    score: float
    """value of `train.dev.measure`, times 100 unless it is log_likelihood"""
    geometry: Mapping[str, float] = {}
    """if pairs have human scores, the "uniformity" of all sentences and the "alignment" of positive pairs,
    which have more than four fifths of the highest score (Wang & Isola 2020); without positive pairs, no
    alignment. Empty if pairs have labels"""


class DevFile(Protocol):
    """A file that is not trained on, and a metric of the trained model on it."""

    def metrics(self, model: TrainedModel, objective: Objective) -> DevMetrics:
        """Measure the trained model; every rank has to call it, and gets the same values."""


@dataclass(frozen=True, eq=False)
class DevSet:
    """Sentence pairs with human scores or labels, read once; can be pickled."""

    where: str
    """path or URI of the file, for error messages"""
    left: tuple[str, ...]
    """n sentences"""
    right: tuple[str, ...]
    """n sentences"""
    gold: np.ndarray
    """(n,) scores on any scale, because only ranks count; or class numbers"""
    measure: Measure = "spearman"
    """metric of `score`, spearman or accuracy"""

    @classmethod
    def open(cls, settings: DevSettings, values: Values | None = None) -> "DevSet":
        """Read the pairs of a file that have a score or, if accuracy is measured, a label.

        A missing text is replaced by a space.

        Args:
            settings: file, columns and metric.
            values: label names of the file; by default entailment, neutral and contradiction.

        Raises:
            ConfigError: no file is set, or a role is unknown.
            DataError: the file is missing or not Parquet, a column is missing or of another type, a label is
                unknown, or there are fewer than two different scores or texts.
        """
        if settings.uri is None:
            raise ConfigError("train.dev.uri", "a file to measure on", "none", "set train.dev.uri")
        if settings.measure == "accuracy":
            return cls._labelled(settings, values or Values())
        any_score = {"low": -math.inf, "high": math.inf}  # any scale: Spearman correlation compares ranks
        source = TaskSettings(kind="sts", uri=settings.uri, columns=settings.columns, options=any_score)
        task = StsTask.of(source, *store_of(settings.uri), EvaluateSettings())
        pairs = task.pairs()
        if len({*pairs.left, *pairs.right}) < 2:
            raise DataError(task.file.where, "at least two different texts", "one", "use other pairs")
        return cls(task.file.where, tuple(pairs.left), tuple(pairs.right), pairs.gold)

    @classmethod
    def _labelled(cls, settings: DevSettings, values: Values) -> "DevSet":
        """Read the pairs of a file that have a label."""
        source = {"uri": settings.uri, "columns": settings.columns, "values": values}
        pairs = open_training_rows(validated(SourceSettings, source, "train.dev"), _LABELLED)
        table = pa.concat_tables(pairs.read(pairs.spans()))
        left, right = (tuple(table[role].to_pylist()) for role in _LABELLED[:2])
        return cls(pairs.name, left, right, table["label"].to_numpy(), settings.measure)

    def score(self, model: TrainedModel, objective: Objective | None = None) -> float:
        """Score the model's vectors on all pairs, as `metrics` does."""
        return self._score(self._finite_vectors(model), objective)

    def metrics(self, model: TrainedModel, objective: Objective | None = None) -> DevMetrics:
        """Measure the model's vectors on all pairs.

        Every rank has to call it, and gets the same value. The modules are in eval mode and draw no random
        numbers.

        Args:
            model: modules to evaluate.
            objective: objective whose classifier is used; required for accuracy.

        Returns:
            Metrics whose score is the Spearman correlation of cosines and human scores, times 100 (0 if all
            cosines are equal), or the percentage of pairs that the classifier predicts correctly.

        Raises:
            DataError: on every rank, for vectors that are not finite.
        """
        vectors = self._finite_vectors(model)
        geometry = {} if self.measure == "accuracy" else self._geometry(vectors)
        return DevMetrics(self._score(vectors, objective), geometry)

    def _geometry(self, vectors: np.ndarray) -> dict[str, float]:
        """Compute alignment and uniformity of the vectors of `_sentences`."""
        left, right = np.split(vectors[self._sentences[1]], 2)
        positive = self.gold > _POSITIVE * self.gold.max()
        aligned = {"alignment": alignment(left[positive], right[positive])} if positive.any() else {}
        return aligned | {"uniformity": uniformity(vectors).value}

    def _score(self, vectors: np.ndarray, objective: Objective | None) -> float:
        """Return the score of the vectors of `_sentences`."""
        left, right = np.split(vectors[self._sentences[1]], 2)
        if self.measure == "accuracy":
            assert objective is not None, "accuracy needs the objective's classifier"
            return self._accuracy(left, right, objective.parts[0])
        return 100 * correlation(spearman, row_similarities("cosine", left, right), self.gold)

    @torch.no_grad()
    def _accuracy(self, left: np.ndarray, right: np.ndarray, objective: Objective) -> float:
        """Return the percentage of pairs of vectors (n, dim) that the classifier predicts correctly."""
        assert isinstance(objective, ClassifiesPairs), "the first objective classifies"
        device = next(objective.parameters()).device
        predicted = objective.predict_classes(
            torch.from_numpy(left).to(device), torch.from_numpy(right).to(device)
        )
        return 100 * float(np.mean(predicted.cpu().numpy() == self.gold))

    @cached_property
    def _sentences(self) -> tuple[list[str], np.ndarray]:
        """Distinct sentences, and the index among them of each left sentence, then of each right sentence."""
        return deduplicate([*self.left, *self.right])

    def _finite_vectors(self, model: TrainedModel) -> np.ndarray:
        """Encode the distinct sentences on all ranks together: (distinct sentences, dim) float32."""
        modules = (model.encoder, model.twin, model.head)
        with evaluating(*(module for module in modules if module is not None)):
            tokens = model.encoder.folder.tokenizer()(self._sentences[0])
            vectors = encode_on_all_ranks(model, tokens)
        check_finite(self.where, vectors, self._sentences[0])
        return vectors


def encode_on_all_ranks(model: TrainedModel, tokens: Tokens) -> np.ndarray:
    """Encode n texts on all ranks together: (n, dim) float32."""
    device = next(model.encoder.parameters()).device
    vectors = torch.zeros(len(tokens), model.dim, device=device)
    for rows, is_own in buffers_of_rank(tokens, model.encoder.folder.max_length, device):
        encoded = model(tokens.of_rows(rows)).float()
        if is_own:
            vectors[torch.from_numpy(rows).to(device)] = encoded
    if world_size() > 1:
        dist.all_reduce(vectors)  # each row is zero on all ranks but one
    return vectors.cpu().numpy()


def buffers_of_rank(
    tokens: Tokens, max_length: int, device: torch.device
) -> Iterator[tuple[np.ndarray, bool]]:
    """Yield the rows of each forward pass of this rank, and whether the result of the pass is used.

    The buffers do not depend on the number W of ranks; each rank has every W-th buffer. All ranks run equally
    many passes, because sharded weights are gathered for each pass; in the last round, a rank without a
    buffer computes the last buffer again, and drops the result.
    """
    buffers = plan_buffers(tokens.lengths, max(_MAX_TOKENS[device.type], max_length))
    for first in range(0, len(buffers), world_size()):
        index = first + Ranks().rank
        yield buffers[min(index, len(buffers) - 1)], index < len(buffers)


def check_finite(where: str, vectors: np.ndarray, texts: Sequence[str]) -> None:
    """Raise DataError if the vector of a text is not finite; vectors are (n, dim), for n texts."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise DataError(
            where,
            "finite vectors",
            f"NaN or infinity in {np.count_nonzero(~finite):,} of {len(finite):,} vectors, "
            f"first for {texts[int(np.argmin(finite))][:80]!r}",
            DIVERGED,
        )


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put the modules into eval mode without gradients; restore the mode of each submodule afterwards."""
    modes = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = False
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes:
            part.training = mode


@dataclass(frozen=True)
class BestScore:
    """Best score on dev so far."""

    patience: int | None = None
    """number of consecutive measurements without improvement that end the training; None for no limit. An
    equal score is no improvement"""
    score: float | None = None
    """best score; None before the first measurement"""
    step: int | None = None
    """step of the best score"""
    since: int = 0
    """number of measurements since the best one; none of them was better"""

    def observe(self, step: int, score: float) -> "BestScore":
        """Return the best score after another measurement."""
        if self.score is None or score > self.score:
            return replace(self, score=score, step=step, since=0)
        return replace(self, since=self.since + 1)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {"patience": self.patience, "figure": self.score, "step": self.step, "since": self.since}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "BestScore":
        """Restore the value from the state that `state` returned."""
        return cls(state["patience"], state["figure"], state["step"], state["since"])

    @property
    def ended(self) -> bool:
        """True if the score has not improved for `patience` measurements."""
        return self.patience is not None and self.since >= self.patience


_SEED = 0  # seed of the masked words, which are the same in every measurement


@dataclass(frozen=True, eq=False)
class MaskedTexts:
    """Texts, read once, whose masked words the first objective predicts; can be pickled."""

    where: str
    """path or URI of the file, for error messages"""
    texts: tuple[str, ...]
    """the texts"""

    @classmethod
    def open(cls, settings: TrainSettings) -> "MaskedTexts":
        """Read the texts of `settings.dev`, in the role that the first objective trains on.

        Raises:
            ConfigError: an unknown role.
            DataError: the file is missing or not Parquet, or its column is missing or of another type.
        """
        term = settings.objective[0]
        (role,) = OBJECTIVES[term.name].roles(term.options).required
        source = {"uri": settings.dev.uri, "columns": settings.dev.columns}
        rows = open_training_rows(validated(SourceSettings, source, "train.dev"), (role,))
        return cls(rows.name, tuple(pa.concat_tables(rows.read(rows.spans()))[role].to_pylist()))

    def score(self, model: TrainedModel, objective: Objective) -> float:
        """Compute the mean natural logarithm of the probability of a masked word.

        Every rank has to call it, and gets the same value. The modules are in eval mode; words are masked as
        in the training, the same words each time.

        Args:
            model: modules to evaluate.
            objective: objective whose first part masks and predicts words.

        Raises:
            DataError: no word of the texts is masked, or the weights have diverged.
        """
        encoder = model.encoder
        device = next(encoder.parameters()).device
        tokens = encoder.folder.tokenizer()(list(self.texts))
        masking = objective.parts[0]
        assert isinstance(masking, MasksWords)
        masked = masking.mask(tokens, np.random.default_rng(_SEED))
        assert masked.kept is not None
        count = int(masked.kept.sum())
        if not count:
            raise DataError(
                self.where, "texts with words to mask", f"{len(self.texts):,} without", "give longer texts"
            )
        total = torch.zeros((), dtype=torch.float64, device=device)
        try:
            with evaluating(encoder, objective):
                for rows, is_own in buffers_of_rank(masked, encoder.folder.max_length, device):
                    summed = masking.summed_log_likelihood(masked.of_rows(rows), tokens.of_rows(rows).ids)
                    total += is_own * summed.double()
        except ModelError as error:  # unlike an error of a step, it does not name the rows of a batch
            found = f"{error.found}, of {error.where}"
            raise DataError(self.where, error.expected, found, DIVERGED) from None
        if world_size() > 1:
            dist.all_reduce(total)
        return float(total) / count

    def metrics(self, model: TrainedModel, objective: Objective) -> DevMetrics:
        """Compute `score` alone: masked texts have no vectors to compare."""
        return DevMetrics(self.score(model, objective))
