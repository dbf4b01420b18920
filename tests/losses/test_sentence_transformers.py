"""Losses and their gradients equal those of the installed sentence-transformers.

Options are chosen so that both compute the same value. The conventions that differ by default are in the
table of jobs/configs/README.md.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from sentence_transformers.sentence_transformer import losses as theirs
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from pipeline.losses.classification import FEATURES, SBERT_FEATURES, Feature, classification, pair_features
from pipeline.losses.contrastive import info_nce, nt_xent
from pipeline.losses.directions import Compared, Direction, directed_info_nce
from pipeline.losses.distillation import embedding_distillation, margin_mse, similarity_distillation
from pipeline.losses.guided import MarginOf, guided_exclusions
from pipeline.losses.pairs import contrastive_tension, cosine_regression, triplet
from pipeline.objectives.build import Matryoshka
from pipeline.objectives.supervised import Supervised
from tests.objectives.tiny import Tiny, batch_of, texts

ROWS, DIM, CLASSES = 6, 8, 3
ALL_DIRECTIONS: tuple[Direction, ...] = (
    "query_document",
    "query_query",
    "document_query",
    "document_document",
)
GUIDED_DIRECTIONS: tuple[Direction, ...] = ("query_document", "query_query", "positive_positive")
TEMPERATURE = 0.3
SCALE = 1 / TEMPERATURE


class GivenVectors(nn.Module):
    """Model of sentence-transformers whose embeddings are the features themselves."""

    device = torch.device("cpu")

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["vectors"]}

    def get_embedding_dimension(self) -> int:
        return DIM


class Case(NamedTuple):
    """Loss of ours and its counterpart.

    Attributes:
        columns: number of embeddings of each row.
        ours: loss of the columns (N, D) and the labels.
        theirs: the same, by sentence-transformers.
        labels: function of N that draws the labels, float32 if they are scores; None if there are none.
    """

    columns: int
    ours: Callable[[Sequence[Tensor], Any], Tensor]
    theirs: Callable[[Sequence[Tensor], Any], Tensor]
    labels: Callable[[int], Tensor | None] = lambda count: None


def computed_by(loss: nn.Module) -> Callable[[Sequence[Tensor], Any], Tensor]:
    """Return a function that computes a loss of sentence-transformers from the columns and labels."""

    def compute(columns: Sequence[Tensor], labels: Any) -> Tensor:
        return loss.to(columns[0].dtype)([{"vectors": column} for column in columns], labels)

    return compute


def ranking(**options: Any) -> Callable[[Sequence[Tensor], Any], Tensor]:
    return computed_by(theirs.MultipleNegativesRankingLoss(GivenVectors(), scale=SCALE, **options))


def directed(columns: int, **options: Any) -> Case:
    """Compare in-batch negatives in several directions, or with more weight for hard ones.

    Args:
        columns: number of columns of texts.
        options: options of `directed_info_nce`.
    """
    names = {"query_document": "query_to_doc", "document_query": "doc_to_query"}
    names |= {"query_query": "query_to_query", "document_document": "doc_to_doc"}
    modes = {"in_batch": "in_batch_negatives", "own": "hard_negatives", "all": "all_negatives"}
    other = ranking(
        directions=tuple(names[each] for each in options.get("directions", ["query_document"])),
        partition_mode="per_direction" if options.get("softmax") == "each" else "joint",
        hardness_mode=modes[options["hardness_on"]] if "hardness_on" in options else None,
        hardness_strength=options.get("hardness", 0.0),
    )

    def ours(columns: Sequence[Tensor], labels: None) -> Tensor:
        compared = Compared(columns[0], tuple(columns[1:]), columns[0])
        return directed_info_nce(compared, temperature=TEMPERATURE, **options)

    return Case(columns, ours, other)


class Guide(GivenVectors):
    """Model of sentence-transformers with a tokenizer, as their loss with a guide requires."""

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, "a")))
    max_seq_length = 8

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features[self.name]}

    def __getitem__(self, index: int) -> None:
        return None


def guided(
    columns: int, directions: Sequence[Direction], margin: float = 0.0, margin_of: MarginOf = "absolute"
) -> Case:
    """Compare in-batch negatives that a guide selects, whose vectors are the labels (N, columns, DIM)."""
    options = {
        "contrast_anchors": "query_query" in directions,
        "contrast_positives": "positive_positive" in directions,
        "margin": margin,
        "margin_strategy": margin_of,
    }
    kind = theirs.CachedGISTEmbedLoss if columns > 3 else theirs.GISTEmbedLoss
    loss = kind(Guide("vectors"), Guide("guide"), TEMPERATURE, **options)

    def other(columns: Sequence[Tensor], guide: Tensor) -> Tensor:
        vectors = zip(columns, guide.unbind(dim=1), strict=True)
        if isinstance(loss, theirs.CachedGISTEmbedLoss):
            return loss.calculate_loss([[each] for each in columns], [[each] for each in guide.unbind(dim=1)])
        return loss([{"vectors": own, "guide": other} for own, other in vectors], None)

    def ours(columns: Sequence[Tensor], guide: Tensor) -> Tensor:
        trained, guiding = (Compared(x[0], tuple(x[1:]), x[0]) for x in (tuple(columns), guide.unbind(dim=1)))
        excluded = guided_exclusions(guiding, directions, margin=margin, margin_of=margin_of)
        for direction in directions:
            assert 0 < (excluded[direction] & ~trained.own(direction)).sum() < excluded[direction].numel()
        return directed_info_nce(trained, temperature=TEMPERATURE, directions=directions, excluded=excluded)

    return Case(columns, ours, other, lambda count: torch.randn(count, columns, DIM))


def two_directions(columns: Sequence[Tensor], labels: None) -> Tensor:
    """Add the loss of the first views and that of the second, each with the other first or second views."""
    one_way = ranking(directions=("query_to_doc", "query_to_query"), partition_mode="joint")
    return one_way(columns, labels) + one_way(columns[::-1], labels)


def classified(features: Sequence[Feature]) -> Case:
    """Compare classifications of pairs by these features, with one classifier for both."""
    product = "u*v" in features
    softmax = theirs.SoftmaxLoss(GivenVectors(), DIM, CLASSES, concatenation_sent_multiplication=product)

    def ours(columns: Sequence[Tensor], labels: Tensor) -> Tensor:
        return classification(softmax.classifier(pair_features(*columns, features)), labels)

    return Case(2, ours, computed_by(softmax), lambda count: torch.randint(CLASSES, (count,)))


def scores_of(columns: Sequence[Tensor]) -> Tensor:
    """Return the inner products of the first column with each of the others: (N, columns - 1)."""
    query, *candidates = columns
    return torch.stack([(query * candidate).sum(dim=1) for candidate in candidates], dim=1)


def distilled(columns: Sequence[Tensor], teacher: Tensor) -> Tensor:
    return TEMPERATURE**2 * similarity_distillation(scores_of(columns), teacher, temperature=TEMPERATURE)


CASES = {
    "pairs": Case(2, lambda x, _: info_nce(*x, temperature=TEMPERATURE), ranking()),
    "triplets": Case(3, lambda x, _: info_nce(*x[:2], negatives=x[2], temperature=TEMPERATURE), ranking()),
    "several negatives": Case(
        4, lambda x, _: info_nce(*x[:2], negatives=torch.cat(x[2:]), temperature=TEMPERATURE), ranking()
    ),
    "both ways": Case(
        2,
        lambda x, _: (
            (info_nce(*x, temperature=TEMPERATURE) + info_nce(*x[::-1], temperature=TEMPERATURE)) / 2
        ),
        ranking(directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"),
    ),
    "NT-Xent": Case(2, lambda x, _: nt_xent(*x, temperature=TEMPERATURE), two_directions),
    "all directions of pairs": directed(2, directions=ALL_DIRECTIONS),
    "all directions of several negatives": directed(4, directions=ALL_DIRECTIONS),
    "queries with queries": directed(3, directions=("query_document", "query_query")),
    "documents with documents": directed(3, directions=("query_document", "document_document")),
    "documents with queries": directed(3, directions=("query_document", "document_query")),
    "a softmax for each direction": directed(
        3, directions=("query_document", "document_query"), softmax="each"
    ),
    "hard in-batch negatives": directed(4, hardness=2.0, hardness_on="in_batch"),
    "hard negatives of the row": directed(4, hardness=2.0, hardness_on="own"),
    "hard negatives in all directions": directed(
        4, directions=ALL_DIRECTIONS, hardness=2.0, hardness_on="all"
    ),
    "guided pairs": guided(2, GUIDED_DIRECTIONS),
    "guided triplets": guided(3, GUIDED_DIRECTIONS, margin=0.1),
    "guided triplets with a relative margin": guided(3, GUIDED_DIRECTIONS, 0.3, "relative"),
    "guided queries with documents alone": guided(3, ("query_document",), 0.2, "relative"),
    "guided several negatives": guided(4, GUIDED_DIRECTIONS, margin=0.1),
    "cosine regression": Case(
        2,
        lambda x, scores: cosine_regression(*x, scores),
        computed_by(theirs.CosineSimilarityLoss(GivenVectors())),
        torch.rand,
    ),
    "triplet": Case(
        3,
        lambda x, _: triplet(*x, margin=1.0),
        computed_by(theirs.TripletLoss(GivenVectors(), triplet_margin=1.0)),
    ),
    "contrastive tension": Case(
        2,
        lambda x, equal: contrastive_tension(*x, equal, reduction="sum"),
        computed_by(theirs.ContrastiveTensionLoss(GivenVectors())),
        lambda count: torch.arange(count) % 3 == 0,
    ),
    "distillation of embeddings": Case(
        1,
        lambda x, teacher: embedding_distillation(*x, teacher),
        computed_by(theirs.MSELoss(GivenVectors())),
        lambda count: torch.randn(count, DIM),
    ),
    "distillation of similarities": Case(
        4,
        distilled,
        computed_by(theirs.DistillKLDivLoss(GivenVectors(), temperature=TEMPERATURE)),
        lambda count: torch.randn(count, 3),
    ),
    "margins of scores": Case(
        2 + 3,
        lambda x, teacher: margin_mse(scores_of(x), teacher),
        computed_by(theirs.MarginMSELoss(GivenVectors())),
        lambda count: torch.randn(count, 4),
    ),
    "classes by u, v, |u-v|": classified(SBERT_FEATURES),
    "classes by u, v, |u-v|, u*v": classified(FEATURES),
}


def value_and_gradients(
    loss: Callable[[Sequence[Tensor], Any], Tensor], columns: Sequence[Tensor], labels: Any
) -> tuple[Tensor, ...]:
    leaves = [column.clone().requires_grad_() for column in columns]
    value = loss(leaves, labels)
    return value.detach(), *torch.autograd.grad(value, leaves)


def assert_equal(found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype) -> None:
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    assert all(gradient.abs().max() > 1e-3 for gradient in expected[1:])
    for ours, other in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_loss_and_its_gradients_equal_those_of_sentence_transformers(name: str, dtype: torch.dtype):
    torch.manual_seed(0)
    case = CASES[name]
    columns = [torch.randn(ROWS, DIM, dtype=dtype) for _ in range(case.columns)]
    labels = case.labels(ROWS)
    if labels is not None and labels.is_floating_point():
        labels = labels.to(dtype)
    expected = value_and_gradients(case.theirs, columns, labels)
    assert_equal(value_and_gradients(case.ours, columns, labels), expected, dtype)


def test_the_mean_of_contrastive_tension_is_their_sum_divided_by_the_rows():
    torch.manual_seed(0)
    case, columns = CASES["contrastive tension"], [torch.randn(ROWS, DIM, dtype=torch.float64)] * 2
    equal = case.labels(ROWS)
    expected = [part / ROWS for part in value_and_gradients(case.theirs, columns, equal)]
    found = value_and_gradients(lambda x, labels: contrastive_tension(*x, labels), columns, equal)
    assert_equal(found, expected, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_matryoshka_equals_that_of_sentence_transformers(dtype: torch.dtype):
    torch.manual_seed(0)
    dims, roles = (DIM, DIM // 2, 2), ("anchor", "positive", "negative")
    encoder, batch = Tiny(dim=DIM), batch_of({role: texts(ROWS, seed) for seed, role in enumerate(roles)})
    ours = Matryoshka(encoder, Supervised(encoder, temperature=TEMPERATURE), dims=dims)
    model = GivenVectors()
    ranked = theirs.MultipleNegativesRankingLoss(model, scale=SCALE)
    other = computed_by(theirs.MatryoshkaLoss(model, ranked, dims))
    columns = [torch.randn(ROWS, DIM, dtype=dtype) for _ in roles]
    found = value_and_gradients(lambda x, _: ours.loss(tuple(x), batch).total, columns, None)
    assert_equal(found, value_and_gradients(other, columns, None), dtype)
