"""Supervised SimCSE (Gao et al. 2021, section 4): pairs, with hard negatives if the data has them."""

from torch import nn

from pipeline.losses.contrastive import Similarity
from pipeline.models.layers.post_pooling import HeadName
from pipeline.objectives import OBJECTIVES, PositiveFloat
from pipeline.objectives.in_batch import Second, TwoEncoderContrast, default_temperature


@OBJECTIVES.register("supervised")
class Supervised(TwoEncoderContrast):
    """InfoNCE of anchors with positives and, if the data has them, hard negatives; for example NLI triples.

    `hard_negative_weight` multiplies an anchor's own hard negative in the denominator of its softmax; hard
    negatives of other anchors have weight one (equation 5, with the weight of the appendix). Texts of the
    role negative2 have weight one, too; the paper uses them in an ablation, as neutral hypotheses in addition
    to contradictions. `similarity` is "cosine", or "dot" for inner products, another ablation. `temperature`
    is by default 0.05 for cosines and 1 for inner products. With `second` "copy", a second encoder encodes
    positives and negatives; see `simcse`. The paper trains a layer over [CLS] and keeps it at inference: use
    an encoder with pooling cls_mlp, or a `head` over any pooling, which inference keeps unless `keep_head` is
    false. Without pairs use `simcse`; for graded scores, `regression`; `triplet` compares no other rows of
    the batch.
    """

    columns = ("anchor", "positive")
    optional = ("negative", "negative2")

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat | None = None,
        similarity: Similarity = "cosine",
        head: HeadName = "none",
        second: Second = "same",
        keep_head: bool = True,
        hard_negative_weight: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(encoder, head=head, keep_head=keep_head, second=second)
        self.temperature = temperature or default_temperature(similarity)
        self.similarity, self.hard_negative_weight = similarity, hard_negative_weight
