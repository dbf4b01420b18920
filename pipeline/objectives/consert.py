"""ConSERT (Yan et al. 2021): contrastive learning of two views per text, made at the embedding layer."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.losses.contrastive import nt_xent
from pipeline.models.trainable.perturbations import Probe, cutoff, keeps_special, shuffled_positions
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, PositiveFloat, View
from pipeline.text.tokens.tokens import Tokens

ViewName = Literal["none", "shuffle", "token_cutoff", "feature_cutoff", "adversarial"]
Rate = Annotated[float, Field(gt=0, lt=1)]


@OBJECTIVES.register("consert")
class Consert(Objective):
    """NT-Xent of two views in both directions; the candidates are both views of the texts of all ranks.

    `temperature` divides the cosines.
    `views` names two changes, one for the first and one for the second view of each text:

    - none: nothing; two such views differ by their dropout masks.
    - shuffle: the tokens get permuted positions.
    - token_cutoff, feature_cutoff: whole tokens, or whole columns of all tokens, are set to zero after the
      embeddings; their proportions are `token_rate` and `feature_rate`.
    - adversarial: the embedding of each token moves by a step of length `noise` along the gradient of this
      loss, with the other view fixed. (The published code takes the gradient of a supervised loss instead.)
      This view costs an additional forward and backward pass.

    `keep_special`: shuffling does not move the first and the last token. The default, None, means True if the
    pooling uses one of them.

    The paper trains without dropout (train.dropout=0), so that the two views differ only by these changes.
    The views of `simcse` differ only by dropout.
    """

    columns = ("text",)
    has_positive_pairs = True
    allows_truncation = True

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat = 0.1,
        views: tuple[ViewName, ViewName] = ("feature_cutoff", "shuffle"),
        feature_rate: Rate = 0.2,
        token_rate: Rate = 0.15,
        keep_special: bool | None = None,
        noise: PositiveFloat = 1.0,
    ) -> None:
        super().__init__(encoder)
        if views.count("adversarial") > 1:
            raise ConfigError(
                "views of consert",
                "at most one adversarial view",
                "two",
                "choose another kind for one of them, for example none",
            )
        self.temperature, self.kinds, self.noise = temperature, tuple(views), noise
        self.feature_rate, self.token_rate = feature_rate, token_rate
        self.keep_special = keeps_special(encoder) if keep_special is None else keep_special

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        views = [self._view(kind, tokens) for kind in self.kinds]
        if "adversarial" in self.kinds:
            index = self.kinds.index("adversarial")
            views[index] = self._adversarial(tokens, views[1 - index], batch)
        return views

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = reps
        return Loss.of(
            nt_xent=nt_xent(
                first,
                second,
                temperature=self.temperature,
                gathered=(batch.peers.gather(first), batch.peers.gather(second)),
                offset=batch.offset,
                excluded=batch.false_negative_mask("text", first.device),
            )
        )

    def warnings(self) -> list[str]:
        if self.kinds != ("none", "none") or self.encoder.backbone.has_dropout:
            return []
        return [
            "consert: the encoder has no dropout and both views are none, so that they are equal and "
            "little is learnt; choose other views, or set train.dropout"
        ]

    def _view(self, kind: ViewName, tokens: Tokens) -> View:
        """Create a view. For "adversarial" it is an unchanged view, which the caller replaces."""
        if kind == "shuffle":
            return View(
                self.encoder, tokens, positions=shuffled_positions(tokens, keep_special=self.keep_special)
            )
        if kind == "token_cutoff":
            return View(self.encoder, tokens, at_embedding=cutoff(tokens, "tokens", self.token_rate))
        if kind == "feature_cutoff":
            return View(self.encoder, tokens, at_embedding=cutoff(tokens, "features", self.feature_rate))
        return View(self.encoder, tokens)

    def _adversarial(self, tokens: Tokens, other: View, batch: Batch) -> View:
        """Create the adversarial view against the `other` view of the same texts."""
        probe = Probe()
        with torch.no_grad():
            fixed = other.encode()
        with torch.enable_grad():
            loss = self.loss((View(self.encoder, tokens, at_embedding=probe).encode(), fixed), batch).total
        return View(
            self.encoder,
            tokens,
            at_embedding=probe.ascent_step(loss, self.noise),
            whole_batch_reason="the adversarial view needs the gradient of all rows at the embeddings "
            "before any of them is encoded",
        )
