"""Only adapters are trained, they change no vector at first, and a saved encoder has them in its weights."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pipeline.errors import ConfigError
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.models.trainable.lora import adapt, check_adapters, is_adapted, merge_adapters
from pipeline.models.trainable.saving import save_folder as save_encoder
from pipeline.objectives import Batch
from pipeline.objectives.simcse import SimCSE
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.settings.training import TrainSettings
from pipeline.settings.weights import LoraSettings
from pipeline.text.tokens.load_tokenizer import load_tokenizer
from pipeline.train.loop import Training
from tests.models.folders import LONG, TEXTS, save_folder

SENTENCES = [text for text in TEXTS if text.strip()]
LORA = LoraSettings(rank=3, alpha=4.5)


@pytest.fixture(scope="module", params=["bert", "mpnet", "electra"])
def folder_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of encoders of two packed families, and of one that runs through transformers."""
    return save_folder(tmp_path_factory.mktemp(request.param), request.param)


def loaded(folder_path: Path, lora: LoraSettings = LORA, **changes: str) -> TrainableEncoder:
    torch.manual_seed(0)
    encoder = load_trainable(open_folder(EncoderSettings(path=str(folder_path), **changes)))
    adapt(encoder, lora)
    return encoder


def vectors(encoder: TrainableEncoder) -> torch.Tensor:
    with torch.no_grad():
        return encoder.eval()(load_tokenizer(encoder.folder.path, 64)(SENTENCES))


def perturbed(encoder: TrainableEncoder) -> TrainableEncoder:
    """Add noise to all trained parameters."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in encoder.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return encoder


def batch_of(encoder: TrainableEncoder, first: int) -> Batch:
    words = LONG.split()
    texts = [" ".join(words[start : start + 6]) for start in range(first, first + 4)]
    return Batch({"text": texts}, np.arange(first, first + 4), load_tokenizer(encoder.folder.path, 64))


def test_only_adapters_and_heads_are_trained_and_vectors_start_unchanged(folder_path: Path):
    plain = loaded(folder_path, LoraSettings(), pooling="cls_mlp")
    encoder = loaded(folder_path, pooling="cls_mlp")
    assert not is_adapted(plain)
    trained = {name for name, parameter in encoder.named_parameters() if parameter.requires_grad}
    heads = {name for name in trained if name.startswith("mlp.")}
    assert heads
    adapters = trained - heads
    assert len(adapters) == 3 * 2 * 2  # layers, query and value, two matrices
    assert all(".lora_" in name for name in adapters)
    torch.testing.assert_close(vectors(encoder), vectors(plain), rtol=0, atol=0)


def test_merged_and_saved_encoders_equal_the_adapted_one(folder_path: Path, tmp_path: Path):
    query = "q" if "mpnet" in folder_path.name else "query"
    encoder = perturbed(loaded(folder_path, LoraSettings(rank=4, targets=(query, "dense"))))
    exact = copy.deepcopy(encoder).double()  # in float32 the rounding of merged weights exceeds 1e-12
    expected = vectors(exact)
    assert (expected - vectors(loaded(folder_path))).abs().max() > 0.01
    plain = merge_adapters(exact)
    assert not is_adapted(plain)
    torch.testing.assert_close(vectors(plain), expected, rtol=0, atol=1e-12 * float(expected.abs().max()))
    assert is_adapted(exact), "the encoder itself keeps its adapters"
    folder = save_encoder(encoder, encoder.folder, tmp_path / "saved")
    assert {*load_file(tmp_path / "saved/model.safetensors")} == {
        *load_file(folder_path / "model.safetensors")
    }
    assert folder.space_id != encoder.folder.space_id
    found = load_encoder(EncoderSettings(path=str(folder.path)), EncodeSettings(compile=False)).encode(
        SENTENCES
    )
    np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=2e-6 * float(expected.abs().max()))


def test_training_changes_adapters_only_and_resumes_exactly(folder_path: Path):
    def training() -> Training:
        settings = TrainSettings(lora=LORA)
        return Training(
            SimCSE(loaded(folder_path, LoraSettings(rank=2, dropout=0.2))),
            settings,
            steps=4,
            steps_per_epoch=4,
        )

    first = training()
    before = copy.deepcopy(first.objective.state_dict())
    losses = [float(first.step(batch_of(first.objective.encoder, number)).loss.total) for number in range(2)]
    state = first.state()
    losses += [float(first.step(batch_of(first.objective.encoder, number)).loss.total) for number in (2, 3)]
    after = first.objective.state_dict()
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert changed
    assert all(".lora_" in name or name.startswith("head.") for name in changed)
    resumed = training()
    resumed.restore(state)
    assert [
        float(resumed.step(batch_of(resumed.objective.encoder, number)).loss.total) for number in (2, 3)
    ] == losses[2:]
    for name, value in resumed.objective.state_dict().items():
        assert torch.equal(value, after[name]), name


def test_invalid_adapter_settings_are_refused(folder_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        ConfigError,
        match=(
            r"train\.lora\.targets: expected linear layers that end with qery, found none; "
            r"(did you mean 'query'|name some of)"
        ),
    ):
        loaded(folder_path, LoraSettings(rank=2, targets=("qery",)))
    with pytest.raises(ConfigError, match=r"new ones \(train\.fresh\)"):
        check_adapters(TrainSettings(lora=LORA, fresh=True))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'manta-embeddings\[lora\]'"):
        check_adapters(TrainSettings(lora=LORA))
    check_adapters(TrainSettings())
