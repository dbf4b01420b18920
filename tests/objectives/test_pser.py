"""PSER: contrastive learning of a text and its copy at shuffled positions, plus a divergence of the two."""

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.objectives.pser import Pser
from pipeline.objectives.simcse import SimCSE
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, texts

Z, OTHER = torch.tensor([[1.0, 0], [0, 1]]).double(), torch.tensor([[1.0, 1], [0, 2]]).double()
TWO_TEXTS = batch_of({"text": ["ab", "cd"]})
LONG_AND_SHORT = batch_of({"text": ["abcdefghijklmnop", "qrs"]})


def test_the_divergence_of_similarities_matches_a_hand_computation():
    found = Pser(Tiny(dim=2), temperature=0.5, alpha=5.0, kl_on="similarity").loss((Z, OTHER), TWO_TEXTS)
    assert found.parts["divergence"].item() == pytest.approx(5 * 0.191919, abs=1e-5)
    assert found.parts["info_nce"].item() == pytest.approx(0.330085, abs=1e-6)
    assert found.total.item() == pytest.approx(0.330085 + 5 * 0.191919, abs=1e-5)


def test_the_divergence_of_embeddings_matches_a_hand_computation():
    first, second = (torch.tensor([row] * 2).double() for row in ([0.2, -0.4, 1.0], [0.0, 0.1, 0.8]))
    found = Pser(Tiny(dim=3), alpha=0.5).loss((first, second), TWO_TEXTS)
    assert found.parts["divergence"].item() == pytest.approx(0.5 * 0.038426, abs=1e-6)


def test_the_second_view_has_the_same_tokens_at_permuted_positions():
    first, second = Pser(Tiny(), keep_special=False).views(LONG_AND_SHORT)
    assert np.array_equal(first.tokens.ids, second.tokens.ids)
    assert first.positions is None
    assert sorted(second.positions[:16]) == list(range(16))
    assert second.positions[:16].tolist() != list(range(16))


def test_by_default_the_text_is_shuffled_between_its_special_tokens():
    for _ in range(5):
        positions = Pser(Tiny()).views(LONG_AND_SHORT)[1].positions
        assert (positions[0], positions[15], *positions[16:]) == (0, 15, 0, 1, 2)
        assert sorted(positions[:16]) == list(range(16))
        assert positions[:16].tolist() != list(range(16))


def test_without_shuffling_and_divergence_it_is_simcse_without_a_head():
    batch = batch_of({"text": texts(5)})
    losses = []
    for objective in (
        Pser(Tiny(dropout=0.2), alpha=0.0, shuffle=False),
        SimCSE(Tiny(dropout=0.2), head="none"),
    ):
        torch.manual_seed(0)
        losses.append(loss_and_backward(objective.double(), batch).loss)
    assert losses[0].parts.keys() == {"info_nce"}
    torch.testing.assert_close(losses[0].total, losses[1].total, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("alpha", "parts"), [(0.0, {"info_nce"}), (0.1, {"info_nce", "divergence"})])
@pytest.mark.parametrize("shuffle", [True, False])
def test_each_component_can_be_left_out(alpha: float, parts: set[str], shuffle: bool):
    objective = Pser(Tiny(), alpha=alpha, shuffle=shuffle)
    assert (objective.views(LONG_AND_SHORT)[1].positions is not None) == shuffle
    found = objective.loss((Z, OTHER), TWO_TEXTS)
    assert found.parts.keys() == parts
    assert found.parts["info_nce"].item() == pytest.approx(0.001427, abs=1e-6)


@pytest.mark.parametrize("kl_on", ["embedding", "similarity"])
def test_chunks_give_the_same_loss(kl_on: str):
    objective, batch, losses = Pser(Tiny(), kl_on=kl_on).double(), batch_of({"text": texts(6)}), []
    for chunk_rows in (None, 2):
        torch.manual_seed(0)
        losses.append(loss_and_backward(objective, batch, chunk_rows=chunk_rows).loss.total)
    torch.testing.assert_close(*losses, rtol=0, atol=1e-12)


def test_a_single_row_is_refused():
    with pytest.raises(ConfigError, match="at least two rows"):
        Pser(Tiny()).loss((Z[:1], OTHER[:1]), batch_of({"text": ["a"]}))
