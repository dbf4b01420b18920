"""An objective may give the trainable encoder other positions, or a function that changes the embeddings."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from pipeline.errors import ModelError
from pipeline.models.trainable.encoder import load_trainable
from tests.models.folders import folder_at
from tests.models.trainable.padded import PACKED, mean, packed_ids, padded


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_permuted_positions_equal_tokens_fed_in_that_order(folders, family):
    encoder = load_trainable(folder_at(folders[family]), dropout=0.0).double()  # pooled in float32
    ids, positions = np.array([2, 10, 11, 12, 13, 3]), np.array([0, 3, 1, 4, 2, 5])
    other = np.array([2, 60, 61, 3])  # of another length, because the encoder sorts texts by length
    together = encoder(packed_ids([other, ids]), positions=np.array([0, 1, 2, 3, *positions]))
    torch.testing.assert_close(
        together[1], encoder(packed_ids([np.array([2, 11, 13, 10, 12, 3])]))[0], atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        together,
        encoder(packed_ids([ids, other]), positions=np.array([*positions, 0, 1, 2, 3])).flip(0),
        atol=1e-6,
        rtol=0,
    )
    plain = encoder(packed_ids([other, ids]))
    torch.testing.assert_close(together[0], plain[0], atol=1e-6, rtol=0)
    assert (together[1] - plain[1]).abs().max() > 1e-3
    torch.testing.assert_close(
        encoder(packed_ids([other, ids]), positions=np.array([0, 1, 2, 3, 0, 1, 2, 3, 4, 5])),
        plain,
        atol=0,
        rtol=0,
    )


@pytest.mark.parametrize("family", ["roberta", "mpnet", "electra"])
def test_positions_equal_position_ids_of_the_reference(folders, family):
    encoder = load_trainable(folder_at(folders[family]), dropout=0.0)
    model = AutoModel.from_pretrained(folders[family]).eval()
    tokens, positions = packed_ids([np.array([2, 10, 11, 12, 13, 3])]), np.array([0, 3, 1, 4, 9, 5])
    first = 0 if family == "electra" else 2  # RoBERTa and MPNet reserve two rows of the table for padding
    position_ids = torch.from_numpy(positions)[None] + first
    expected = mean(*padded(model, tokens, position_ids=position_ids))
    torch.testing.assert_close(encoder(tokens, positions=positions), expected, atol=1e-5, rtol=0)


def test_positions_outside_the_table_are_refused(folders):
    encoder = load_trainable(folder_at(folders["roberta"]))
    with pytest.raises(ModelError, match="rows 0 to 65 of the position table"):
        encoder(packed_ids([np.array([2, 10])]), positions=np.array([0, 64]))


@pytest.mark.parametrize("family", PACKED)
def test_a_change_of_embeddings_gets_the_segment_of_each_text(folders, family):
    encoder = load_trainable(folder_at(folders[family]), dropout=0.0)
    tokens = packed_ids([np.arange(5, 5 + length) for length in (3, 9, 5)])
    plain = encoder(tokens)

    def zero(x, where):
        """Set the embeddings of the second text to zero, except that of its first token."""
        second = where.indices[where.counts[0] : where.counts[:2].sum()]
        x = x.clone()
        x[second[1:]] = 0
        return x

    changed = encoder(tokens, at_embedding=zero)
    torch.testing.assert_close(changed[[0, 2]], plain[[0, 2]], atol=1e-6, rtol=0)
    assert (changed[1] - plain[1]).abs().max() > 1e-3
    seen = []

    def watch(x, where):
        x.retain_grad()
        seen.append(x)
        return x

    encoder(tokens, at_embedding=watch)[0].sum().backward()
    assert (seen[0].grad.abs().sum(1) > 0).sum() == 3, "only tokens of the first text have one"


def test_changes_of_embeddings_are_refused_for_a_padded_architecture(folders):
    encoder = load_trainable(folder_at(folders["electra"]))
    with pytest.raises(ModelError, match="packed-family"):
        encoder(packed_ids([np.arange(5)]), at_embedding=lambda x, where: x)
