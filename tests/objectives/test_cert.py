"""CERT: queries pick the keys of a momentum encoder, among a queue of earlier keys."""

import copy

import pytest
import torch
from torch.nn import functional as F

from pipeline.errors import ConfigError
from pipeline.objectives import Batch
from pipeline.objectives.cert import Cert
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, batch_of, descend, pop_gradients, texts

QUERIES, KEYS = torch.tensor([[1.0, 1], [0, 3]]).double(), torch.tensor([[1.0, 0], [1, 2]]).double()
QUEUE = F.normalize(torch.tensor([[0.0, 1], [1, -1], [-1, 0], [2, 1], [1, 3]]).double(), dim=1)


def pairs(seed: int, rows: int = 2) -> Batch:
    return batch_of({"anchor": texts(rows, 2 * seed), "positive": texts(rows, 2 * seed + 1)})


def build(**options: object) -> Cert:
    torch.manual_seed(0)
    objective = Cert(Tiny(dropout=0.1), **options).double()
    with torch.no_grad():  # larger weights, because the keys of a new head are almost equal
        for module in (objective.head, objective.slow_head):
            for parameter in module.parameters():
                parameter.mul_(20)
    return objective


def train_step(objective: Cert, batch: Batch, chunk_rows: int | None = None) -> torch.Tensor:
    """Make one step of gradient descent; return its loss."""
    outcome = loss_and_backward(objective, batch, chunk_rows=chunk_rows)
    descend(objective, rate=0.1)
    objective.after_step(outcome.reps, batch)
    return outcome.loss.total


@pytest.mark.parametrize(("temperature", "loss"), [(0.5, 1.530068), (0.07, 2.956268)])
def test_the_loss_of_two_queries_matches_a_hand_computation(temperature: float, loss: float):
    objective = Cert(Tiny(dim=2), temperature=temperature, queue=5, width=2).double()
    objective.head = objective.slow_head = torch.nn.Identity()
    objective.queue.copy_(QUEUE)
    assert objective.loss((QUERIES, KEYS), pairs(0)).total.item() == pytest.approx(loss, abs=1e-6)


def test_the_queue_has_the_published_size():
    assert Cert(Tiny()).queue.shape == (96_606, 128)
    torch.testing.assert_close(Cert(Tiny()).queue[:100].norm(dim=1), torch.ones(100))


def test_the_queue_wraps_and_holds_the_keys_of_earlier_steps():
    """Each step adds two keys to a queue of five."""
    objective, keys = build(queue=5, width=3), []
    numbers_and_pointers = [([0, 1], 2), ([0, 1, 2, 3], 4), ([5, 1, 2, 3, 4], 1), ([5, 6, 7, 3, 4], 3)]
    for step, (numbers, pointer) in enumerate(numbers_and_pointers):
        outcome = loss_and_backward(objective, pairs(step))
        keys += F.normalize(objective.slow_head(outcome.reps[1]), dim=1)
        before = objective.queue.clone()
        objective.after_step(outcome.reps, pairs(step))
        for row, number in enumerate(numbers):
            assert torch.equal(objective.queue[row], keys[number])
        assert torch.equal(objective.queue[len(numbers) :], before[len(numbers) :])
        assert int(objective.pointer) == pointer


def test_the_momentum_encoder_is_updated_before_the_next_keys():
    objective = build(queue=6, width=3, momentum=0.9)
    slow, fast = copy.deepcopy(objective.slow_encoder.words), objective.encoder.words
    for step in range(4):
        train_step(objective, pairs(step))
        slow = 0.9 * slow + 0.1 * fast
        torch.testing.assert_close(objective.slow_encoder.words, slow, rtol=0, atol=1e-12)
    assert (objective.slow_encoder.words - fast).abs().max() > 1e-4
    assert (objective.slow_head.out.weight - objective.head.out.weight).abs().max() > 1e-4


def test_the_moving_average_matches_a_hand_computation():
    objective = Cert(Tiny(), queue=4).double()
    with torch.no_grad():
        objective.slow_encoder.words.fill_(1.0)
        objective.encoder.words.fill_(2.0)
    for steps, expected in ((1, 1.001), (999, 1.632305)):
        for _ in range(steps):
            objective._update_momentum_copy(objective.slow_encoder, objective.encoder)
        assert objective.slow_encoder.words[0, 0].item() == pytest.approx(expected, abs=1e-6)


def test_the_momentum_encoder_has_no_gradient():
    objective = build(queue=4)
    loss_and_backward(objective, pairs(0))
    trained = {name for name, parameter in objective.named_parameters() if parameter.requires_grad}
    assert (
        trained
        == set(pop_gradients(objective))
        == {name for name, _ in objective.named_parameters() if not name.startswith("slow_")}
    )


def test_chunks_give_the_same_queue_and_losses():
    runs = []
    for chunk_rows in (None, 1):
        objective = build(queue=7, width=4)
        objective.encoder.dropout.p = objective.slow_encoder.dropout.p = 0.0
        losses = torch.stack([train_step(objective, pairs(step, 3), chunk_rows) for step in range(4)])
        runs.append((losses, objective.queue, objective.pointer))
    for whole, chunked in zip(*runs, strict=True):
        torch.testing.assert_close(whole, chunked, rtol=0, atol=1e-12)


def test_two_dropout_masks_of_one_text_make_a_pair():
    objective = Cert(Tiny(dropout=0.2), queue=4, pairs=False).double()
    assert objective.columns == ("text",)
    assert Cert.roles({"pairs": False}) == (("text",), ())
    assert Cert.roles({}) == (("anchor", "positive"), ())
    query, key = loss_and_backward(objective, batch_of({"text": texts(3)})).reps
    assert not torch.isclose(query, key).all(dim=1).any()


def test_batches_larger_than_the_queue_are_refused():
    Cert.check_batch({}, 96_606, all_ranks=True)
    Cert.check_batch({"queue": 4}, 4, all_ranks=True)
    with pytest.raises(ConfigError, match="at least 5, the number of keys of a batch, found 4"):
        Cert.check_batch({"queue": 4}, 5, all_ranks=True)
    with pytest.raises(ConfigError, match=r"train.across_ranks: expected true, because"):
        Cert.check_batch({"queue": 4}, 4, all_ranks=False)
    objective = Cert(Tiny(), queue=4).double()
    with pytest.raises(ConfigError, match="at least 5 rows"):
        train_step(objective, pairs(0, 5))
