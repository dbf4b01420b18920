"""Properties of every registered objective."""

import copy
import inspect
import io
import pickle
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from pipeline.models.classic.word_table import write_word_table_folder
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import OBJECTIVES, Batch, KeepsState, Objective
from pipeline.objectives import objective as definitions
from pipeline.objectives.build import Sum, Term, options_schema
from pipeline.objectives.declutr import Declutr
from pipeline.objectives.is_bert import IsBert
from pipeline.objectives.regression import CosineRegression
from pipeline.objectives.word2vec import Word2Vec
from pipeline.settings import EncoderSettings
from pipeline.settings.training import NEGATIVES, ROLES, TEXTS
from pipeline.settings.weights import WordTableSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.classic.paragraphs import write_paragraphs
from tests.models.folders import folder_of_language_model
from tests.objectives.tiny import assert_same, batch_of, descend, pop_gradients, texts

ABILITIES = [
    kind
    for kind in vars(definitions).values()
    if isinstance(kind, type) and issubclass(kind, Objective) and kind is not Objective
]
Make = Callable[..., Objective]
ROWS = 6
NUMBERS = {
    "score": np.linspace(0, 1, ROWS),
    "scores": np.random.default_rng(0).normal(size=(ROWS, 1 + len(NEGATIVES))),
    "label": np.arange(ROWS) % 3,
    "document": np.arange(ROWS) // 3,
    "position": np.arange(ROWS) % 3,
}

pytestmark = pytest.mark.parametrize("name", OBJECTIVES.names())


@pytest.fixture(scope="module")
def make(tmp_path_factory) -> Make:
    """Return a function that builds an objective with its defaults, in float64.

    Options without a default name another encoder's folder, such as a teacher's.
    """
    top = tmp_path_factory.mktemp("encoders")
    folders = [folder_of_language_model(top / str(seed), seed) for seed in range(3)]
    for folder in folders[1:]:
        shutil.copy(folders[0] / "tokenizer.json", folder)  # training a tokenizer breaks ties at random

    paragraphs = [
        write_paragraphs(
            top / f"paragraphs {seed}", rows=ROWS, seed=seed, words_known=texts(ROWS, TEXTS.index("text"))
        )
        for seed in range(2)
    ]
    for seed in range(2):
        letters = Counter("".join(texts(ROWS, TEXTS.index("text"))))
        write_word_table_folder(WordTableSettings(dim=6), letters, top / f"letters {seed}", seed=seed)

    def build(name: str, seed: int = 0) -> Objective:
        torch.manual_seed(seed)
        kind = OBJECTIVES[name]
        if kind.numbers_rows:
            encoder = load_trainable(open_folder(EncoderSettings(path=str(paragraphs[seed]))))
        elif kind is Word2Vec:
            encoder = load_trainable(open_folder(EncoderSettings(path=str(top / f"letters {seed}"))))
        else:
            pooling = "ngrams" if kind is IsBert else None
            settings = EncoderSettings(path=str(folders[seed]), pooling=pooling)
            encoder = load_trainable(open_folder(settings), dropout=0.0)
        options = {
            option.name: str(folders[2])
            for option in inspect.signature(kind).parameters.values()
            if option.kind is option.KEYWORD_ONLY and option.default is option.empty
        }
        return kind(encoder, **options).double()

    return build


def batch_for(objective: Objective) -> Batch:
    """Return six rows with the columns of the objective, for its encoder's tokenizer."""
    roles = (*objective.columns, *objective.optional)
    columns = {
        role: texts(ROWS, seed) if role in TEXTS else NUMBERS[role]
        for seed, role in enumerate(ROLES)
        if role in roles
    }
    folder = objective.encoder.folder
    if folder.family == "words" or any(isinstance(part, Declutr) for part in objective.parts):
        columns = {  # each letter is a word
            role: [" ".join(text) for text in values] if role in TEXTS else values
            for role, values in columns.items()
        }
    return replace(batch_of(columns), tokenize=folder.tokenizer())


def loss_of_step(objective: Objective, chunk_rows: int | None = None) -> torch.Tensor:
    """Compute the loss of a step; its gradients remain on the parameters."""
    torch.manual_seed(7)
    return loss_and_backward(objective, batch_for(objective), chunk_rows=chunk_rows).loss.total


def test_every_objective_is_documented_and_its_roles_are_known_to_the_settings(name: str):
    kind = OBJECTIVES[name]
    assert kind.__doc__
    assert kind.columns
    assert {*kind.columns, *kind.optional} <= set(ROLES)


def test_every_option_is_explained(name: str):
    words = " ".join(kind.__doc__ or "" for kind in OBJECTIVES[name].__mro__)
    assert [option for option in options_schema(name) if not re.search(rf"\b{option}\b", words)] == []


def test_every_objective_that_can_do_more_says_so_in_its_type(name: str):
    kind = OBJECTIVES[name]
    for ability in ABILITIES:
        methods = {each for each in vars(ability) if not each.startswith("_")} - {"loss"}
        assert issubclass(kind, ability) or not methods & {*dir(kind)}


def test_a_pickled_or_copied_objective_has_the_same_loss(name: str, make: Make):
    objective = make(name)
    expected = loss_of_step(objective)
    for other in (pickle.loads(pickle.dumps(objective)), copy.deepcopy(objective)):
        assert torch.equal(loss_of_step(other), expected)


def test_every_trainable_parameter_gets_a_gradient(name: str, make: Make):
    objective = make(name)
    assert torch.isfinite(loss_of_step(objective))
    found = pop_gradients(objective)
    trainable = {each for each, parameter in objective.named_parameters() if parameter.requires_grad}
    assert found.keys() == trainable
    assert any(gradient.any() for each, gradient in found.items() if each.startswith("encoder."))


def test_a_gradient_step_lowers_the_loss(name: str, make: Make):
    objective = make(name)
    before = loss_of_step(objective)
    descend(objective, rate=1e-5)
    assert loss_of_step(objective) < before


def test_chunks_give_the_same_loss_and_gradient(name: str, make: Make):
    objective = make(name)
    expected, known = loss_of_step(objective), pop_gradients(objective)
    if any(view.whole_batch_reason is not None for view in objective.views(batch_for(objective))):
        pytest.skip("no chunks allowed")
    for chunk_rows in (1, 4):
        torch.testing.assert_close(loss_of_step(objective, chunk_rows), expected, rtol=0, atol=1e-11)
        assert_same(pop_gradients(objective), known, tolerance=1e-10)


def test_the_state_can_be_saved_and_loaded(name: str, make: Make):
    objective, batch = make(name), batch_for(make(name))
    reps = loss_and_backward(objective, batch).reps
    if isinstance(objective, KeepsState):
        objective.after_step(reps, batch)
    file = io.BytesIO()
    torch.save(objective.state_dict(), file)
    file.seek(0)
    other = make(name, seed=1)
    assert not torch.equal(loss_of_step(other), loss_of_step(objective))
    other.load_state_dict(torch.load(file))
    assert torch.equal(loss_of_step(other), loss_of_step(objective))


def test_a_step_does_not_modify_the_batch(name: str, make: Make):
    objective = make(name)
    batch = batch_for(objective)
    before = pickle.dumps({role: list(values) for role, values in batch.columns.items()})
    loss_and_backward(objective, batch)
    assert pickle.dumps({role: list(values) for role, values in batch.columns.items()}) == before


def test_the_loss_does_not_depend_on_the_order_of_rows(name: str, make: Make):
    objective = make(name)
    if "position" in objective.columns or name == "contrastive_tension":
        pytest.skip("the order of rows matters")
    batch, order = batch_for(objective), np.random.default_rng(0).permutation(ROWS)
    reps = tuple(view.encode().detach() for view in objective.views(batch))
    expected = objective.loss(reps, batch).total
    torch.testing.assert_close(
        objective.loss(tuple(rep[order] for rep in reps), batch.of_rows(order)).total,
        expected,
        rtol=0,
        atol=1e-12,
    )


def test_min_rows_are_enough(name: str, make: Make):
    objective = make(name)
    batch = batch_for(objective).of_rows(np.arange(objective.min_rows) + 1)
    assert torch.isfinite(loss_and_backward(objective, batch).loss.total)


def test_every_objective_can_be_a_term_of_a_sum(name: str, make: Make):
    objective = make(name)
    total = Sum(
        objective.encoder,
        [Term("first", 0.5, objective), Term("second", 2.0, CosineRegression(objective.encoder))],
    )
    assert not any(".encoder." in entry for entry in total.state_dict() if entry.startswith("terms.1"))
    if any(view.whole_batch_reason is not None for view in total.views(batch_for(total))):
        pytest.skip("no chunks allowed")
    expected, known = loss_of_step(total), pop_gradients(total)
    torch.testing.assert_close(loss_of_step(total, 4), expected, rtol=0, atol=1e-12)
    assert_same(pop_gradients(total), known, tolerance=1e-10)
    batch = batch_for(total)
    total.after_step(loss_and_backward(total, batch).reps, batch)
