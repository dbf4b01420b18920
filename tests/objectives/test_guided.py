"""Guided in-batch negatives: a second encoder finds false negatives."""

import pickle

import pytest
import torch
from torch.nn import functional as F

from pipeline.errors import ConfigError
from pipeline.models.inference.encoder import load_encoder
from pipeline.objectives import Objective
from pipeline.objectives.build import build_objective, data_requirements
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.training import TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import LONG, save_folder
from tests.objectives.tiny import Tiny, assert_same, batch_of, pop_gradients

ROWS, TEMPERATURE = 5, 0.3
WORDS = LONG.split()
COLUMNS = {
    role: [" ".join(WORDS[3 * row + 7 * number :][:3]) for row in range(ROWS)]
    for number, role in enumerate(("anchor", "positive", "negative"))
}
BATCH = batch_of(COLUMNS)


@pytest.fixture(scope="module")
def guide(tmp_path_factory) -> str:
    """Write an encoder; return the path of its folder."""
    return str(save_folder(tmp_path_factory.mktemp("encoders") / "guide", "bert"))


def build(guide: str, **options: object) -> Objective:
    options = {"guide": guide, "temperature": TEMPERATURE, **options}
    return build_objective(TrainSettings(objective={"name": "guided", "options": options}), Tiny())


def unit_vectors(guide: str) -> list[torch.Tensor]:
    """Encode each column by the guide, as `manta encode` does."""
    encoder = load_encoder(EncoderSettings(path=guide), EncodeSettings())
    return [
        F.normalize(torch.from_numpy(encoder.encode(texts)).double(), dim=1) for texts in COLUMNS.values()
    ]


@pytest.mark.parametrize(
    ("margin", "margin_of"), [(0.0, "absolute"), (0.003, "absolute"), (0.004, "relative")]
)
def test_candidates_that_the_guide_finds_as_similar_as_the_positive_are_left_out(
    guide: str, margin: float, margin_of: str
):
    """The loss of each row is computed from the candidates that remain, one by one."""
    objective = build(guide, margin=margin, margin_of=margin_of)
    anchors, positives, negatives = (
        F.normalize(objective.encoder(BATCH.tokens(role)), dim=1) for role in COLUMNS
    )
    guided = unit_vectors(guide)
    losses, left_out = [], 0
    for row in range(ROWS):
        reference = guided[0][row] @ guided[1][row]
        limit = reference - margin * (1 if margin_of == "absolute" else reference.abs())
        logits = [anchors[row] @ positives[row]]
        for left, right, guide_left, guide_right in (
            (anchors, positives, guided[0], guided[1]),
            (anchors, negatives, guided[0], guided[2]),
            (anchors, anchors, guided[0], guided[0]),
            (positives, positives, guided[1], guided[1]),
        ):
            for other in range(ROWS):
                if other == row and right is not negatives:
                    continue
                if guide_left[row] @ guide_right[other] < limit - 1e-5:
                    logits.append(left[row] @ right[other])
                else:
                    left_out += 1
        losses.append(torch.stack(logits).div(TEMPERATURE).logsumexp(0) - logits[0] / TEMPERATURE)
    assert 0 < left_out < ROWS * (4 * ROWS - 3)
    found = loss_and_backward(objective, BATCH).loss.total
    torch.testing.assert_close(found, torch.stack(losses).mean().detach(), rtol=0, atol=1e-6)


def test_the_guide_is_neither_trained_nor_saved_nor_lost_in_a_copy(guide: str):
    objective = build(guide)
    before = {name: value.clone() for name, value in objective.guide.encoder.state_dict().items()}
    expected = loss_and_backward(objective.train(), BATCH).loss.total
    assert {*pop_gradients(objective)} == {*objective.state_dict()}
    assert all(name.startswith("encoder.") for name in objective.state_dict())
    assert not objective.guide.encoder.training
    for name, value in objective.guide.encoder.state_dict().items():
        assert torch.equal(value.float(), before[name]), name  # a step uses the guide in float64
    copied = pickle.loads(pickle.dumps(objective))
    assert torch.equal(loss_and_backward(copied, BATCH).loss.total, expected)


@pytest.mark.parametrize("chunk_rows", [None, 1, 2])
def test_texts_that_equal_the_positive_are_no_negatives_however_they_are_encoded(
    guide: str, chunk_rows: int | None
):
    """All rows have the same two texts, so that a row has no negative, and nothing to lose."""
    batch = batch_of({role: [column[0]] * ROWS for role, column in COLUMNS.items() if role != "negative"})
    objective = build(guide, directions=["query_document", "positive_positive"])
    assert loss_and_backward(objective, batch, chunk_rows=chunk_rows).loss.total.item() == 0


@pytest.mark.parametrize("limits", [{"chunk_rows": 2}, {"chunk_tokens": 40}])
def test_chunks_give_the_gradient_of_the_whole_batch(guide: str, limits: dict[str, int]):
    objective = build(guide, margin=0.003)
    expected, known = loss_and_backward(objective, BATCH).loss.total, pop_gradients(objective)
    found = loss_and_backward(objective, BATCH, **limits).loss.total
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert_same(pop_gradients(objective), known)


def test_truncated_vectors_are_guided_by_whole_ones(guide: str):
    settings = TrainSettings(
        objective={"name": "guided", "options": {"guide": guide, "temperature": TEMPERATURE}},
        matryoshka=(2, 6),
    )
    found = loss_and_backward(build_objective(settings, Tiny()), BATCH).loss.total
    objective = build(guide)
    reps = tuple(view.encode() for view in objective.views(BATCH))
    expected = sum(
        objective.loss((*(rep[:, :dim] for rep in reps[:3]), *reps[3:]), BATCH).total for dim in (2, 6)
    )
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"options of guided: guide"),
        ({"guide": "x", "margin": -0.1}, r"margin: expected .*greater than or equal to 0"),
        ({"guide": "x", "directions": ["query_query"]}, r"directions.*query_document first.*query_query"),
    ],
)
def test_wrong_options_are_refused_before_a_worker_starts(options: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        data_requirements(TrainSettings(objective={"name": "guided", "options": options}))
