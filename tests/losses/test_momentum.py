"""Momentum contrast: logits and loss match hand computations, the queue wraps, the average moves slowly."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pipeline.errors import ConfigError, Defect
from pipeline.losses.contrastive import info_nce
from pipeline.losses.momentum import enqueue, moco, moving_average, random_queue

Q = torch.tensor([[1.0, 1], [0, 3]], dtype=torch.float64)
K = torch.tensor([[1.0, 0], [1, 2]], dtype=torch.float64)
CERT_QUEUE = 96_606  # keys, as published (Fang et al. 2020)
QUEUE = torch.tensor([[0.0, 1], [1, -1], [-1, 0], [2, 1], [1, 3]], dtype=torch.float64)


def test_two_queries_with_five_earlier_keys_match_a_hand_computation():
    logits = [
        [1.414214, 1.414214, 0, -1.414214, 1.897367, 1.788854],
        [1.788854, 2, -1.414214, 0, 0.894427, 1.897367],
    ]
    losses = [math.log(sum(map(math.exp, row))) - row[0] for row in logits]
    rows = [moco(Q[i : i + 1], K[i : i + 1], QUEUE, temperature=0.5).item() for i in range(2)]
    assert rows == pytest.approx(losses, abs=1e-6)
    assert rows == pytest.approx([1.682292, 1.377844], abs=1e-6)
    assert moco(Q, K, QUEUE, temperature=0.5).item() == pytest.approx(1.530068, abs=1e-6)
    assert moco(Q, K, QUEUE, temperature=0.07).item() == pytest.approx(2.956268, abs=1e-6)


def test_equal_candidates_give_the_logarithm_of_their_number():
    same = torch.ones(1, 2)
    assert moco(same, same, same.expand(CERT_QUEUE, 2), temperature=0.07).item() == pytest.approx(
        11.478406, abs=1e-5
    )


def test_moco_is_info_nce_over_the_own_key_and_the_queue():
    rng = np.random.default_rng(0)
    q, k, queue = (torch.from_numpy(rng.normal(size=(rows, 6))) for rows in (4, 4, 9))
    others = torch.cat([~torch.eye(4, dtype=torch.bool), torch.zeros(4, 9, dtype=torch.bool)], dim=1)
    expected = info_nce(q, torch.cat([k, queue]), temperature=0.07, excluded=others)
    assert moco(q, k, queue, temperature=0.07).item() == pytest.approx(expected.item(), abs=1e-12)


def test_only_queries_get_a_gradient():
    q, k, queue = (each.clone().requires_grad_() for each in (Q, K, QUEUE))
    moco(q, k, queue, temperature=0.5).backward()
    assert q.grad.any()
    assert k.grad is None
    assert queue.grad is None


def test_the_queue_wraps_when_batches_do_not_divide_its_size():
    queue, pointer, states = torch.zeros(5, 1), 0, []
    for batch in torch.arange(1.0, 9).view(4, 2, 1):
        queue, pointer = enqueue(queue, batch, pointer)
        states.append((queue.flatten().tolist(), pointer))
    assert states == [([1, 2, 0, 0, 0], 2), ([1, 2, 3, 4, 0], 4), ([6, 2, 3, 4, 5], 1), ([6, 7, 8, 4, 5], 3)]


def test_the_pointer_of_a_long_queue_after_many_batches():
    queue, pointer, keys = torch.zeros(CERT_QUEUE, 1), 0, torch.zeros(16, 1)
    for _ in range(38):
        queue, pointer = enqueue(queue, keys, pointer)
    assert pointer == 608
    assert enqueue(queue, keys, 16 * 6037)[1] == 2  # the write that wraps: 16 x 6038 = CERT_QUEUE + 2


@pytest.mark.parametrize("pointer", [0, 3, 6])
def test_the_queue_holds_the_latest_keys_for_any_batch_sizes(pointer):
    keys = torch.arange(1.0, 29).view(-1, 1)
    whole = torch.zeros(7, 1)
    for start, size in ((0, 3), (3, 7), (10, 1), (11, 7), (18, 5), (23, 5)):
        whole, pointer = enqueue(whole, keys[start : start + size], pointer)
    assert sorted(whole.flatten().tolist()) == list(range(22, 29))


def test_enqueue_does_not_modify_the_old_queue_and_carries_no_gradient():
    queue, keys = torch.zeros(4, 2), torch.ones(2, 2, requires_grad=True)
    new, _ = enqueue(queue, keys, 3)
    assert not queue.any()
    assert not new.requires_grad
    assert new[[3, 0]].eq(1).all()


def test_the_initial_queue_is_random_unit_vectors_of_its_seed():
    queue = random_queue(500, 16, torch.Generator().manual_seed(3))
    np.testing.assert_allclose(queue.norm(dim=1), 1, atol=1e-6)
    assert queue.mean(dim=0).abs().max() < 0.05
    assert torch.equal(queue, random_queue(500, 16, torch.Generator().manual_seed(3)))


def test_the_average_moves_by_one_minus_momentum():
    slow = torch.tensor([1.0], dtype=torch.float64)
    fast = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    moved = moving_average(slow, fast, momentum=0.999)
    assert moved.item() == pytest.approx(1.001, abs=1e-12)
    for _ in range(999):
        moved = moving_average(moved, fast, momentum=0.999)
    assert moved.item() == pytest.approx(1.632305, abs=1e-6)
    assert moved.item() == pytest.approx(2 - 0.999**1000, abs=1e-12)
    assert not moved.requires_grad


def test_momentum_one_keeps_and_momentum_zero_copies():
    slow = torch.rand(5, generator=torch.Generator().manual_seed(0))
    fast = torch.rand(5, generator=torch.Generator().manual_seed(1))
    assert torch.equal(moving_average(slow, fast, momentum=1.0), slow)
    assert torch.equal(moving_average(slow, fast, momentum=0.0), fast)


def test_half_precision_parameters_are_refused():
    slow, fast = torch.ones(1, dtype=torch.bfloat16), torch.full((1,), 2.0, dtype=torch.bfloat16)
    assert torch.lerp(slow, fast, 0.001).item() == 1  # the step is rounded away
    with pytest.raises(Defect, match="float32"):
        moving_average(slow, fast, momentum=0.999)
    assert moving_average(slow.float(), fast, momentum=0.999).item() == pytest.approx(1.001)


def test_wrong_shapes_and_values_are_refused():
    with pytest.raises(ConfigError, match="momentum"):
        moving_average(Q, K, momentum=1.5)
    with pytest.raises(Defect, match="trained parameter"):
        moving_average(Q, K[0], momentum=0.5)
    with pytest.raises(ConfigError, match="lengthen the queue"):
        enqueue(torch.zeros(3, 2), torch.zeros(4, 2), 0)
    with pytest.raises(Defect, match="pointer from 0 to 2"):
        enqueue(torch.zeros(3, 2), torch.zeros(2, 2), 3)
    with pytest.raises(Defect, match="keys of shape"):
        enqueue(torch.zeros(3, 2), torch.zeros(2, 5), 0)
    with pytest.raises(Defect, match="keys with 2 rows"):
        moco(Q, K[:1], QUEUE, temperature=1)
    with pytest.raises(ConfigError, match="temperature"):
        moco(Q, K, QUEUE, temperature=0)


def test_equal_logits_give_the_logarithm_of_the_number_of_candidates():
    q = F.one_hot(torch.tensor([0]), 3).double()
    orthogonal = torch.tensor([[0.0, 1, 0]], dtype=torch.float64)
    assert moco(q, orthogonal, orthogonal.expand(6720, 3), temperature=0.07).item() == pytest.approx(
        math.log(6721), abs=1e-9
    )
