"""Unsupervised SimCSE (Gao et al. 2021, section 3): a text's positive is itself, under other dropout."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import JsonValue
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.losses.contrastive import Similarity
from pipeline.models.layers.post_pooling import HeadName
from pipeline.objectives import OBJECTIVES, Batch, Loss, PositiveFloat, Roles, View
from pipeline.objectives.in_batch import Second, TwoEncoderContrast, default_temperature


@OBJECTIVES.register("simcse")
class SimCSE(TwoEncoderContrast):
    """InfoNCE of two copies of each text with different dropout masks; candidates come from all ranks.

    Both copies are encoded in one pass. The encoder needs dropout: without it both copies are equal, and the
    loss only pushes texts apart. `temperature` is by default 0.05 for cosines and 1 for inner products. The
    paper's ablations:

    - `positive`: "self" is the text itself; "next" is the sentence after it in its document; "next3" is one
      of the next three, drawn once for each text. These two need the columns document and position.
    - `second`: "same" is one encoder for both sides; "copy" is a second one for the positives, with its own
      head, that starts with the weights of the first and is trained too. Inference uses the first.
    - `masks`: "own" gives each copy of a text its own dropout mask; "shared" uses one mask for both.
    - `keep_head`: False leaves the head out in inference; True keeps it.
    - `similarity`: "cosine", or "dot" for inner products.

    For pairs of texts with the same meaning use `supervised`; for views that differ by more than dropout,
    `consert` or `pser`.
    """

    columns: tuple[str, ...] = ("text",)

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat | None = None,
        similarity: Similarity = "cosine",
        head: HeadName = "cls_mlp",
        keep_head: bool = False,
        positive: Literal["self", "next", "next3"] = "self",
        second: Second = "same",
        masks: Literal["own", "shared"] = "own",
    ) -> None:
        super().__init__(encoder, head=head, keep_head=keep_head, second=second)
        self.columns = self.roles({"positive": positive, "second": second, "masks": masks}).required
        self.temperature = temperature or default_temperature(similarity)
        self.similarity, self.masks = similarity, masks
        self.has_positive_pairs = masks == "own"

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> Roles:
        """Return the roles; raise ConfigError for a mask that different texts or encoders would share."""
        positive, second = str(options.get("positive", "self")), str(options.get("second", "same"))
        if options.get("masks") == "shared" and (positive, second) != ("self", "same"):
            raise ConfigError(
                "masks of simcse",
                "own, because only two copies of a text in one encoder can share a dropout mask",
                f"shared, with positive {positive} and second {second}",
                "leave masks out, or leave positive and second out",
            )
        return Roles(("text",) if positive == "self" else ("text", positive))

    @property
    def compared_role(self) -> str:
        return self.columns[-1]

    def views(self, batch: Batch) -> Sequence[View]:
        text = View(self.encoder, batch.tokens("text"))
        if self.masks == "shared":
            return (text,)
        return text, View(self.candidate_encoder, batch.tokens(self.columns[-1]))

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        return super().loss((reps[0], reps[-1]), batch)

    def warnings(self) -> list[str]:
        has_dropout = self.encoder.backbone.has_dropout
        if self.masks == "own" and (has_dropout or self.twin is not None or self.columns != ("text",)):
            return []
        cause, remedy = "the encoder has no dropout", "train.dropout"
        if self.masks == "shared":
            cause, remedy = "masks are shared", "masks to own"
        return [
            f"simcse: {cause}, so that both views of a text are equal, and little is learnt; set {remedy}"
        ]
