"""Attention sees the tokens that it should see, and gives a text the same bits with any number of threads."""

import numpy as np
import pytest
import torch

from pipeline.models.layers.attention import Group, attend_groups, attend_varlen, has_varlen, varlen_limit
from pipeline.models.layers.padded_mask import Heads, Sight, attend, without_cudnn

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


@pytest.mark.parametrize(
    ("dtype", "head_width", "capability", "has"),
    [
        (torch.bfloat16, 64, (9, 0), True),
        (torch.float16, 256, (8, 0), True),
        (torch.float32, 64, (9, 0), False),
        (torch.bfloat16, 26, (9, 0), False),  # TinyBERT
        (torch.bfloat16, 264, (9, 0), False),
        (torch.float16, 64, (7, 5), False),
        (torch.bfloat16, 64, None, False),
    ],
)
def test_variable_lengths_are_left_to_a_kernel_that_computes_them(dtype, head_width, capability, has):
    for grouped in (False, True):
        assert has_varlen(dtype, head_width, capability, grouped=grouped) is has


@pytest.mark.parametrize("sight", [Sight(), Sight(after=0), Sight(4, 4, 0.3), Sight(5, 0)])
def test_the_kernel_for_variable_lengths_takes_its_arguments(sight: Sight):
    tokens, key_heads = 40, 2
    mapped = torch.empty(tokens, HEADS + 2 * key_heads, 16, dtype=torch.bfloat16, device="meta")
    heads = Heads(*mapped.split((HEADS, key_heads, key_heads), dim=1))
    bounds = torch.empty(4, dtype=torch.int32, device="meta")
    found = attend_varlen(heads, bounds, 128, sight)
    assert (found.shape, found.dtype) == ((tokens, HEADS * 16), torch.bfloat16)


@pytest.mark.parametrize(("longest", "limit"), [(1, 128), (128, 128), (129, 256), (300, 512), (8_192, 8_192)])
def test_the_limit_of_lengths_is_a_power_of_two(longest: int, limit: int):
    assert varlen_limit(np.array([longest, 1])) == limit


def test_attention_on_a_cpu_leaves_the_settings_of_cudnn():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    with without_cudnn(torch.device("cpu")):
        assert torch.backends.cuda.cudnn_sdp_enabled() is before


def test_attention_on_a_gpu_does_without_cudnn():
    torch.backends.cuda.enable_cudnn_sdp(True)
    with without_cudnn(torch.device("cuda")):
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()
