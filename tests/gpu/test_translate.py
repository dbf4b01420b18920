"""Translations made on a GPU equal those made on a CPU, except where two tokens are nearly equally likely."""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from pipeline.augment import StageInput
from pipeline.augment.back_translation import TranslationStage
from pipeline.device import Device
from pipeline.settings.augment import AugmentSettings, DecodingSettings, TranslatorSettings

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
    pytest.mark.skipif(
        "MANTA_EVAL_MODELS" not in os.environ or "MANTA_EVAL_DATA" not in os.environ,
        reason="MANTA_EVAL_MODELS and MANTA_EVAL_DATA are not set",
    ),
]
METHODS = {"greedy": {}, "sample": {"top_k": 10}, "beam": {"beams": 4}}


def translate_captions(device: Device, dtype: str, method: str) -> list[str]:
    """Translate 500 English captions into German."""
    captions = pq.read_table(
        Path(os.environ["MANTA_EVAL_DATA"]) / "captions" / "shards" / "part-00003.parquet"
    )["text"].to_pylist()[:500]
    path = str(Path(os.environ["MANTA_EVAL_MODELS"]) / "translation-en-de")
    decoding = DecodingSettings.model_validate({"method": method, **METHODS[method]})
    working = TranslationStage(TranslatorSettings(path=path, decoding=decoding)).start(
        device, AugmentSettings.model_validate({"dtype": dtype})
    )
    made = dict(working([StageInput(text, b"%d" % number) for number, text in enumerate(captions)]))
    return [made[number].texts[0] for number in range(len(captions))]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("dtype", "equal_texts"), [("float32", 0.99), ("bfloat16", 0.7)])
def test_translations_agree_with_those_of_the_cpu(dtype: str, equal_texts: float, method: str):
    expected = translate_captions(Device("cpu"), "float32", method)
    found = translate_captions(Device("cuda"), dtype, method)
    equal = sum(one == other for one, other in zip(expected, found, strict=True))
    assert equal >= equal_texts * len(expected)  # rounding decides between nearly equally likely tokens


def test_running_out_of_memory_halves_the_batches(monkeypatch: pytest.MonkeyPatch):
    free, _ = torch.cuda.mem_get_info()
    expected = translate_captions(Device("cuda"), "float32", "greedy")
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, 0.08 * 2**30 / free))
    try:
        assert translate_captions(Device("cuda"), "float32", "greedy") == expected
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
