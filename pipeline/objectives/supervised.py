"""Supervised SimCSE (Gao et al. 2021, section 4): pairs, with hard negatives if the data has them."""

from collections.abc import Mapping, Sequence
from typing import cast

from pydantic import JsonValue, NonNegativeFloat
from torch import nn

from pipeline.losses.contrastive import Similarity
from pipeline.losses.directions import Direction, HardnessOn, Softmax, check_directions
from pipeline.models.layers.post_pooling import HeadName
from pipeline.objectives import OBJECTIVES, PositiveFloat, Roles
from pipeline.objectives.directed import DirectedContrast
from pipeline.objectives.in_batch import Second, default_temperature
from pipeline.settings.training import NEGATIVES


@OBJECTIVES.register("supervised")
class Supervised(DirectedContrast):
    """InfoNCE of anchors with positives and, if the data has them, hard negatives; for example NLI triples.

    `hard_negative_weight` multiplies an anchor's own hard negative in the denominator of its softmax; hard
    negatives of other anchors have weight one (equation 5, with the weight of the appendix). Further hard
    negatives of a row (negative2, negative3, ...) have weight one, too; the paper has a second one in an
    ablation, a neutral hypothesis beside the contradiction. `similarity` is "cosine", or "dot" for inner
    products, another ablation. `temperature` is by default 0.05 for cosines and 1 for inner products. With
    `second` "copy", a second encoder encodes positives and negatives; see `simcse`. The paper trains a layer
    over [CLS] and keeps it at inference: use an encoder with pooling cls_mlp, or a `head` over any pooling,
    which inference keeps unless `keep_head` is false.

    `directions` lists what is compared in a row. "query_document", which comes first, is its anchor with all
    positives and negatives, as in SimCSE; "document_query" is its positive with all anchors; "query_query" is
    its anchor with other anchors; "document_document" is its positive with the positives and negatives of
    other rows, and "positive_positive" with their positives alone. `softmax` "joint" has the candidates of
    all directions in one softmax, as GTE (Li et al. 2023) with the first four; "each" is the mean loss of a
    softmax for each, as Jina Embeddings 2 (Günther et al. 2023) with the first two. `hardness` adds so many
    times its similarity to the logit of a negative of an anchor, so that hard negatives count more (Lan et
    al. 2025); `hardness_on` says of which negatives: those of other rows ("in_batch"), the row's own hard
    negatives ("own"), or "all".

    Without pairs use `simcse`; for graded scores, `regression`; to leave out false negatives by another
    encoder, `guided`; `triplet` compares no other rows of the batch.
    """

    columns: tuple[str, ...] = ("anchor", "positive")
    optional: tuple[str, ...] = NEGATIVES

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
        directions: tuple[Direction, ...] = ("query_document",),
        softmax: Softmax = "joint",
        hardness: NonNegativeFloat = 0.0,
        hardness_on: HardnessOn = "all",
    ) -> None:
        super().__init__(encoder, head=head, keep_head=keep_head, second=second)
        self.temperature = temperature or default_temperature(similarity)
        self.similarity, self.hard_negative_weight = similarity, hard_negative_weight
        self.directions, self.softmax = directions, softmax
        self.hardness, self.hardness_on = hardness, hardness_on
        self.columns, self.optional = self.roles(
            {"directions": list(directions), "softmax": softmax, "hardness_on": hardness_on}
        )

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> Roles:
        """Return the roles; raise ConfigError for directions that do not fit each other or the softmax."""
        directions = cast(Sequence[Direction], options.get("directions", cls.directions))
        check_directions(directions, cast(Softmax, options.get("softmax", cls.softmax)))
        if options.get("hardness_on") != "own":
            return super().roles(options)
        return Roles((*cls.columns, "negative"), tuple(role for role in cls.optional if role != "negative"))
