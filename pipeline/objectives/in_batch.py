"""Contrastive objectives whose candidates are the rows of the batch, on all ranks."""

from typing import cast

from torch import Tensor, nn

from pipeline.losses import Similarity, info_nce
from pipeline.objectives import Batch, Loss, Objective


class InBatchContrast(Objective):
    """InfoNCE: the first view of a row is the query, the second its positive, a third its hard negative.

    Attributes:
        temperature: divides the similarities.
        similarity: cosines, or inner products.
        hard_negative_weight: factor of exp(logit) of a row's own hard negative.
    """

    has_positive_pairs = True
    temperature: float
    similarity: Similarity = "cosine"
    hard_negative_weight: float = 1.0

    def project(self, vectors: Tensor) -> Tensor:
        """Apply the layers between vectors and loss to (n, dim) vectors; by default there are none."""
        return vectors

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        queries, *columns = map(self.project, reps)
        candidates, *negatives = [batch.peers.gather(column) for column in columns]
        return Loss.of(
            info_nce=info_nce(
                queries,
                candidates,
                negatives=negatives[0] if negatives else None,
                hard_negative_weight=self.hard_negative_weight,
                temperature=self.temperature,
                similarity=self.similarity,
                excluded=batch.false_negative_mask(self.columns[0], queries.device),
                offset=batch.offset,
            )
        )


class HeadedContrast(InBatchContrast):
    """InfoNCE of vectors after a `head`, which may be the identity."""

    head: nn.Module

    def project(self, vectors: Tensor) -> Tensor:
        return cast(Tensor, self.head(vectors))


def default_temperature(similarity: Similarity) -> float:
    """Return SimCSE's temperature for cosines, 0.05, or for inner products, 1 (Gao et al. 2021, appendix)."""
    return 0.05 if similarity == "cosine" else 1.0
