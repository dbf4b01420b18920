"""A template whose tokens are free vectors: trained, while everything else of the encoder stays (OptiPrompt:
Zhong et al. 2021; as in PromptBERT, Jiang et al. 2022).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.layers.post_pooling import DenoiseTransform
from pipeline.models.trainable.backbones import AtEmbedding, PackedBackbone
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.text.tokens.tokens import Tokens

WORDS_TABLE = "embeddings.word_embeddings"


class LearnedWords(nn.Embedding):
    """A word table as it was, and rows behind it, which begin as copies of some of its own."""

    def __init__(self, own: nn.Embedding, ids: Sequence[int]) -> None:
        super().__init__(own.num_embeddings, own.embedding_dim, own.padding_idx, _weight=own.weight)
        self.weight = own.weight
        self.added = nn.Parameter(own.weight.detach()[list(ids)].clone())

    def forward(self, ids: Tensor) -> Tensor:
        """(tokens, d) rows of ids (tokens,); ids from num_embeddings on are added ones."""
        new = ids - self.num_embeddings
        words = F.embedding(ids.clamp(max=self.num_embeddings - 1), self.weight, self.padding_idx)
        return torch.where((new >= 0)[:, None], F.embedding(new.clamp(min=0), self.added), words)

    def with_rows_at(self, ids: Sequence[int]) -> Tensor:
        """One table, with the added rows at these ids."""
        whole = F.pad(self.weight.detach(), (0, 0, 0, max(0, max(ids, default=-1) + 1 - self.num_embeddings)))
        whole[list(ids)] = self.added.detach()
        return whole


class LearnedTemplate(PromptedEncoder):
    """An encoder that reads the mask of a template of free vectors, which begin as the words of a manual one.

    Rows of tokens still have that one's ids.
    """

    def __init__(
        self,
        encoder: TrainableEncoder,
        template: str | None,
        *,
        limit: int,
        transform: DenoiseTransform | None = None,
    ) -> None:
        """The vectors become part of the backbone of `encoder`, where they are not yet.

        ModelError for a backbone that is not one of the packed families.
        """
        super().__init__(encoder, template, limit=limit, denoise=False, transform=transform)
        if not isinstance(self.backbone, PackedBackbone):
            found = str(self.folder.config.get("model_type"))
            raise ModelError(
                str(self.folder.path),
                "one of the packed families for a template of free vectors",
                found,
                "use BERT or RoBERTa",
            )
        ids, (before, behind) = np.array([*self.frame.prefix, *self.frame.suffix]), self._specials
        free = np.arange(len(ids))[before : len(ids) - behind]
        self._free = free[free != self.frame.mask_place]
        table = cast(nn.Embedding, self.backbone.get_submodule(WORDS_TABLE))
        if not isinstance(table, LearnedWords):
            table = LearnedWords(table, ids[self._free].tolist())
            self.backbone.get_submodule("embeddings").word_embeddings = table
        self._ids = self.translated(range(table.num_embeddings, table.num_embeddings + len(self._free)))

    @property
    def words(self) -> LearnedWords:
        """The word table."""
        return cast(LearnedWords, self.backbone.get_submodule(WORDS_TABLE))

    def pooled(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """(n, width) states of the mask, the free vectors standing where the manual template's words were."""
        assert tokens.around is not None
        ids = tokens.ids.copy()
        ids[tokens.around] = np.tile(self._ids, len(tokens))
        return super().pooled(replace(tokens, ids=ids), positions=positions, at_embedding=at_embedding)

    def translated(self, ids: Sequence[int]) -> np.ndarray:
        """(template,) ids of the whole template with these in place of its words, one for each."""
        whole = np.array([*self.frame.prefix, *self.frame.suffix], np.int32)
        whole[self._free] = ids
        return whole

    @property
    def free(self) -> int:
        """How many free vectors there are."""
        return len(self._free)
