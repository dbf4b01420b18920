"""Erased rows are gone from what other commands store below a root, too."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import GatesRefused
from pipeline.flows.augment.augment import augment
from pipeline.flows.duplicates.compare import DuplicateSearch
from pipeline.flows.duplicates.find import find_duplicates
from pipeline.log import Stages
from pipeline.report.erased_values import ERASED, ErasedValues
from pipeline.settings import Job
from pipeline.store.releases.release import Releases
from tests.erased.roots import Nights, people, person
from tests.erased.scan import Sought
from tests.flows.erase.test_erase import erase_rows, left_of

GONE = person(3)["id"]


def test_results_of_other_commands_and_candidates_lose_the_rows(tmp_path: Path, cluster: object):
    nights = Nights(tmp_path / "nights", "index.kind=flat", "whiten.mode=off")
    nights.night(people(range(60)))
    root, releases = nights.root, Releases.open(nights.root)
    settings = (*nights.settings, "augment.variants.cut=crop", "corpus.max_rows=20")
    augmented = augment(load_settings(Job, None, settings), Stages())
    find_duplicates(DuplicateSearch(releases.store, releases.get(1), 0.5), Stages())
    with pytest.raises(GatesRefused):
        nights.night(people(range(61)), "gates.recall_at_10=1", "index.kind=IVF60,Flat", "index.nprobe=1")
    row = person(3)
    evaluations = Path(root, "evaluations")
    evaluations.mkdir()
    (evaluations / "page.html").write_text(f"<html><body><td>{row['text']}</td><td>rest</td></body></html>")
    (evaluations / "scores.json").write_text(json.dumps({"nearest": [row["id"]]}))
    (evaluations / "others.json").write_text(json.dumps({"nearest": ["person-00004"]}))
    pq.write_table(pa.table({"sentence": [row["text"], "another"]}), evaluations / "sentences.parquet")
    nights.night([each for each in people(range(61)) if each["id"] != GONE])
    sought = Sought.of(Path(root), [GONE])
    receipt = erase_rows(root, [GONE])
    assert receipt is not None
    assert receipt.candidates == 1
    assert augmented.series.path(1) in receipt.results
    assert left_of(root, sought) == []
    assert sorted(each.name for each in evaluations.iterdir()) == ["others.json", "page.html"]
    assert "<td>rest</td>" in (evaluations / "page.html").read_text()
    again = augment(load_settings(Job, None, settings), Stages())
    assert again.manifest.rows == 20
    assert nights.night().status == "unchanged"


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<td>A text about rivers</td>", 1),
        ("<td>A text about ri…</td>", 0),
        ("<td>seen: A text about rivers and more</td>", 1),
        ('<a title="A text about rivers">x</a>', 1),
        ('<dt class="mono">row-17</dt>', 1),
        ('<span class="mono">row-17, file.parquet</span>', 1),
        ("<p>the row row-17, which</p>", 1),
        ("<p>row-171</p>", 0),
        ('<dt class="mono">17</dt>', 1),
        ('<td class="num">17</td>', 0),
        ("<td>R&amp;D &lt;1&gt;</td>", 1),
        ("<style>.row-17 { color: red }</style>", 0),
    ],
)
def test_pages_lose_what_shows_an_id_or_a_text(page: str, expected: int):
    values = ErasedValues(["row-17", "17"], ["A text about rivers", "R&D <1>"])
    content, count = values.in_page(f"<html><body>{page}</body></html>")
    assert count == expected
    assert (ERASED in content) == bool(expected)
    assert ("Rows were erased" in content) == bool(expected)
    again, count = values.in_page(content)
    assert (again, count) == (content, 0)
