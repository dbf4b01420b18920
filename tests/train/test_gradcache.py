"""GradCache: the loss and gradient of a batch do not depend on the chunks in which it is encoded."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipeline.errors import ConfigError, DataError, Defect
from pipeline.losses.contrastive import info_nce
from pipeline.models.spec.pooling import Segments
from pipeline.objectives import AddsRowTerms, Batch, Loss, Objective, View
from pipeline.objectives.simcse import SimCSE
from pipeline.objectives.supervised import Supervised
from pipeline.train.gradcache import loss_and_backward, loss_without_gradient, plan_chunks
from tests.objectives.tiny import Tiny, assert_same, batch_of, pop_gradients, texts
from tests.train.four_pairs import (
    GRADIENT,
    GRADIENT_OF_OWN_CANDIDATES,
    LOSS,
    TOLERANCE,
    four_pairs,
    objective_of_four,
)

ROWS = 7
TRIPLES = {"anchor": texts(ROWS, 1), "positive": texts(ROWS, 2), "negative": texts(ROWS, 3)}
QUADRUPLES = {**TRIPLES, "negative2": texts(ROWS, 5)}


def supervised(dropout: float = 0.0) -> Supervised:
    torch.manual_seed(3)
    return Supervised(
        Tiny(dropout=dropout), temperature=0.3, head="cls_mlp", hard_negative_weight=2.0
    ).double()


def step(objective: Objective, batch: Batch, **options: object) -> tuple[Loss, dict[str, Tensor]]:
    torch.manual_seed(11)
    outcome = loss_and_backward(objective, batch, **options)
    return outcome.loss, pop_gradients(objective)


def by_autograd(objective: Objective, batch: Batch) -> dict[str, Tensor]:
    """Compute the gradient through one graph."""
    torch.manual_seed(11)
    loss = objective.loss(tuple(view.encode() for view in objective.views(batch)), batch)
    loss.total.backward()
    return pop_gradients(objective)


@pytest.mark.parametrize("chunk_rows", [None, 1, 2, 3, 4])
def test_loss_and_gradient_of_four_pairs_match_a_hand_computation(chunk_rows: int | None):
    objective = objective_of_four()
    loss, found = step(objective, four_pairs(), chunk_rows=chunk_rows)
    assert float(loss.total) == pytest.approx(LOSS, abs=TOLERANCE)
    np.testing.assert_allclose(found["encoder.weight"], GRADIENT, atol=TOLERANCE)


@pytest.mark.parametrize("chunk_rows", [None, 1, 3])
def test_the_loss_without_a_gradient_is_the_same(chunk_rows: int | None):
    objective = objective_of_four()
    outcome = loss_without_gradient(objective, four_pairs(), chunk_rows=chunk_rows)
    assert float(outcome.loss.total) == pytest.approx(LOSS, abs=TOLERANCE)
    assert all(parameter.grad is None for parameter in objective.parameters())


def test_the_gradient_of_each_vector_matches_a_hand_computation():
    objective, batch = objective_of_four(), four_pairs()
    leaves = tuple(view.encode().detach().requires_grad_() for view in objective.views(batch))
    objective.loss(leaves, batch).total.backward()
    known = torch.tensor(
        [[-0.126205, -0.024595], [0.056579, -0.137998], [0.114661, 0.024307], [0.041574, 0.153396]]
    ).double()
    z = leaves[0].detach()
    tangential = known - (known * z).sum(dim=1, keepdim=True) * z  # cosines do not depend on the norm
    np.testing.assert_allclose(leaves[0].grad, tangential, atol=TOLERANCE)


def test_accumulating_half_batches_gives_another_gradient():
    objective, batch = objective_of_four(), four_pairs()
    for half in (np.arange(2), np.arange(2, 4)):
        loss_and_backward(objective, batch.of_rows(half), scale=0.5)
    accumulated = pop_gradients(objective)["encoder.weight"]
    np.testing.assert_allclose(accumulated, GRADIENT_OF_OWN_CANDIDATES, atol=TOLERANCE)
    assert (accumulated - torch.tensor(GRADIENT)).abs().max() > 0.1


@pytest.mark.parametrize(
    "make",
    [
        supervised,
        lambda: Supervised(
            Tiny(),
            temperature=0.3,
            head="cls_mlp",
            directions=("query_document", "document_query", "query_query", "document_document"),
            hardness=2.0,
        ).double(),
        lambda: SimCSE(Tiny(), temperature=0.3).double(),
        lambda: SimCSE(Tiny(), temperature=0.3, masks="shared", similarity="dot").double(),
        lambda: SimCSE(Tiny(), temperature=0.3, positive="next", second="copy").double(),
    ],
)
def test_without_dropout_the_gradient_does_not_depend_on_chunks(make):
    objective = make()
    batch = batch_of({**QUADRUPLES, "text": texts(ROWS), "next": texts(ROWS, 4)})
    expected = by_autograd(objective, batch)
    assert "head.linear.weight" in expected
    for chunk_rows in [None, *range(1, ROWS + 3)]:
        assert_same(step(objective, batch, chunk_rows=chunk_rows)[1], expected)


def chunked_graph(objective: Objective, batch: Batch, cuts: Sequence[int]) -> dict[str, Tensor]:
    """Compute the gradient through one graph over the forward passes of all chunks."""
    torch.manual_seed(11)
    parts = []
    for start, end in pairwise(cuts):
        joined = [
            text for role in ("anchor", "positive", "negative") for text in batch.columns[role][start:end]
        ]
        parts.append(objective.encoder(batch.tokenize(joined)).chunk(3))
    loss = objective.loss(tuple(torch.cat(column) for column in zip(*parts, strict=True)), batch)
    loss.total.backward()
    return pop_gradients(objective)


@pytest.mark.parametrize(
    ("chunk_rows", "cuts"), [(None, [0, 7]), (7, [0, 7]), (3, [0, 3, 6, 7]), (1, range(8))]
)
def test_with_dropout_the_gradient_matches_one_graph_over_the_chunks(
    chunk_rows: int | None, cuts: Sequence[int]
):
    objective, batch = supervised(dropout=0.3), batch_of(TRIPLES)
    loss, found = step(objective, batch, chunk_rows=chunk_rows)
    assert_same(found, chunked_graph(objective, batch, cuts))
    torch.manual_seed(11)
    again = loss_and_backward(objective, batch, chunk_rows=chunk_rows)
    assert torch.equal(again.loss.total, loss.total)


class NoiseOfNumpy(SimCSE):
    """Objective whose noise does not come from torch's generators, so that it differs in the second pass."""

    def views(self, batch: Batch) -> Sequence[View]:
        tokens, random = batch.tokens("text"), np.random.default_rng(0)

        def mask(x: Tensor, segments: Segments) -> Tensor:
            return x * torch.from_numpy(random.random(x.shape) > 0.1)

        return 2 * (View(self.encoder, tokens, at_embedding=mask),)


def test_the_gradient_does_not_depend_on_chunks_of_tokens():
    objective, batch = supervised(), batch_of(QUADRUPLES)
    expected = by_autograd(objective, batch)
    for chunk_tokens in (1, 25, 60, 10_000):
        assert_same(step(objective, batch, chunk_tokens=chunk_tokens)[1], expected)
        assert_same(step(objective, batch, chunk_rows=2, chunk_tokens=chunk_tokens)[1], expected)


@pytest.mark.parametrize("chunk_rows", [None, 1, 3])
@pytest.mark.parametrize("chunk_tokens", [1, 9, 20, 45, 1_000])
def test_chunks_hold_as_many_rows_as_the_limits_allow(chunk_rows: int | None, chunk_tokens: int):
    objective, batch = supervised(), batch_of(TRIPLES)
    lengths = [sum(len(TRIPLES[role][row]) for role in TRIPLES) for row in range(ROWS)]
    chunks = plan_chunks(objective.views(batch), ROWS, chunk_rows, chunk_tokens)
    bounds = [(chunk.rows.start, chunk.rows.stop) for chunk in chunks]
    assert [row for start, stop in bounds for row in range(start, stop)] == list(range(ROWS))
    for start, stop in bounds:
        assert stop - start == 1 or sum(lengths[start:stop]) <= chunk_tokens
        assert stop - start <= (chunk_rows or ROWS)
        is_full = stop - start == chunk_rows or sum(lengths[start : stop + 1]) > chunk_tokens
        assert stop == ROWS or is_full


def test_different_masks_in_the_second_pass_are_detected():
    objective, batch = NoiseOfNumpy(Tiny()).double(), batch_of({"text": texts(ROWS)})
    loss_and_backward(objective, batch)
    with pytest.raises(Defect, match=r"second pass over a chunk.*difference of [0-9.]+%.*torch's generators"):
        loss_and_backward(objective, batch, chunk_rows=3)


@pytest.mark.parametrize("chunk_rows", [None, 7, 3, 1])
def test_random_numbers_advance_as_if_each_chunk_were_encoded_once(chunk_rows: int | None):
    objective, batch = supervised(dropout=0.3), batch_of(TRIPLES)
    step(objective, batch, chunk_rows=chunk_rows)
    after = torch.rand(3)
    torch.manual_seed(11)
    for start in range(0, ROWS, chunk_rows or ROWS):
        rows = np.arange(start, min(start + (chunk_rows or ROWS), ROWS))
        objective.encoder(batch.tokenize([batch.columns[role][row] for role in TRIPLES for row in rows]))
    assert torch.equal(after, torch.rand(3))


class FixedTwin(AddsRowTerms):
    """Objective with a second encoder without gradient, random changes of a view, and random row terms."""

    columns = ("text",)

    def __init__(self, encoder: nn.Module, twin: nn.Module, dropout: float = 0.0) -> None:
        super().__init__(encoder)
        self.twin = twin.requires_grad_(False)
        self.dropout = nn.Dropout(dropout)
        self.row_terms_had_graph: list[bool] = []

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        changed = View(
            self.encoder,
            tokens,
            positions=np.zeros(len(tokens.ids), np.int64),
            at_embedding=lambda x, segments: self.dropout(x),
        )
        return View(self.twin, tokens, grad=False), View(self.encoder, tokens), changed

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        keys, queries, others = reps
        assert not keys.requires_grad
        return Loss.of(
            info_nce=info_nce(queries, keys, temperature=0.5), others=info_nce(others, keys, temperature=0.5)
        )

    def row_terms(self, outputs: tuple[Tensor, ...], batch: Batch) -> Loss:
        assert len(outputs[0]) == len(batch)
        self.row_terms_had_graph.append(outputs[0].requires_grad)
        return Loss.of(distance=self.dropout((outputs[1] - outputs[0]).square()).sum(dim=1).mean())


@pytest.mark.parametrize("chunk_rows", [None, 1, 3, 7])
def test_views_without_gradient_are_encoded_once(chunk_rows: int | None):
    objective, batch, passes = FixedTwin(Tiny(seed=1), Tiny(seed=2)), batch_of({"text": texts(ROWS)}), []
    objective.twin.register_forward_hook(lambda module, inputs, output: passes.append(len(output)))
    step(objective, batch, chunk_rows=chunk_rows)
    assert sum(passes) == ROWS


@pytest.mark.parametrize("chunk_rows", [None, 1, 3, 7])
def test_row_terms_and_views_without_gradient_do_not_depend_on_chunks(chunk_rows: int | None):
    objective, batch = FixedTwin(Tiny(seed=1), Tiny(seed=2)), batch_of({"text": texts(ROWS)})
    reps = tuple(view.encode() for view in objective.views(batch))
    expected = objective.loss(reps, batch) + Loss.of(distance=(reps[1] - reps[0]).square().sum(dim=1).mean())
    expected.total.backward()
    known = pop_gradients(objective)
    loss, found = step(objective, batch, chunk_rows=chunk_rows)
    assert_same(found, known)
    assert set(found) == {f"encoder.{name}" for name in ("words", "position_embeddings", "layer")}
    assert set(loss.parts) == {"info_nce", "others", "distance"}
    for name, part in expected.parts.items():
        assert float(loss.parts[name]) == pytest.approx(part.item(), abs=1e-12)
    assert float(loss.total) == pytest.approx(expected.total.item(), abs=1e-12)
    assert set(objective.row_terms_had_graph) == {False}


def test_masks_are_repeated_although_other_encoders_draw_in_between():
    encoders = Tiny(seed=1, dropout=0.4), Tiny(seed=2, dropout=0.4)
    objective, batch = FixedTwin(*encoders, dropout=0.4), batch_of({"text": texts(ROWS)})
    chunks = np.array_split(np.arange(ROWS), [3, 6])
    torch.manual_seed(11)
    parts = [tuple(view.of_rows(rows).encode() for view in objective.views(batch)) for rows in chunks]
    reps = tuple(torch.cat(column) for column in zip(*parts, strict=True))
    loss = objective.loss(reps, batch)
    for outputs, rows in zip(parts, chunks, strict=True):
        loss = loss + objective.row_terms(outputs, batch.of_rows(rows)) * (len(rows) / ROWS)
    loss.total.backward()
    expected, after = pop_gradients(objective), torch.rand(3)
    found_loss, found = step(objective, batch, chunk_rows=3)
    assert torch.equal(after, torch.rand(3))
    assert float(found_loss.total) == pytest.approx(loss.total.item(), abs=1e-12)
    assert_same(found, expected)


def test_scale_applies_to_the_gradient_but_not_to_the_returned_loss():
    objective, batch = FixedTwin(Tiny(seed=1), Tiny(seed=2)), batch_of({"text": texts(ROWS)})
    for chunk_rows in (None, 3):
        loss, plain = step(objective, batch, chunk_rows=chunk_rows)
        scaled_loss, scaled = step(objective, batch, chunk_rows=chunk_rows, scale=1024.0)
        assert torch.equal(loss.total, scaled_loss.total)
        assert_same(scaled, {name: 1024 * gradient for name, gradient in plain.items()}, tolerance=1e-9)


def test_the_result_has_no_graph_and_keeps_the_order_of_views():
    objective, batch = FixedTwin(Tiny(seed=1), Tiny(seed=2)), batch_of({"text": texts(ROWS)})
    expected = [view.encode().detach() for view in objective.views(batch)]
    outcome = loss_and_backward(objective, batch, chunk_rows=2)
    assert not any(
        rep.requires_grad for rep in (*outcome.reps, outcome.loss.total, *outcome.loss.parts.values())
    )
    for rep, view in zip(outcome.reps, expected, strict=True):
        torch.testing.assert_close(rep, view, rtol=0, atol=1e-14)


class Indivisible(SimCSE):
    """Objective with a view that cannot be divided into chunks."""

    def views(self, batch: Batch) -> Sequence[View]:
        tokens = batch.tokens("text")
        return View(self.encoder, tokens), View(
            self.encoder,
            tokens,
            whole_batch_reason="the perturbation follows the gradient of the whole batch's loss",
        )


def test_a_view_that_cannot_be_divided_refuses_chunks():
    objective, batch = Indivisible(Tiny()).double(), batch_of({"text": texts(4)})
    with pytest.raises(ConfigError, match=r"chunk_rows.*the perturbation follows.*chunks of 3 of 4 rows"):
        loss_and_backward(objective, batch, chunk_rows=3)
    with pytest.raises(ConfigError, match=r"chunk_tokens.*the perturbation follows"):
        loss_and_backward(objective, batch, chunk_tokens=1)
    assert all(parameter.grad is None for parameter in objective.parameters())
    one_chunk, no_chunks = (
        loss_and_backward(objective, batch, chunk_rows=rows).loss.total for rows in (4, None)
    )
    assert torch.equal(one_chunk, no_chunks)


class ViewsOfTwoRows(SimCSE):
    """Objective whose views have the first two rows of the batch only."""

    def views(self, batch: Batch) -> Sequence[View]:
        return 2 * (View(self.encoder, batch.of_rows(np.arange(2)).tokens("text")),)


def test_batches_without_rows_and_views_without_some_of_the_rows_are_refused():
    batch = batch_of({"text": texts(4)})
    with pytest.raises(DataError, match="expected rows, found none"):
        loss_and_backward(SimCSE(Tiny()).double(), batch.of_rows(np.arange(0)))
    with pytest.raises(Defect, match=r"4 texts.*found 2"):
        loss_and_backward(ViewsOfTwoRows(Tiny()).double(), batch)
