"""DeCLUTR: spans that are drawn of documents, and the loss of anchors and the means of their positives."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch.nn import functional as F

from pipeline.errors import ConfigError, DataError
from pipeline.objectives import Batch, NoPeers
from pipeline.objectives.build import build_objective
from pipeline.objectives.declutr import Declutr
from pipeline.settings.training import TrainSettings
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, assert_same, batch_of, gradients, tokenize

WORDS = 40
DOCUMENTS = [" ".join(chr(97 + row) + chr(97 + word % 26) for word in range(WORDS)) for row in range(6)]
BATCH = batch_of({"text": DOCUMENTS})


def declutr(**options) -> Declutr:
    return Declutr(Tiny(dim=8), temperature=0.3, shortest=2, longest=8, **options).double()


def drawn(objective: Declutr, words: int, count: int) -> np.ndarray:
    """(count, anchors, 1 + positives, 2) spans."""
    rng = np.random.default_rng(0)
    return np.stack([objective.draw_spans(words, rng) for _ in range(count)])


def read_spans(objective: Declutr, batch: Batch, seed: int) -> list[list[str]]:
    """Return the text of each row in every view."""
    seen: list[list[str]] = []

    def record(texts: Sequence[str]) -> Tokens:
        seen.append(list(texts))
        return tokenize(texts)

    torch.manual_seed(seed)
    objective.views(replace(batch, tokenize=record))
    return seen


def test_lengths_have_the_papers_distributions():
    spans = drawn(Declutr(Tiny()), 5_000, 2_000)
    lengths = spans[..., 1] - spans[..., 0]
    for of_kind, beta in ((lengths[..., 0], (4, 2)), (lengths[..., 1:], (2, 4))):
        assert of_kind.min() >= 32
        assert of_kind.max() < 512
        middles = (of_kind.ravel() + 0.5 - 32) / 480  # lengths are rounded down
        assert kstest(middles, "beta", args=beta).statistic < 0.025


@pytest.mark.parametrize("words", [2_048, 5_000])
def test_positives_touch_their_anchor_and_no_span_of_another(words: int):
    spans = drawn(Declutr(Tiny(), anchors=2, positives=3), words, 500)
    anchors, positives = spans[:, :, :1], spans[:, :, 1:]
    assert spans.min() >= 0
    assert spans.max() <= words
    before, after = positives[..., 1] - anchors[..., 0], positives[..., 0] - anchors[..., 1]
    assert (before >= 0).all()
    assert (after <= 0).all()
    is_inside = (positives[..., 0] >= anchors[..., 0]) & (positives[..., 1] <= anchors[..., 1])
    assert is_inside.any()
    assert ((before == 0) | (after == 0)).any(), "adjacent"
    assert ((before > 0) & (after < 0) & ~is_inside).any(), "overlapping"
    assert (anchors[:, 1, 0, 0] - anchors[:, 0, 0, 1] >= 1_024).all()
    assert (spans[:, 0, :, 1].max(axis=1) <= spans[:, 1, :, 0].min(axis=1)).all()


def test_anchors_start_anywhere_in_the_document():
    starts = drawn(Declutr(Tiny(), anchors=1), 600, 2_000)[:, 0, 0]
    assert starts[:, 0].min() == 0
    assert starts[:, 1].max() == 600


@pytest.mark.parametrize("anchors", [1, 2, 3])
@pytest.mark.parametrize("words", [1, 2, 3, 5, 40, 500, 2_047])
def test_spans_of_short_documents_are_shorter(anchors: int, words: int):
    spans = drawn(Declutr(Tiny(), anchors=anchors), words, 50)
    lengths = spans[..., 1] - spans[..., 0]
    assert spans.shape == (50, anchors, 3, 2)
    assert spans.min() >= 0
    assert spans.max() <= words
    assert lengths.min() >= 1
    assert lengths.max() <= max(words // (3 * anchors - 2), 1)
    if words >= 3 * anchors - 2:
        assert (np.diff(spans[:, :, 0, 0], axis=1) > 0).all(), "anchors in the document's order"


def test_each_view_has_words_of_the_rows_document_in_their_order():
    objective = declutr()
    views = read_spans(objective, BATCH, seed=0)
    assert len(views) == 6
    for texts in views:
        for text, document in zip(texts, DOCUMENTS, strict=True):
            assert 2 <= len(text.split()) <= 8
            assert f" {text} " in f" {document} "


def test_a_rows_spans_depend_on_its_number_and_the_seed_alone():
    objective, rows = declutr(), np.array([4, 1])
    whole, part = (read_spans(objective, batch, seed=3) for batch in (BATCH, BATCH.of_rows(rows)))
    assert part == [[texts[row] for row in rows] for texts in whole]
    assert read_spans(objective, BATCH, seed=4) != whole


def test_the_first_rank_seeds_the_spans_of_all():
    class OfFirst(NoPeers):
        """The second of two ranks; the first has drawn the seed 11."""

        rank = 1

        def gather(self, z: torch.Tensor) -> torch.Tensor:
            return torch.cat([torch.full_like(z, 11), z])

    objective, batch = declutr(), replace(BATCH, peers=OfFirst())
    assert read_spans(objective, batch, seed=3) == read_spans(objective, batch, seed=4)


def nt_xent_of_spans(reps: Sequence[torch.Tensor], temperature: float, alike: np.ndarray) -> float:
    """Compute the loss of 2 anchors with 2 positives each, one anchor or mean of positives at a time."""
    rows = len(reps[0])
    anchors = [reps[view][row] for row in range(rows) for view in (0, 3)]
    means = [(reps[view + 1][row] + reps[view + 2][row]) / 2 for row in range(rows) for view in (0, 3)]
    vectors = F.normalize(torch.stack([*anchors, *means]), dim=1).detach().numpy()
    count, total = 2 * rows, 0.0
    for index in range(2 * count):
        partner = (index + count) % (2 * count)
        candidates = [
            other
            for other in range(2 * count)
            if other != index and (other == partner or not alike[index % count // 2, other % count // 2])
        ]
        logits = vectors[candidates] @ vectors[index] / temperature
        total += np.log(np.exp(logits).sum()) - vectors[partner] @ vectors[index] / temperature
    return float(total / count)


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
            (loss_and_backward(objective, BATCH, chunk_rows=chunk_rows).loss.total, gradients(objective))
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


def test_texts_without_words_to_choose_from_are_refused():
    with pytest.raises(DataError, match="no text of two words in a batch"):
        declutr().views(batch_of({"text": ["one", "", "二つの文書"]}))
