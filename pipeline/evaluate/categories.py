"""Categories of words: does a clustering of their vectors find them? (Baroni et al. 2014)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from pipeline.errors import DataError
from pipeline.evaluate import TASKS, EvaluationTask, Score, Vectors
from pipeline.evaluate.similarity import vectors_of
from pipeline.evaluate.source import TaskRoles
from pipeline.evaluate.vocabulary import has_vector, missing_facts, missing_texts, missing_warnings
from pipeline.stats.geometry import unit_rows

_STARTS = 10  # runs of k-means from different centroids; the best run is used


class LabelledWords(NamedTuple):
    """Words with their categories."""

    words: list[str]
    """n different words"""
    labels: np.ndarray
    """(n,) index of each word's category"""
    names: list[str]
    """names of the categories"""


@TASKS.register("categories")
@dataclass(frozen=True)
class CategoriesTask(EvaluationTask):
    """Purity of clusters of words, or of other short texts.

    Roles: text, label (the category). The normalized vectors are divided by k-means into as many clusters as
    there are categories; the value is the proportion of words whose category is the largest in their
    cluster. A word without a vector is in no cluster and counts as wrong. Options: split.
    """

    kind: ClassVar[str] = "categories"
    description: ClassVar[str] = (
        "Purity: the proportion of words in a cluster of mostly their own category, with as many clusters as "
        "categories."
    )
    roles: ClassVar[TaskRoles] = TaskRoles(("text", "label"))
    score_settings: ClassVar[tuple[str, ...]] = ("seed",)

    def labelled_words(self) -> LabelledWords:
        """Return the words with their categories.

        Raises:
            DataError: a word is repeated or has no category, or there are fewer than two categories.
        """
        rows = self.file.rows()
        words, (labels, names) = rows.texts("text"), rows.codes("label")
        if unlabelled := int((labels < 0).sum()):
            raise DataError(
                self.file.where,
                "a category for every word",
                f"{unlabelled:,} words without one",
                "remove them",
            )
        if len(set(words)) < len(words):
            raise DataError(
                self.file.where,
                "different words",
                f"{len(words) - len(set(words)):,} repeated",
                "keep each word in one category",
            )
        if len(names) < 2:
            raise DataError(
                self.file.where, "at least two categories", f"{len(names)}", "set another column for `label`"
            )
        return LabelledWords(words, labels, list(map(str, names)))

    def sentences(self) -> Sequence[str]:
        return self.labelled_words().words

    def score(self, vectors: Vectors) -> Score:
        words, labels, names = self.labelled_words()
        x = vectors_of(vectors, words, self.name)
        missing, is_known = missing_texts(words, x), has_vector(x)
        right = np.zeros(len(words), dtype=bool)
        if is_known.any():
            clusters = cluster(unit_rows(x[is_known]), len(names), self.settings.seed)
            right[is_known] = in_majority(clusters, labels[is_known])
        metrics = {}
        if missing and is_known.any():
            metrics["purity of known words"] = 100 * float(right[is_known].mean())
        return Score(
            "purity x100, k-means",
            100 * float(right.mean()),
            len(words),
            metrics=metrics,
            facts={
                "categories": len(names),
                "clustering": f"k-means on normalized vectors, best of {_STARTS} starts",
                **missing_facts(missing),
            },
            warnings=missing_warnings(self.name, missing, "they are in no cluster and count as wrong"),
            evidence={"right": right},
        )

    def statistic(self, evidence: Mapping[str, np.ndarray], rows: np.ndarray) -> float:
        """Compute the purity of resampled words within the clusters of all words."""
        return 100 * float(evidence["right"][rows].mean())


def cluster(x: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Divide x (n, d) into at most `count` clusters by k-means: (n,) numbers from 0.

    If there are fewer different rows than `count`, each is a cluster.
    """
    from sklearn.cluster import KMeans  # takes a second to import

    different = len(np.unique(x, axis=0))
    kmeans = KMeans(min(count, different), n_init=_STARTS, random_state=np.random.RandomState(seed % 2**32))
    return np.asarray(kmeans.fit_predict(x))


def in_majority(clusters: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return (n,) bool: True for rows whose category is the largest in their cluster; the first of a tie.

    Args:
        clusters: (n,) numbers of clusters from 0.
        labels: (n,) numbers of categories from 0.
    """
    counts = np.zeros((clusters.max() + 1, labels.max() + 1), np.int64)
    np.add.at(counts, (clusters, labels), 1)
    return np.asarray(counts.argmax(axis=1)[clusters] == labels)
