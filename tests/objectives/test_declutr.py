"""DeCLUTR: the spans drawn from documents, and the loss of anchors and the means of their positives."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from pipeline.errors import ConfigError, DataError
from pipeline.objectives import Batch, NoPeers
from pipeline.objectives.build import build_objective
from pipeline.objectives.declutr import Declutr
from pipeline.settings.training import TrainSettings
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, assert_same, batch_of, nt_xent, pop_gradients, tokenize

# Six documents of 40 words of two letters; the first letter names the document.
DOCUMENTS = [" ".join(chr(97 + row) + chr(97 + word % 26) for word in range(40)) for row in range(6)]
BATCH = batch_of({"text": DOCUMENTS})


def declutr() -> Declutr:
    """Build the objective with 2 anchors, 2 positives for each, and spans of 2 to 7 words."""
    return Declutr(Tiny(dim=8), temperature=0.3, shortest=2, longest=8).double()


def draw_spans(objective: Declutr, words: int, count: int) -> np.ndarray:
    """Draw the spans of `count` documents of `words` words.

    Returns:
        (count, anchors, 1 + positives, 2): first word and end of each anchor, followed by its positives.
    """
    rng = np.random.default_rng(0)
    return np.stack([objective.draw_spans(words, rng) for _ in range(count)])


def texts_of_views(objective: Declutr, batch: Batch, seed: int) -> list[list[str]]:
    """Return the text of each row in every view."""
    views: list[list[str]] = []

    def record(texts: Sequence[str]) -> Tokens:
        views.append(list(texts))
        return tokenize(texts)

    torch.manual_seed(seed)
    objective.views(replace(batch, tokenize=record))
    return views


def test_lengths_have_the_papers_distributions():
    spans = draw_spans(Declutr(Tiny()), words=5_000, count=2_000)
    lengths = spans[..., 1] - spans[..., 0]
    of_anchors, of_positives = lengths[..., 0], lengths[..., 1:]
    for found, beta in ((of_anchors, (4, 2)), (of_positives, (2, 4))):
        assert found.min() >= 32
        assert found.max() < 512
        proportions = (found.ravel() + 0.5 - 32) / (512 - 32)  # + 0.5, because lengths are rounded down
        assert kstest(proportions, "beta", args=beta).statistic < 0.025


@pytest.mark.parametrize("words", [2_048, 5_000])
def test_positives_touch_their_anchor_and_do_not_overlap_spans_of_the_other_anchor(words: int):
    spans = draw_spans(Declutr(Tiny(), anchors=2, positives=3), words, count=500)
    anchors, positives = spans[:, :, :1], spans[:, :, 1:]
    assert spans.min() >= 0
    assert spans.max() <= words
    end_after_start = positives[..., 1] - anchors[..., 0]
    start_after_end = positives[..., 0] - anchors[..., 1]
    assert (end_after_start >= 0).all()
    assert (start_after_end <= 0).all()
    is_inside = (positives[..., 0] >= anchors[..., 0]) & (positives[..., 1] <= anchors[..., 1])
    is_adjacent = (end_after_start == 0) | (start_after_end == 0)
    assert is_inside.any()
    assert is_adjacent.any()
    assert (~is_inside & ~is_adjacent).any()
    assert (anchors[:, 1, 0, 0] - anchors[:, 0, 0, 1] >= 1_024).all()
    assert (spans[:, 0, :, 1].max(axis=1) <= spans[:, 1, :, 0].min(axis=1)).all()


def test_anchors_start_anywhere_in_the_document():
    anchors = draw_spans(Declutr(Tiny(), anchors=1), words=600, count=2_000)[:, 0, 0]
    assert anchors[:, 0].min() == 0
    assert anchors[:, 1].max() == 600


@pytest.mark.parametrize("anchors", [1, 2, 3])
@pytest.mark.parametrize("words", [1, 2, 3, 5, 40, 500, 2_047])
def test_spans_of_short_documents_are_shorter(anchors: int, words: int):
    spans = draw_spans(Declutr(Tiny(), anchors=anchors), words, count=50)
    lengths = spans[..., 1] - spans[..., 0]
    assert spans.shape == (50, anchors, 3, 2)
    assert spans.min() >= 0
    assert spans.max() <= words
    assert lengths.min() >= 1
    room = words // (3 * anchors - 2)  # of each anchor, with gaps of two spans between anchors
    assert lengths.max() <= max(room, 1)
    if room:
        assert (np.diff(spans[:, :, 0, 0], axis=1) > 0).all(), "anchors in the document's order"


def test_each_view_has_consecutive_words_of_the_rows_document():
    views = texts_of_views(declutr(), BATCH, seed=0)
    assert len(views) == 6
    for texts in views:
        for text, document in zip(texts, DOCUMENTS, strict=True):
            assert 2 <= len(text.split()) <= 8
            assert f" {text} " in f" {document} "


def test_a_rows_spans_depend_on_its_number_and_the_seed_alone():
    objective, rows = declutr(), np.array([4, 1])
    whole, part = (texts_of_views(objective, batch, seed=3) for batch in (BATCH, BATCH.of_rows(rows)))
    assert part == [[texts[row] for row in rows] for texts in whole]
    assert texts_of_views(objective, BATCH, seed=4) != whole


class SecondOfTwo(NoPeers):
    """The second of two ranks; the first one has drawn the seed 11."""

    rank = 1

    def gather(self, z: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.full_like(z, 11), z])


def test_the_first_rank_seeds_the_spans_of_all_ranks():
    objective, batch = declutr(), replace(BATCH, peers=SecondOfTwo())
    assert texts_of_views(objective, batch, seed=3) == texts_of_views(objective, batch, seed=4)


def nt_xent_of_spans(reps: Sequence[torch.Tensor], temperature: float, alike: np.ndarray) -> float:
    """Compute the loss of 2 anchors with 2 positives each; `alike` marks documents of equal texts."""
    rows = range(len(reps[0]))
    anchors = [reps[view][row] for row in rows for view in (0, 3)]
    means = [(reps[view + 1][row] + reps[view + 2][row]) / 2 for row in rows for view in (0, 3)]
    return nt_xent(torch.stack(anchors), torch.stack(means), temperature, alike.repeat(2, 0).repeat(2, 1))


def test_the_loss_equals_a_direct_computation_with_and_without_false_negatives():
    objective = declutr()
    reps = tuple(view.encode() for view in objective.views(BATCH))
    alike = np.zeros((6, 6), bool)
    alike[1, 4] = alike[4, 1] = True
    for batch, mask in (
        (BATCH, np.zeros((6, 6), bool)),
        (replace(BATCH, false_negatives={"text": alike}), alike),
    ):
        found = objective.loss(reps, batch).total.item()
        assert found == pytest.approx(nt_xent_of_spans(reps, 0.3, mask), abs=1e-12)


def test_chunks_share_the_spans_of_the_whole_batch():
    objective, found = declutr(), []
    for chunk_rows in (None, 4, 1):
        torch.manual_seed(3)
        found.append(
            (loss_and_backward(objective, BATCH, chunk_rows=chunk_rows).loss.total, pop_gradients(objective))
        )
    for loss, gradient in found[1:]:
        torch.testing.assert_close(loss, found[0][0], rtol=0, atol=1e-12)
        assert_same(gradient, found[0][1])


@pytest.mark.parametrize("options", [{"anchors": 0}, {"positives": 0}, {"shortest": 0}, {"temperature": 0}])
def test_invalid_options_are_refused(options: dict[str, int]):
    settings = TrainSettings(objective={"name": "declutr", "options": options})
    with pytest.raises(ConfigError, match=r"options of declutr: " + next(iter(options))):
        build_objective(settings, Tiny())


def test_limits_in_the_wrong_order_are_refused():
    with pytest.raises(ConfigError, match="shortest to be at most longest, found shortest 64, longest 32"):
        Declutr(Tiny(), shortest=64, longest=32)


def test_texts_of_one_word_are_refused():
    with pytest.raises(DataError, match="no text of two words in a batch"):
        declutr().views(batch_of({"text": ["one", "", "二つの文書"]}))
