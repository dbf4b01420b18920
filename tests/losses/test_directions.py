"""InfoNCE in several directions: wrong directions, excluded candidates, and the case of one direction."""

import pytest
import torch

from pipeline.errors import ConfigError, Defect
from pipeline.losses.contrastive import info_nce
from pipeline.losses.directions import Compared, Direction, directed_info_nce

ROWS, DIM = 5, 4
DIRECTIONS: tuple[Direction, ...] = (
    "query_document",
    "document_query",
    "query_query",
    "document_document",
    "positive_positive",
)


def vectors(count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(ROWS, DIM, generator=generator, dtype=torch.float64) for _ in range(count)]


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_one_direction_is_info_nce(weight: float):
    queries, positives, *negatives = vectors(4)
    excluded = torch.rand(ROWS, 3 * ROWS, generator=torch.Generator().manual_seed(1)) < 0.3
    found = directed_info_nce(
        Compared(queries, (positives, *negatives)),
        temperature=0.2,
        hard_negative_weight=weight,
        excluded={"query_document": excluded},
    )
    expected = info_nce(
        queries,
        positives,
        temperature=0.2,
        negatives=torch.cat(negatives),
        hard_negative_weight=weight,
        excluded=excluded,
    )
    assert found.item() == pytest.approx(expected.item(), abs=1e-12)


def test_excluded_candidates_of_a_direction_are_as_if_they_were_not_there():
    """Rows 0 and 1 mean the same. Without the second one, the loss of row 0 is the same."""
    columns = vectors(3)
    excluded = {}
    for direction in DIRECTIONS:
        width = ROWS * (2 if direction.endswith("document") else 1)
        excluded[direction] = torch.zeros(1, width, dtype=torch.bool)
        excluded[direction][0, [0, *range(1, width, ROWS)]] = True  # the row's own is kept all the same
    given = {"temperature": 0.2, "directions": DIRECTIONS, "hardness": 1.0}
    queries, *documents = columns
    found = directed_info_nce(Compared(queries[:1], tuple(documents), queries), excluded=excluded, **given)
    rest = [torch.cat([column[:1], column[2:]]) for column in columns]
    expected = directed_info_nce(Compared(rest[0][:1], tuple(rest[1:]), rest[0]), **given)
    assert found.item() == pytest.approx(expected.item(), abs=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"directions": ()}, r"directions: expected distinct directions.*found none"),
        ({"directions": ("document_query",)}, r"query_document first.*found document_query"),
        ({"directions": ("query_document",) * 2}, r"distinct directions"),
        ({"directions": DIRECTIONS, "softmax": "each"}, r"softmax: expected joint.*query_query.*found each"),
        ({"temperature": 0.0}, r"temperature.*above 0"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str):
    queries, positives = vectors(2)
    with pytest.raises(ConfigError, match=message):
        directed_info_nce(Compared(queries, (positives,), queries), **{"temperature": 0.2, **options})


def test_columns_of_other_sizes_are_refused():
    queries, positives, negatives = vectors(3)
    with pytest.raises(Defect, match=r"documents\[1\] with 5 rows"):
        Compared(queries, (positives, negatives[1:]))
    with pytest.raises(Defect, match=r"5 rows of 5, starting at row 1"):
        Compared(queries, (positives,), offset=1)
