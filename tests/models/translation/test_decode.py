"""Translations equal those of transformers' generate, do not depend on the other rows of a batch, and samples
depend only on the random numbers that the caller passes.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.models.translation.decode import GeneralStepper, cut, plan, sample
from pipeline.models.translation.decode_fused import is_fused
from pipeline.models.translation.seq2seq import open_translator
from pipeline.models.translation.translate import Translator
from pipeline.settings.augment import DecodingSettings, TranslatorSettings
from tests.models.translation.translators import FAMILIES, LANGUAGES, POSITIONS, SENTENCES, save_translator

CPU = Device("cpu")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    return {
        family: save_translator(tmp_path_factory.mktemp(family), family, seed=family == "nllb")
        for family in FAMILIES
    }


def opened(path: Path, family: str, decoding: DecodingSettings = DecodingSettings(), **options) -> Translator:
    """Load a translator in float32, with the languages of its family."""
    settings = TranslatorSettings(path=str(path), decoding=decoding, **LANGUAGES[family], **options)
    return Translator(open_translator(settings), settings, CPU, "float32")


def translations_of(translator: Translator, texts=SENTENCES, uniforms=None) -> list[list[list[int]]]:
    """Translate texts. Returns the token ids of each translation of each text."""
    requests = [
        translator.request(ids, row, uniforms) for row, ids in enumerate(translator.tokenizer.tokens(texts))
    ]
    found = {
        int(row): rows
        for batch, translations in translator(requests)
        for row, rows in zip(batch, translations, strict=True)
    }
    return [found[row] for row in range(len(texts))]


def first(translations: list[list[list[int]]]) -> list[list[int]]:
    """Return the first translation of each text."""
    return [of_text[0] for of_text in translations]


class Alone:
    """transformers' generate for one text at a time, with the languages set as documented for the family."""

    def __init__(self, path: Path, family: str) -> None:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        self.model = AutoModelForSeq2SeqLM.from_pretrained(path).eval()
        self.tokenizer, languages = AutoTokenizer.from_pretrained(path), LANGUAGES[family]
        self.options, self.prefix = {}, languages.get("prefix", "")
        if "source" in languages:
            self.tokenizer.src_lang = languages["source"]
            target = (
                self.tokenizer.get_lang_id(languages["target"])
                if family == "m2m100"
                else self.tokenizer.convert_tokens_to_ids(languages["target"])
            )
            self.options["decoder_start_token_id" if family == "mbart25" else "forced_bos_token_id"] = target

    def __call__(self, text: str, decoding: DecodingSettings, **options) -> list[list[int]]:
        inputs = self.tokenizer(self.prefix + text, return_tensors="pt")
        size = inputs["input_ids"].shape[1]
        most = min(int(size * decoding.max_ratio + decoding.max_extra), POSITIONS)
        bounds = {"max_new_tokens": most, "min_new_tokens": min(most, int(decoding.min_ratio * size))}
        return self.model.generate(
            **inputs, **({"num_beams": 1, "do_sample": False} | options), **bounds, **self.options
        )[:, 1:].tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_decoding_in_a_batch_equals_generate_on_each_text(folders, family: str):
    alone, lengths = Alone(folders[family], family), set()
    for bounds in ({}, {"max_ratio": 0.8, "max_extra": 1, "min_ratio": 0.5}):
        decoding = DecodingSettings(**bounds)
        # several batches, in which texts end at different steps
        translator = opened(folders[family], family, decoding, batch_tokens=80)
        expected = [alone(text, decoding)[0] for text in SENTENCES]
        assert first(translations_of(translator)) == expected, bounds
        translator._stepper = GeneralStepper(translator._model)  # works for every architecture
        assert first(translations_of(translator)) == expected, bounds
        lengths |= {len(row) for row in expected}
    assert len(lengths) > 2, "translations have different lengths"


@pytest.mark.parametrize("family", ["marian", "nllb", "mbart50", "t5"])
def test_half_precision_decoding_equals_generate_in_half_precision(folders, family: str):
    settings = TranslatorSettings(path=str(folders[family]), **LANGUAGES[family])
    translator = Translator(open_translator(settings), settings, CPU, "bfloat16")
    alone = Alone(folders[family], family)
    alone.model.to(torch.bfloat16)
    expected = [alone(text, DecodingSettings())[0] for text in SENTENCES]
    agree = [
        sum(a == b for a, b in zip(*rows, strict=False)) / max(map(len, rows))
        for rows in zip(first(translations_of(translator)), expected, strict=True)
    ]
    # matrix products of other shapes round differently, which may change a token and all tokens after it
    assert np.mean(agree) > 0.6


def test_modified_layers_are_not_fused(folders):
    model = opened(folders["nllb"], "nllb")._model
    assert is_fused(model)
    assert not is_fused(opened(folders["t5"], "t5")._model)
    model.get_decoder().layers[1].fc1 = torch.nn.Sequential(model.get_decoder().layers[1].fc1)
    assert not is_fused(model)


def test_forbidden_tokens_are_not_generated(folders, tmp_path):
    """Forbidden words, repeated n-grams and the repetition penalty work as in generate."""
    alone = Alone(folders["mbart50"], "mbart50")
    plain = alone(SENTENCES[1], DecodingSettings())[0]
    alone.model.generation_config.update(
        bad_words_ids=[plain[2:4], [plain[6]]],
        no_repeat_ngram_size=2,
        repetition_penalty=1.3,
        suppress_tokens=[plain[5]],
    )
    alone.model.save_pretrained(tmp_path)
    alone.tokenizer.save_pretrained(tmp_path)
    expected = [alone(text, DecodingSettings())[0] for text in SENTENCES]
    assert first(translations_of(opened(tmp_path, "mbart50"))) == expected
    assert expected[1] != plain


@pytest.mark.parametrize("family", ["marian", "nllb", "t5"])
def test_beam_search_equals_generate_on_each_text_below_the_length_limit(folders, family: str):
    """Only texts whose translations all end before the length limit are compared.

    Beyond it, generate also ranks translations that the limit has cut off, and this project does not.
    """
    decoding = DecodingSettings(method="beam", beams=3, hypotheses=2, length_penalty=0.8)
    alone, compared = Alone(folders[family], family), 0
    translator = opened(folders[family], family, decoding, batch_tokens=240)
    ends = set(alone.model.generation_config.eos_token_id)
    for text, found, ids in zip(
        SENTENCES, translations_of(translator), translator.tokenizer.tokens(SENTENCES), strict=True
    ):
        most = translator.request(ids, 0, None).max_tokens
        assert all(len(row) <= most and row[-1] in ends for row in found)
        expected = alone(text, decoding, num_beams=3, num_return_sequences=2, length_penalty=0.8)
        rows = [cut(row, ends) for row in expected]
        if max(map(len, rows)) < most:
            assert found == rows
            compared += 1
    assert compared > 0


def test_beams_do_not_depend_on_their_neighbours(folders):
    decoding = DecodingSettings(method="beam", beams=3, max_ratio=0.6, max_extra=0, min_ratio=0.3)
    assert translations_of(opened(folders["t5"], "t5", decoding)) == translations_of(
        opened(folders["t5"], "t5", decoding, batch_tokens=16)
    )


def uniforms_of(row: int, most: int) -> np.ndarray:
    """Draw uniform numbers for 3 translations of a text, which depend on its row alone."""
    return np.random.default_rng(row).random((3, most))


def test_samples_depend_on_their_random_numbers_and_not_on_the_batch(folders):
    decoding = DecodingSettings(method="sample", hypotheses=3, top_k=20, temperature=1.5)
    whole = translations_of(opened(folders["t5"], "t5", decoding), uniforms=uniforms_of)
    assert whole == translations_of(
        opened(folders["t5"], "t5", decoding, batch_tokens=60), uniforms=uniforms_of
    )
    for row, text in enumerate(SENTENCES):
        assert translations_of(
            opened(folders["t5"], "t5", decoding), [text], lambda _, most, row=row: uniforms_of(row, most)
        ) == [whole[row]]
    assert any(len(set(map(tuple, hypotheses))) == 3 for hypotheses in whole)


SAMPLING = [
    {},
    {"temperature": 0.7},
    {"top_k": 10},
    {"top_p": 0.8},
    {"top_k": 30, "top_p": 0.6, "temperature": 1.4},
    {"top_p": 0.999},
]


@pytest.mark.parametrize("options", SAMPLING)
def test_samples_have_the_probabilities_of_transformers(options: dict):
    """Evenly spaced random numbers draw each token in proportion to its probability."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    torch.manual_seed(0)
    scores, grid = 3 * torch.randn(1, 700), 20_000
    scores[0, 5:9] = -torch.inf
    expected = TemperatureLogitsWarper(options.get("temperature", 1.0))(None, scores)
    expected = TopKLogitsWarper(options["top_k"])(None, expected) if "top_k" in options else expected
    expected = TopPLogitsWarper(options["top_p"])(None, expected) if "top_p" in options else expected
    drawn = sample(
        scores.expand(grid, -1),
        (torch.arange(grid) + 0.5) / grid,
        DecodingSettings(method="sample", **options),
    )
    proportions = torch.bincount(drawn, minlength=700) / grid
    torch.testing.assert_close(proportions, torch.softmax(expected[0], -1), atol=2 / grid, rtol=0)


@pytest.mark.parametrize("options", SAMPLING)
def test_random_numbers_at_both_ends_draw_possible_tokens(options: dict):
    scores = torch.full((2, 200), -torch.inf)
    scores[:, [3, 77, 130]] = 1.0
    drawn = sample(scores, torch.tensor([0.0, 1 - 2**-24]), DecodingSettings(method="sample", **options))
    assert set(drawn.tolist()) <= {3, 77, 130}


def test_batches_hold_every_text_once_and_as_many_texts_as_the_token_limit_allows():
    lengths = np.random.default_rng(0).integers(1, 90, 300)
    batches = plan(lengths, 256, copies=2)
    assert sorted(np.concatenate(batches).tolist()) == list(range(300))
    assert all(2 * len(batch) * lengths[batch].max() <= 256 for batch in batches)
    assert all(2 * (len(batch) + 1) * lengths[batch].max() > 256 for batch in batches[:-1])
    assert (np.diff(lengths[np.concatenate(batches)]) <= 0).all()


def test_a_text_above_the_token_limit_has_a_batch_of_its_own():
    assert [batch.tolist() for batch in plan([3, 300, 200, 2], 256, copies=2)] == [[1], [2], [0, 3]]


def test_running_out_of_device_memory_halves_the_batch(folders, monkeypatch):
    translator, sizes = opened(folders["t5"], "t5"), []
    expected, begin = translations_of(translator), translator._stepper.begin

    def begin_with_three_rows_at_most(ids, *rest):
        sizes.append(len(ids))
        if len(ids) > 3:
            raise torch.OutOfMemoryError
        return begin(ids, *rest)

    def fail(*_):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(translator._stepper, "begin", begin_with_three_rows_at_most)
    assert translations_of(translator) == expected
    assert sizes[0] == len(SENTENCES)
    assert sum(size for size in sizes if size <= 3) == len(SENTENCES), "each text is decoded once"
    monkeypatch.setattr(translator._stepper, "begin", fail)
    with pytest.raises(ModelError, match="one text"):
        translations_of(translator)
