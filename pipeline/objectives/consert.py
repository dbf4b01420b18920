"""ConSERT (Yan et al. 2021): two views of each text, made at the embedding layer, find each other among the views of all others."""

from collections.abc import Sequence
from typing import Annotated, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.errors import ConfigError
from pipeline.losses import nt_xent
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.perturbations import Probe, cutoff, keeps_special, shuffled_positions
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, Positive, View
from pipeline.text.tokens.tokens import Tokens

ViewName = Literal["none", "shuffle", "token_cutoff", "feature_cutoff", "adversarial"]
Rate = Annotated[float, Field(gt=0, lt=1)]


@OBJECTIVES.register("consert")
class Consert(Objective):
    """NT-Xent of two views, both directions added; candidates are both views of the texts of all ranks.

    views: what is done to a text for its first and its second view: nothing (then the dropout masks alone differ); tokens believe to stand at other places; whole
    tokens, or whole columns in all tokens, are zero behind the embeddings; or every token goes a step of length `noise` there, in the direction in which this loss, with
    the other view fixed, rises most. The published program normalises that step token by token, and so does this one; there it goes uphill in the loss of the labels.
    It costs a pass forward and back more. keep_special: the first and the last token keep their places; None: where the pooling takes one of them.

    The paper trains without dropout (setting train.dropout), so that a pair differs by its views alone.
    """

    columns = ("text",)
    positives = True
    truncates = True

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: Positive = 0.1,
        views: tuple[ViewName, ViewName] = ("feature_cutoff", "shuffle"),
        feature_rate: Rate = 0.2,
        token_rate: Rate = 0.15,
        keep_special: bool | None = None,
        noise: Positive = 1.0,
    ) -> None:
        super().__init__(encoder)
        if views.count("adversarial") > 1:
            raise ConfigError(
                "views of consert",
                "one adversarial view at most",
                "two",
                "choose another one beside it: none, say",
            )
        self.temperature, self.kinds, self.noise = temperature, tuple(views), noise
        self.feature_rate, self.token_rate = feature_rate, token_rate
        self.keep_special = keeps_special(encoder) if keep_special is None else keep_special

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        made = [self._view(kind, tokens) for kind in self.kinds]
        if "adversarial" in self.kinds:
            place = self.kinds.index("adversarial")
            made[place] = self._adversarial(tokens, made[1 - place], batch)
        return made

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        first, second = reps
        gathered = batch.peers.gather(first), batch.peers.gather(second)
        value = nt_xent(
            first,
            second,
            temperature=self.temperature,
            gathered=gathered,
            offset=batch.first,
            excluded=batch.excluded("text", first.device),
        )
        return Loss.of(nt_xent=value)

    def doubts(self) -> list[str]:
        if self.kinds != ("none", "none") or cast(TrainableEncoder, self.encoder).backbone.drops:
            return []
        return [
            "consert: views that are none, of an encoder without dropout, are one vector, and little is learnt; name others, or set train.dropout"
        ]

    def _view(self, kind: ViewName, tokens: Tokens) -> View:
        """All but the adversarial one, which is made from another."""
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
        probe = Probe()
        with torch.no_grad():
            fixed = other.encode()
        with torch.enable_grad():
            loss = self.loss((View(self.encoder, tokens, at_embedding=probe).encode(), fixed), batch).total
        undivided = "the adversarial view needs the gradient of all rows at the embeddings before any of them is encoded"
        return View(self.encoder, tokens, at_embedding=probe.uphill(loss, self.noise), undivided=undivided)
