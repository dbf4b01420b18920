"""Perturbed views of texts: shuffled positions, cutoffs and adversarial steps."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.models.folder.folder import open_folder
from pipeline.models.spec.pooling import Segments, find_segments
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.models.trainable.perturbations import Probe, cutoff, keeps_special, shuffled_positions
from pipeline.objectives import Batch, Loss, Objective, View
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import save_folder
from tests.models.trainable.padded import packed_ids


def of_lengths(*lengths: int) -> Tokens:
    """Pack texts of these lengths, each of the ids 4, 5, ..."""
    return packed_ids([np.arange(4, 4 + length) for length in lengths])


def segments_of(tokens: Tokens, starts: np.ndarray | None = None) -> Segments:
    """Return the segments of texts that begin at `starts`, by default one after another."""
    return find_segments(
        tokens.offsets[:-1] if starts is None else starts, tokens.lengths, 0, torch.from_numpy
    )


def trainable(folder: Path, pooling: str) -> TrainableEncoder:
    return load_trainable(open_folder(EncoderSettings(path=str(folder), pooling=pooling)), dropout=0.0)


@pytest.fixture(scope="module", params=["bert", "roberta"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_folder(tmp_path_factory.mktemp("encoders") / request.param, request.param)


def test_positions_are_shuffled_within_each_text():
    tokens = of_lengths(9, 1, 30, 2)
    torch.manual_seed(0)
    positions = shuffled_positions(tokens, keep_special=False)
    for start, end in pairwise(tokens.offsets):
        assert sorted(positions[start:end]) == list(range(end - start))
    assert positions[10:40].tolist() != list(range(30))
    assert shuffled_positions(tokens, keep_special=False).tolist() != positions.tolist()
    torch.manual_seed(0)
    assert shuffled_positions(tokens, keep_special=False).tolist() == positions.tolist()


def test_every_position_is_equally_likely():
    torch.manual_seed(0)
    drawn = shuffled_positions(of_lengths(*[4] * 4_000), keep_special=False).reshape(-1, 4)
    for index in range(4):
        np.testing.assert_allclose(np.bincount(drawn[:, index]) / 4_000, 0.25, atol=0.03)


def test_special_tokens_keep_their_positions_if_requested():
    torch.manual_seed(0)
    drawn = shuffled_positions(of_lengths(*[6] * 200), keep_special=True).reshape(-1, 6)
    assert (drawn[:, 0] == 0).all()
    assert (drawn[:, 5] == 5).all()
    assert {tuple(row) for row in drawn[:, 1:5].tolist()} > {(1, 2, 3, 4), (4, 3, 2, 1)}


def test_shuffled_positions_equal_reordered_tokens(folder: Path):
    encoder = trainable(folder, "mean").double()
    sentence, positions = [2, 10, 11, 12, 13, 3], np.array([0, 3, 1, 4, 2, 5])
    reordered = [sentence[index] for index in np.argsort(positions)]
    assert reordered == [2, 11, 13, 10, 12, 3]
    plain = encoder(packed_ids([sentence]))
    shuffled = encoder(packed_ids([sentence]), positions=positions)
    torch.testing.assert_close(shuffled, encoder(packed_ids([reordered])), rtol=0, atol=1e-12)
    assert (shuffled - plain).abs().max() > 1e-3


def test_positions_of_special_tokens_are_kept_if_they_are_pooled(folder: Path):
    assert keeps_special(trainable(folder, "cls"))
    assert not keeps_special(trainable(folder, "mean"))


@pytest.mark.parametrize(("rate", "columns", "rows"), [(0.2, 153, 1), (0.15, 115, 1), (0.1, 76, 0)])
def test_a_cutoff_zeroes_the_configured_number_of_rows_or_columns(rate: float, columns: int, rows: int):
    tokens = of_lengths(7, 7)
    x = torch.randn(14, 768, generator=torch.Generator().manual_seed(0))
    features = cutoff(tokens, "features", rate)(x, segments_of(tokens))
    assert ((features == 0).sum(1) == columns).all()
    whole = cutoff(tokens, "tokens", rate)(x, segments_of(tokens))
    assert [(part == 0).all(1).sum().item() for part in whole.split(7)] == [rows, rows]
    for cut in (features, whole):
        assert torch.equal(cut[cut != 0], x[cut != 0]), "other values are not scaled"


def test_feature_cutoff_zeroes_equal_columns_for_all_tokens_of_a_text():
    tokens = of_lengths(5, 3, 9)
    x = torch.ones(17, 100)
    zeros = [part == 0 for part in cutoff(tokens, "features", 0.3)(x, segments_of(tokens)).split([5, 3, 9])]
    for part in zeros:
        assert (part == part[0]).all()
    assert (zeros[0][0] != zeros[1][0]).any()


@pytest.mark.parametrize("of", ["features", "tokens"])
def test_a_cutoff_does_not_depend_on_the_chunk_or_the_order_of_texts_in_it(of: str):
    tokens = of_lengths(5, 8, 3, 9)
    x = torch.randn(25, 40, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    change = cutoff(tokens, of, 0.4)
    whole = change(x, segments_of(tokens))
    rows = np.array([3, 1])
    part = torch.cat([x[16:], x[5:13]])
    assert torch.equal(
        change.of_rows(rows)(part, segments_of(tokens.of_rows(rows))), torch.cat([whole[16:], whole[5:13]])
    )
    starts = np.array([20, 12, 9, 0])  # of the texts in reverse order
    in_reverse = change(torch.cat(x.split([5, 8, 3, 9])[::-1]), segments_of(tokens, starts))
    assert torch.equal(torch.cat(in_reverse.split([9, 3, 8, 5])[::-1]), whole)


def test_rates_that_cut_nothing_or_everything_are_refused():
    for rate in (0.0, 1.0):
        with pytest.raises(ConfigError, match="above 0 and below 1"):
            cutoff(of_lengths(3), "tokens", rate)


def test_an_adversarial_step_has_its_norm_at_every_token_and_raises_the_loss(folder: Path):
    encoder, tokens = trainable(folder, "mean").double(), of_lengths(6, 9, 3)
    target = torch.randn(3, encoder.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def cost(vectors: torch.Tensor) -> torch.Tensor:
        return (vectors * target).sum()

    probe, change = Probe(), []

    def take_step(x: torch.Tensor, where: Segments) -> torch.Tensor:
        change.append(shift(x, where) - x)
        return x + change[0]

    before = cost(encoder(tokens, at_embedding=probe))
    shift = probe.ascent_step(before, 1e-4)
    torch.testing.assert_close(
        shift.step.norm(dim=1), torch.full((18,), 1e-4, dtype=torch.float64), rtol=1e-6, atol=0
    )
    after = cost(encoder(tokens, at_embedding=take_step))
    gradient = torch.autograd.grad(cost(encoder(tokens, at_embedding=probe)), probe.leaf)[0]
    largest = 1e-4 * gradient.norm(dim=1).sum().item()  # the largest increase by steps of this norm
    assert (after - before).item() == pytest.approx(largest, rel=1e-2)
    assert all(parameter.grad is None for parameter in encoder.parameters())
    torch.testing.assert_close(
        change[0].norm(dim=1), torch.full((18,), 1e-4, dtype=torch.float64), rtol=1e-6, atol=0
    )


def test_views_in_one_pass_keep_their_own_perturbations_and_positions(folder: Path):
    encoder = trainable(folder, "mean").double()
    torch.manual_seed(0)
    tokens, other = of_lengths(7, 3, 12), of_lengths(5, 9, 4)
    views = [
        View(encoder, tokens, at_embedding=cutoff(tokens, "features", 0.3)),
        View(encoder, tokens),
        View(encoder, other, at_embedding=cutoff(other, "tokens", 0.4)),
        View(encoder, other, positions=shuffled_positions(other, keep_special=False)),
    ]
    expected, passes = [view.encode() for view in views], []
    encoder.register_forward_hook(lambda module, inputs, output: passes.append(len(output)))

    class Four(Objective):
        def views(self, batch: Batch) -> list[View]:
            return views

        def loss(self, reps: tuple[torch.Tensor, ...], batch: Batch) -> Loss:
            return Loss.of(sum=sum((rep.sum() for rep in reps), torch.zeros(())))

    for chunk_rows, sizes in ((None, [12]), (2, [8, 4, 8, 4])):
        passes.clear()
        reps = loss_and_backward(
            Four(encoder), Batch({}, np.arange(3), lambda texts: tokens), chunk_rows=chunk_rows
        ).reps
        assert passes == sizes
        for rep, alone in zip(reps, expected, strict=True):
            torch.testing.assert_close(rep, alone.detach(), rtol=0, atol=1e-12)
