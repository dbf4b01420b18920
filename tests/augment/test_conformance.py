"""Properties of every augmentation method."""

import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import JsonValue

from pipeline.augment import (
    AUGMENTERS,
    Augmenter,
    ModelAugmenter,
    StageInput,
    StageOutput,
    WordAugmenter,
    Words,
    keyed_rng,
)
from pipeline.config import canonical, validated
from pipeline.device import Device
from pipeline.errors import ConfigError
from pipeline.settings.augment import AugmentSettings
from tests.augment.edits import SENTENCES, write_thesaurus
from tests.models.folders import folder_of_language_model

Options = dict[str, JsonValue]
EVAL_MODELS = os.environ.get("MANTA_EVAL_MODELS")
TEXTS = (
    *SENTENCES,
    ["..."],
    ["a"] * 5,
    [f"word{number}" for number in range(300)],
    ["«Ärger»", "déjà", "vu", "हिन्दी", "日本", "-", "don't", "3.14", "A.B."],
)

pytestmark = pytest.mark.parametrize("name", AUGMENTERS.names())


@dataclass(frozen=True)
class Needs:
    """Files and options that a method requires.

    Attributes:
        files: writes the files to a folder.
        options: returns the options for a folder with these files.
    """

    files: Callable[[Path], object]
    options: Callable[[Path], Options]


def copy_translators(folder: Path) -> None:
    if EVAL_MODELS is None:
        pytest.skip("it needs trained models: set MANTA_EVAL_MODELS")
    for pair in ("en-de", "de-en"):
        shutil.copytree(Path(EVAL_MODELS, f"translation-{pair}"), folder / pair)


SYNONYMS = Needs(write_thesaurus, lambda folder: {"synonyms": str(folder / "thesaurus.tsv")})
NEEDED = {
    "synonym": SYNONYMS,
    "insert": SYNONYMS,
    "eda": SYNONYMS,
    "masked_lm": Needs(
        lambda folder: folder_of_language_model(folder / "model"),
        lambda folder: {"model": str(folder / "model")},
    ),
    "back_translation": Needs(
        copy_translators,
        lambda folder: {"legs": [{"path": str(folder / pair)} for pair in ("en-de", "de-en")]},
    ),
}
NOTHING = Needs(lambda folder: None, lambda folder: {})


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return a function from a method to the folder of its files, which are written once."""
    top, done = tmp_path_factory.mktemp("methods"), set[str]()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MANTA_CACHE", str(top / "cache"))

        def folder(name: str) -> Path:
            if name not in done:
                (top / name).mkdir(exist_ok=True)
                NEEDED.get(name, NOTHING).files(top / name)
                done.add(name)
            return top / name

        yield folder


@pytest.fixture
def options(name: str, kept: Callable[[str], Path]) -> Options:
    return NEEDED.get(name, NOTHING).options(kept(name))


def build(name: str, options: Options) -> Augmenter:
    return validated(AUGMENTERS[name], options, name)


def edited(augmenter: WordAugmenter, rows: list[tuple[int, int]]) -> list[Words]:
    """Return a variant for each (index in TEXTS, number of the variant)."""
    edit = augmenter.start()
    return [
        edit(TEXTS[index], keyed_rng(0, augmenter.__class__.__name__, index, number))
        for index, number in rows
    ]


def test_method_and_options_are_documented(name: str):
    kind = AUGMENTERS[name]
    assert kind.__doc__
    assert issubclass(kind, WordAugmenter | ModelAugmenter)
    assert kind.model_fields.keys() - kind.descriptions().keys() == set()


def test_method_builds_and_pickles(name: str, options: Options):
    augmenter = build(name, options)
    augmenter.check()
    other = pickle.loads(pickle.dumps(augmenter))
    assert other == augmenter == build(name, options)
    assert canonical(other.identity()) == canonical(augmenter.identity())
    assert other.variants == augmenter.variants >= 1


def test_unknown_option_is_refused(name: str, options: Options):
    with pytest.raises(ConfigError, match="colour"):
        build(name, {**options, "colour": "red"})


def test_identity_depends_on_the_content_of_files_not_on_their_paths(
    name: str, options: Options, kept: Callable[[str], Path], tmp_path: Path
):
    files = [file for file in kept(name).rglob("*") if file.suffix in (".tsv", ".safetensors")]
    if not files:
        pytest.skip("it names no files")
    first = canonical(build(name, options).identity())
    copy = Path(shutil.copytree(kept(name), tmp_path / "copy"))
    assert canonical(build(name, NEEDED[name].options(copy)).identity()) == first
    assert str(copy).encode() not in first
    for file in files:
        copied = copy / file.relative_to(kept(name))
        content = bytearray(copied.read_bytes())
        content[-3] ^= 1
        copied.write_bytes(content)
        assert canonical(build(name, NEEDED[name].options(copy)).identity()) != first
        shutil.copy(file, copied)


def test_edits_return_at_least_one_word(name: str, options: Options):
    augmenter = word_method(name, options)
    before = pickle.dumps(TEXTS)
    for variant in edited(
        augmenter, [(index, number) for index in range(len(TEXTS)) for number in range(30)]
    ):
        assert variant
        assert all(word and word.split() == [word] for word in variant)
    assert pickle.dumps(TEXTS) == before


def test_variant_is_a_new_list(name: str, options: Options):
    edit = word_method(name, options).start()
    for number in range(20):
        words = list(SENTENCES[1])
        edit(words, keyed_rng(number)).append("more")
        assert words == SENTENCES[1]


def test_edits_depend_on_the_generator_only(name: str, options: Options):
    augmenter = word_method(name, options)
    rows = [(index, number) for index in range(len(TEXTS)) for number in range(10)]
    expected = dict(zip(rows, edited(augmenter, rows), strict=True))
    order = [rows[index] for index in np.random.default_rng(0).permutation(len(rows))]
    assert edited(pickle.loads(pickle.dumps(augmenter)), order) == [expected[row] for row in order]


def test_variants_of_a_text_differ(name: str, options: Options):
    augmenter = word_method(name, options)
    assert build(name, {**options, "count": 3}).variants == 3
    found = edited(augmenter, [(0, number) for number in range(40)])
    assert len({tuple(variant) for variant in found}) > 1


def test_models_make_as_many_texts_as_they_declare(name: str, options: Options):
    augmenter = model_method(name, options)
    stages = augmenter.model_stages()
    assert stages
    assert augmenter.variants == np.prod([stage.outputs for stage in stages])
    assert all(stage.title and stage.model.path for stage in stages)
    assert pickle.loads(pickle.dumps(stages)) == stages
    assert taken_through(augmenter, range(6)) == taken_through(augmenter, range(6))


def taken_through(augmenter: ModelAugmenter, rows: Any) -> list[StageOutput]:
    """Return the last outputs for each sentence when every model gets the first text of the model before."""
    sources = [StageInput(" ".join(SENTENCES[row]), bytes([row])) for row in rows]
    found: list[StageOutput] = []
    for stage in augmenter.model_stages():
        model = stage.start(Device("cpu"), AugmentSettings())
        done = dict(model(sources))
        assert sorted(done) == list(range(len(sources)))
        for one in done.values():
            assert (len(one.texts) == stage.outputs) if one.reason is None else not one.texts
        assert model.stats.tokens_in > 0
        found = [done[index] for index in range(len(sources))]
        sources = [
            StageInput((one.texts or ("",))[0], source.key)
            for one, source in zip(found, sources, strict=True)
        ]
    return found


def word_method(name: str, options: Options) -> WordAugmenter:
    augmenter = build(name, options)
    if not isinstance(augmenter, WordAugmenter):
        pytest.skip("it edits no words")
    return augmenter


def model_method(name: str, options: Options) -> ModelAugmenter:
    augmenter = build(name, options)
    if not isinstance(augmenter, ModelAugmenter):
        pytest.skip("it needs no models")
    return augmenter
