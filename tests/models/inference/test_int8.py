"""Encoders in 8-bit integers: close to float32, and independent of the batch, for every packed family."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import spearmanr

from pipeline.errors import ConfigError
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings
from tests.models.folders import FAMILIES
from tests.models.inference.test_encoder import random_texts
from tests.models.inference.test_golden import DATA
from tests.models.rotary_folders import ROTARY, save_rotary

pytestmark = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="no AVX512_VNNI")
PACKED = [family for family in FAMILIES if family != "electra"]


@pytest.fixture(scope="module")
def int8() -> Encoder:
    return load_encoder(EncoderSettings(), EncodeSettings(dtype="int8"))


def both(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of some texts in float32 and in int8."""
    encoder = EncoderSettings(path=str(folder), pooling="mean", normalize=True)
    texts = random_texts(30)
    exact, rounded = (
        load_encoder(encoder, EncodeSettings(dtype=dtype, max_tokens=256)).encode(texts)
        for dtype in ("float32", "int8")
    )
    return exact, rounded


@pytest.mark.parametrize("family", PACKED)
def test_vectors_of_families_with_a_table_of_positions_are_close(folders, family):
    exact, rounded = both(folders[family])
    assert 0.99 < (exact * rounded).sum(1).min() < 1 - 1e-6


@pytest.mark.parametrize("family", ROTARY)
def test_vectors_of_rotary_families_are_close(tmp_path, family):
    exact, rounded = both(save_rotary(family, tmp_path / family))
    assert 0.99 < (exact * rounded).sum(1).min() < 1 - 1e-6


def test_the_bits_of_a_text_depend_neither_on_its_batch_nor_on_threads(int8):
    texts = random_texts(80)
    together = int8.encode(texts)
    order = np.random.default_rng(1).permutation(len(texts))
    np.testing.assert_array_equal(int8.encode([texts[i] for i in order]), together[order])
    np.testing.assert_array_equal(np.concatenate([int8.encode([text]) for text in texts[:5]]), together[:5])
    for threads in (2, 3):
        parallel = load_encoder(EncoderSettings(), EncodeSettings(dtype="int8", threads=threads))
        np.testing.assert_array_equal(parallel.encode(texts), together)


def test_only_the_numerics_differ_from_float32(int8, minilm):
    assert int8.space_id == minilm.space_id
    assert int8.numerics_id != minilm.numerics_id
    texts = random_texts(30)
    assert (int8.encode(texts) * minilm.encode(texts)).sum(1).min() > 0.99


def test_families_without_a_packed_pass_are_refused(folders):
    with pytest.raises(ConfigError, match=r"encode\.dtype.*without a packed forward pass.*int8"):
        load_encoder(EncoderSettings(path=str(folders["electra"])), EncodeSettings(dtype="int8"))


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="MANTA_EVAL_DATA names the folder of evaluation data")
def test_int8_loses_no_more_on_sts_than_that_of_onnx_runtime(int8):
    """ONNX Runtime, with weights quantized per channel and dynamic activations, has 81.84."""
    pairs = pq.read_table(Path(str(DATA)) / "sts" / "STSB-test.parquet")
    first, second = (int8.encode(pairs[column].to_pylist()) for column in ("sentence1", "sentence2"))
    score = 100 * spearmanr((first * second).sum(axis=1), pairs["score"].to_numpy()).statistic
    assert 81.84 <= score < 82.2
