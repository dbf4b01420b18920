"""A group gives all pairs of its texts, or as many as wanted, in which all texts occur equally often."""

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest

from tests.text.pairs.building import build


def test_pairs_are_two_different_texts_of_one_group(tmp_path: Path):
    rows = [
        {"group": 7, "text": "A dog runs."},
        {"group": 8, "text": "A man reads."},
        {"group": 7, "text": "An animal runs."},
        {"group": 9, "text": "Alone."},
        {"group": 7, "text": " A dog runs."},
    ]
    (pair,) = build(tmp_path, "groups", rows)
    assert sorted(pair.values()) == ["A dog runs.", "An animal runs."]


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 9, 10])
@pytest.mark.parametrize("most", [1, 4, 10, 1_000])
def test_a_group_gives_all_its_pairs_or_the_largest_number_with_equal_uses_of_its_texts(
    tmp_path: Path, size: int, most: int
):
    texts = [f"text {number}" for number in range(size)]
    rows = [{"group": "g", "text": text} for text in texts]
    found = [frozenset(row.values()) for row in build(tmp_path, "groups", rows, options={"most": most})]
    all_pairs = {frozenset(pair) for pair in combinations(texts, 2)}
    assert len(found) == len(set(found)) == min(most, len(all_pairs))
    assert set(found) <= all_pairs
    uses = Counter(text for pair in found for text in pair)
    assert max(uses.values()) - min(uses[text] for text in texts) <= 2


def test_either_text_of_a_pair_may_be_the_anchor(tmp_path: Path):
    rows = [{"group": group, "text": f"{name} {group}"} for group in range(200) for name in ("a", "b")]
    found = build(tmp_path, "groups", rows)
    assert 60 < sum(row["anchor"].startswith("a") for row in found) < 140
