"""Soft prompts: templates of vectors that are trained while the encoder is frozen (OptiPrompt: Zhong et al.
2021; as in PromptBERT, Jiang et al. 2022).
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
from pipeline.models.trainable.backbones import AtEmbedding
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.packed_backbone import PackedBackbone
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.text.tokens.tokens import Tokens

WORDS_TABLE = "embeddings.word_embeddings"


class LearnedWords(nn.Embedding):
    """Word table with additional rows, which start as copies of some of its own."""

    def __init__(self, own: nn.Embedding, ids: Sequence[int]) -> None:
        super().__init__(own.num_embeddings, own.embedding_dim, own.padding_idx, _weight=own.weight)
        self.weight = own.weight
        self.added = nn.Parameter(own.weight.detach()[list(ids)].clone())

    def forward(self, ids: Tensor) -> Tensor:
        """Return (tokens, d) rows for ids (tokens,); ids from num_embeddings on are those of added rows."""
        new = ids - self.num_embeddings
        words = F.embedding(ids.clamp(max=self.num_embeddings - 1), self.weight, self.padding_idx)
        return torch.where((new >= 0)[:, None], F.embedding(new.clamp(min=0), self.added), words)

    def table_with(self, ids: Sequence[int]) -> Tensor:
        """Return one table that has the added rows at these ids."""
        whole = F.pad(self.weight.detach(), (0, 0, 0, max(0, max(ids, default=-1) + 1 - self.num_embeddings)))
        whole[list(ids)] = self.added.detach()
        return whole


class LearnedTemplate(PromptedEncoder):
    """Encoder that pools the mask of a template of free vectors, which start as a manual template's words.

    Tokens have the ids of the manual template.
    """

    def __init__(
        self,
        encoder: TrainableEncoder,
        template: str | None,
        *,
        limit: int | None,
        transform: DenoiseTransform | None = None,
    ) -> None:
        """Add the free vectors to the backbone of `encoder`, unless it has them. Arguments as for
        `PromptedEncoder`.

        Raises:
            ModelError: the backbone is not one of the packed families.
        """
        super().__init__(encoder, template, limit=limit, denoise=False, readout=transform)
        if not isinstance(self.backbone, PackedBackbone):
            raise ModelError(
                str(self.folder.path),
                "one of the packed families for a template of free vectors",
                str(self.folder.config.get("model_type")),
                "use BERT or RoBERTa",
            )
        ids, (before, behind) = np.array([*self.frame.prefix, *self.frame.suffix]), self._specials
        free = np.arange(len(ids))[before : len(ids) - behind]
        self._free = free[free != self.frame.mask_place]
        table = cast(nn.Embedding, self.backbone.get_submodule(WORDS_TABLE))
        if not isinstance(table, LearnedWords):
            table = LearnedWords(table, ids[self._free].tolist())
            self.backbone.get_submodule("embeddings").word_embeddings = table
        self._ids = self.template_ids(range(table.num_embeddings, table.num_embeddings + len(self._free)))

    @property
    def words(self) -> LearnedWords:
        """The word table."""
        return cast(LearnedWords, self.backbone.get_submodule(WORDS_TABLE))

    def pooled(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Return (n, width) states of the mask, with free vectors in place of the manual template's words."""
        assert tokens.around is not None
        ids = tokens.ids.copy()
        ids[tokens.around] = np.tile(self._ids, len(tokens))
        return super().pooled(replace(tokens, ids=ids), positions=positions, at_embedding=at_embedding)

    def template_ids(self, ids: Sequence[int]) -> np.ndarray:
        """Return (template,) ids of the whole template, with one of `ids` in place of each of its words."""
        whole = np.array([*self.frame.prefix, *self.frame.suffix], np.int32)
        whole[self._free] = ids
        return whole

    @property
    def free_vectors(self) -> int:
        """Number of free vectors."""
        return len(self._free)
