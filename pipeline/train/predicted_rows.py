"""Evaluation of an objective's own predictions on a file, dev or test, such as classes of sentence pairs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from pipeline.config import validated
from pipeline.errors import ConfigError, DataError
from pipeline.evaluate.sts import correlation
from pipeline.log import counted
from pipeline.objectives import OBJECTIVES, Batch, Column, Objective, PredictsRows, TrainedModel
from pipeline.settings.training import (
    TEXTS,
    DevSettings,
    Measure,
    SourceSettings,
    TestSetSettings,
    TrainSettings,
    Values,
)
from pipeline.stats.classes import POSITIVE, accuracy, f1, matthews
from pipeline.stats.correlation import is_constant, pearson, spearman
from pipeline.text.rows.training_rows import open_training_rows
from pipeline.train.dev import DevMetrics, check_finite, encode_on_all_ranks, evaluating

_METRICS: Mapping[Measure, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": lambda predicted, gold: correlation(pearson, predicted, gold),
    "spearman": lambda predicted, gold: correlation(spearman, predicted, gold),
}


@dataclass(frozen=True, eq=False)
class PredictedRows:
    """Rows with labels or scores, read once, which the first objective predicts; can be pickled."""

    where: str
    """path or URI of the file, for error messages"""
    columns: Mapping[str, Column]
    """n values of each role that the objective reads, labels and scores included"""
    target: str
    """role of the labels or scores"""
    measure: Measure
    """metric of `score`, one of `measures`"""
    measures: tuple[Measure, ...]
    """metrics of `scores`: the objective's metrics, as far as the labels allow them"""

    @classmethod
    def open(cls, settings: TrainSettings, file: DevSettings | TestSetSettings) -> "PredictedRows":
        """Read the rows of a file that have a label or a score.

        The names of the labels and the range of the scores are those of the first source in `train.data`.
        `measure` is `train.dev.measure` for either file.

        Args:
            settings: settings of the training, whose first objective predicts.
            file: the file and its columns, `settings.dev` or `settings.test`.

        Raises:
            ConfigError: F1 of more than two classes on dev, or an unknown role.
            DataError: the file is missing or not Parquet, a column is missing or of another type, a label or
                score is invalid, or with these labels or scores a metric is the same for all predictions.
        """
        term = settings.objective[0]
        values = settings.data[0].values if settings.data else Values()
        objective = OBJECTIVES[term.name]
        assert issubclass(objective, PredictsRows)
        has_two_labels = len(values.labels) == 2
        if file is settings.dev and settings.dev.measure == "f1" and not has_two_labels:
            raise ConfigError(
                "train.dev.measure f1",
                "two labels, of which the second is that of F1 (`values.labels` of train.data)",
                f"{', '.join(values.labels)}",
                "list the labels of the file, or measure accuracy or matthews",
            )
        name = "train.dev" if file is settings.dev else "train.test"
        source = {"uri": file.uri, "columns": file.columns, "values": values}
        roles = objective.roles(term.options).required
        rows = open_training_rows(validated(SourceSettings, source, name), roles)
        table = pa.concat_tables(rows.read(rows.spans()))
        columns: dict[str, Column] = {
            role: table[role].to_pylist() if role in TEXTS else table[role].to_numpy() for role in roles
        }
        target = next(role for role in roles if role not in TEXTS)
        measure = settings.dev.measure if file is settings.dev else None
        _check_gold(rows.name, np.asarray(columns[target]), target, measure, values)
        return cls(
            rows.name,
            columns,
            target=target,
            measure=settings.dev.measure,
            measures=tuple(each for each in objective.measures if each != "f1" or has_two_labels),
        )

    @property
    def gold(self) -> np.ndarray:
        """(n,) classes, or scores from 0 to 1."""
        return np.asarray(self.columns[self.target])

    def score(self, model: TrainedModel, objective: Objective) -> float:
        """Compute 100 times the metric `measure` of the objective's predictions; see `scores`."""
        return self.scores(model, objective)[self.measure]

    def metrics(self, model: TrainedModel, objective: Objective) -> DevMetrics:
        """Compute `score` alone: pairs that are read together have no vectors of their own."""
        return DevMetrics(self.score(model, objective))

    def scores(self, model: TrainedModel, objective: Objective) -> dict[Measure, float]:
        """Compute 100 times each metric of the objective's predictions of all rows.

        Every rank has to call it, and gets the same values. The modules are in eval mode and draw no random
        numbers. Correlations are 0 if all predictions are equal.

        Args:
            model: modules to evaluate.
            objective: objective whose first part predicts from the model's vectors.

        Raises:
            DataError: on every rank, for vectors that are not finite.
        """
        predictor = objective.parts[0]
        assert isinstance(predictor, PredictsRows)
        tokenizer = model.encoder.folder.tokenizer()
        batch = Batch(self.columns, np.arange(len(self.gold)), tokenizer)
        with evaluating(model.encoder, objective):
            vectors = encode_on_all_ranks(model, predictor.prediction_tokens(batch))
            check_finite(self.where, vectors, [str(text) for text in next(iter(self.columns.values()))])
            device = next(objective.parameters()).device
            predicted = predictor.predict(torch.from_numpy(vectors).to(device)).cpu().numpy()
        return {measure: 100 * _METRICS[measure](predicted, self.gold) for measure in self.measures}


def _check_gold(where: str, gold: np.ndarray, target: str, measure: Measure | None, values: Values) -> None:
    """Raise DataError if no prediction can change a metric.

    Args:
        where: path or URI of the file.
        gold: (n,) classes or scores.
        target: role of these values, label or score.
        measure: metric by which the best weights are chosen; None if the file is not used for that.
        values: names of the labels.
    """
    if target == "score" and is_constant(gold):
        raise DataError(
            where,
            "at least two different scores",
            f"{counted(len(gold), 'row')}, all with the same score",
            "use other rows; no correlation is defined for these",
        )
    if measure == "matthews" and is_constant(gold):
        expected = "rows of at least two labels, because Matthews' correlation is 0 with one"
    elif measure == "f1" and POSITIVE not in gold:
        expected = f"rows with the label {values.labels[POSITIVE]}, without which F1 is 0"
    else:
        return
    found = ", ".join(values.labels[label] for label in np.unique(gold))
    raise DataError(where, expected, found, "use other rows, or set train.dev.measure to accuracy")
