"""Evaluation of the masked words that an objective predicts in texts that are not trained on."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist

from pipeline.config import validated
from pipeline.errors import DataError, ModelError
from pipeline.objectives import OBJECTIVES, MasksWords, Objective, TrainedModel
from pipeline.settings.training import SourceSettings, TrainSettings
from pipeline.text.rows.training_rows import open_training_rows
from pipeline.train.dev import DIVERGED, DevMetrics, buffers_of_rank, evaluating
from pipeline.train.gather import world_size

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
        in the training, the same ones each time.

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
        except ModelError as error:  # an error of a step would name the rows of a batch
            found = f"{error.found}, of {error.where}"
            raise DataError(self.where, error.expected, found, DIVERGED) from None
        if world_size() > 1:
            dist.all_reduce(total)
        return float(total) / count

    def metrics(self, model: TrainedModel, objective: Objective) -> DevMetrics:
        """Compute `score` alone: masked texts have no vectors to compare."""
        return DevMetrics(self.score(model, objective))
