"""Evaluation on a development set during training, with early stopping."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import nn

from pipeline.config import validated
from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.similarity import paired
from pipeline.evaluate.sts import StsTask, correlation
from pipeline.models.folder.token_filter import load_filter
from pipeline.objectives import Objective, Product
from pipeline.settings import EvaluateSettings, TaskSettings
from pipeline.settings.training import DevSettings, PairSettings, Values
from pipeline.stats.correlation import spearman
from pipeline.store.store import store_of
from pipeline.text.rows.pairs import open_training_rows
from pipeline.text.tokens.budget import distinct, plan_buffers
from pipeline.train.gather import Ranks, world_size

_LABELLED = ("premise", "hypothesis", "label")
_MAX_TOKENS = {"cpu": 1_024, "cuda": 32_768}  # per forward pass, as in encoding


@dataclass(frozen=True, eq=False)
class DevSet:
    """Sentence pairs with scores or labels by people, read once; can be pickled.

    Attributes:
        where: name of the file, for error messages.
        left: n sentences.
        right: n sentences.
        gold: (n,) scores on any scale, because only ranks count; or class numbers.
        measure: metric of `score`.
    """

    where: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    gold: np.ndarray
    measure: Literal["spearman", "accuracy"] = "spearman"

    @classmethod
    def open(cls, settings: DevSettings, values: Values | None = None) -> "DevSet":
        """Read the pairs of a file that have a score or, to measure accuracy, a label.

        A missing text is replaced by a space.

        Args:
            values: label names of the file; by default entailment, neutral and contradiction.

        Raises:
            ConfigError: no file is set, or a role is unknown.
            DataError: the file is missing or not Parquet, a column is missing or of another type, a label is
                unknown, or there are fewer than two different scores.
        """
        if settings.uri is None:
            raise ConfigError("train.dev.uri", "a file to measure on", "none", "set train.dev.uri")
        if settings.measure == "accuracy":
            return cls._labelled(settings, values or Values())
        any_score = {"low": -math.inf, "high": math.inf}  # any scale: Spearman correlation compares ranks
        source = TaskSettings(kind="sts", uri=settings.uri, columns=settings.columns, options=any_score)
        task = StsTask.of(source, *store_of(settings.uri), EvaluateSettings())
        pairs = task.pairs()
        return cls(task.file.where, tuple(pairs.left), tuple(pairs.right), pairs.gold)

    @classmethod
    def _labelled(cls, settings: DevSettings, values: Values) -> "DevSet":
        source = {"uri": settings.uri, "columns": settings.columns, "values": values}
        pairs = open_training_rows(validated(PairSettings, source, "train.dev"), _LABELLED)
        table = pa.concat_tables(pairs.read(pairs.spans()))
        left, right = (tuple(table[role].to_pylist()) for role in _LABELLED[:2])
        return cls(pairs.name, left, right, table["label"].to_numpy(), settings.measure)

    def score(self, product: Product, objective: Objective | None = None) -> float:
        """Score the product's vectors on all pairs.

        Every rank has to call it, and gets the same value. The modules are in eval mode and draw no random
        numbers.

        Args:
            product: modules to evaluate.
            objective: classifier for accuracy.

        Returns:
            Spearman correlation of cosines and scores times 100, 0 if all cosines are equal; or the
            percentage of pairs that the objective's classifier predicts correctly.

        Raises:
            DataError: on every rank, for vectors that are not finite.
        """
        modules = (product.encoder, product.twin, product.head)
        with evaluating(*(module for module in modules if module is not None)):
            vectors = self._vectors(product)
        sentences, indices = self._sentences
        if not (finite := np.isfinite(vectors).all(axis=1)).all():
            raise DataError(
                self.where,
                "finite vectors",
                f"NaN or infinity in {np.count_nonzero(~finite):,} of {len(finite):,} vectors, "
                f"first for {sentences[int(np.argmin(finite))][:80]!r}",
                "the weights have diverged; lower the learning rate, or use another precision",
            )
        left, right = np.split(vectors[indices], 2)
        if self.measure == "accuracy":
            assert objective is not None, "accuracy needs the objective's classifier"
            return self._accuracy(left, right, objective)
        return 100 * correlation(spearman, paired("cosine", left, right), self.gold)

    @torch.no_grad()
    def _accuracy(self, left: np.ndarray, right: np.ndarray, objective: Objective) -> float:
        device = next(objective.parameters()).device
        found = objective.classes(torch.from_numpy(left).to(device), torch.from_numpy(right).to(device))
        return 100 * float(np.mean(found.cpu().numpy() == self.gold))

    @cached_property
    def _sentences(self) -> tuple[list[str], np.ndarray]:
        """Distinct sentences, and the index of each side's sentences among them."""
        return distinct([*self.left, *self.right])

    def _vectors(self, product: Product) -> np.ndarray:
        """Encode the distinct sentences: (distinct sentences, dim) float32.

        Ranks take turns at buffers that do not depend on the number of ranks. All ranks run equally many
        passes, repeating the last buffer if necessary, because sharded weights are gathered for each pass.
        """
        folder, device = product.encoder.folder, next(product.encoder.parameters()).device
        tokenizer = folder.tokenizer()
        tokens, kept = tokenizer(self._sentences[0]), load_filter(folder, tokenizer)
        if kept is not None:
            tokens = replace(tokens, kept=kept[tokens.ids])
        buffers = plan_buffers(tokens.lengths, max(_MAX_TOKENS[device.type], folder.max_length))
        vectors = torch.zeros(len(tokens), product.dim, device=device)
        for first in range(0, len(buffers), world_size()):
            number = first + Ranks().rank  # past the end on some ranks in the last turn
            encoded = product(tokens.of_rows(buffers[min(number, len(buffers) - 1)])).float()
            if number < len(buffers):
                vectors[torch.from_numpy(buffers[number]).to(device)] = encoded
        if world_size() > 1:
            dist.all_reduce(vectors)  # each row is zero on all ranks but one
        return vectors.cpu().numpy()


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put the modules into eval mode without gradients; restore the mode of each part afterwards."""
    modes = [(module, module.training) for whole in modules for module in whole.modules()]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@dataclass(frozen=True)
class Best:
    """Best score on dev so far; immutable: `observe` returns its successor.

    Attributes:
        patience: number of consecutive measurements without improvement that end the training; None for no
            limit. An equal score is no improvement.
        figure: best score; None before the first measurement. Checkpoints store it under this name.
        step: step of the best score.
        since: number of measurements since then, all without improvement.
    """

    patience: int | None = None
    figure: float | None = None
    step: int | None = None
    since: int = 0

    def observe(self, step: int, score: float) -> "Best":
        """Return the best score after another measurement."""
        if self.figure is None or score > self.figure:
            return replace(self, figure=score, step=step, since=0)
        return replace(self, since=self.since + 1)

    @property
    def ended(self) -> bool:
        """True if the score has not improved for `patience` measurements."""
        return self.patience is not None and self.since >= self.patience
