"""Regular expressions that read texts take time in proportion to the length of the text, whatever it is."""

import functools
import importlib
import pkgutil
import re
import string
import time
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

import pipeline.augment
import pipeline.log
import pipeline.report
import pipeline.text
from pipeline.settings import ChunkSettings
from pipeline.text.chunks.cut import Pieces, TextCutter
from tests.text.chunks.cutting import count_words, counting

MARKS = [*string.punctuation, *" \n\t\r\u3000\u2026\u2019\u3002\u300d\uff01\u0301aA0\u00e9\u4e2d"]
TOGETHER = ['."', "!)", "\n\n", "\n ", ":\n", ", ", "a.", "a ", "a\n", "\n#", "\u3002\u300d", "from ", "'s"]
NAMES_OF_FILES = ("lakes", "iceberg_table")  # modules whose patterns read these: they are short
LENGTH, MOST_S = 20_000, 0.5  # in proportion to the square it takes seconds, otherwise a millisecond


def patterns() -> Iterator[tuple[str, re.Pattern]]:
    """Yield the compiled patterns of all modules that read texts of a corpus, with their names."""
    for package in (pipeline.text, pipeline.augment, pipeline.report):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith(NAMES_OF_FILES):
                yield from patterns_of(importlib.import_module(found.name))
    yield from patterns_of(pipeline.log)


def patterns_of(module: ModuleType) -> Iterator[tuple[str, re.Pattern]]:
    for name, value in vars(module).items():
        for each in value.values() if isinstance(value, dict) else [value]:
            if isinstance(each, re.Pattern):
                yield f"{module.__name__}.{name}", each


def is_slow(work: Callable[[], object]) -> bool:
    """Return whether the work takes more than MOST_S each of three times: other processes disturb some."""
    for _ in range(3):
        start = time.process_time()
        work()
        if time.process_time() - start < MOST_S:
            return False
    return True


@pytest.mark.parametrize(("name", "pattern"), [pytest.param(*pair, id=pair[0]) for pair in patterns()])
def test_patterns_take_linear_time_on_long_runs_of_one_mark(name, pattern):
    slow = []
    for unit in [*MARKS, *TOGETHER]:
        for before in ("", "a:"):
            text = before + unit * (LENGTH // len(unit)) + "a"
            given = text.encode() if isinstance(pattern.pattern, bytes) else text
            if is_slow(functools.partial(_search, pattern, given)):
                slow.append(text[:8])
    assert not slow, name


def _search(pattern: re.Pattern, text: str | bytes) -> None:
    for _ in pattern.finditer(text):
        pass


@pytest.mark.parametrize("by", ["tokens", "sentences", "headings"])
def test_texts_of_one_mark_are_cut_in_linear_time(by):
    cutter = TextCutter(ChunkSettings(by=by), counting(count_words))
    for unit in [*MARKS, *TOGETHER]:
        text = unit * (LENGTH // len(unit)) + "a"
        assert not is_slow(functools.partial(cutter, [text])), unit


@pytest.mark.parametrize(
    ("text", "ends"),
    [("a... B", [4]), ("a...B", []), ("a. B", []), ("e.g. B", []), ("No.) B", [4]), ("!.!x! B", [5])],
)
def test_a_run_of_marks_ends_a_sentence_only_before_white_space(text, ends):
    pieces = Pieces.of(text)
    assert pieces.ends[pieces.ends_sentence].tolist() == [*ends, len(text)]
