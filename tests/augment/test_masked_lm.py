"""Guesses equal those of transformers for the same masks, whatever else is in the batch."""

import pickle
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import chisquare

from pipeline.augment import StageInput, StageOutput
from pipeline.augment.guessing import LoadedGuesser
from pipeline.augment.masked_lm import MaskedLMAugmenter
from pipeline.augment.words import split_word
from pipeline.config import validated
from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.settings.augment import AugmentSettings
from tests.models.folders import LONG, TEXTS, edit_json, folder_of_language_model

FAMILIES = ("bert", "roberta", "distilbert", "mpnet", "electra")
SENTENCE = "A man reads the book, and two dogs run on the grass."
SENTENCES = (
    SENTENCE,
    "The girl cleans a window.",
    "Dogs",
    "",
    "... --",
    "the cat's café — déjà vu!",
    *TEXTS[:2],
    "the lazy dog " * 6,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A model of each family. Noise in all weights makes their guesses differ."""
    top = tmp_path_factory.mktemp("models")
    return {family: add_noise(folder_of_language_model(top / family, family=family)) for family in FAMILIES}


def add_noise(path: Path) -> Path:
    torch.manual_seed(1)
    model = transformers.AutoModelForMaskedLM.from_pretrained(path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path)
    return path


def load_stage(
    path: Path | str, *, seed: int = 0, batch_tokens: int = 512, **options: object
) -> LoadedGuesser:
    augmenter = validated(
        MaskedLMAugmenter,
        {"model": {"path": str(path), "batch_tokens": batch_tokens}, **options},
        "masked_lm",
    )
    augmenter.check()
    found = (
        pickle.loads(pickle.dumps(augmenter))
        .model_stages()[0]
        .start(Device("cpu"), AugmentSettings(seed=seed))
    )
    assert isinstance(found, LoadedGuesser)
    return found


def run_stage(
    model: LoadedGuesser, texts: Sequence[str] = SENTENCES, keys: Sequence[bytes] | None = None
) -> list[StageOutput]:
    """Return the output for each text, in their order."""
    sources = [
        StageInput(text, key)
        for text, key in zip(texts, keys or [bytes([index]) for index in range(len(texts))], strict=True)
    ]
    found = list(model(sources))
    assert sorted(index for index, _ in found) == list(range(len(texts)))
    return [one for _, one in sorted(found, key=lambda each: each[0])]


def changed_words(text: str, variant: str) -> list[tuple[str, str]]:
    """Words of the text that were replaced, with their replacements."""
    words, others = text.split(), variant.split()
    assert len(words) == len(others)
    return [(word, other) for word, other in zip(words, others, strict=True) if word != other]


@pytest.mark.parametrize("family", FAMILIES)
def test_likeliest_guess_equals_transformers(folders, family):
    path = folders[family]
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    model = transformers.AutoModelForMaskedLM.from_pretrained(path).eval()
    guessing = load_stage(path, top_k=1, share=0.01)
    for one, text in zip(run_stage(guessing), SENTENCES, strict=True):
        (variant,) = one.texts
        if not any(split_word(word)[1] for word in text.split()):
            assert variant == text
            continue
        ((word, other),) = changed_words(text, variant)
        index = next(
            index
            for index, (old, new) in enumerate(zip(text.split(), variant.split(), strict=True))
            if old != new
        )
        match = list(re.finditer(r"\S+", text))[index]
        before, core, behind = split_word(word)
        first, last = match.start() + len(before), match.end() - len(behind)
        encoded = tokenizer(text, return_offsets_mapping=True)
        ids, at = list[int](), -1
        for number, (begin, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
            if begin < last and end > first:
                at = len(ids) if at < 0 else at
                ids += [tokenizer.mask_token_id] if at == len(ids) else []
            else:
                ids.append(number)
        with torch.no_grad():
            ranked = model(input_ids=torch.tensor([ids])).logits[0, at].argsort(descending=True).tolist()
        words = (whole_word(tokenizer, family, number) for number in ranked if number < len(tokenizer))
        assert split_word(other)[1].casefold() == next(
            word for word in words if word and word != core.casefold()
        )


def whole_word(tokenizer: transformers.PreTrainedTokenizerFast, family: str, number: int) -> str | None:
    """Return the case-folded word of a token; None for a piece of a word, punctuation and special tokens."""
    token = tokenizer.convert_ids_to_tokens(number)
    if number in tokenizer.all_special_ids or not (
        token.startswith("Ġ") if family == "roberta" else not token.startswith("##")
    ):
        return None
    word = tokenizer.decode([number]).strip() if family == "roberta" else token
    return word.casefold() if word.isalnum() and not word.isnumeric() else None


@pytest.mark.parametrize("share", [0.15, 0.5, 1.0])
def test_the_right_number_of_words_changes_and_punctuation_and_capitals_stay(folders, share):
    for one, text in zip(
        run_stage(load_stage(folders["bert"], share=share, top_k=None, count=5)), SENTENCES, strict=True
    ):
        words = [word for word in text.split() if split_word(word)[1]]
        assert one.texts
        for variant in one.texts:
            found = changed_words(text, variant)
            assert len(found) == (max(1, round(share * len(words))) if words else 0)
            for word, other in found:
                (before, core, behind), (left, guess, right) = split_word(word), split_word(other)
                assert (left, right) == (before, behind)
                assert guess.casefold() != core.casefold()
                assert not (core[0].isupper() and guess[0].islower() and guess[0].upper() != guess[0])


def test_same_word_may_be_guessed_if_other_is_false(folders):
    same = run_stage(
        load_stage(folders["bert"], other=False, top_k=None, temperature=50.0, share=1.0, count=500),
        ["the dog"] * 4,
    )
    words = [variant.casefold().split() for one in same for variant in one.texts]
    assert any(first == "the" or second == "dog" for first, second in words)


def test_variants_do_not_depend_on_order_or_batches(folders):
    texts, keys = [*SENTENCES, *TEXTS], [bytes([index, 7]) for index in range(len(SENTENCES) + len(TEXTS))]
    expected = run_stage(load_stage(folders["bert"], count=3), texts, keys)
    order = np.random.default_rng(0).permutation(len(texts)).tolist()
    assert run_stage(
        load_stage(folders["bert"], count=3),
        [texts[index] for index in order],
        [keys[index] for index in order],
    ) == [expected[index] for index in order]
    model = load_stage(folders["bert"], count=3, batch_tokens=100)
    assert [run_stage(model, [text], [key])[0] for text, key in zip(texts, keys, strict=True)] == expected


def test_draws_depend_on_seed_key_and_number(folders):
    texts = [SENTENCE] * 3
    (first, second, third) = run_stage(
        load_stage(folders["bert"], count=6, top_k=None), texts, [b"a", b"b", b"a"]
    )
    assert first == third != second
    assert len(set(first.texts)) > 1
    assert (
        run_stage(load_stage(folders["bert"], count=2, top_k=None), [SENTENCE], [b"a"])[0].texts
        == first.texts[:2]
    )
    assert run_stage(load_stage(folders["bert"], count=6, top_k=None, seed=1), [SENTENCE], [b"a"])[0] != first


def test_guesses_are_drawn_by_their_probability(folders):
    options = {"top_k": 4, "temperature": 8.0}
    (one,) = run_stage(load_stage(folders["bert"], count=2_000, **options), ["Dogs"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["bert"])
    model = transformers.AutoModelForMaskedLM.from_pretrained(folders["bert"]).eval()
    with torch.no_grad():
        logits = model(**tokenizer("[MASK]", return_tensors="pt")).logits[0, 1]
    words = {
        number: token
        for token, number in tokenizer.get_vocab().items()
        if token[0] not in "#[" and token.isalpha() and token.casefold() != "dogs"
    }
    best = sorted(words, key=lambda number: -logits[number].item())[:4]
    expected: Counter[str] = Counter()
    for number, chance in zip(best, torch.softmax(logits[best].double() / 8.0, 0).tolist(), strict=True):
        expected[words[number].casefold()] += 2_000 * chance
    counts = Counter(variant.casefold() for variant in one.texts)
    assert set(counts) <= set(expected)
    # The p-value has no fixed value: the training of the tokenizer breaks ties by chance, with any seed.
    assert chisquare([counts[word] for word in expected], list(expected.values())).pvalue > 1e-6


def test_too_long_text_has_a_reason_and_others_are_guessed(folders):
    first, long, last = run_stage(load_stage(folders["bert"]), [SENTENCE, LONG, SENTENCE], [b"a", b"b", b"a"])
    assert long == StageOutput(reason="too_long_for_model")
    assert first == last
    assert first.texts


def test_stats_add_up(folders):
    model = load_stage(folders["bert"], count=2)
    run_stage(model)
    run_stage(model, [SENTENCE])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["bert"])
    assert (
        model.stats.texts
        == len([text for text in SENTENCES if any(split_word(word)[1] for word in text.split())]) + 1
    )
    assert (
        0
        < model.stats.tokens_in
        <= 2 * sum(len(tokenizer(text)["input_ids"]) for text in (*SENTENCES, SENTENCE))
    )
    assert model.stats.tokens_out >= 2 * model.stats.texts
    assert model.stats.padding > 0
    assert model.stats.seconds > 0


def test_encoder_without_a_head_is_refused_by_check():
    with pytest.raises(ModelError, match="head over words") as error:
        load_stage("all-MiniLM-L6-v2")
    assert error.value.exit_code == 4


def test_weights_without_a_head_are_refused_whatever_the_config_says(folders, tmp_path):
    path = tmp_path / "bare"
    transformers.AutoModel.from_pretrained(folders["bert"]).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folders["bert"] / name, path)
    edit_json(path / "config.json", architectures=["BertForMaskedLM"])
    with pytest.raises(ModelError, match="weights missing: cls"):
        load_stage(path)


def test_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ModelError):
        load_stage(tmp_path / "nowhere")
    with pytest.raises(ModelError, match=r"config\.json"):
        load_stage(tmp_path)


def test_identity_depends_on_the_model_and_deciding_options_only(folders, tmp_path):
    def identity(path: Path, **options: object) -> object:
        return validated(
            MaskedLMAugmenter,
            {"model": {"path": str(path), **options.pop("model", {})}, **options},
            "masked_lm",
        ).identity()

    first = identity(folders["bert"])
    assert identity(shutil.copytree(folders["bert"], tmp_path / "copy")) == first
    assert identity(folders["bert"], model={"batch_tokens": 64, "workers": 3}, together=False) == first
    assert identity(folders["bert"], share=0.3) != first
    assert identity(folders["distilbert"]) != first
