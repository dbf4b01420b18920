"""Docstrings of the standard library and of installed packages become a corpus."""

import ast
import sysconfig
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.text.formats.docstrings import collect_docstrings, harvest_docstrings

MODULE = '''"""A module with a docstring of its own.

More of it.
"""
import os

def shout(text, *, times=2) -> str:
    """Return the text
    in capital letters.

    A second paragraph.
    """
    def inner():
        """Nobody can call this one from outside."""

def _private():
    """This is nobody's business at all."""

def terse():
    """Too short."""

def directive():
    """.. deprecated:: since long ago and far away"""

try:
    import fast
except ImportError:
    async def fallback():
        """The slow way of doing the same."""
else:
    if os.name == "nt":
        def fallback():
            """Another docstring under the same name."""

class Loud(Exception, object):
    """Raised when it is too loud."""
    def whisper(self):
        """Say it again but quietly."""
    def __str__(self):
        """Return the message as a string."""
'''


def library(root, **files):
    for name, content in files.items():
        path = root / (name.replace("__init__", "\0").replace("__", "/").replace("\0", "__init__") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def test_public_definitions_give_their_first_paragraph(tmp_path):
    found = {one.id: one for one in collect_docstrings([library(tmp_path, pack__voice=MODULE)], [])}
    assert {name: (one.text, one.kind, one.signature) for name, one in found.items()} == {
        "pack.voice": ("A module with a docstring of its own.", "module", ""),
        "pack.voice.shout": ("Return the text in capital letters.", "function", "shout(text, *, times=2)"),
        "pack.voice.fallback": ("The slow way of doing the same.", "function", "fallback()"),
        "pack.voice.Loud": ("Raised when it is too loud.", "class", "Loud(Exception, object)"),
        "pack.voice.Loud.whisper": ("Say it again but quietly.", "method", "whisper(self)"),
    }
    assert {one.package for one in found.values()} == {"pack"}


def test_tests_vendored_private_and_broken_files_are_skipped(tmp_path):
    good = '"""Module docstring of five words."""\ndef {0}():\n    """The function called {0} is here."""\n'
    names = (
        "pack__one",
        "pack___two",
        "pack__tests__three",
        "pack___vendor__four",
        "test_five",
        "pack__vendor__six",
        "pack-7__seven",
        "pack__eight_test",
    )
    library(tmp_path, **{name: good.format(name[-3:]) for name in names})
    (tmp_path / "pack" / "broken.py").write_bytes(good.format("broken").encode() + b"def (:\n")
    (tmp_path / "pack" / "latin.py").write_bytes(
        b"# coding: latin-1\n" + good.format("caf\xe9").encode("latin-1")
    )
    (tmp_path / "pack" / "nul.py").write_bytes(good.format("nul").encode() + b"\0")
    (tmp_path / "pack" / "half.py").write_text(good.format("half").replace("is here", "is \\ud800 here"))
    assert {one.id: one.text for one in collect_docstrings([tmp_path], []) if one.kind == "function"} == {
        "pack.one.one": "The function called one is here.",
        "pack.latin.caf\xe9": "The function called caf\xe9 is here.",
        "pack.half.half": "The function called half is ? here.",
    }


def test_package_gives_its_private_imports_under_its_own_name(tmp_path):
    private = "\n".join(
        f'def {name}():\n    """The function called {name} is private."""'
        for name in ("taken", "left", "renamed")
    )
    library(
        tmp_path,
        pack____init__="from ._hidden import taken, renamed as other\n"
        "from pack._deep.inner import *\nfrom other._hidden import x\n",
        pack___hidden=private,
        pack___deep__inner=private.replace("private", "deep"),
    )
    assert {one.id: one.text for one in collect_docstrings([tmp_path], [])} == {
        "pack.taken": "The function called taken is private.",
        "pack.left": "The function called left is deep.",
        "pack.renamed": "The function called renamed is deep.",
    }


def test_packages_get_equal_parts_after_the_standard_library(tmp_path):
    def module(name, count):
        return "\n".join(
            f'def f{number}():\n    """Docstring number {number} of {name}."""' for number in range(count)
        )

    standard = library(tmp_path / "standard", std=module("std", 5))
    installed = library(
        tmp_path / "installed",
        large=module("large", 100),
        small=module("small", 3),
        middle=module("middle", 50),
    )
    sizes = dict.fromkeys(("std", "large", "small", "middle"), 0)
    found = collect_docstrings([standard], [installed, installed], 48)
    for one in found:
        sizes[one.package] += 1
    assert sizes == {"std": 5, "large": 20, "small": 3, "middle": 20}
    assert [one.id for one in found] == sorted({one.id for one in found})
    assert len(collect_docstrings([standard], [installed])) == 158
    assert len(collect_docstrings([standard], [installed], 4)) == 4
    assert collect_docstrings([standard], [installed], 48) == found


def test_repeated_texts_and_names_are_taken_once(tmp_path):
    library(
        tmp_path,
        a='def f():\n    """The very same words again."""\n' * 2,
        b='def g():\n    """The very same words again."""\n',
    )
    assert [one.id for one in collect_docstrings([tmp_path], [])] == ["a.f"]


@pytest.fixture(scope="module")
def harvested(tmp_path_factory):
    directory = tmp_path_factory.mktemp("docstrings")
    assert harvest_docstrings(directory, 7000) == 7000
    return directory


def test_running_python_gives_well_known_functions(harvested):
    table = pq.read_table(harvested)
    rows = dict(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
    assert len(rows) == 7000
    assert rows["posixpath.join"].startswith("Join two or more pathname components")
    assert {"json.dumps", "shutil.copytree", "textwrap.TextWrapper"} <= set(rows)
    source = Path(sysconfig.get_path("stdlib"), "textwrap.py").read_text()
    expected = next(
        ast.get_docstring(node)
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "dedent"
    )
    assert rows["textwrap.dedent"] == " ".join(expected.split("\n\n")[0].split())


@pytest.mark.slow
def test_equal_harvest_is_not_written_again(harvested):
    file = next(harvested.glob("*.parquet"))
    before = (file.stat().st_mtime_ns, file.read_bytes())
    harvest_docstrings(harvested, 7000)
    assert (file.stat().st_mtime_ns, file.read_bytes()) == before
