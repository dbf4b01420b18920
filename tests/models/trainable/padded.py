"""The padded reference of the trainable encoder, and texts as packed tokens."""

import numpy as np
import torch

from pipeline.models.trainable.encoder import load_trainable
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.text.tokens.tokens import Tokens
from tests.models.folders import FAMILIES, LONG, TEXTS

PACKED = [family for family in FAMILIES if family != "electra"]


def tokens_of(path, texts, max_length=64) -> Tokens:
    return load_tokenizer(path, max_length)(texts)


def of_ids(rows) -> Tokens:
    offsets = np.cumsum([0, *map(len, rows)])
    return Tokens(np.concatenate(rows).astype(np.int32), offsets, np.zeros(len(rows), bool))


def many(count: int, seed: int = 0) -> list[str]:
    """Texts of 1 to 40 words: more than one block of them, of many lengths."""
    rng, words = np.random.default_rng(seed), LONG.split()[:16]
    return [" ".join(rng.choice(words, rng.integers(1, 41))) for _ in range(count)]


def padded(model, tokens: Tokens, **inputs) -> tuple[list[torch.Tensor], torch.Tensor]:
    """(hidden states (n, L, d), mask (n, L)) through transformers."""
    rows = np.split(tokens.ids, tokens.offsets[1:-1])
    ids = torch.nn.utils.rnn.pad_sequence(
        [torch.from_numpy(row).long() for row in rows], True, model.config.pad_token_id
    )
    mask = torch.arange(ids.shape[1]) < torch.from_numpy(tokens.lengths)[:, None]
    return model(
        input_ids=ids, attention_mask=mask.long(), output_hidden_states=True, **inputs
    ).hidden_states, mask


def mean(states, mask):
    return (states[-1] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def trained(folder, seed=0):
    """After one step of a loss that reaches everything."""
    torch.manual_seed(seed)
    encoder = load_trainable(folder)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.05)
    (
        encoder(tokens_of(folder.path / folder.transformer, TEXTS)) * torch.randn(len(TEXTS), encoder.dim)
    ).sum().backward()
    optimizer.step()
    return encoder.eval()
