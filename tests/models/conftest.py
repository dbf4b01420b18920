"""Encoders that several tests share."""

from pathlib import Path

import pytest
import torch

from pipeline.models.encoder import Encoder, load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folders import FAMILIES, save_folder


@pytest.fixture(autouse=True)
def _threads():
    """Loading an encoder sets the number of threads of the process: put it back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A random model of every family."""
    top = tmp_path_factory.mktemp("encoders")
    return {family: save_folder(top / family, family) for family in FAMILIES}


@pytest.fixture(scope="session")
def minilm() -> Encoder:
    """The packaged all-MiniLM-L6-v2."""
    return load_encoder(EncoderSettings(), EncodeSettings(), "cpu")
