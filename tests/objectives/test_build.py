"""Objectives built from settings: sums, losses at several lengths of the vectors, and invalid settings."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.errors import ConfigError
from pipeline.objectives import Objective
from pipeline.objectives.build import adjacent_roles, build_objective, data_requirements
from pipeline.objectives.simcse import SimCSE
from pipeline.objectives.supervised import Supervised
from pipeline.settings.training import NEGATIVES, TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, assert_same, batch_of, pop_gradients, texts

BATCH = batch_of(
    {role: texts(5, seed) for seed, role in enumerate(("text", "anchor", "positive", "negative"))}
)
WITHOUT_HEAD = {"name": "simcse", "options": {"head": "none"}}


def build(objective: object, seed: int = 0, **settings: object) -> Objective:
    torch.manual_seed(seed)
    return build_objective(TrainSettings(objective=objective, **settings), Tiny(seed=seed)).double()


def loss_of_step(objective: Objective, chunk_rows: int | None = None) -> torch.Tensor:
    torch.manual_seed(7)
    return loss_and_backward(objective, BATCH, chunk_rows=chunk_rows).loss.total


def test_a_name_alone_gives_the_defaults():
    objective = build("supervised")
    assert isinstance(objective, Supervised)
    assert (objective.temperature, objective.hard_negative_weight) == (0.05, 1.0)
    assert build({"name": "simcse", "options": {"temperature": 1}}).temperature == 1.0


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("simcs", r"objective 'simcs'.*did you mean 'simcse'"),
        (
            {"name": "simcse", "options": {"temprature": 1}},
            r"train.objective\[0\].options of simcse: temprature.*did you mean 'temperature'",
        ),
        (
            ["supervised", {"name": "simcse", "options": {"temperature": "hot"}}],
            r"train.objective\[1\].options of simcse: temperature: expected .*number.*'hot'",
        ),
        ({"name": "simcse", "options": {"temperature": 0}}, r"temperature: expected .*greater than 0"),
        ({"name": "simcse", "options": {"head": "mlp"}}, r"head: expected .*'none' or 'cls_mlp'"),
    ],
)
def test_invalid_options_are_refused_with_their_position(objective: object, message: str):
    with pytest.raises(ConfigError, match=message):
        build(objective)
    with pytest.raises(ConfigError, match=message):
        data_requirements(TrainSettings(objective=objective))


def test_labels_without_a_class_are_refused_before_rows_are_read():
    two_classes = {"name": "classification", "options": {"classes": 2}}
    with pytest.raises(
        ConfigError,
        match=r"classes: expected at least 3, one per label of nli.parquet, found 2.*contradiction",
    ):
        data_requirements(TrainSettings(objective=two_classes, data="nli.parquet"))
    two_labels = {"uri": "nli.parquet", "values": {"labels": ["same", "other"]}}
    found = data_requirements(TrainSettings(objective=two_classes, data=two_labels))
    assert found == (("premise", "hypothesis", "label"), (), "shuffled")


NEXT_SENTENCE = {"name": "simcse", "options": {"positive": "next3"}}


@pytest.mark.parametrize(
    ("objective", "adjacent"),
    [(NEXT_SENTENCE, ("next3",)), (["fastsent", NEXT_SENTENCE], ("previous", "next", "next3"))],
)
def test_roles_of_adjacent_sentences_are_combined_and_need_documents(objective, adjacent: tuple[str, ...]):
    settings = TrainSettings(objective=objective)
    assert data_requirements(settings) == (("text", "document", "position"), (), "adjacent")
    assert adjacent_roles(settings) == adjacent


def test_roles_of_all_objectives_are_combined():
    assert data_requirements(TrainSettings()) == (("text",), (), "shuffled")
    assert adjacent_roles(TrainSettings()) == ()
    assert data_requirements(TrainSettings(objective=["simcse", "supervised"])) == (
        ("text", "anchor", "positive"),
        NEGATIVES,
        "shuffled",
    )


def test_a_sum_has_the_weighted_loss_and_gradient_of_its_terms():
    total = build([{**WITHOUT_HEAD, "weight": 0.5}, {"name": "supervised", "weight": 2}])
    terms = {
        "simcse.info_nce": (0.5, SimCSE(total.encoder, head="none")),
        "supervised.info_nce": (2.0, Supervised(total.encoder)),
    }
    parts = {
        name: weight * loss_and_backward(alone, BATCH, scale=weight).loss.total.item()
        for name, (weight, alone) in terms.items()
    }
    expected = pop_gradients(total.encoder)
    outcome = loss_and_backward(total, BATCH)
    assert outcome.loss.total.item() == pytest.approx(sum(parts.values()), abs=1e-12)
    assert {name: value.item() for name, value in outcome.loss.parts.items()} == pytest.approx(
        parts, abs=1e-12
    )
    assert_same(pop_gradients(total.encoder), expected)


def test_each_term_excludes_the_false_negatives_of_its_own_roles():
    rng = np.random.default_rng(0)
    masks = {"text": rng.random((4, 4)) < 0.4, "anchor": rng.random((4, 8)) < 0.4}
    columns = {role: texts(4, seed) for seed, role in enumerate(("text", "anchor", "positive", "negative"))}
    batch, total = replace(batch_of(columns), false_negatives=masks), build([WITHOUT_HEAD, "supervised"])
    alone = {
        "simcse.info_nce": SimCSE(total.encoder, head="none"),
        "supervised.info_nce": Supervised(total.encoder),
    }
    expected = {name: loss_and_backward(each, batch).loss.total.item() for name, each in alone.items()}
    assert {
        name: value.item() for name, value in loss_and_backward(total, batch).loss.parts.items()
    } == pytest.approx(expected, abs=1e-12)


def test_parts_of_terms_with_equal_names_are_numbered():
    assert list(loss_and_backward(build(["simcse", "simcse"]), BATCH).loss.parts) == [
        "simcse.info_nce",
        "simcse2.info_nce",
    ]


def test_a_sum_holds_its_encoder_once():
    objective = build(["simcse", "simcse"])
    names = list(objective.state_dict())
    assert sum("words" in name for name in names) == 1
    assert [name for name in names if not name.startswith("encoder.")] == [
        f"terms.{term}.head.linear.{part}" for term in (0, 1) for part in ("weight", "bias")
    ]
    assert len(list(objective.parameters())) == len(names)
    for other in (copy.deepcopy(objective), pickle.loads(pickle.dumps(objective))):
        assert other.terms[0].encoder is other.encoder
        assert other.encoder is not objective.encoder
        assert torch.equal(loss_of_step(other), loss_of_step(objective))


def test_a_sum_needs_one_forward_pass():
    objective, sizes = build(["simcse", "supervised"]), []
    objective.encoder.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    loss_of_step(objective)
    assert sizes == [5 * (2 + 3)]


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": ["simcse", {"name": "supervised", "weight": 0.3}]},
        {"objective": WITHOUT_HEAD, "matryoshka": (2, 6)},
        {"objective": [WITHOUT_HEAD, "supervised"], "matryoshka": (6, 3)},
    ],
)
def test_chunks_and_a_loaded_state_give_the_same_result(settings: dict[str, object]):
    objective = build(**settings)
    expected, known = loss_of_step(objective), pop_gradients(objective)
    for chunk_rows in (1, 3):
        torch.testing.assert_close(loss_of_step(objective, chunk_rows), expected, rtol=0, atol=1e-12)
        assert_same(pop_gradients(objective), known)
    other = build(**settings, seed=1)
    assert not torch.equal(loss_of_step(other), expected)
    other.load_state_dict(objective.state_dict())
    assert torch.equal(loss_of_step(other), expected)


def test_the_matryoshka_loss_is_the_sum_over_truncated_vectors():
    objective = build(WITHOUT_HEAD, matryoshka=(2, 5, 6))
    reps = tuple(view.encode() for view in objective.views(BATCH))
    alone = SimCSE(objective.encoder, head="none")
    expected = sum(alone.loss(tuple(rep[:, :dim] for rep in reps), BATCH).total for dim in (2, 5, 6))
    torch.testing.assert_close(objective.loss(reps, BATCH).total, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dims", [(7,), (2, 2)])
def test_invalid_or_repeated_lengths_are_refused(dims: tuple[int, ...]):
    with pytest.raises(ConfigError, match=r"train.matryoshka.*1 to 6"):
        build(WITHOUT_HEAD, matryoshka=dims)


def test_a_head_over_whole_vectors_excludes_matryoshka():
    with pytest.raises(ConfigError, match=r"train.matryoshka.*simcse.*head to none"):
        build("simcse", matryoshka=(2,))


def test_the_trained_model_is_that_of_the_first_term():
    objective = build([{"name": "supervised", "options": {"head": "cls_mlp"}}, "simcse"])
    model = objective.trained_model()
    assert (model.encoder, model.head, model.twin) == (objective.encoder, objective.terms[0].head, None)
    tokens = BATCH.tokens("text")
    assert torch.equal(model(tokens), model.head(objective.encoder(tokens)))
    assert build(WITHOUT_HEAD, matryoshka=(2,)).trained_model().head is None
