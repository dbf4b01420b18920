"""Masked language modelling beside other objectives."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from pipeline.errors import ConfigError
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import NO_PEERS, Batch
from pipeline.objectives.build import build_objective, data_requirements
from pipeline.objectives.masked_lm import MaskedLanguageModelling
from pipeline.settings import EncoderSettings
from pipeline.settings.training import NEGATIVES, TrainSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import folder_of_language_model, save_folder
from tests.objectives.tiny import Tiny, assert_same, batch_of, pop_gradients, texts

CLS, SEP, MASK = 1, 2, 4  # ids of the folder's vocabulary


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Write a BERT with a language model head."""
    return folder_of_language_model(tmp_path_factory.mktemp("encoders") / "bert")


def encoder_of(folder: Path, **settings: object) -> TrainableEncoder:
    """Load the encoder without dropout."""
    return load_trainable(open_folder(EncoderSettings(path=str(folder), **settings)), dropout=0.0)


def batch_for(objective: MaskedLanguageModelling, rows: int, role: str = "text") -> Batch:
    """Return a batch that the tokenizer of the objective's encoder reads."""
    return replace(
        batch_of({role: [f"a man reads {text} on the grass" for text in texts(rows)]}),
        tokenize=objective.encoder.folder.tokenizer(),
    )


def test_the_loss_is_that_of_transformers_as_a_mean_over_masked_words(folder):
    torch.manual_seed(0)
    objective = MaskedLanguageModelling(encoder_of(folder))
    batch = batch_for(objective, 10).of_rows(np.array([9, 3, 4, 5, 6, 7, 8, 0]))  # indices in any order
    found = loss_and_backward(objective, batch).loss
    masked, words = objective._masked, objective._original.ids
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    rows = [torch.from_numpy(row).long() for row in np.split(masked.ids, masked.offsets[1:-1])]
    logits = torch.cat([model(input_ids=row[None]).logits[0] for row in rows]).detach()
    expected = torch.nn.functional.cross_entropy(
        logits[masked.kept], torch.from_numpy(words[masked.kept]).long()
    )
    assert found.total.item() == pytest.approx(expected.item(), rel=1e-5)
    assert list(found.parts) == ["masked_lm"]


class TwoRanks:
    """This rank, which is the first, and another one that has chosen a number of tokens."""

    rank = 0

    def __init__(self, chosen: int) -> None:
        self.chosen = chosen

    def gather(self, z: torch.Tensor) -> torch.Tensor:
        return torch.cat([z, torch.full_like(z, self.chosen)])


@pytest.mark.parametrize(("words", "other"), [("a man reads a book", 40), ("a", 0), ("a", 3)])
def test_the_mean_over_ranks_is_the_mean_over_the_masked_words_of_all(folder, words: str, other: int):
    losses = []
    for peers in (NO_PEERS, TwoRanks(other)):
        torch.manual_seed(0)
        objective = MaskedLanguageModelling(encoder_of(folder), rate=1.0)
        batch = replace(batch_of({"text": [words]}), tokenize=objective.encoder.folder.tokenizer())
        losses.append(loss_and_backward(objective, replace(batch, peers=peers)).loss.total.item())
    own = int(objective._masked.kept.sum())
    # The mean over two ranks has half of the loss of this one.
    assert losses[1] / 2 == pytest.approx(losses[0] * own / (own + other), rel=1e-5)


@pytest.mark.parametrize("chunk_rows", [None, 3])
def test_a_step_counts_the_tokens_of_masked_texts_and_those_of_views(folder, chunk_rows: int | None):
    alone = MaskedLanguageModelling(encoder_of(folder))
    batch = batch_for(alone, 8)
    read = AutoTokenizer.from_pretrained(folder)
    tokens = sum(len(read(f"a man reads {text} on the grass")["input_ids"]) for text in texts(8))
    assert loss_and_backward(alone, batch, chunk_rows=chunk_rows).tokens == tokens
    both = build_objective(TrainSettings(objective=["simcse", "masked_lm"]), alone.encoder)
    assert loss_and_backward(both, batch, chunk_rows=chunk_rows).tokens == 3 * tokens


def test_special_tokens_are_never_masked_and_others_at_the_rate(folder):
    torch.manual_seed(0)
    objective = MaskedLanguageModelling(encoder_of(folder))
    objective.views(batch_for(objective, 4_000))
    masked, words = objective._masked, objective._original.ids
    special = np.isin(words, (CLS, SEP))
    assert special.sum() == 2 * 4_000
    assert not masked.kept[special].any()
    assert (masked.ids == words)[~masked.kept].all()
    assert masked.kept[~special].mean() == pytest.approx(0.15, abs=0.01)
    assert (masked.ids == MASK)[masked.kept].mean() == pytest.approx(0.8, abs=0.03)


def test_every_step_draws_new_masks_from_torchs_generator(folder):
    objective = MaskedLanguageModelling(encoder_of(folder))
    batch = batch_for(objective, 20)

    def masked_ids() -> list[int]:
        objective.views(batch)
        return objective._masked.ids.tolist()

    torch.manual_seed(0)
    first, second = masked_ids(), masked_ids()
    assert second != first
    torch.manual_seed(0)
    assert masked_ids() == first


def test_a_template_is_never_masked(folder):
    torch.manual_seed(0)
    objective = MaskedLanguageModelling(encoder_of(folder, template='The text "[X]" means [MASK].'), rate=1.0)
    objective.views(batch_for(objective, 5))
    in_template = objective._original.in_template
    assert in_template.any()
    assert (objective._masked.kept == ~in_template).all()  # at a rate of 1, all other tokens are masked


def test_it_can_use_the_texts_of_another_objective(folder):
    settings = TrainSettings(
        objective=["supervised", {"name": "masked_lm", "weight": 0.1, "options": {"role": "anchor"}}],
        matryoshka=(8, 48),
    )
    assert data_requirements(settings) == (
        ("anchor", "positive"),
        NEGATIVES,
        "shuffled",
    )
    objective = build_objective(settings, encoder_of(folder))
    batch = batch_for(objective, 4, "anchor")
    batch = replace(batch, columns={**batch.columns, "positive": texts(4)})
    torch.manual_seed(0)
    whole = loss_and_backward(objective, batch).loss
    torch.manual_seed(0)
    chunked = loss_and_backward(objective, batch, chunk_rows=3).loss
    assert set(whole.parts) == {"supervised.info_nce", "masked_lm.masked_lm"}
    for name, part in whole.parts.items():
        assert chunked.parts[name].item() == pytest.approx(part.item(), rel=1e-5)
    assert objective.trained_model().head is None


@pytest.mark.parametrize("tied", [True, False])
def test_the_trained_model_has_the_head(folder, tied):
    masked_lm = {"name": "masked_lm", "weight": 0.1, "options": {"tied": tied}}
    objective = build_objective(TrainSettings(objective=["simcse", masked_lm]), encoder_of(folder))
    head = objective.trained_model().language_head
    assert head is objective.inner[1].head
    assert (head.table is None) == tied
    assert build_objective(TrainSettings(), encoder_of(folder)).trained_model().language_head is None


def test_an_untied_output_table_starts_with_the_loss_of_the_tied_one(folder):
    steps = []
    for tied, chunk_rows in ((True, None), (False, None), (False, 3)):
        objective = MaskedLanguageModelling(encoder_of(folder), tied=tied).double()
        torch.manual_seed(0)
        loss = loss_and_backward(objective, batch_for(objective, 8), chunk_rows=chunk_rows).loss.total
        steps.append((loss, pop_gradients(objective)))
    (tied_loss, tied_gradients), (loss, whole), (chunked_loss, chunked) = steps
    torch.testing.assert_close(torch.stack([loss, chunked_loss]), tied_loss.expand(2))
    assert_same(chunked, whole, tolerance=1e-10)
    words = next(name for name in whole if name.endswith("word_embeddings.weight"))
    torch.testing.assert_close(whole[words] + whole["head.table"], tied_gradients[words])


def test_a_kind_of_model_whose_head_cannot_be_saved_is_warned_about(folder):
    encoder = encoder_of(folder)
    objective = MaskedLanguageModelling(encoder)
    encoder.folder = replace(encoder.folder, family="other", config={"model_type": "deberta-v2"})
    assert "saved without the language model head" in objective.warnings()[-1]


def test_without_masked_words_the_loss_is_zero(folder):
    objective = MaskedLanguageModelling(encoder_of(folder), rate=1e-9)
    outcome = loss_and_backward(objective, batch_for(objective, 1))
    assert outcome.loss.total.item() == 0


def test_a_folder_without_a_language_model_head_is_warned_about(folder, tmp_path):
    objective = MaskedLanguageModelling(encoder_of(save_folder(tmp_path / "bert", "bert")))
    assert "no language model head" in objective.warnings()[0]
    assert not MaskedLanguageModelling(encoder_of(folder)).warnings()


def test_a_role_without_texts_is_refused():
    settings = TrainSettings(objective={"name": "masked_lm", "options": {"role": "score"}})
    with pytest.raises(ConfigError, match="options of masked_lm: role"):
        build_objective(settings, Tiny())
