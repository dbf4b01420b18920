"""The examples in docstrings return what they show."""

import doctest
import importlib
from pathlib import Path

import pytest

from tests.conftest import ROOT

WITH_EXAMPLES = [file for file in sorted((ROOT / "pipeline").rglob("*.py")) if ">>> " in file.read_text()]


@pytest.mark.parametrize("file", WITH_EXAMPLES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_the_examples_of_a_module_return_what_they_show(file: Path):
    name = ".".join(file.relative_to(ROOT).with_suffix("").parts)
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted
    assert not results.failed
