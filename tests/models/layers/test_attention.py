"""Attention sees the tokens that it should see, and gives a text the same bits with any number of threads."""

import pytest
import torch

from pipeline.models.layers.attend import Heads, Sight, attend
from pipeline.models.layers.attention import Group, attend_groups

LENGTHS = (33, 17, 9, 8, 7, 5, 2, 1)
HEADS, KEY_HEADS = 4, 2
SIGHTS = [(None, None), (None, 0), (0, 0), (3, 3), (5, 0), (64, 64), (127, 0), (2, 300)]


def heads_of(*sizes: int, seed: int = 0) -> Heads:
    """Draw queries, keys and values of these sizes, which end with the width of a head."""
    draws = torch.Generator().manual_seed(seed)
    return Heads(*(torch.randn(*sizes, generator=draws).transpose(-3, -2) for _ in range(3)))


def groups_of(lengths: tuple[int, ...]) -> tuple[Group, ...]:
    """Return groups of two texts of each length."""
    starts = [2 * sum(lengths[:number]) for number in range(len(lengths))]
    return tuple(Group(start, 2, length) for start, length in zip(starts, lengths, strict=True))


def seen(length: int, before: int | None, after: int | None) -> torch.Tensor:
    """Return (length, length) bool: the query of a row sees the key of a column."""
    distance = torch.arange(length) - torch.arange(length)[:, None]
    return (distance >= -(length if before is None else before)) & (
        distance <= (length if after is None else after)
    )


def dense(heads: Heads, is_seen: torch.Tensor, scale: float) -> torch.Tensor:
    """Compute attention in float64, with all products of queries and keys in memory."""
    queries, keys, values = (part.double() for part in heads)
    repeats = queries.shape[1] // keys.shape[1]
    keys, values = (part.repeat_interleave(repeats, dim=1) for part in (keys, values))
    scores = (queries @ keys.transpose(-1, -2) * scale).masked_fill(~is_seen, -torch.inf)
    return scores.softmax(dim=-1) @ values


@pytest.mark.parametrize("head_width", [12, 16, 24, 32, 48, 64, 96, 128])
@pytest.mark.parametrize("sight", [Sight(), Sight(after=0), Sight(4, 4)])
def test_bits_do_not_depend_on_the_number_of_threads(head_width: int, sight: Sight):
    groups = groups_of(LENGTHS)
    heads = Heads(*(part.transpose(0, 1) for part in heads_of(2 * sum(LENGTHS), HEADS, head_width)))
    torch.set_num_threads(1)
    alone = attend_groups(heads, groups, sight)
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        assert torch.equal(attend_groups(heads, groups, sight), alone)


@pytest.mark.parametrize("length", [1, 2, 63, 129, 300])
@pytest.mark.parametrize(("before", "after"), SIGHTS)
def test_tokens_attend_to_the_tokens_in_sight(length: int, before: int | None, after: int | None):
    queries, _, _ = heads_of(2, length, HEADS, 16)
    _, keys, values = heads_of(2, length, KEY_HEADS, 16, seed=1)
    heads = Heads(queries, keys, values)
    found = attend(heads, Sight(before, after, scale=0.3))
    torch.testing.assert_close(
        found.double(), dense(heads, seen(length, before, after), 0.3), atol=2e-6, rtol=0
    )


@pytest.mark.parametrize(("before", "after"), SIGHTS)
def test_tokens_do_not_see_padding(before: int | None, after: int | None):
    lengths, longest = (300, 200, 7), 300
    heads = heads_of(3, longest, HEADS, 16)
    mask = (torch.arange(longest) < torch.tensor(lengths)[:, None])[:, None, None]
    found = attend(heads, Sight(before, after), mask)
    assert found.isfinite().all(), "a gradient through padding would be NaN"
    for number, length in enumerate(lengths):
        alone = Heads(*(part[number : number + 1, :, :length] for part in heads))
        expected = dense(alone, seen(length, before, after), 16**-0.5)
        torch.testing.assert_close(
            found[number : number + 1, :, :length].double(), expected, atol=2e-6, rtol=0
        )
