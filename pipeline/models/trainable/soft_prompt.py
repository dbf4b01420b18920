"""Soft prompts: templates of free vectors, which are trained while the encoder is frozen.

OptiPrompt (Zhong et al. 2021), as used in PromptBERT (Jiang et al. 2022).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.layers.backbones import AtEmbedding
from pipeline.models.layers.post_pooling import DenoiseTransform
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.packed_backbone import PackedBackbone
from pipeline.models.trainable.prompted import PromptedEncoder
from pipeline.text.tokens.tokens import Tokens


class LearnedWords(nn.Embedding):
    """Word table with additional rows, which start as copies of other rows."""

    def __init__(self, table: nn.Embedding, ids: Sequence[int]) -> None:
        """Share the weights of `table`, and add a copy of each of its rows `ids`."""
        super().__init__(table.num_embeddings, table.embedding_dim, table.padding_idx, _weight=table.weight)
        self.weight = table.weight
        self.added = nn.Parameter(table.weight.detach()[list(ids)].clone())

    def forward(self, ids: Tensor) -> Tensor:
        """Return (tokens, d) rows for ids (tokens,); num_embeddings is the id of the first added row."""
        added_index = ids - self.num_embeddings
        words = F.embedding(ids.clamp(max=self.num_embeddings - 1), self.weight, self.padding_idx)
        added = F.embedding(added_index.clamp(min=0), self.added)
        return torch.where((added_index >= 0)[:, None], added, words)

    def table_with(self, ids: Sequence[int]) -> Tensor:
        """Return one table that has the added rows at these ids."""
        missing = max(0, max(ids, default=-1) + 1 - self.num_embeddings)
        table = F.pad(self.weight.detach(), (0, 0, 0, missing))
        table[list(ids)] = self.added.detach()
        return table


class LearnedTemplate(PromptedEncoder):
    """Encoder that pools the mask of a template of free vectors, which start as a given template's words.

    It is called with tokens in the given template, and replaces the ids of the template's words by ids of the
    free vectors.
    """

    def __init__(
        self,
        encoder: TrainableEncoder,
        template: str | None,
        *,
        limit: int | None,
        transform: DenoiseTransform | None = None,
    ) -> None:
        """Add the free vectors to the backbone of `encoder`, unless it has them already.

        See `PromptedEncoder` for the arguments.

        Raises:
            ModelError: the backbone is not of a packed family.
        """
        super().__init__(encoder, template, limit=limit, denoise=False, readout=transform)
        if not isinstance(self.backbone, PackedBackbone):
            raise ModelError(
                str(self.folder.path),
                "a packed-family encoder (BERT, RoBERTa, ...), for a template of free vectors",
                str(self.folder.config.get("model_type")),
                "use BERT or RoBERTa",
            )
        ids = np.array([*self.frame.prefix, *self.frame.suffix])
        before, after = self._special_counts
        indices = np.arange(len(ids))[before : len(ids) - after]
        self._free = indices[indices != self.frame.mask_index]  # the template's words, not its mask
        table = cast(nn.Embedding, self.backbone.get_submodule(self.backbone.names.words))
        if not isinstance(table, LearnedWords):
            table = LearnedWords(table, ids[self._free].tolist())
            self.backbone.set_submodule(self.backbone.names.words, table)
        self._ids = self.template_ids(range(table.num_embeddings, table.num_embeddings + len(self._free)))

    @property
    def words(self) -> LearnedWords:
        """Word table with the free vectors."""
        return cast(
            LearnedWords, self.backbone.get_submodule(cast(PackedBackbone, self.backbone).names.words)
        )

    def pool_states(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Compute the (n, width) states of the mask, with free vectors instead of the template's words."""
        assert tokens.in_template is not None
        ids = tokens.ids.copy()
        ids[tokens.in_template] = np.tile(self._ids, len(tokens))
        return super().pool_states(replace(tokens, ids=ids), positions=positions, at_embedding=at_embedding)

    def template_ids(self, ids: Sequence[int]) -> np.ndarray:
        """Return the (template,) ids of the template, with one of `ids` instead of each of its words."""
        template = np.array([*self.frame.prefix, *self.frame.suffix], np.int32)
        template[self._free] = ids
        return template

    @property
    def free_vectors(self) -> int:
        """Number of free vectors."""
        return len(self._free)
