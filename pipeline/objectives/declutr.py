"""DeCLUTR (Giorgi et al. 2021): spans of a document find other spans that are near them."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from pipeline.errors import ConfigError, DataError
from pipeline.losses.contrastive import nt_xent
from pipeline.objectives import OBJECTIVES, Batch, Loss, Objective, PositiveFloat, View
from pipeline.objectives.draws import row_generators

Count = Annotated[int, Field(ge=1)]


@OBJECTIVES.register("declutr")
class Declutr(Objective):
    """NT-Xent of anchors and the means of their positives; all are spans of the documents in `text`.

    Each step draws spans from every document. `anchors` is the number of anchors, which are at least
    2 x `longest` words apart; `positives` is the number of positives of each anchor. A positive is adjacent
    to its anchor, overlaps it, or lies within it. The number of words of a span is
    shortest + p (longest - shortest), rounded down; p is drawn from Beta(4, 2) for anchors and from
    Beta(2, 4) for positives, which are shorter. Words are separated by white space, as in the published
    program. Other anchors and positives of the same document are negatives, too. The losses of the two
    directions are added; `temperature` divides the cosines.

    The paper leaves out a document that is too short for `anchors` spans of `longest` words (2,048 words with
    the defaults); here `shortest` and `longest` become smaller in proportion for such a document.

    A document's spans depend on the step's seed and the document's row number, so that they are the same for
    any number of ranks. The paper adds the loss of masked words: the objective `masked_lm`. For texts of one
    sentence use `simcse`.
    """

    columns = ("text",)
    has_positive_pairs = True
    allows_truncation = True

    def __init__(
        self,
        encoder: nn.Module,
        *,
        temperature: PositiveFloat = 0.05,
        anchors: Count = 2,
        positives: Count = 2,
        shortest: Count = 32,
        longest: Count = 512,
    ) -> None:
        super().__init__(encoder)
        if shortest > longest:
            raise ConfigError(
                "spans of declutr",
                "shortest to be at most longest",
                f"shortest {shortest}, longest {longest}",
                "correct one of them",
            )
        self.temperature, self.anchors, self.positives = temperature, anchors, positives
        self.shortest, self.longest = shortest, longest

    def views(self, batch: Batch) -> Sequence[View]:
        """Draw the spans of the whole batch; each anchor is a view, and is followed by its positives."""
        documents = [str(text).split() or [""] for text in batch.column("text")]
        device = next(self.encoder.parameters()).device
        longest = torch.tensor([max(map(len, documents))], device=device)
        if int(batch.peers.gather(longest).max()) < 2:
            raise DataError(
                "texts of declutr",
                "documents of many words, separated by white space",
                "no text of two words in a batch",
                "choose the column with whole documents as text",
            )
        rngs = row_generators(batch.rows, batch.peers, device)
        spans = [
            self.draw_spans(len(words), rng).reshape(-1, 2).tolist()
            for words, rng in zip(documents, rngs, strict=True)
        ]
        return [
            View(
                self.encoder,
                batch.tokenize(
                    [" ".join(words[slice(*row[view])]) for words, row in zip(documents, spans, strict=True)]
                ),
            )
            for view in range(self.anchors * (1 + self.positives))
        ]

    def draw_spans(self, words: int, rng: np.random.Generator) -> np.ndarray:
        """Draw the spans of a document of `words` words.

        Returns:
            (anchors, 1 + positives, 2) int64: first word and end of each span; positives follow their anchor.
        """
        longest = min(self.longest, max(words // (3 * self.anchors - 2), 1))  # each gap is as long as 2 spans
        shortest = max(self.shortest * longest // self.longest, 1)

        def lengths(*shape: int, beta: tuple[int, int]) -> np.ndarray:
            return (shortest + rng.beta(*beta, size=shape) * (longest - shortest)).astype(np.int64)

        anchors = lengths(self.anchors, beta=(4, 2))
        before = np.cumsum(anchors + 2 * longest) - (anchors + 2 * longest)  # earlier anchors and their gaps
        free = max(words - before[-1] - anchors[-1], 0)
        starts = before + np.sort(rng.integers(0, free, size=self.anchors, endpoint=True))
        starts = np.minimum(starts, words - anchors)  # matters if the document has fewer words than spans
        positives = lengths(self.anchors, self.positives, beta=(2, 4))
        first = np.maximum(starts[:, None] - positives, 0)
        last = np.minimum((starts + anchors)[:, None], words - positives)
        all_starts = np.column_stack([starts, rng.integers(first, last, endpoint=True)])
        return np.stack([all_starts, all_starts + np.column_stack([anchors, positives])], axis=2)

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        spans = torch.stack(reps, dim=1).unflatten(1, (self.anchors, 1 + self.positives))
        anchors = spans[:, :, 0].flatten(0, 1)  # (n anchors, D), document after document
        positives = spans[:, :, 1:].mean(dim=2).flatten(0, 1)
        excluded = batch.false_negative_mask("text", anchors.device)
        if excluded is not None:
            excluded = excluded.repeat_interleave(self.anchors, 0).repeat_interleave(self.anchors, 1)
        return Loss.of(
            nt_xent=nt_xent(
                anchors,
                positives,
                temperature=self.temperature,
                gathered=(batch.peers.gather(anchors), batch.peers.gather(positives)),
                offset=batch.offset * self.anchors,
                excluded=excluded,
            )
        )
