"""Back-translation through chains of models: the result for each text, and the options that decide it."""

import os
import pickle
from pathlib import Path

import pytest

from pipeline.augment import AUGMENTERS, ModelAugmenter, StageInput, StageOutput, build_augmenters
from pipeline.config import digest_of, load_settings
from pipeline.device import Device
from pipeline.errors import ConfigError, ModelError
from pipeline.settings.augment import AugmentSettings
from tests.models.translation.translators import LANGUAGES, SENTENCES, save_translator

CPU = Device("cpu")
SAMPLE = {"method": "sample", "hypotheses": 2, "top_k": 20, "temperature": 1.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_translator(tmp_path_factory.mktemp("t5"), "t5")


def augmenter(*legs: dict | str) -> ModelAugmenter:
    return AUGMENTERS["back_translation"].model_validate({"legs": list(legs)})


def step(folder: Path, number: int = 0, **options):
    one = {"path": str(folder), **LANGUAGES["t5"], **options}
    return augmenter(*[one] * (number + 1)).model_stages()[number]


def translate(translator, texts, seed: int = 0, keys=None) -> list[StageOutput]:
    sources = [
        StageInput(text, f"{index}".encode() if keys is None else keys[index])
        for index, text in enumerate(texts)
    ]
    found = dict(translator.start(CPU, AugmentSettings(seed=seed))(sources))
    assert sorted(found) == list(range(len(texts)))
    return [found[index] for index in range(len(texts))]


def test_translations_do_not_depend_on_the_batch(folder):
    for options in ({}, {"decoding": SAMPLE}, {"decoding": {"method": "beam", "beams": 2, "hypotheses": 2}}):
        one = step(folder, batch_tokens=60, **options)
        whole = translate(one, SENTENCES)
        assert all(len(each.texts) == one.outputs and each.reason is None for each in whole)
        assert [
            translate(one, [text], keys=[f"{index}".encode()])[0] for index, text in enumerate(SENTENCES)
        ] == whole
        assert translate(one, SENTENCES) == whole


def test_samples_depend_on_seed_key_hypothesis_and_step_of_the_chain(folder):
    texts = [SENTENCES[0]] * 3
    sampled = step(folder, decoding=SAMPLE)
    base = translate(sampled, texts)
    assert len({each.texts for each in base}) > 1, "keys differ"
    assert any(len(set(each.texts)) > 1 for each in base), "hypotheses differ"
    assert translate(sampled, texts[::-1], keys=[b"2", b"1", b"0"]) == base[::-1]
    assert translate(sampled, texts, keys=[b"7"] * 3) == [translate(sampled, texts[:1], keys=[b"7"])[0]] * 3
    assert translate(sampled, texts, seed=1) != base
    assert translate(step(folder, 1, decoding=SAMPLE), texts) != base


def test_equal_texts_are_translated_once(folder):
    working = step(folder).start(CPU, AugmentSettings())
    found = dict(working([StageInput(text, b"%d" % index) for index, text in enumerate(SENTENCES * 3)]))
    once = step(folder).start(CPU, AugmentSettings())
    assert [found[index] for index in range(len(SENTENCES))] == [
        found[index + len(SENTENCES)] for index in range(len(SENTENCES))
    ]
    assert dict(once([StageInput(text, b"") for text in SENTENCES]))[0] == found[0]
    assert working.stats.tokens_in == once.stats.tokens_in > 0
    assert (working.stats.texts, once.stats.texts) == (3 * len(SENTENCES), len(SENTENCES))
    assert working.stats.tokens_out > 0
    assert working.stats.seconds > 0
    assert working.stats.padding > 0


def test_a_too_long_text_is_rejected_and_a_blank_text_stays_blank(folder):
    long, blank, usual = translate(
        step(folder, max_length=12, decoding=SAMPLE), [" ".join(SENTENCES), " ", SENTENCES[4]]
    )
    assert long == StageOutput(reason="too_long_for_model")
    assert blank == StageOutput(("", ""))
    assert len(usual.texts) == 2


def test_an_empty_batch_calls_no_model(folder):
    working = step(folder).start(CPU, AugmentSettings())
    assert dict(working([])) == {}
    assert (working.stats.tokens_in, working.stats.tokens_out) == (0, 0)


def test_a_step_pickles_and_its_identity_depends_on_deciding_options_only(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder.parent)
    relative = augmenter({"path": "model", **LANGUAGES["t5"]}).model_stages()[0]
    monkeypatch.chdir(tmp_path)
    assert translate(pickle.loads(pickle.dumps(relative)), SENTENCES[:1]) == translate(
        step(folder), SENTENCES[:1]
    )
    base = digest_of(step(folder).identity())
    assert digest_of(relative.identity()) == base
    for alike in (
        {"batch_tokens": 99},
        {"workers": 3},
        {"decoding": {"temperature": 2.0}},
        {"decoding": {"beams": 7}},
    ):
        assert digest_of(step(folder, **alike).identity()) == base, alike
    for other in (
        {"prefix": "x"},
        {"max_length": 20},
        {"decoding": {"max_extra": 3}},
        {"decoding": {"method": "beam"}},
        {"decoding": SAMPLE},
    ):
        assert digest_of(step(folder, **other).identity()) != base, other
    assert digest_of(step(save_translator(tmp_path, "t5", seed=9)).identity()) != base


def test_chains_of_models_multiply_their_hypotheses(folder):
    chain = augmenter(
        *[{"path": str(folder), "decoding": {"method": "sample", "hypotheses": count}} for count in (2, 1, 3)]
    )
    assert chain.variants == 6
    assert [each.outputs for each in chain.model_stages()] == [2, 1, 3]


def test_a_step_is_titled_by_its_languages_or_by_its_model():
    multilingual = {"path": "models/nllb/", "source": "eng_Latn", "target": "deu_Latn"}
    steps = augmenter(multilingual, "hub/opus-mt-de-en").model_stages()
    assert [step.title for step in steps] == ["eng_Latn-deu_Latn", "opus-mt-de-en"]


def test_invalid_options_and_models_are_refused_before_any_work(folder, tmp_path):
    wrong = tmp_path / "job.yaml"
    wrong.write_text("variants: {back: {method: back_translation, options: {legs: [{path: x, beems: 3}]}}}")
    with pytest.raises(ConfigError, match="beems"):
        build_augmenters(load_settings(AugmentSettings, wrong))
    with pytest.raises(ConfigError, match="legs"):
        build_augmenters(
            AugmentSettings.model_validate(
                {"variants": {"back": {"method": "back_translation", "options": {"legs": []}}}}
            )
        )
    with pytest.raises(ModelError, match="nothing-here"):
        augmenter({"path": str(folder)}, {"path": str(tmp_path / "nothing-here")}).check()
    augmenter({"path": str(folder)}).check()


@pytest.mark.skipif("MANTA_EVAL_MODELS" not in os.environ, reason="needs the trained translation models")
def test_trained_models_paraphrase_captions():
    models = Path(os.environ["MANTA_EVAL_MODELS"])
    texts = [
        "A man in a blue shirt is standing on a ladder cleaning a window.",
        "Two young boys are playing football on the grass.",
        "A dog runs through the snow.",
    ]
    for one in augmenter(
        *(str(models / f"translation-{pair}") for pair in ("en-de", "de-en"))
    ).model_stages():
        texts = [each.texts[0] for each in translate(one, texts)]
        assert any(("Mann" if one.title == "translation-en-de" else "man") in text for text in texts)
    assert "dog" in texts[2]
