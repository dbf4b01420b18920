"""SimCSE: each text is its own positive."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.models.folder.folder import open_folder
from pipeline.models.layers.post_pooling import TanhHead
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives.build import data_requirements
from pipeline.objectives.simcse import SimCSE
from pipeline.settings import EncoderSettings
from pipeline.settings.training import TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import save_folder
from tests.objectives.tiny import Tiny, assert_same, batch_of, pop_gradients, texts

Z, OTHER = torch.tensor([[1.0, 0], [0, 1]]).double(), torch.tensor([[1.0, 1], [0, 2]]).double()


def cosines(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return (n, m) cosines of all pairs."""
    return torch.nn.functional.cosine_similarity(left[:, None], right[None], dim=2)


@pytest.mark.parametrize(("temperature", "loss"), [(1.0, 0.479110), (0.5, 0.330085), (0.05, 0.001427)])
def test_the_loss_of_two_pairs_matches_a_hand_computation(temperature: float, loss: float):
    objective = SimCSE(Tiny(dim=2), temperature=temperature, head="none")
    assert objective.loss((Z, OTHER), batch_of({"text": ["a", "b"]})).total.item() == pytest.approx(
        loss, abs=1e-6
    )


def test_inner_products_have_no_temperature():
    """Scores 1 and 0 for the first text, 1 and 2 for the second: log(1 + 1/e) each."""
    batch = batch_of({"text": ["a", "b"]})
    objective = SimCSE(Tiny(dim=2), similarity="dot", head="none")
    assert objective.temperature == 1
    assert objective.loss((Z, OTHER), batch).total.item() == pytest.approx(0.313262, abs=1e-6)
    assert SimCSE(Tiny(dim=2)).temperature == 0.05
    longer = objective.loss((3 * Z, OTHER), batch).total.item()
    assert longer == pytest.approx(np.log1p(np.exp(-3)), abs=1e-9)  # the norms of vectors matter


def test_both_copies_share_a_pass_with_different_dropout_masks():
    torch.manual_seed(0)
    objective, batch = SimCSE(Tiny(dropout=0.2)).double(), batch_of({"text": texts(5)})
    sizes = []
    objective.encoder.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    outcome = loss_and_backward(objective, batch)
    assert sizes == [10]
    assert not torch.isclose(outcome.reps[0], outcome.reps[1]).all(dim=1).any()


def test_shared_masks_make_both_copies_equal():
    torch.manual_seed(0)
    objective = SimCSE(Tiny(dropout=0.2), head="none", temperature=0.5, masks="shared").double()
    outcome = loss_and_backward(objective, batch_of({"text": texts(5)}))
    unit = torch.nn.functional.normalize(outcome.reps[0], dim=1)
    expected = ((unit @ unit.T / 0.5).logsumexp(1) - 1 / 0.5).mean()
    torch.testing.assert_close(outcome.loss.total, expected, rtol=0, atol=1e-12)


def test_equal_vectors_give_the_logarithm_of_the_number_of_texts():
    equal = torch.ones(64, 4).double()
    found = SimCSE(Tiny(dim=4), head="none").loss((equal, equal), batch_of({"text": texts(64)}))
    assert found.total.item() == pytest.approx(np.log(64), abs=1e-12)


def test_a_head_is_a_tanh_layer_with_small_weights():
    torch.manual_seed(0)
    objective = SimCSE(Tiny(dim=200))
    assert isinstance(objective.head, TanhHead)
    assert objective.head.linear.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert objective.head.linear.bias.abs().max() == 0
    vectors = torch.randn(3, 200)
    expected = np.tanh(vectors.numpy() @ objective.head.linear.weight.detach().numpy().T)
    np.testing.assert_allclose(objective.head(vectors).detach(), expected, atol=1e-6)


def test_the_trained_model_has_the_head_if_keep_head_is_set():
    kept, dropped = SimCSE(Tiny(), keep_head=True), SimCSE(Tiny())
    assert kept.trained_model().head is kept.head
    assert dropped.trained_model().head is None
    tokens = batch_of({"text": texts(3)}).tokens("text")
    vectors = kept.double().trained_model()(tokens)
    assert torch.equal(vectors, kept.head(kept.encoder(tokens)))
    assert SimCSE(Tiny(), head="none", keep_head=True).trained_model().head is None


def test_false_negatives_are_excluded():
    objective = SimCSE(Tiny(), temperature=0.3, head="none")
    batch = batch_of({"text": ["abc", "de", "abc"]})
    alike = np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], bool)
    reps = tuple(view.encode() for view in objective.views(batch))
    logits = cosines(*reps).detach().numpy() / 0.3
    kept = np.where(alike, -np.inf, logits)
    expected = np.mean(np.log(np.exp(kept).sum(axis=1)) - np.diag(logits))
    masked = replace(batch, false_negatives={"text": alike})
    assert objective.loss(reps, masked).total.item() == pytest.approx(expected, abs=1e-12)
    assert objective.loss(reps, batch).total.item() > expected + 0.1


@pytest.mark.parametrize("positive", ["next", "next3"])
@pytest.mark.parametrize("second", ["same", "copy"])
@pytest.mark.parametrize("chunk_rows", [None, 2])
def test_a_following_sentence_can_be_the_positive_read_by_the_same_encoder_or_a_second_one(
    positive: str, second: str, chunk_rows: int | None
):
    torch.manual_seed(0)
    objective = SimCSE(Tiny(), temperature=0.3, positive=positive, second=second).double()
    batch = batch_of({"text": texts(5, 1), positive: texts(5, 2)})
    encoder, head = objective.encoder, objective.head
    if second == "copy":
        assert torch.equal(objective.twin.layer, encoder.layer), "both start equal"
        encoder, head = objective.twin, objective.twin_head
        with torch.no_grad():
            encoder.layer += 0.3
            head.linear.bias += 0.5
    left = objective.head(objective.encoder(batch.tokens("text")))
    right = head(encoder(batch.tokens(positive)))
    expected = torch.nn.functional.cross_entropy(cosines(left, right) / 0.3, torch.arange(5))
    expected.backward()
    known = pop_gradients(objective)
    found = loss_and_backward(objective, batch, chunk_rows=chunk_rows).loss.total
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)
    assert_same(pop_gradients(objective), known)
    assert any(name.startswith("twin_head.") for name in known) == (second == "copy")
    model = objective.trained_model()
    assert (model.encoder, model.twin) == (objective.encoder, None)


def test_false_negatives_of_the_next_sentences_are_excluded_and_not_those_of_the_texts():
    objective = SimCSE(Tiny(), temperature=0.3, head="none", positive="next")
    batch = batch_of({"text": ["ab", "c", "def"], "next": ["c", "gh", "c"]})
    none, all_others = np.zeros((3, 3), bool), ~np.eye(3, dtype=bool)
    reps = tuple(view.encode() for view in objective.views(batch))
    masked = replace(batch, false_negatives={"text": none, "next": all_others})
    assert objective.loss(reps, masked).total.item() == pytest.approx(0, abs=1e-12)
    assert objective.loss(reps, batch).total.item() > 0.1


@pytest.mark.parametrize("options", [{"positive": "next"}, {"second": "copy"}])
def test_only_copies_of_a_text_in_one_encoder_can_share_a_mask(options: dict[str, str]):
    settings = TrainSettings(objective={"name": "simcse", "options": {"masks": "shared", **options}})
    with pytest.raises(ConfigError, match=r"masks of simcse: expected own.*found shared"):
        data_requirements(settings)


@pytest.mark.parametrize("family", ["bert", "electra"])
def test_an_encoder_without_dropout_is_warned_about(tmp_path, family):
    folder = open_folder(EncoderSettings(path=str(save_folder(tmp_path / family, family))))
    assert "no dropout" in SimCSE(load_trainable(folder, dropout=0.0)).warnings()[0]
    assert not SimCSE(load_trainable(folder)).warnings()
    assert not SimCSE(load_trainable(folder, dropout=0.0), positive="next").warnings()
    assert "shared" in SimCSE(load_trainable(folder), masks="shared").warnings()[0]


def test_a_single_row_is_refused():
    objective = SimCSE(Tiny()).double()
    with pytest.raises(ConfigError, match="at least two rows"):
        loss_and_backward(objective, batch_of({"text": ["a"]}))
