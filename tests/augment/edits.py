"""Word-level methods applied to test sentences."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.augment import AUGMENTERS, WordAugmenter, Words, keyed_rng
from pipeline.config import validated

SENTENCES = tuple(
    sentence.split()
    for sentence in (
        "Two young men are playing with a red ball on the wet grass .",
        "A dog runs.",
        "Snow",
        "The man's dog is in the house.",
        "of the and",
        "A little girl in a pink dress is going into a wooden cabin, and her big brother reads a book "
        "to the small dog beside her.",
    )
)
THESAURUS = {
    "man": "guy,fellow",
    "dog": "hound,puppy",
    "house": "home,dwelling place",
    "girl": "lass",
    "big": "large",
    "small": "little,tiny",
    "little": "small",
    "red": "crimson",
    "grass": "lawn",
    "young": "youthful",
}


def method(name: str, **options: object) -> WordAugmenter:
    """A word-level method with these options."""
    kind = AUGMENTERS[name]
    assert issubclass(kind, WordAugmenter)
    return validated(kind, options, name)


def variants(
    augmenter: WordAugmenter, sentences: Sequence[Words] = SENTENCES, times: int = 200
) -> list[tuple[Words, Words]]:
    """Return (sentence, variant), `times` for each sentence, each variant drawn with its own generator."""
    edit = augmenter.start()
    return [
        (words, edit(list(words), keyed_rng(7, index, number)))
        for index, words in enumerate(sentences)
        for number in range(times)
    ]


def is_subsequence(part: Words, words: Words) -> bool:
    """Return whether `words` contains all of `part` in that order."""
    rest = iter(words)
    return all(word in rest for word in part)


def write_thesaurus(folder: Path, entries: dict[str, str] | None = None) -> Path:
    """Write a thesaurus as lines of text."""
    file = folder / "thesaurus.tsv"
    file.write_text(
        "".join(f"{word}\t{others}\n" for word, others in (THESAURUS if entries is None else entries).items())
    )
    return file
