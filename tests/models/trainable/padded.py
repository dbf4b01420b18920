"""Packed tokens of texts and ids, and the padded model of transformers as a reference."""

import numpy as np
import torch

from pipeline.models.trainable.encoder import load_trainable
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.tokens import Tokens
from tests.models.folders import FAMILIES, LONG, TEXTS

PACKED = [family for family in FAMILIES if family != "electra"]
"""families with a packed forward pass"""


def tokens_of(path, texts, max_length=64) -> Tokens:
    """Tokenize texts with the tokenizer of a folder."""
    return load_tokenizer(path, max_length)(texts)


def packed_ids(rows) -> Tokens:
    """Pack texts that are given as rows of token ids."""
    offsets = np.cumsum([0, *map(len, rows)])
    return Tokens(np.concatenate(rows).astype(np.int32), offsets, np.zeros(len(rows), bool))


def many(count: int, seed: int = 0) -> list[str]:
    """Return texts of 1 to 40 random words."""
    rng, words = np.random.default_rng(seed), LONG.split()[:16]
    return [" ".join(rng.choice(words, rng.integers(1, 41))) for _ in range(count)]


def padded(model, tokens: Tokens, **inputs) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Run a model of transformers. Returns hidden states, each (n, L, d), and the mask of tokens (n, L)."""
    rows = np.split(tokens.ids, tokens.offsets[1:-1])
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(row).long() for row in rows], True, model.config.pad_token_id
    )
    mask = torch.arange(ids.shape[1]) < torch.from_numpy(tokens.lengths)[:, None]
    return model(
        input_ids=ids, attention_mask=mask.long(), output_hidden_states=True, **inputs
    ).hidden_states, mask


def mean(states, mask):
    """Average the last hidden states over the tokens of each text, (n, d)."""
    return (states[-1] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def trained(folder, seed=0):
    """Load an encoder and train it for one step, whose gradients reach all weights."""
    torch.manual_seed(seed)
    encoder = load_trainable(folder)
    vectors = encoder(tokens_of(folder.transformer_path, TEXTS))
    (vectors * torch.randn(vectors.shape)).sum().backward()
    torch.optim.SGD(encoder.parameters(), lr=0.05).step()
    return encoder.eval()
