"""What several tests of evaluation share."""

import pytest
import torch

from pipeline.models.encoder import Encoder, load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings


@pytest.fixture(autouse=True)
def _threads():
    """Loading an encoder sets the number of threads of the process: put it back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def minilm() -> Encoder:
    """The packaged all-MiniLM-L6-v2."""
    return load_encoder(EncoderSettings(), EncodeSettings(), "cpu")
