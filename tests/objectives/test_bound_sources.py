"""Multi-task training: each step trains the objectives that are bound to the source of its batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.config import load_settings
from pipeline.errors import ConfigError
from pipeline.objectives import Batch
from pipeline.objectives.build import Sum, Term, build_objective, data_requirements
from pipeline.objectives.classification import Classification
from pipeline.objectives.input_response import InputResponse
from pipeline.settings import Job
from pipeline.settings.training import TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, assert_same, batch_of, pop_gradients, texts

ROWS = 6
CONVERSATIONS = replace(batch_of({"anchor": texts(ROWS), "positive": texts(ROWS, 1)}), source="conversations")
INFERENCE = replace(
    batch_of({"premise": texts(ROWS, 2), "hypothesis": texts(ROWS, 3), "label": np.arange(ROWS) % 3}),
    source="inference",
)
RESPONSES = "{name: input_response, source: conversations}"
CLASSES = "{name: classification, source: inference, weight: 2}"
WEIGHTS = (1.0, 2.0)
DATA = "[{uri: a.parquet, name: conversations}, {uri: b.parquet, name: inference}]"
OBJECTIVES = f"[{RESPONSES}, {CLASSES}]"


def two_tasks() -> Sum:
    """Return two tasks that share an encoder, each bound to a source."""
    encoder = Tiny(seed=1)
    torch.manual_seed(3)
    terms = [
        Term("responses", WEIGHTS[0], InputResponse(encoder), "conversations"),
        Term("classes", WEIGHTS[1], Classification(encoder), "inference"),
    ]
    return Sum(encoder, terms).double()


def train_settings(data: str = DATA, objective: str = OBJECTIVES, *others: str) -> TrainSettings:
    return load_settings(Job, None, (f"train.data={data}", f"train.objective={objective}", *others)).train


@pytest.mark.parametrize("chunk_rows", [None, 4])
@pytest.mark.parametrize(("batch", "term"), [(CONVERSATIONS, 0), (INFERENCE, 1)])
def test_a_batch_trains_the_encoder_and_its_own_head_as_the_task_alone_does(
    batch: Batch, term: int, chunk_rows: int | None
):
    total, alone = two_tasks(), two_tasks().inner[term]
    alone_encoder = Tiny(seed=1).double()
    alone.set_unregistered("encoder", alone_encoder)
    expected = loss_and_backward(alone, batch).loss.total * WEIGHTS[term]
    found = loss_and_backward(total, batch, chunk_rows=chunk_rows).loss
    torch.testing.assert_close(found.total, expected, rtol=0, atol=1e-12)
    assert list(found.parts) == [("responses.info_nce", "classes.cross_entropy")[term]]
    known = {f"encoder.{name}": value for name, value in pop_gradients(alone_encoder).items()}
    known |= {f"terms.{term}.{name}": value for name, value in pop_gradients(alone).items()}
    assert_same(pop_gradients(total), {name: WEIGHTS[term] * value for name, value in known.items()})


def test_a_term_without_a_source_trains_on_all_batches():
    encoder = Tiny(seed=1)
    total = Sum(
        encoder,
        [
            Term("responses", 1.0, InputResponse(encoder), "conversations"),
            Term("classes", 1.0, Classification(encoder)),
        ],
    )
    assert len(total.trained_on(INFERENCE)) == 1
    assert len(total.trained_on(CONVERSATIONS)) == 2
    assert len(total.views(INFERENCE)) == 2


def test_each_source_needs_the_columns_of_its_objectives_only():
    settings = train_settings()
    by_source = [settings.of_source(source) for source in settings.data]
    assert [[term.name for term in own.objective] for own in by_source] == [
        ["input_response"],
        ["classification"],
    ]
    assert [data_requirements(own).columns for own in by_source] == [
        ("anchor", "positive"),
        ("premise", "hypothesis", "label"),
    ]


def test_a_classifier_needs_a_class_for_each_label_of_its_own_source_only():
    labels = "values: {labels: [a, b, c, d, e]}"
    of_conversations = DATA.replace("name: conversations", f"name: conversations, {labels}")
    assert isinstance(build_objective(train_settings(of_conversations), Tiny()), Sum)
    of_inference = DATA.replace("name: inference", f"name: inference, {labels}")
    with pytest.raises(ConfigError, match=r"at least 5, one per label of b\.parquet"):
        build_objective(train_settings(of_inference), Tiny())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((DATA.replace("inference", "nli"), OBJECTIVES), "inference is none of them"),
        (("a.parquet", OBJECTIVES), "none has a name"),
        ((DATA.replace("inference", "conversations"), f"[{RESPONSES}]"), "rename all"),
        ((DATA, f"[{RESPONSES}]"), "b.parquet has none"),
        ((DATA, OBJECTIVES, "train.mixing=blend"), "remove mixing: blend"),
        ((DATA, OBJECTIVES, "train.mine.enabled=true"), "remove mine.enabled: true"),
    ],
)
def test_sources_that_do_not_fit_the_objectives_are_refused(settings: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        train_settings(*settings)
