"""Distillation of another encoder."""

import copy
import pickle

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from pipeline.errors import ConfigError
from pipeline.models.inference.encoder import load_encoder
from pipeline.objectives import Objective
from pipeline.objectives.build import build_objective, data_requirements
from pipeline.objectives.distillation import Distillation
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.training import TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import save_folder
from tests.objectives.tiny import Tiny, batch_of, descend, texts

BATCH = batch_of({"text": texts(5), "sentence1": texts(5, 1), "sentence2": texts(5, 2)})


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> str:
    """Write an encoder; return the path of its folder."""
    return str(save_folder(tmp_path_factory.mktemp("encoders") / "teacher", "bert"))


def teacher_vectors(teacher: str, role: str) -> np.ndarray:
    """Encode a column of the batch as `manta encode` does."""
    return load_encoder(EncoderSettings(path=teacher), EncodeSettings()).encode(list(BATCH.column(role)))


def log_distributions(vectors: np.ndarray, temperature: float) -> np.ndarray:
    """Return (n, n - 1): for each vector, the log softmax of its cosines with the others / temperature."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    is_other = ~np.eye(len(unit), dtype=bool)
    return log_softmax((unit @ unit.T)[is_other].reshape(len(unit), -1) / temperature, axis=1)


def build(teacher: str, dim: int = 6, **options: object) -> Objective:
    """Build a student of that dimension from settings."""
    return build_objective(
        TrainSettings(objective={"name": "distillation", "options": {"teacher": teacher, **options}}),
        Tiny(dim),
    )


@pytest.mark.parametrize("roles", [("text",), ("sentence1", "sentence2")])
def test_the_similarity_loss_is_the_divergence_from_the_teacher(teacher, roles):
    objective = build(teacher, temperature=0.1, roles=list(roles))
    student = np.concatenate([objective.encoder(BATCH.tokens(role)).detach().numpy() for role in roles])
    target = np.concatenate([teacher_vectors(teacher, role) for role in roles])
    p, q = log_distributions(target, 0.1), log_distributions(student, 0.1)
    expected = (np.exp(p) * (p - q)).sum(axis=1).mean()
    assert loss_and_backward(objective, BATCH).loss.total.item() == pytest.approx(expected, abs=1e-5)


def test_the_embedding_loss_is_the_mean_squared_error(teacher):
    objective = build(teacher, dim=48, match="embedding")
    student = objective.encoder(BATCH.tokens("text")).detach().numpy()
    expected = np.mean((student - teacher_vectors(teacher, "text")) ** 2)
    assert loss_and_backward(objective, BATCH).loss.total.item() == pytest.approx(expected, abs=1e-5)


def test_a_missing_teacher_or_one_of_another_dimension_is_refused(teacher):
    with pytest.raises(
        ConfigError, match=r"the encoder's dimension.*dimension 48 of .*for an encoder of 6.*similarity"
    ):
        build(teacher, match="embedding")
    with pytest.raises(ConfigError, match=r"train.objective\[0\].options of distillation: teacher"):
        data_requirements(TrainSettings(objective="distillation"))


def test_the_roles_of_the_options_are_required():
    of_anchors = {"name": "distillation", "options": {"teacher": "x", "roles": ["anchor"]}}
    assert data_requirements(TrainSettings(objective=of_anchors)).columns == ("anchor",)


def test_the_teacher_is_neither_trained_nor_saved(teacher):
    objective = build(teacher)
    before = {name: value.clone() for name, value in objective.teacher.encoder.state_dict().items()}
    loss_and_backward(objective.train(), BATCH)
    assert not objective.teacher.encoder.training
    assert all(parameter.grad is None for parameter in objective.teacher.encoder.parameters())
    trained = {name for name, parameter in objective.named_parameters() if parameter.grad is not None}
    assert trained == {f"encoder.{name}" for name, _ in objective.encoder.named_parameters()}
    assert trained == set(objective.state_dict())
    descend(objective, rate=1.0)
    for name, value in objective.teacher.encoder.state_dict().items():
        assert torch.equal(value.float(), before[name]), name  # a step uses the teacher in float64


def test_the_objective_can_be_copied_after_a_step(teacher):
    objective = build(teacher)
    expected = loss_and_backward(objective, BATCH).loss.total
    for other in (copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        assert torch.equal(loss_and_backward(other, BATCH).loss.total, expected)


def test_a_truncated_student_learns_from_the_full_teacher(teacher):
    torch.manual_seed(0)
    settings = TrainSettings(
        objective={"name": "distillation", "options": {"teacher": teacher}}, matryoshka=(2, 6)
    )
    found = loss_and_backward(build_objective(settings, Tiny()), BATCH).loss.total
    objective = build(teacher)
    student, target = (view.encode() for view in objective.views(BATCH))
    expected = sum(objective.loss((student[:, :dim], target), BATCH).total for dim in (2, 6))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_student_with_the_teachers_similarities_has_zero_loss(teacher):
    objective = build(teacher)
    vectors = torch.from_numpy(teacher_vectors(teacher, "text")).double()
    assert objective.loss((3 * vectors, vectors), BATCH).total.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "rows"),
    [({}, 3), ({"match": "similarity"}, 3), ({"roles": ["sentence1", "sentence2"]}, 2)],
)
def test_batches_too_small_for_similarities_are_refused(options, rows):
    Distillation.check_batch(options, rows, all_ranks=True)
    with pytest.raises(ConfigError, match=r"3 texts or more"):
        Distillation.check_batch(options, rows - 1, all_ranks=True)


def test_a_batch_of_one_row_is_enough_to_compare_vectors_with_the_teachers():
    Distillation.check_batch({"match": "embedding"}, 1, all_ranks=True)
