"""Reports show ids, not texts, of deleted and changed rows, unless release.show_deleted_texts is set."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.errors import GatesRefused
from tests.conftest import CommandResult
from tests.erased.roots import Nights, people, person

PLAIN = ("whiten.mode=off", "index.kind=flat")
QUICK = ("encode.unit_rows=100", "index.queries=20")

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.parametrize("is_shown", [False, True])
def test_texts_of_deleted_and_changed_rows_are_shown_only_if_that_is_set(
    is_shown: bool, tmp_path: Path, manta: Callable[..., CommandResult]
):
    nights = Nights(tmp_path, *PLAIN, *QUICK, f"release.show_deleted_texts={is_shown}")
    nights.night(people(range(40)))
    first = json.loads((Path(nights.root) / "releases/00000001/summary.json").read_text())
    nights.night([person(number, version=number == 7) for number in range(1, 12)])
    root = Path(nights.root)
    gone = [person(number) for number in (0, 7, *range(12, 40))]
    files = [root / "releases/00000002" / name for name in ("report.html", "summary.json", "manifest.json")]
    contents = [re.sub(r"\s+", " ", file.read_text()) for file in files]
    diff = manta("releases", "diff", str(root), "1", "2", "--examples", "99", "--json").out
    back = manta("releases", "diff", str(root), "2", "1", "--examples", "99", "--json").out
    shown = {row["text"] for row in gone for content in (*contents, diff, back) if row["text"] in content}
    assert bool(shown) == is_shown
    assert person(7, version=1)["text"] in diff, "the text that it has now"
    assert all(row["id"] in diff for row in gone)
    examples = [row for row in gone if row["id"] in contents[0]]
    assert examples, "the report names some of them"
    assert ("text not shown" in contents[0]) != is_shown
    table = manta("releases", "diff", str(root), "1", "2").out
    assert ("(not shown)" in table) != is_shown
    texts = {row["text"] for row in gone}
    left = {each["query"] for each in first["answers"]} - texts
    answers = json.loads(files[1].read_text())["answers"]
    assert len(first["answers"]) == 6
    assert left < {each["query"] for each in first["answers"]}, "some fixed queries are texts of deleted rows"
    assert {each["query"] for each in answers} == (
        left if not is_shown else {e["query"] for e in first["answers"]}
    )
    if not is_shown:
        assert "left out: " in contents[0]
        nights.night([person(number, version=number == 7) for number in range(1, 14)])
        later = json.loads((root / "releases/00000003/summary.json").read_text())
        assert len(later["answers"]) == 6, "new ones take their places"


def test_the_page_of_a_refused_corpus_shows_ids_of_deleted_rows(tmp_path: Path):
    nights = Nights(tmp_path, *PLAIN, *QUICK)
    nights.night(people(range(40)))
    with pytest.raises(GatesRefused):
        nights.night(people(range(5)), "gates.max_deleted=0.1")
    page = next(Path(nights.root).glob("candidates/*/report.html")).read_text()
    gone = people(range(5, 40))
    assert [row for row in gone if row["id"] in page]
    assert not [row for row in gone if row["text"] in page]
