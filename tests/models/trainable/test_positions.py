"""Positions and changes of the embeddings that an objective gives to the trainable encoder."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from pipeline.errors import ModelError
from pipeline.models.trainable.encoder import load_trainable
from tests.models.folders import folder_at
from tests.models.trainable.padded import PACKED, mean, of_ids, padded


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert"])
def test_permuted_positions_equal_tokens_fed_in_that_order(folders, family):
    encoder = load_trainable(folder_at(folders[family]), dropout=0.0).double()  # pooled in float32
    ids, positions = np.array([2, 10, 11, 12, 13, 3]), np.array([0, 3, 1, 4, 2, 5])
    other = np.array([2, 60, 61, 3])  # of another length: the call reorders texts
    together = encoder(of_ids([other, ids]), positions=np.array([0, 1, 2, 3, *positions]))
    torch.testing.assert_close(
        together[1], encoder(of_ids([np.array([2, 11, 13, 10, 12, 3])]))[0], atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        together,
        encoder(of_ids([ids, other]), positions=np.array([*positions, 0, 1, 2, 3])).flip(0),
        atol=1e-6,
        rtol=0,
    )
    plain = encoder(of_ids([other, ids]))
    torch.testing.assert_close(together[0], plain[0], atol=1e-6, rtol=0)
    assert (together[1] - plain[1]).abs().max() > 1e-3
    torch.testing.assert_close(
        encoder(of_ids([other, ids]), positions=np.array([0, 1, 2, 3, 0, 1, 2, 3, 4, 5])),
        plain,
        atol=0,
        rtol=0,
    )


@pytest.mark.parametrize("family", ["roberta", "mpnet", "electra"])
def test_positions_equal_position_ids_of_the_reference(folders, family):
    encoder, model = (
        load_trainable(folder_at(folders[family]), dropout=0.0),
        AutoModel.from_pretrained(folders[family]).eval(),
    )
    tokens, positions = of_ids([np.array([2, 10, 11, 12, 13, 3])]), np.array([0, 3, 1, 4, 9, 5])
    expected = mean(
        *padded(
            model, tokens, position_ids=torch.from_numpy(positions)[None] + (0 if family == "electra" else 2)
        )
    )
    torch.testing.assert_close(encoder(tokens, positions=positions), expected, atol=1e-5, rtol=0)


def test_positions_outside_the_table_are_refused(folders):
    encoder = load_trainable(folder_at(folders["roberta"]))
    with pytest.raises(ModelError, match="rows 0 to 65 of the position table"):
        encoder(of_ids([np.array([2, 10])]), positions=np.array([0, 64]))


@pytest.mark.parametrize("family", PACKED)
def test_a_change_of_embeddings_gets_the_segment_of_each_text(folders, family):
    encoder, rows = (
        load_trainable(folder_at(folders[family]), dropout=0.0),
        [np.arange(5, 5 + length) for length in (3, 9, 5)],
    )
    plain = encoder(of_ids(rows))

    def cut(x, where):
        """The second text loses all but its first token's state."""
        own = where.indices[where.counts[0] : where.counts[:2].sum()]
        x = x.clone()
        x[own[1:]] = 0
        return x

    changed = encoder(of_ids(rows), at_embedding=cut)
    torch.testing.assert_close(changed[[0, 2]], plain[[0, 2]], atol=1e-6, rtol=0)
    assert (changed[1] - plain[1]).abs().max() > 1e-3
    seen = []

    def watched(x, where):
        x.retain_grad()
        seen.append(x)
        return x

    encoder(of_ids(rows), at_embedding=watched)[0].sum().backward()
    assert (seen[0].grad.abs().sum(1) > 0).sum() == 3  # a text's gradient stays with its own tokens


def test_changes_of_embeddings_are_refused_without_the_packed_pass(folders):
    with pytest.raises(ModelError, match="packed family"):
        load_trainable(folder_at(folders["electra"]))(of_ids([np.arange(5)]), at_embedding=lambda x, where: x)
