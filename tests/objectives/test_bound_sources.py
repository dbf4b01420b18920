"""Multi-task training: each step trains the objectives that are bound to the source of its batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.config import load_settings
from pipeline.errors import ConfigError
from pipeline.objectives.build import build_objective, data_requirements
from pipeline.objectives.classification import Classification
from pipeline.objectives.input_response import InputResponse
from pipeline.objectives.weighted import Sum, Term
from pipeline.settings import Job
from pipeline.settings.training import TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.objectives.tiny import Tiny, assert_same, batch_of, gradients, texts

ROWS = 6
CONVERSATIONS = replace(batch_of({"anchor": texts(ROWS), "positive": texts(ROWS, 1)}), source="conversations")
INFERENCE = replace(
    batch_of({"premise": texts(ROWS, 2), "hypothesis": texts(ROWS, 3), "label": np.arange(ROWS) % 3}),
    source="inference",
)
DATA = "[{uri: a.parquet, name: conversations}, {uri: b.parquet, name: inference}]"
OBJECTIVES = (
    "[{name: input_response, source: conversations}, {name: classification, source: inference, weight: 2}]"
)


def both() -> Sum:
    """Return two tasks around one encoder, each bound to a source."""
    encoder = Tiny(seed=1)
    torch.manual_seed(3)
    terms = [
        Term("responses", 1.0, InputResponse(encoder), "conversations"),
        Term("classes", 2.0, Classification(encoder), "inference"),
    ]
    return Sum(encoder, terms).double()


def settings(data: str = DATA, objective: str = OBJECTIVES, *others: str) -> TrainSettings:
    return load_settings(Job, None, (f"train.data={data}", f"train.objective={objective}", *others)).train


@pytest.mark.parametrize("chunk_rows", [None, 4])
@pytest.mark.parametrize(("batch", "term"), [(CONVERSATIONS, 0), (INFERENCE, 1)])
def test_a_batch_trains_the_encoder_and_its_own_head_as_the_task_alone_does(batch, term, chunk_rows):
    total, alone = both(), both().inner[term]
    alone_encoder = Tiny(seed=1).double()
    alone.set_unregistered("encoder", alone_encoder)
    expected = loss_and_backward(alone, batch).loss.total * (1, 2)[term]
    found = loss_and_backward(total, batch, chunk_rows=chunk_rows).loss
    torch.testing.assert_close(found.total, expected, rtol=0, atol=1e-12)
    assert list(found.parts) == [("responses.info_nce", "classes.cross_entropy")[term]]
    known = {f"encoder.{name}": (1, 2)[term] * value for name, value in gradients(alone_encoder).items()}
    known |= {f"terms.{term}.{name}": (1, 2)[term] * value for name, value in gradients(alone).items()}
    assert_same(gradients(total), known)


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
    found = [data_requirements(settings().of_source(source)) for source in settings().data]
    assert [each.columns for each in found] == [("anchor", "positive"), ("premise", "hypothesis", "label")]
    assert [len(settings().of_source(source).objective) for source in settings().data] == [1, 1]


def test_the_labels_of_a_source_concern_its_objectives_only():
    five = "{labels: [a, b, c, d, e]}"
    other = DATA.replace("name: conversations", f"name: conversations, values: {five}")
    assert isinstance(build_objective(settings(other), Tiny()), Sum)
    with pytest.raises(ConfigError, match=r"at least 5, one per label of b\.parquet"):
        build_objective(settings(DATA.replace("inference", f"inference, values: {five}")), Tiny())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ((DATA.replace("inference", "nli"), OBJECTIVES), "inference is none of them"),
        (("a.parquet", OBJECTIVES), "none has a name"),
        (
            (DATA.replace("inference", "conversations"), OBJECTIVES.split(", {name: cl")[0] + "]"),
            "rename all",
        ),
        ((DATA, OBJECTIVES.split(", {name: cl")[0] + "]"), "b.parquet has none"),
        ((DATA, OBJECTIVES, "train.mixing=blend"), "mixing: blend; remove it"),
        ((DATA, OBJECTIVES, "train.mine.enabled=true"), "mine.enabled: true; remove it"),
    ],
)
def test_sources_that_do_not_fit_the_objectives_are_refused(changed: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        settings(*changed)
