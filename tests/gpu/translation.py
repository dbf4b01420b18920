"""Greedy translations of a random model are those of the CPU, and those of transformers."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

from pipeline.augment import StageInput
from pipeline.augment.back_translation import TranslationStage
from pipeline.cores import usable_cores
from pipeline.device import Device
from pipeline.settings.augment import AugmentSettings, DecodingSettings, TranslatorSettings
from tests.gpu.scale import PartTable, Scale, peak_gib
from tests.models.translation.translators import SENTENCES, save_translator

LARGE = {
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2_048,
    "decoder_ffn_dim": 2_048,
    "max_position_embeddings": 256,
    "init_std": 0.05,
}
METHODS = {"greedy": {}, "sample": {"top_k": 10}, "beam": {"beams": 4}}
LEAST_EQUAL = {"float32": 0.97, "bfloat16": 0.0}  # rounding decides between almost equally likely tokens
BATCH = 64  # texts of a batch of transformers
COMPARED = 12  # texts that the CPU translates, too


def translation(scale: Scale) -> PartTable:
    """Translate with every method on the device and on the CPU, greedily with transformers, too."""
    folder = _translator(scale)
    texts = _texts(scale.choose(12, 256), scale.choose(12, 60))
    rows, problems = [], []
    for method in METHODS if not scale.small else ("greedy", "beam"):
        expected, _ = _translate(folder, method, "float32", "cpu", texts[:COMPARED])
        for dtype, least in LEAST_EQUAL.items():
            found, taken = _translate(folder, method, dtype, scale.device, texts)
            equal = float(np.mean([one == other for one, other in zip(expected, found, strict=False)]))
            rows.append([method, dtype, f"{len(texts) / taken:,.0f}", f"{equal:.0%}", peak_gib(scale)])
            scale.report(rows[-1])
            if not equal >= least:
                problems.append(f"{method}, {dtype}: {equal:.0%} of the translations are those of the CPU")
    rate = len(texts) / _generate(folder, texts, scale.device)
    rows.append(["greedy, transformers", "float32", f"{rate:,.0f}", "", peak_gib(scale)])
    header = ("method", "type", "texts/s", "as on the CPU", "peak GiB")
    return PartTable(f"Translations of {len(texts)} texts", header, rows, problems)


def _texts(count: int, most: int) -> list[str]:
    """Return texts of four words to `most` words that the tokenizer knows."""
    rng, words = np.random.default_rng(0), sorted({word for text in SENTENCES for word in text.split()})
    return [" ".join(rng.choice(words, rng.integers(4, most, endpoint=True))) for _ in range(count)]


def _translator(scale: Scale) -> Path:
    """Write a random Marian model, of the usual size unless sizes are small."""
    folder = save_translator(scale.folder / "translator", "marian")
    if not scale.small:
        torch.manual_seed(0)
        config = transformers.MarianConfig.from_pretrained(folder, **LARGE)
        model = transformers.MarianMTModel(config)
        model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        model.eval().save_pretrained(folder)
    return folder


def _translate(
    folder: Path, method: str, dtype: str, device: str, texts: Sequence[str]
) -> tuple[list[str], float]:
    """Translate twice. Returns the translations, and the seconds of the second time."""
    options = {"method": method, "min_ratio": 0.8, "max_ratio": 1.0, **METHODS[method]}
    settings = TranslatorSettings(
        path=str(folder), prefix=">>deu<< ", decoding=DecodingSettings.model_validate(options)
    )
    working = TranslationStage(settings).start(
        Device("cuda" if device == "cuda" else "cpu"),
        AugmentSettings.model_validate({"dtype": dtype, "threads": usable_cores()}),
    )
    inputs = [StageInput(text, b"%d" % number) for number, text in enumerate(texts)]
    dict(working(inputs[: len(inputs) // 4]))
    start = time.perf_counter()
    made = dict(working(inputs))  # the texts of a result were copied from the device
    return [made[number].texts[0] for number in range(len(texts))], time.perf_counter() - start


@torch.inference_mode()
def _generate(folder: Path, texts: Sequence[str], device: str) -> float:
    """Translate with transformers, texts of similar length together. Returns the seconds."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).to(device).eval()
    ordered, start = sorted(texts, key=len), time.perf_counter()
    for first in range(0, len(ordered), BATCH):
        part = [f">>deu<< {text}" for text in ordered[first : first + BATCH]]
        inputs = tokenizer(part, padding=True, return_tensors="pt", return_token_type_ids=False).to(device)
        longest = inputs["input_ids"].shape[1]
        model.generate(
            **inputs, num_beams=1, do_sample=False, min_new_tokens=int(0.8 * longest), max_new_tokens=longest
        ).tolist()
    return time.perf_counter() - start
