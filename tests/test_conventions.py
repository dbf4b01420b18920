"""Each row of the table of conventions in jobs/configs/README.md is true of this project and of
sentence-transformers.
"""

import inspect

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from sentence_transformers.sentence_transformer import losses as theirs
from transformers import get_linear_schedule_with_warmup

from pipeline.evaluate.similarity import row_similarities
from pipeline.losses.directions import Compared
from pipeline.losses.distillation import similarity_distillation
from pipeline.losses.guided import guided_exclusions
from pipeline.objectives.contrastive_tension import ContrastiveTension
from pipeline.objectives.distillation import Distillation
from pipeline.objectives.guided import Guided
from pipeline.objectives.score_distillation import ScoreDistillation
from pipeline.objectives.triplet import Triplet
from pipeline.settings.training import ScheduleSettings
from pipeline.train.schedule import Schedule
from tests.conftest import ROOT
from tests.losses.test_sentence_transformers import DIM, GivenVectors
from tests.objectives.tiny import Tiny, batch_of

SEEDED = torch.Generator().manual_seed(0)
_AFTER = (ROOT / "jobs/configs/README.md").read_text().partition("except for these conventions:")[2]
# The rows that the tests below check, in their order: subject, this project, sentence-transformers.
TABLE = """
| first step of a warm-up of w steps | the peak divided by w; the peak at step w | 0; the peak at step w + 1 |
| `contrastive_tension` | mean over the pairs; `reduction: sum` for the sum | sum |
| `distillation` of similarities | divergence without a factor, temperature 0.05 | times the temperature squared, temperature 1 |
| `triplet` | margin 1, as in the paper | margin 5 |
| `score_distillation` by distributions | divergence without a factor | times the temperature squared |
| `guided`: a text as its own negative | never | if its positive has the same text |
| `guided`: a negative with the positive's cosine | left out | left out or not, by rounding |
| `guided` on several ranks | anchors of all ranks are negatives | anchors of the own rank |
| cosines that are ranked (STS, pairs, triplets) | rounded to 12 decimals, so that pairs of equal texts tie | not rounded: pairs of equal texts tie by chance |
"""  # noqa: E501  rows as in the document


def default(function: object, name: str) -> object:
    return inspect.signature(function).parameters[name].default


def test_the_table_of_conventions_has_only_tested_rows():
    assert _AFTER.strip().partition("\n\n")[0].splitlines()[2:] == TABLE.strip().splitlines()


def test_warm_up_starts_above_zero_unlike_in_transformers():
    warmup, steps = 4, 10
    ours = Schedule(ScheduleSettings(name="linear", warmup=warmup), 1.0, steps=steps, steps_per_epoch=steps)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule, rates = get_linear_schedule_with_warmup(optimizer, warmup, steps), []
    for _ in range(warmup + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert [ours.rate(step) for step in range(1, warmup + 1)] == [0.25, 0.5, 0.75, 1.0]
    assert rates == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_contrastive_tension_is_a_mean_unlike_in_sentence_transformers():
    assert default(ContrastiveTension, "reduction") == "mean"
    assert theirs.ContrastiveTensionLoss(torch.nn.Linear(1, 1)).criterion.reduction == "sum"


def test_distillation_is_not_multiplied_by_the_temperature_squared():
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 5, 4)))
    one = similarity_distillation(scores[0], scores[1], temperature=1.0)
    half = similarity_distillation(scores[0] / 2, scores[1] / 2, temperature=0.5)
    assert half.item() == pytest.approx(one.item())
    assert default(Distillation, "temperature") == 0.05
    assert default(theirs.DistillKLDivLoss, "temperature") == 1.0
    assert "loss * (self.student_temperature**2)" in inspect.getsource(
        theirs.DistillKLDivLoss.compute_loss_from_embeddings
    )


def test_the_triplet_margin_is_one_unlike_in_sentence_transformers():
    assert default(Triplet, "margin") == 1.0
    assert default(theirs.TripletLoss, "triplet_margin") == 5


def test_distributions_of_scores_are_not_multiplied_by_the_temperature_squared():
    columns, scores = torch.randn(4, 5, DIM, generator=SEEDED), torch.randn(5, 3, generator=SEEDED)
    objective = ScoreDistillation(Tiny(), match="distribution", temperature=0.5, teacher_temperature=0.5)
    batch = batch_of({"anchor": ["a"] * 5, "scores": scores.numpy()})
    loss = theirs.DistillKLDivLoss(GivenVectors(), temperature=0.5)
    expected = loss([{"vectors": column} for column in columns], scores)
    assert 0.25 * objective.loss(tuple(columns), batch).total.item() == pytest.approx(expected.item())


def test_a_guide_leaves_out_the_text_itself_and_texts_that_equal_the_positive():
    """All texts of a row are equal, so that by the guide all cosines of the row with itself are 1."""
    texts = torch.eye(3)
    guide = Compared(texts, (texts, texts), texts)
    marked = guided_exclusions(guide, ["query_document", "query_query"], margin=0.0, margin_of="absolute")
    assert torch.equal(marked["query_document"], torch.eye(3).bool().repeat(1, 2))
    assert torch.equal(marked["query_query"], torch.eye(3).bool())
    source = inspect.getsource(theirs.GISTEmbedLoss.forward)
    assert "mask = guided_sim_mat > (guided_sim - self.margin)" in source
    assert "mask_false_negatives(guided_aa_sim, aa_sim)  # anchor-anchor" in source


def test_anchors_of_all_ranks_are_negatives_unlike_in_sentence_transformers():
    """tests/objectives/test_ranks.py compares the gradients of two ranks with those of one process."""
    assert "query_query" in default(Guided, "directions")
    source = inspect.getsource(theirs.GISTEmbedLoss.forward)
    assert "candidates across all devices, with gradients, but not the anchors" in source
    assert "anchor = all_gather_with_grad" not in source
    assert "aa_sim = self.sim_matrix(anchor, anchor)" in source


def test_cosines_of_pairs_of_equal_texts_tie():
    vectors = np.random.default_rng(0).normal(size=(500, 48)).astype(np.float32)
    assert len(set(row_similarities("cosine", vectors, vectors))) == 1
    rows = torch.from_numpy(vectors)
    others = torch.nn.functional.cosine_similarity(rows, rows)
    assert len(set(rankdata(others.numpy()))) > 1, "not every pair of equal texts ties"
