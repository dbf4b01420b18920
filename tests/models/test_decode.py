"""Our loop writes what transformers' generate writes, whatever stands beside a row."""

from pathlib import Path

import pytest

from pipeline.device import Device
from pipeline.models.seq2seq import open_translator
from pipeline.models.translate import Translator
from pipeline.settings.augment import DecodingSettings, TranslatorSettings
from tests.models.translators import FAMILIES, LANGUAGES, POSITIONS, SENTENCES, save_translator

CPU = Device("cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return {family: save_translator(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


def opened(path: Path, family: str, decoding: DecodingSettings = DecodingSettings(), **options) -> Translator:
    settings = TranslatorSettings(path=str(path), decoding=decoding, **LANGUAGES[family], **options)
    return Translator(open_translator(settings), settings, CPU, "float32")


def written(translator: Translator, texts=SENTENCES) -> list[list[int]]:
    requests = [translator.request(ids, place, None) for place, ids in enumerate(translator.tokens(texts))]
    found = {int(place): rows[0] for batch, made in translator(requests) for place, rows in zip(batch, made, strict=True)}
    return [found[place] for place in range(len(texts))]


def generated(path: Path, family: str, translator: Translator, decoding: DecodingSettings, texts=SENTENCES) -> list[list[int]]:
    """One text after the other by transformers, as its documentation says for the family."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(path).eval(), AutoTokenizer.from_pretrained(path)
    given, own = {}, LANGUAGES[family]
    if "source" in own:
        tokenizer.src_lang = own["source"]
        target = tokenizer.get_lang_id(own["target"]) if family == "m2m100" else tokenizer.convert_tokens_to_ids(own["target"])
        given["decoder_start_token_id" if family == "mbart25" else "forced_bos_token_id"] = target
    rows = []
    for text in texts:
        inputs = tokenizer(own.get("prefix", "") + text, return_tensors="pt")
        size = inputs["input_ids"].shape[1]
        most = min(int(size * decoding.max_ratio + decoding.max_extra), POSITIONS)
        found = model.generate(**inputs, num_beams=1, do_sample=False, max_new_tokens=most, min_new_tokens=min(most, int(decoding.min_ratio * size)), **given)
        rows.append(found[0, 1:].tolist())
    return rows


@pytest.mark.parametrize("bounds", [{}, {"max_ratio": 0.5, "max_extra": 1}, {"min_ratio": 1.5}])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_rows_are_those_of_generate_alone(folders, family: str, bounds: dict):
    decoding = DecodingSettings(**bounds)
    translator = opened(folders[family], family, decoding, batch_tokens=80)        # several batches, of rows that end at different steps
    expected = generated(folders[family], family, translator, decoding)
    assert written(translator) == expected
    assert len({len(row) for row in expected}) > 1
