"""Settings of the measurements of a training: scores on dev and test, metrics and trackers."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config import Settings, ShortSettings

Measure = Literal["spearman", "pearson", "accuracy", "f1", "matthews", "log_likelihood"]


class DevSettings(Settings):
    """Measurements during a training that show whether the encoder gets better."""

    uri: str | None = None
    """a Parquet file that is not trained on; null: no scores are measured, the trained encoder has the last
    weights, and the loss of the same rows is measured before the first step and after the last"""
    measure: Measure = "spearman"
    """spearman: 100 times Spearman's correlation of cosines with the scores of rated pairs (sentence1,
    sentence2, score). accuracy: percent of pairs (premise, hypothesis, label) that the classifier of the
    objective classification or r_drop labels correctly; labels have the meaning that the first source of
    `data` gives them. For the objectives sequence_classification (accuracy, f1, matthews) and
    sequence_regression (spearman, pearson): 100 times the metric of the predictions, on a file with the
    columns of `data`; at the end, the trained model is measured by all metrics of its objective.
    log_likelihood, for the objective masked_lm: mean natural logarithm of the probability of masked words on
    a file with the column of `data` (text); exp(-log_likelihood) is the perplexity"""
    columns: dict[str, str] = {}
    """role -> column, if the column's name is not the role"""
    steps: Annotated[int, Field(ge=1)] = 250
    """steps between two measurements; there is one before the first step and one after the last"""
    patience: Annotated[int, Field(ge=1)] | None = None
    """consecutive measurements without a better score after which the training ends; null: never"""
    keep: Literal["best", "last"] = "best"
    """weights of the trained encoder. best: those with the best score; last: those after the last step"""


class TestSetSettings(ShortSettings):
    """A file on which a trained model's predictions are measured once, after the last step."""

    uri: str | None = None
    """a Parquet file that is neither trained on nor used to choose weights, with columns like those of
    `data`; predictions of the objectives sequence_classification and sequence_regression are measured by all
    metrics of the objective; other objectives refuse such a file. null: no file"""
    columns: dict[str, str] = {}
    """role -> column, if the column's name is not the role"""


class WatchSettings(Settings):
    """Reports during a training."""

    steps: Annotated[int, Field(ge=1)] = 10
    """number of steps that one line of metrics summarizes"""
    trackers: tuple[Literal["tensorboard", "mlflow", "wandb"], ...] | None = None
    """trackers that get the metrics besides metrics.jsonl; null: tensorboard if it is installed. mlflow and
    wandb read their own environment variables"""
