"""GradCache and whole trainings equal those of the installed sentence-transformers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as theirs
from torch import Tensor, nn

from pipeline.models.trainable.encoder import load_trainable
from pipeline.objectives import Batch
from pipeline.objectives.supervised import Supervised
from pipeline.settings.training import OptimizerSettings, TrainSettings
from pipeline.text.tokens.tokens import Tokens
from pipeline.train.gradcache import loss_and_backward
from pipeline.train.loop import Training, fit
from tests.models.folders import folder_at, save_folder
from tests.objectives.tiny import Tiny, assert_same, batch_of, pop_gradients, texts, tokenize

ROWS, STEPS, TEMPERATURE = 7, 10, 0.05
ROLES = ("anchor", "positive", "negative")
# AdamW divides a gradient by its size plus epsilon. Some gradients are only rounding errors, such as those of
# the biases of keys. With the usual, smaller epsilon they would move weights by whole learning rates.
ADAMW = OptimizerSettings(learning_rate=1e-4, weight_decay=0.01, epsilon=1e-5, clip=1.0)


class TinyModel(nn.Sequential):
    """Model of sentence-transformers around `Tiny`; "input_ids" (n, 1) are indices of texts in `tokens`."""

    def __init__(self, tiny: Tiny, tokens: Tokens) -> None:
        super().__init__(tiny)
        self.tokens = tokens

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self[0](self.tokens.of_rows(features["input_ids"][:, 0].numpy()))}


@pytest.mark.parametrize("chunk_rows", [2, 3])
def test_gradcache_equals_that_of_sentence_transformers(chunk_rows: int):
    columns = {role: texts(ROWS, seed) for seed, role in enumerate(ROLES)}
    objective = Supervised(Tiny(), temperature=TEMPERATURE)
    found = loss_and_backward(objective, batch_of(columns), chunk_rows=chunk_rows).loss.total
    tiny = Tiny()
    model = TinyModel(tiny, tokenize([text for column in columns.values() for text in column]))
    rows = torch.arange(len(ROLES) * ROWS).reshape(len(ROLES), ROWS, 1)
    cached = theirs.CachedMultipleNegativesRankingLoss(
        model, scale=1 / TEMPERATURE, mini_batch_size=chunk_rows
    )
    expected = cached([{"input_ids": column} for column in rows], None)
    expected.backward()
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)
    assert_same(pop_gradients(objective.encoder), pop_gradients(tiny))


def texts_of_steps() -> list[dict[str, list[str]]]:
    """Return the texts of every step, by role."""
    return [
        {role: texts(ROWS, len(ROLES) * step + index) for index, role in enumerate(ROLES)}
        for step in range(STEPS)
    ]


def weights_after_our_steps(path: Path) -> dict[str, Tensor]:
    """Return the weights after ten training steps of this project."""
    folder = folder_at(path, pooling="mean")
    objective = Supervised(load_trainable(folder, dropout=0.0), temperature=TEMPERATURE)
    training = Training(objective, TrainSettings(optimizer=ADAMW), steps=STEPS, steps_per_epoch=STEPS)
    tokenizer = folder.tokenizer()
    batches = (Batch(columns, np.arange(ROWS), tokenizer) for columns in texts_of_steps())
    assert len(list(fit(training, batches, until=STEPS))) == STEPS
    return dict(objective.encoder.backbone.named_parameters())


def weights_after_their_steps(path: Path) -> dict[str, Tensor]:
    """Return the weights after ten steps of the loop that transformers' Trainer runs."""
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = SentenceTransformer(str(path), device="cpu", config_kwargs=no_dropout).train()
    loss = theirs.MultipleNegativesRankingLoss(model, scale=1 / TEMPERATURE)
    weights = dict(model[0].auto_model.named_parameters())
    optimizer = torch.optim.AdamW(parameter_groups(weights), lr=ADAMW.learning_rate, eps=ADAMW.epsilon)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, STEPS)
    for columns in texts_of_steps():
        loss([model.preprocess(column) for column in columns.values()], None).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return weights


def parameter_groups(weights: dict[str, Tensor]) -> Sequence[dict[str, object]]:
    """Return two groups, as Trainer does: biases and normalizations do not decay, all other weights do."""
    is_exempt = {name: name.endswith("bias") or "LayerNorm" in name for name in weights}
    return [
        {"params": [weights[name] for name in weights if is_exempt[name] == exempt], "weight_decay": decay}
        for exempt, decay in ((False, ADAMW.weight_decay), (True, 0.0))
    ]


def test_ten_steps_give_the_weights_of_sentence_transformers(tmp_path: Path):
    """Compare with the loop that SentenceTransformerTrainer runs: forward pass, backward pass, clipping,
    AdamW, linear schedule.

    The trainer itself needs accelerate and datasets, which the tests do not install.
    """
    path = save_folder(tmp_path / "bert", "bert")
    initial = dict(load_trainable(folder_at(path, pooling="mean")).backbone.named_parameters())
    found, expected = weights_after_our_steps(path), weights_after_their_steps(path)
    trained = [name for name in expected if not name.startswith("pooler")]  # mean pooling does not use it
    assert trained
    for name in trained:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-6, msg=name)
        if expected[name].ndim == 2:
            assert (expected[name] - initial[name]).abs().max() > 1e-4, name
