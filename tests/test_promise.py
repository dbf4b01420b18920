"""The promises of SECURITY.md are kept by tests that exist: eight lines, each with its tests."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / ".github" / "SECURITY.md").read_text()
SECTION = TEXT[TEXT.index("## What is promised") : TEXT.index("## What is shipped")]
LINES = re.split(r"^\d\. ", SECTION, flags=re.MULTILINE)[1:]
PROMISED = (
    "Corpus content is untrusted: it runs no code, no markup, no terminal command, and takes bounded memory.",
    "Model folders are untrusted for code: nothing in them is executed, and there is no prompt to allow it.",
    "Whoever may write the release root, the commits root or the cache is trusted: "
    "sha256 finds damage, not malice; paths never leave the root.",
    "Whoever reaches a Ray cluster with its token is trusted with everything on it; without a token, nobody.",
    "Credentials come from the environment and are stored nowhere; "
    "whatever dies, hangs, fills up or skews, the published release stays and the night ends.",
    "Whoever reaches the search service with a token may read the rows that the token's filter lets pass "
    "(without a filter, the corpus), and changes nothing; without a token it answers this machine only.",
    "Queries of users are logged only if the service is told to, without texts unless it is told to, "
    "and not with who asked.",
    "After an erasure no file below the root has an id, a text, a kept value, a key or a vector of the rows, "
    "in any coding; and no night, rollback or candidate brings a row back.",
)


@cache
def defined(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text())
    return {
        each.name for each in tree.body if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")
    }


def test_eight_lines_are_promised():
    assert tuple(re.match(r"\*\*(.*?)\*\*", line)[1] for line in LINES) == PROMISED


@pytest.mark.parametrize("line", LINES, ids=[str(number) for number in range(1, 1 + len(LINES))])
def test_each_line_names_tests_that_exist(line: str):
    named = re.findall(r"^ +- `([\w/]+\.py)::(\w+)`$", line, re.MULTILINE)
    assert len(named) >= 3
    assert [f"{file}::{name}" for file, name in named if name not in defined(file)] == []


@pytest.mark.parametrize("file", ["README.md", "infra/README.md"])
def test_the_promise_is_linked(file: str):
    [link] = set(re.findall(r"\]\(([\w./]*SECURITY\.md)\)", (ROOT / file).read_text()))
    assert (ROOT / file).parent.joinpath(link).resolve() == ROOT / ".github" / "SECURITY.md"
