"""Links between documents lead to files and headings that exist."""

import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.flows.documents.documents import DOCUMENTS

FILES = (
    *DOCUMENTS,
    ROOT / ".github" / "SECURITY.md",
    ROOT / "tests" / "models" / "config_fields.md",
    ROOT / "tests" / "models" / "folder" / "folder_kinds.md",
)


def links(file: Path) -> list[str]:
    """Return targets of links and images that are not on the web."""
    text = re.sub(r"^```.*?^```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target for target in targets if not target.startswith(("http://", "https://"))]


def anchors(file: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_every_document_is_listed():
    tops = (".github", "infra", "jobs", "pipeline", "tests")
    assert {*ROOT.glob("*.md"), *(file for top in tops for file in (ROOT / top).rglob("*.md"))} == set(FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_every_link_has_a_target(file: Path):
    for target in links(file):
        path, _, anchor = target.partition("#")
        found = (file.parent / path).resolve() if path else file
        assert found.exists(), target
        assert found.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(found), target


def test_the_readme_links_every_other_document():
    linked = {(ROOT / target.partition("#")[0]).resolve() for target in links(ROOT / "README.md")}
    assert set(FILES) - {ROOT / "README.md"} <= linked
