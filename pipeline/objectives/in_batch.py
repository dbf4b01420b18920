"""Contrastive objectives whose candidates are the rows of the batch, on all ranks."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from pipeline.losses.contrastive import Similarity, info_nce
from pipeline.models.layers.post_pooling import DenseModule, HeadName, head_of
from pipeline.objectives import Batch, Loss, Objective, TrainedModel, View

Second = Literal["same", "copy"]


class InBatchContrast(Objective):
    """InfoNCE: the first view of a row is the query, the second its positive, a third its hard negative.

    Later views, of the roles negative2 and so on, are further negatives of every query, with a weight of one.
    """

    has_positive_pairs = True
    temperature: float
    """divides the similarities"""
    similarity: Similarity = "cosine"
    """cosines, or inner products"""
    hard_negative_weight: float = 1.0
    """factor of exp(logit) of a row's own hard negative"""

    @property
    def compared_role(self) -> str:
        """Role of the `Batch.false_negatives` that are excluded from the candidates."""
        return self.columns[0]

    def project(self, vectors: Tensor) -> Tensor:
        """Project (n, dim) vectors before the loss; by default they are left as they are."""
        return vectors

    def project_candidates(self, vectors: Tensor) -> Tensor:
        """Project vectors of candidates before the loss; by default like vectors of queries."""
        return self.project(vectors)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        queries = self.project(reps[0])
        candidates, *negatives = [batch.peers.gather(self.project_candidates(rep)) for rep in reps[1:]]
        excluded = batch.false_negative_mask(self.compared_role, queries.device)
        # the batch may have further negatives, for other objectives; these come last
        if excluded is not None:
            excluded = excluded[:, : sum(map(len, (candidates, *negatives)))]
        return Loss.of(
            info_nce=info_nce(
                queries,
                candidates,
                negatives=torch.cat(negatives) if negatives else None,
                hard_negative_weight=self.hard_negative_weight,
                temperature=self.temperature,
                similarity=self.similarity,
                excluded=excluded,
                offset=batch.offset,
            )
        )


class HeadedContrast(InBatchContrast):
    """InfoNCE of vectors after a `head`, which may be the identity."""

    head: nn.Module

    def project(self, vectors: Tensor) -> Tensor:
        return cast(Tensor, self.head(vectors))


class TwoEncoderContrast(HeadedContrast):
    """InfoNCE whose candidates may have an encoder of their own (Gao et al. 2021, section 3, table 3).

    With `second` "copy", a second encoder with its own head encodes positives and negatives. They start with
    the weights of the first encoder and head, and are trained too. The trained model is the first encoder;
    inference uses its head if `keep_head` is true and there is one.
    """

    def __init__(self, encoder: nn.Module, *, head: HeadName, keep_head: bool, second: Second) -> None:
        super().__init__(encoder)
        self.head, self.keep_head = head_of(head, self.dim), keep_head
        self.allows_truncation = head == "none"
        self.twin = copy.deepcopy(self.encoder) if second == "copy" else None
        self.twin_head = copy.deepcopy(self.head) if second == "copy" else None

    @property
    def candidate_encoder(self) -> nn.Module:
        """Encoder of positives and negatives."""
        return self.encoder if self.twin is None else self.twin

    def views(self, batch: Batch) -> Sequence[View]:
        queries, *others = super().views(batch)
        return [queries, *(replace(view, encoder=self.candidate_encoder) for view in others)]

    def project_candidates(self, vectors: Tensor) -> Tensor:
        return self.project(vectors) if self.twin_head is None else cast(Tensor, self.twin_head(vectors))

    def trained_model(self) -> TrainedModel:
        if not self.keep_head or not isinstance(self.head, DenseModule):  # the head "none" is the identity
            return super().trained_model()
        return replace(super().trained_model(), head=self.head)


def default_temperature(similarity: Similarity) -> float:
    """Return SimCSE's temperature for cosines, 0.05, or for inner products, 1 (Gao et al. 2021, appendix)."""
    return 0.05 if similarity == "cosine" else 1.0
