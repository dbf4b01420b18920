"""Packed attention gives a text the same bits with any number of threads."""

import pytest
import torch

from pipeline.models.layers.attention import Group, attend_groups

LENGTHS = (33, 17, 9, 8, 7, 5, 2, 1)
HEADS = 3


@pytest.mark.parametrize("head_width", [12, 16, 24, 32, 48, 64, 96, 128])
def test_bits_do_not_depend_on_the_number_of_threads(head_width: int):
    groups, start = [], 0
    for length in LENGTHS:
        groups.append(Group(start, 2, length))
        start += 2 * length
    qkv = torch.randn(start, 3 * HEADS * head_width, generator=torch.Generator().manual_seed(0))
    torch.set_num_threads(1)
    alone = attend_groups(qkv, tuple(groups), HEADS)
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        assert torch.equal(attend_groups(qkv, tuple(groups), HEADS), alone)
