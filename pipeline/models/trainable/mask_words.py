"""Read the mask token of a template by the words that a masked language model predicts there (PromptBERT).

This module depends on models only.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import MASKED, EncoderFolder
from pipeline.models.folder.token_filter import spellings
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.mlm_head import has_language_head, load_language_head
from pipeline.models.trainable.prompted import remove_texts

_ROWS = 64  # texts of a forward pass; their logits are 8 MB for a vocabulary of 30,000 tokens


class MaskReadings(NamedTuple):
    """Readings of n texts, float32; a reading by words averages at most k words."""

    states: np.ndarray
    """(n, d) states of the mask token, h"""
    denoised_states: np.ndarray
    """(n, d) h - h_hat, where h_hat is the state of the mask token in the template without the text"""
    words: np.ndarray
    """(n, e) mean of the likeliest words' embeddings, weighted by their probability"""
    denoised_words: np.ndarray
    """(n, e) the same for the words that are likeliest after denoising"""
    ids: np.ndarray
    """(n, k) int64 ids of the likeliest words, the likeliest first"""
    denoised_ids: np.ndarray
    """(n, k) the same after denoising"""


class MaskReader:
    """Reader of the mask token by words: `sum p_v W_v / sum p_v` over the k likeliest words v.

    p is the softmax of the language model head's logits at the mask, and W the encoder's word embeddings.
    With denoising, the head's output layer, with its bias, is applied to T(h) - T(h_hat), where T is the
    head's transform (Jiang et al. 2022, PromptBERT).
    """

    def __init__(self, folder: EncoderFolder, device: Device, top_k: int) -> None:
        """Load encoder and head.

        Args:
            folder: folder of an encoder whose vectors are the states of a template's mask token.
            device: device that computes.
            top_k: number of words of a reading, or the size of the vocabulary if that is smaller.

        Raises:
            ModelError: the encoder has no such template, or no language model head.
        """
        if folder.pooling != MASKED:
            raise ModelError(
                str(folder.path),
                "an encoder that pools the mask token of a template",
                f"the pooling {'+'.join(folder.pooling)}",
                "set encoder.template",
            )
        encoder = load_trainable(folder, dropout=0.0)
        if not has_language_head(encoder):
            raise ModelError(
                str(folder.path),
                "a masked language model, whose head predicts words",
                "an encoder without a language model head",
                "use a checkpoint that has one, or train one with the objective masked_lm",
            )
        self._encoder = encoder.eval().to(device.torch())
        # the head's own output table takes precedence; a head without one has a copy of the embeddings here
        self._head = load_language_head(self._encoder, tied=False).eval()
        self._tokenizer = folder.tokenizer()
        known_ids = sorted(self._tokenizer.vocabulary().values())
        self.top_k = min(top_k, len(known_ids))
        # Tables may have more rows than there are tokens, such as a multiple of 64. These rows are not words.
        self._bias = torch.full_like(self._head.bias, -torch.inf)
        self._bias[known_ids] = self._head.bias.detach()[known_ids]

    def read(self, texts: Sequence[str]) -> MaskReadings:
        """Read n texts; each is put into the template first."""
        parts = [self._read(texts[start : start + _ROWS]) for start in range(0, len(texts), _ROWS)]
        return MaskReadings(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    def spellings(self, ids: np.ndarray) -> list[str]:
        """Return tokens (m,) as text; a WordPiece token that continues a word keeps its mark ##."""
        return spellings(self._tokenizer, ids, words=False)

    @torch.inference_mode()
    def _read(self, texts: Sequence[str]) -> MaskReadings:
        tokens = self._tokenizer(texts)
        templates = remove_texts(tokens)
        h = self._encoder.pool_states(tokens)
        empty = self._encoder.pool_states(templates.tokens, positions=templates.positions)
        h_hat = empty[torch.from_numpy(templates.index_of_text).to(h.device)]
        transformed = self._head.transform(h)
        words, ids = self._by_words(transformed)
        denoised_words, denoised_ids = self._by_words(transformed - self._head.transform(h_hat))
        readings = (h, h - h_hat, words, denoised_words, ids, denoised_ids)
        return MaskReadings(*(values.cpu().numpy() for values in readings))

    def _by_words(self, transformed: Tensor) -> tuple[Tensor, Tensor]:
        """Return weighted means of embeddings (n, e), and ids (n, k), for transformed states (n, e)."""
        assert self._head.table is not None
        top = F.linear(transformed, self._head.table, self._bias).topk(self.top_k)
        # The softmax of the k largest logits is p / sum p: the sum over other words cancels.
        weights = top.values.softmax(dim=-1)
        return torch.einsum(
            "nk,nke->ne", weights, self._encoder.backbone.word_table[top.indices]
        ), top.indices
