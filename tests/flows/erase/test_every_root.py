"""Whatever the corpora, nights and kinds of index: after an erasure nothing is left of the rows in any file,
and all other rows are as they were.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pipeline.flows.erase.choose import EraseRequest
from pipeline.flows.erase.erase import erase
from pipeline.flows.export.export import export
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from pipeline.store.releases.verify import content_faults
from tests.erased.roots import Nights, person
from tests.erased.scan import Sought, traces
from tests.flows.export.nights import DictTarget, released_rows

KINDS = ("flat", "ivf_flat", "ivf_sq8", "ivf_rabitq_refine", "hnsw", "IVF4,PQ8x4fs", "IVF4,SQ6")
SETTINGS = ("gates.unknown_tokens=null", "index.queries=20")
Row = dict[str, Any]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cluster")]


def document(row: Row) -> Row:
    """Return a row whose text is several sentences, the first and last of which only this row has."""
    parts = [row["text"], "the old man reads the book near the river", f"{row['text'][:40]} again"]
    return {**row, "text": ". ".join(part.capitalize() for part in parts) + "."}


class Story:
    """Nights over rows that come, change and go."""

    def __init__(self, folder: Path, data: st.DataObject) -> None:
        self.data, self.versions = data, dict.fromkeys(range(data.draw(st.integers(45, 90), "rows")), 0)
        self.is_chunked = data.draw(st.booleans(), "chunked")
        kind = data.draw(st.sampled_from(KINDS), "kind")
        whiten = data.draw(st.sampled_from(["auto", "off"]), "whiten")
        chunk = ("corpus.chunk.by=sentences", "corpus.chunk.max_characters=90") if self.is_chunked else ()
        self.nights = Nights(folder, f"index.kind={kind}", f"whiten.mode={whiten}", *SETTINGS, *chunk)
        self.seen = set(self.versions)

    def rows(self, without: frozenset[int] = frozenset()) -> list[Row]:
        rows = [
            person(number, version=self.versions[number]) for number in self.versions if number not in without
        ]
        return [document(row) for row in rows] if self.is_chunked else rows

    def text(self, number: int, version: int) -> str:
        row = person(number, version=version)
        return str((document(row) if self.is_chunked else row)["text"])

    def change(self) -> None:
        """Delete, change and add some rows."""
        numbers = st.sets(st.sampled_from(sorted(self.versions)), min_size=1, max_size=5)
        for number in self.data.draw(numbers, "deleted"):
            del self.versions[number]
        for number in self.data.draw(st.sets(st.sampled_from(sorted(self.versions)), max_size=4), "changed"):
            self.versions[number] = 1 - self.versions[number]
        new = self.data.draw(st.integers(0, 6), "new")
        self.versions |= dict.fromkeys(range(100 + len(self.seen), 100 + len(self.seen) + new), 0)
        self.seen |= set(self.versions)

    def run(self) -> None:
        """Run nights, the last one perhaps without a release."""
        self.nights.night(self.rows())
        for _ in range(self.data.draw(st.integers(1, 3), "nights")):
            self.change()
            self.nights.night(self.rows())
        if self.data.draw(st.booleans(), "waits"):
            self.change()
            self.nights.night(self.rows(), "release.publish=approval")
            self.nights.night(self.rows())


def all_rows(root: str) -> dict[int, dict[str, Row]]:
    return {
        number: dict(released_rows(Path(root), number)) for number in Releases(open_store(root)).numbers()
    }


def of_document(name: str, ids: frozenset[str]) -> bool:
    return name in ids or name.partition("#")[0] in ids


@settings(max_examples=6, phases=(Phase.explicit, Phase.generate))
@given(data=st.data())
def test_nothing_is_left_of_erased_rows_and_all_other_rows_are_the_same(data: st.DataObject):
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder) / "story", data)
        story.run()
        root = story.nights.root
        gone = sorted(story.seen - set(story.versions))
        chosen = data.draw(st.sets(st.sampled_from(gone), min_size=1), "erased")
        ids = frozenset(person(number)["id"] for number in chosen)
        later = [
            story.text(number, version) for number in range(400) for version in (0, 1) if number not in chosen
        ]
        sought, before = Sought.of(Path(root), ids, later), all_rows(root)
        assert traces([Path(root)], sought)
        target = DictTarget()
        export(Releases(open_store(root)), None, target, Stages())
        erase(Releases(open_store(root)), EraseRequest(ids=ids), Stages())

        assert traces([Path(root)], sought.learn(Path(root))) == []
        after, releases = all_rows(root), Releases(open_store(root))
        assert after == {
            number: {name: row for name, row in rows.items() if not of_document(name, ids)}
            for number, rows in before.items()
        }
        for number in after:
            assert content_faults(releases.store, releases.get(number)) == []
            found = open_release(root, number).search(person(3)["text"], 100)["id"].to_pylist()
            assert not [name for name in found if of_document(name, ids)]
            assert set(found) <= set(after[number])
        exported = export(releases, None, target, Stages())
        assert (exported.written, exported.deleted) == (0, 0), "they were deleted in the target before"

        story.change()
        story.nights.night(story.rows())
        assert traces([Path(root)], sought) == []
        newest = max(all_rows(root).items())[1]
        scratch = f"{folder}/scratch"
        story.nights.night(None, f"release.root={scratch}")
        assert newest == dict(released_rows(Path(scratch), 1)), "as of a night from scratch"
