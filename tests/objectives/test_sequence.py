"""Fine-tuning on labels: logits, losses and saved models are those of transformers."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import SavedHeads, save_folder
from pipeline.objectives import Batch
from pipeline.objectives.sequence import FineTuning
from pipeline.objectives.sequence_classification import SequenceClassification
from pipeline.objectives.sequence_regression import SequenceRegression
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.train.gradcache import loss_and_backward
from tests.models.folders import LONG, TEXTS, folder_at
from tests.models.pair_folders import pair_folder

LEFT, RIGHT = [*TEXTS, LONG], [*reversed(TEXTS), "x"]
ROWS = len(LEFT)
LABELS, SCORES = np.arange(ROWS) % 3, np.linspace(0, 1, ROWS)


def objective_of(folder: Path, kind: type[FineTuning], *, pairs: bool) -> FineTuning:
    """Build an objective without dropout, whose new layer has large weights."""
    torch.manual_seed(3)
    encoder = load_trainable(folder_at(folder, pooling="cls_mlp"), dropout=0.0)
    objective = kind(encoder, pairs=pairs, dropout=0.0)
    torch.nn.init.normal_(objective.layer.weight, std=0.5)
    torch.nn.init.normal_(objective.layer.bias, std=0.5)
    return objective


def batch_of(objective: FineTuning) -> Batch:
    columns = {"text": LEFT, "sentence1": LEFT, "sentence2": RIGHT, "label": LABELS, "score": SCORES}
    return Batch(columns, np.arange(ROWS), objective.encoder.folder.tokenizer())


def saved_with_classifier(objective: FineTuning, path: Path) -> EncoderFolder:
    """Save the trained model as a folder of transformers."""
    heads = SavedHeads(classifier=objective.trained_model().classifier)
    return save_folder(objective.encoder, objective.encoder.folder, path, heads)


def output_of_transformers(
    saved: Path, *, pairs: bool, labels: np.ndarray
) -> tuple[SequenceClassifierOutput, PreTrainedModel]:
    """Run transformers' model of a folder on all rows, padded together; return its output and the model."""
    model = AutoModelForSequenceClassification.from_pretrained(saved).eval()
    tokenizer = AutoTokenizer.from_pretrained(saved)
    texts = (LEFT, RIGHT) if pairs else (LEFT,)
    has_types = getattr(model.config, "type_vocab_size", 0) > 1
    inputs = tokenizer(
        *texts,
        truncation=True,
        max_length=64,
        padding=True,
        return_tensors="pt",
        return_token_type_ids=has_types,
    )
    return model(**inputs, labels=torch.from_numpy(labels)), model


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("kind", [SequenceClassification, SequenceRegression])
@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_logits_loss_and_saved_model_are_those_of_transformers(
    tmp_path: Path, family: str, kind: type[FineTuning], pairs: bool
):
    objective = objective_of(pair_folder(tmp_path / "start", family), kind, pairs=pairs)
    batch = batch_of(objective)
    saved = saved_with_classifier(objective, tmp_path / "saved")
    labels = LABELS if kind is SequenceClassification else (5 * SCORES).astype(np.float32)
    expected, oracle = output_of_transformers(saved.path, pairs=pairs, labels=labels)
    vectors = objective.encoder(objective.prediction_tokens(batch))
    torch.testing.assert_close(objective.outputs(vectors), expected.logits, atol=2e-5, rtol=1e-4)
    loss = loss_and_backward(objective, batch).loss.total
    torch.testing.assert_close(loss, expected.loss.detach(), atol=1e-5, rtol=1e-5)
    expected.loss.backward()
    name = "embeddings.token_type_embeddings.weight" if family == "bert" else "embeddings.LayerNorm.weight"
    gradient = objective.encoder.backbone.get_parameter(name).grad
    torch.testing.assert_close(gradient, oracle.base_model.get_parameter(name).grad, atol=1e-4, rtol=1e-3)
    assert gradient.abs().max() > 1e-3
    assert objective.warnings() == []


def test_sentence_transformers_scores_pairs_by_the_saved_cross_encoder(tmp_path: Path):
    objective = objective_of(pair_folder(tmp_path / "start"), SequenceRegression, pairs=True)
    saved = saved_with_classifier(objective, tmp_path / "saved")
    expected = objective.predict(objective.encoder(objective.prediction_tokens(batch_of(objective)))).detach()
    found = CrossEncoder(str(saved.path), device="cpu").predict(list(zip(LEFT, RIGHT, strict=True)))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_cross_encoder_is_refused_as_an_encoder_and_a_training_may_start_from_it(tmp_path: Path):
    objective = objective_of(pair_folder(tmp_path / "start"), SequenceClassification, pairs=True)
    settings = EncoderSettings(path=str(saved_with_classifier(objective, tmp_path / "saved").path))
    with pytest.raises(ModelError, match="found a cross-encoder, which reads two texts together"):
        load_encoder(settings, EncodeSettings())
    again = load_trainable(open_folder(settings, cross_encoder=True), dropout=0.0)
    tokens = objective.prediction_tokens(batch_of(objective))
    torch.testing.assert_close(again(tokens), objective.encoder(tokens))
    encoder = save_folder(again, again.folder, tmp_path / "encoder")
    single = encoder.tokenizer()(LEFT)
    vectors = load_encoder(EncoderSettings(path=str(encoder.path)), EncodeSettings()).encode(LEFT)
    np.testing.assert_allclose(vectors, again(single).detach(), atol=1e-5)


def test_a_classifier_of_single_texts_is_an_encoder_whose_vector_is_the_pooler(tmp_path: Path):
    objective = objective_of(pair_folder(tmp_path / "start"), SequenceClassification, pairs=False)
    saved = saved_with_classifier(objective, tmp_path / "saved")
    vectors = load_encoder(EncoderSettings(path=str(saved.path)), EncodeSettings()).encode(LEFT)
    expected = objective.encoder(objective.prediction_tokens(batch_of(objective))).detach()
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    with pytest.raises(
        ModelError, match=r"encoder.pooling: expected null, .* found cls_mlp, which adds a second"
    ):
        SequenceClassification(load_trainable(folder_at(saved.path, pooling="cls_mlp")))


def test_a_second_stage_trains_the_pooler_that_the_first_one_saved(tmp_path: Path):
    """The first stage saves the pooler as a module after the pooling."""
    first = objective_of(pair_folder(tmp_path / "start"), SequenceClassification, pairs=False)
    second = SequenceClassification(
        load_trainable(saved_with_classifier(first, tmp_path / "first"), dropout=0.0)
    )
    with torch.no_grad():
        second.encoder.tail[0].linear.bias += 1
    saved = saved_with_classifier(second, tmp_path / "second")
    expected, _ = output_of_transformers(saved.path, pairs=False, labels=LABELS)
    found = second.eval().outputs(second.encoder(second.prediction_tokens(batch_of(second))))
    torch.testing.assert_close(found, expected.logits, atol=2e-5, rtol=1e-4)


def test_a_pair_is_truncated_at_the_length_of_the_training(tmp_path: Path):
    objective = objective_of(pair_folder(tmp_path / "start"), SequenceClassification, pairs=True)
    batch = batch_of(objective)
    short = Batch(batch.columns, batch.rows, batch.tokenize, max_length=20)
    assert objective.prediction_tokens(batch).lengths.max() == 64
    assert objective.prediction_tokens(short).lengths.max() == 20


def test_dropout_changes_the_logits_in_training_only_and_is_that_of_the_encoder_by_default(tmp_path: Path):
    encoder = load_trainable(folder_at(pair_folder(tmp_path / "start"), pooling="cls_mlp"), dropout=0.0)
    objective = SequenceClassification(encoder, dropout=0.5)
    vectors = torch.ones(200, objective.dim)
    torch.nn.init.ones_(objective.layer.weight)
    assert objective.train().outputs(vectors).std() > 1
    assert objective.eval().outputs(vectors).std() == 0
    assert SequenceClassification(encoder).dropout == 0
    assert SequenceClassification(load_trainable(encoder.folder)).dropout == 0.1


def test_other_poolings_read_no_pairs_and_are_saved_without_their_classifier(tmp_path: Path):
    folder = folder_at(pair_folder(tmp_path / "start"), pooling="mean", normalize=True)
    with pytest.raises(
        ModelError, match=r"found mean and Normalization of bert; set encoder.pooling=cls_mlp"
    ):
        SequenceClassification(load_trainable(folder), pairs=True)
    prompted = folder_at(tmp_path / "start", pooling="cls_mlp", prompt="query: ")
    with pytest.raises(ModelError, match=r"found cls_mlp of bert with the prompt 'query: '"):
        SequenceClassification(load_trainable(prompted), pairs=True)
    objective = SequenceClassification(load_trainable(folder))
    assert objective.trained_model().classifier is None
    assert "saved without its classifier" in objective.warnings()[0]
