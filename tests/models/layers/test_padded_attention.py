"""Padded attention in bfloat16 is exact but for rounding, and a text's bits do not depend on other texts."""

import numpy as np
import pytest
import torch

from pipeline.models.layers.attention import Group, attend_groups, groups_of
from pipeline.models.layers.padded_attention import MOST_PADDED, PaddedGroup, most_padded
from pipeline.models.layers.padded_mask import Heads, Sight
from tests.models.layers.test_attention import dense, seen

LENGTHS = np.array([512, 500, 130, 129, 128, 65, 33, 32, 31, 17, 16, 15, 15, 9, 2, 1])
WIDTH = 24


def heads_of(lengths: np.ndarray, key_heads: int = 6) -> Heads:
    """Draw heads of packed texts; those of a text are the same in any company."""
    parts = []
    for length in lengths:
        draws = torch.Generator().manual_seed(int(length))
        parts.append(torch.randn(int(length), 6 + 2 * key_heads, WIDTH, generator=draws).bfloat16())
    return Heads(*torch.cat(parts).split((6, key_heads, key_heads), dim=1))


def attend_padded(lengths: np.ndarray, key_heads: int = 6) -> list[torch.Tensor]:
    """Attend within texts of these lengths, all padded. Returns the outputs of each text."""
    found = attend_groups(heads_of(lengths, key_heads), groups_of(lengths, MOST_PADDED), Sight(scale=0.3))
    return list(found.split(lengths.tolist()))


@pytest.mark.parametrize("key_heads", [6, 2])
def test_tokens_attend_to_their_own_text_alone(key_heads: int):
    heads, ends = heads_of(LENGTHS, key_heads), np.cumsum(LENGTHS)
    for found, end, length in zip(attend_padded(LENGTHS, key_heads), ends, LENGTHS, strict=True):
        alone = Heads(*(part[end - length : end].transpose(0, 1)[None] for part in heads))
        expected = dense(alone, seen(int(length), None, None), 0.3)[0].transpose(0, 1).flatten(1)
        error = (found.double() - expected).norm() / expected.norm()
        assert error < 2**-7, f"{length} tokens: bfloat16 has 8 bits"


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no instructions for bfloat16")
def test_the_bits_of_a_text_depend_neither_on_other_texts_nor_on_threads():
    torch.set_num_threads(1)
    expected = attend_padded(LENGTHS)
    for number, length in enumerate(LENGTHS):
        for copies in (1, 3, 40 if length < 40 else 7):
            for found in attend_padded(np.repeat(length, copies)):
                assert torch.equal(found, expected[number]), (length, copies)
    for threads in (2, 3, 5):
        torch.set_num_threads(threads)
        assert all(map(torch.equal, attend_padded(LENGTHS), expected))


def test_texts_above_the_limit_are_grouped_by_their_length():
    lengths = np.array([70, 66, 66, 65, 64, 49, 48, 3, 3])
    groups = groups_of(lengths, most=65)
    assert [(group.start, group.stop, type(group)) for group in groups] == [
        (0, 70, Group),
        (70, 202, Group),
        (202, 267, PaddedGroup),  # 65, to 80
        (267, 380, PaddedGroup),  # 64 and 49, to 64
        (380, 428, PaddedGroup),
        (428, 434, PaddedGroup),
    ]
    assert {type(group) for group in groups_of(lengths)} == {Group}
    assert groups_of(np.array([], np.int64), most=65) == ()


@pytest.mark.parametrize(
    ("sight", "most"),
    [
        (Sight(), MOST_PADDED),
        (Sight(after=0), 0),
        (Sight(before=64, after=64), 65),
        (Sight(before=4_000, after=8), 9),
        (Sight(before=4_000, after=4_000), MOST_PADDED),
    ],
)
def test_only_texts_whose_tokens_all_see_each_other_are_padded(sight: Sight, most: int):
    assert most_padded(sight) == most
