"""On a GPU vectors agree with the CPU's, and their bits do not depend on their neighbours."""

import numpy as np
import pytest
import torch

from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folders import LONG, save_folder
from tests.models.rotary_folders import ROTARY, save_rotary

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
TEXTS = [
    " ".join(np.random.default_rng(number).choice(LONG.split(), 1 + number % 150)) for number in range(400)
]


@pytest.mark.parametrize(("dtype", "cosine"), [("float32", 0.99999), ("bfloat16", 0.999), ("float16", 0.999)])
@pytest.mark.parametrize("fused", [False, True])
def test_vectors_agree_with_those_of_the_cpu(dtype, cosine, fused):
    expected = load_encoder(EncoderSettings(), EncodeSettings()).encode(TEXTS)
    encoder = load_encoder(EncoderSettings(), EncodeSettings(dtype=dtype, compile=fused), "cuda")
    assert (encoder.encode(TEXTS) * expected).sum(axis=1).min() > cosine
    assert (encoder.encode(TEXTS[:3], query=True) * expected[:3]).sum(axis=1).min() > cosine


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["minilm", "mpnet", "electra", "modernbert", "qwen3", "gemma3"])
def test_the_bits_of_a_text_do_not_depend_on_its_batch(dtype, family, tmp_path):
    if family == "minilm":
        path = "all-MiniLM-L6-v2"
    else:
        path = str((save_rotary if family in ROTARY else save_folder)(tmp_path, family))
    settings = EncodeSettings(dtype=dtype, max_tokens=4_096)
    encoder = load_encoder(EncoderSettings(path=path, pooling="mean"), settings, "cuda")
    order = np.random.default_rng(0).permutation(len(TEXTS))
    together = encoder.encode(TEXTS)
    np.testing.assert_array_equal(encoder.encode([TEXTS[i] for i in order]), together[order])
    np.testing.assert_array_equal(encoder.encode(TEXTS[:50]), together[:50])
