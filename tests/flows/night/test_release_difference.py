"""Three nights over a small corpus: output of `manta releases`, compared with the changes of the corpus."""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages, listening
from pipeline.settings import ClusterSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.units import Corpus
from pipeline.store.releases.commits import commit_path
from pipeline.store.releases.release import Releases
from tests.conftest import CommandResult
from tests.flows.conftest import job_arguments, sentences
from tests.report.pages import Page

pytestmark = pytest.mark.usefixtures("cluster")
Manta = Callable[..., CommandResult]
Rows = dict[str, tuple[str, str]]  # id: (text, lang)
SETTINGS = ("whiten.mode=off", "gates.recall_at_10=0.1", "index.kind=flat", "corpus.max_quarantined=0.5")


def write(folder: Path, rows: Rows) -> None:
    """Write the corpus in two files, and a third with quarantined rows: one without id, one repeated id."""
    folder.mkdir(exist_ok=True)
    ids = sorted(rows)
    for number, part in enumerate((ids[::2], ids[1::2])):
        table = {
            "id": part,
            "text": [rows[row_id][0] for row_id in part],
            "lang": [rows[row_id][1] for row_id in part],
        }
        pq.write_table(pa.table(table), folder / f"part-{number}.parquet")
    bad = {"id": [None, ids[0]], "text": ["nobody's text", "a second text"], "lang": ["en", "en"]}
    pq.write_table(pa.table(bad), folder / "zz.parquet")


def three_corpora() -> list[Rows]:
    texts = sentences(130)
    first = {f"row-{row:03d}": (texts[row], "en") for row in range(100)}
    second = {name: row for name, row in first.items() if name not in ("row-007", "row-050")}
    second |= {"row-010": (texts[110], "en"), "row-011": (texts[11], "de"), "row-012": (texts[112], "de")}
    second |= {"new-<b>": (texts[120], "en")}
    third = second | {f"late-{row}": (texts[row], "en") for row in range(121, 130)}
    return [first, second, third]


@pytest.fixture(scope="module")
def published(child: LocalWorkers, encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root of three releases, the last with other settings and a table of its units."""
    folder = tmp_path_factory.mktemp("three")
    for number, rows in enumerate(three_corpora()):
        write(folder / "corpus", rows)
        more = ("gates.max_size_gib=3",) if number == 2 else ()
        with (
            connect(ClusterSettings(), Stages(), local=child),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setattr("pipeline.store.records.release_units.MAX_LISTED", 0 if number == 2 else 1_000)
            nightly(load_settings(Job, None, (*job_arguments(folder, encoder), *SETTINGS, *more)), Stages())
    return folder / "releases"


def expected_changes(before: Rows, after: Rows) -> dict[str, set[str]]:
    both = before.keys() & after.keys()
    text = {name for name in both if before[name][0] != after[name][0]}
    kept = {name for name in both - text if before[name] != after[name]}
    return {
        "new": after.keys() - before.keys(),
        "deleted": before.keys() - after.keys(),
        "changed": text,
        "kept": kept,
        "unchanged": both - text - kept,
    }


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (1, 3), (3, 1), (2, 2)])
def test_a_difference_counts_changed_rows_and_shows_their_texts(
    published: Path, manta: Manta, before: int, after: int
):
    corpora = three_corpora()
    earlier, later = corpora[before - 1], corpora[after - 1]
    expected = expected_changes(earlier, later)
    ended = manta("releases", "diff", str(published), str(before), str(after), "--examples", "1000", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    counts = {name: len(ids) for name, ids in expected.items()}
    assert found["rows"] == counts | {"before": len(earlier), "after": len(later)}
    for name, rows in found["examples"].items():
        assert {row["id"] for row in rows} == expected[name]
        for row in rows:
            texts = [each[row["id"]][0] if row["id"] in each else None for each in (earlier, later)]
            older = int(before > after)
            if texts[older] is not None and texts[0] != texts[1]:
                texts[older] = ""  # not shown, as the newer release has it no longer
            assert [row["before"], row["after"]] == texts
    assert (found["drift"]["distance"] < 1e-9) == (before == after)
    assert found["queries"]
    if before == after:
        assert all(query["before"] == query["after"] for query in found["queries"])


def test_a_difference_names_changed_settings_gates_and_answers(published: Path, manta: Manta):
    found = json.loads(
        manta(
            "releases", "diff", str(published), "2", "--query", three_corpora()[2]["late-121"][0], "--json"
        ).out
    )
    assert (found["before"], found["after"]) == (2, 3)
    assert found["settings"] == {"gates.max_size_gib": [None, 3.0]}
    assert found["gates"]["indexed_rows"] == [99, 108]
    assert {"A", "Yes.", "42"}.isdisjoint(each["query"] for each in found["queries"])
    query = found["queries"][-1]
    assert query["after"][0] == "late-121"
    assert "late-121" not in query["before"]
    assert query["shared"] == len(set(query["before"]) & set(query["after"]))
    shown = manta("releases", "diff", str(published), "1", "2").out
    assert re.search(r"^non-finite vectors +0 +0$", shown, re.MULTILINE)
    assert "1 new, 2 changed, 1 kept columns, 2 deleted, 95 unchanged" in shown
    assert "settings: the same" in shown


@pytest.mark.parametrize("number", [2, 3])
def test_a_report_links_to_the_one_before_and_shows_the_differences(
    published: Path, manta: Manta, number: int
):
    found = json.loads(manta("releases", "diff", str(published), str(number - 1), str(number), "--json").out)
    folder = published / "releases" / f"{number:08d}"
    page = Page((folder / "report.html").read_text())
    previous = folder / f"../../releases/{number - 1:08d}/report.html"
    assert {previous.resolve(), (published / "index.html").resolve()} == {
        (folder / link).resolve() for link in page.links if not link.startswith("#")
    }
    assert previous.exists()
    shown = " ".join(page.words.split())
    assert f"drift {found['drift']['distance']:.4f}: mean {found['drift']['shift']:.4f}" in shown
    # a row of which only a kept column changed has a new version, too
    changed = found["rows"]["changed"] + found["rows"]["kept"]
    counts = f"{found['rows']['new']} rows? new, {changed} changed, {found['rows']['deleted']} deleted"
    assert re.search(rf"Since release {number - 1}: {counts}\.", shown)
    assert ("gates.max_size_gib: null → 3.0" in shown) == (number == 3)
    assert "Since release" not in (published / "releases/00000001/report.html").read_text()


def test_without_moments_there_is_no_drift_and_without_a_key_table_exit_code_3(
    published: Path, tmp_path: Path, manta: Manta
):
    root = Path(shutil.copytree(published, tmp_path / "root"))
    manifest = Releases(open_store(root)).get(1)
    assert manifest.moments is not None
    (root / manifest.moments.path).unlink()
    without = manta("releases", "diff", str(root), "1", "2", "--json")
    assert without.code == 0, without.err
    assert json.loads(without.out)["drift"] is None
    assert f"{manifest.moments.path} is gone" in without.err
    corpus = Corpus.from_json((root / manifest.corpus.path).read_bytes(), "")
    (root / corpus.keys[0].path).unlink()
    refused = manta("releases", "diff", str(root), "1", "2")
    assert refused.code == 3
    assert "expected a key table of the release, found no such file" in refused.err


def test_quarantined_rows_are_listed_by_reason(published: Path, manta: Manta):
    found = json.loads(manta("releases", "quarantine", str(published), "1", "--json").out)
    assert found["reasons"] == {"duplicate_id": 1, "null_id": 1}
    assert [(row["file"], row["row"], row["id"]) for row in found["rows"]] == [
        ("zz.parquet", 1, "row-000"),
        ("zz.parquet", 0, None),
    ]
    shown = manta("releases", "quarantine", str(published), "--reason", "null_id").out
    assert "nobody's text" in shown
    assert "a second text" not in shown
    refused = manta("releases", "quarantine", str(published), "--reason", "other")
    assert (refused.code, "there are: duplicate_id, null_id" in refused.err) == (2, True)


def test_the_page_of_all_releases_shows_the_metrics_of_each(published: Path):
    page = (published / "index.html").read_text()
    for number, rows in enumerate(three_corpora(), start=1):
        assert f'href="releases/{number:08d}/report.html"' in page
        assert f'<td class="num">{len(rows)}</td>' in page
    assert "<h1>Which release is current?</h1>" in page
    assert '<p class="lead"><a href="releases/00000003/report.html">Release 3</a>, published at ' in page
    assert "–" not in page.partition("<tbody>")[2].partition("</tbody>")[0], "every metric has a value"
    assert "<script" not in page
    assert page.count("<figure>") == 4


def test_rollback_hold_and_prune_refresh_the_page(published: Path, tmp_path: Path, manta: Manta):
    root = Path(shutil.copytree(published, tmp_path / "releases"))
    old = manta("releases", "rollback", "1", str(root))
    assert old.code == 0
    assert "the root comes first: manta releases rollback" in old.err
    for command in ("show", "verify", "quarantine"):
        outputs = [manta("releases", command, *order).out for order in ((str(root), "1"), ("1", str(root)))]
        assert outputs[0] == outputs[1]
        assert outputs[0]
    assert f"To stay on release 1: manta releases hold {root}" in old.out
    assert '/report.html">Release 1</a>' in (root / "index.html").read_text()
    assert manta("releases", "hold", str(root), "2", "--reason", "a <bad> delivery").code == 0
    page = (root / "index.html").read_text()
    assert '/report.html">Release 2</a>' in page
    assert "a &lt;bad&gt; delivery" in page
    assert "held at release 2 since" in manta("releases", "list", str(root)).out
    assert manta("releases", "rollback", str(root), "3").code == 2
    assert json.loads(manta("releases", "release", str(root), "--json").out)["released"]
    assert "nothing is held" in manta("releases", "release", str(root)).out
    assert manta("releases", "prune", str(root), "--keep", "1").code == 0
    page = (root / "index.html").read_text()
    assert "2 more were pruned" in page
    assert "releases/00000003/report.html" not in page


def test_the_commands_that_hold_and_rollback_print_run_as_printed(
    published: Path, tmp_path: Path, manta: Manta
):
    root, commits = tmp_path / "our releases", tmp_path / "the commits"
    shutil.copytree(published, root)
    commits.mkdir()
    (root / "commits").rename(commits / "commits")
    where = (str(root), "--commits-root", str(commits))
    for command, number, printed_command in (("rollback", "1", "hold"), ("hold", None, "release")):
        out = manta("releases", command, where[0], *filter(None, [number]), *where[1:]).out
        printed = list(map(shlex.split, re.findall(r"manta releases .*", out)))
        words = printed.pop(0)
        assert words == ["manta", "releases", printed_command, *where]
        promote = ["manta", "releases", "promote", *where, "CANDIDATE", "--by", "NAME"]
        assert printed == [promote] * (command == "hold")
        assert manta(*words[1:]).code == 0
        manta("releases", "release", *where)


def test_the_page_has_no_link_to_a_deleted_report(published: Path, tmp_path: Path, manta: Manta):
    root = Path(shutil.copytree(published, tmp_path / "releases"))
    (root / "releases" / "00000002" / "report.html").unlink()
    for command in (("hold", str(root)), ("prune", str(root), "--keep", "2")):
        assert manta("releases", *command).code == 0
        page = (root / "index.html").read_text()
        links = [root / link for link in re.findall(r'href="([^"]+)"', page)]
        assert links
        assert all(link.is_file() for link in links)
        assert "<td>2</td>" in page, "the release is still listed"
        manta("releases", "release", str(root))


def test_only_a_missing_or_outdated_page_is_written(published: Path, tmp_path: Path, manta: Manta):
    root = Path(shutil.copytree(published, tmp_path / "releases"))
    page = root / "index.html"
    page.unlink()
    (root / "releases" / "00000002" / "summary.json").unlink()
    assert manta("releases", "hold", str(root)).code == 0
    assert page.read_text().count('<td class="num">–</td>') == 2, (
        "without its summary a release has no seconds, and without a gate no p99"
    )
    assert manta("releases", "hold", str(root)).code == 0
    stamp = page.stat().st_mtime_ns
    assert manta("releases", "hold", str(root)).code == 0
    assert page.stat().st_mtime_ns == stamp


def test_a_night_on_a_held_root_keeps_its_candidate_and_publishes_nothing(
    published: Path, encoder: Path, tmp_path: Path
):
    for name in ("corpus", "releases"):
        shutil.copytree(published.parent / name, tmp_path / name, copy_function=shutil.copy2)
    releases = Releases(open_store(tmp_path / "releases"))
    job = load_settings(Job, None, (*job_arguments(tmp_path, encoder), *SETTINGS))
    releases.hold(None, "an inquiry")
    pq.write_table(
        pa.table({"id": ["tonight"], "text": ["two dogs run tonight"], "lang": ["en"]}),
        tmp_path / "corpus" / "x.parquet",
    )
    with listening() as messages:
        outcome = nightly(job, Stages())
    assert (outcome.status, outcome.release, outcome.rows) == ("held", 3, 108)
    assert [
        sentence
        for sentence in messages
        if "release 3 has been held since" in sentence and "an inquiry" in sentence
    ]
    candidate = Path(outcome.facts["candidate"])
    assert json.loads((candidate / "manifest.json").read_text())["rows"] == 109
    assert "not published: the root is held" in (candidate / "report.html").read_text()
    assert releases.get_or_current(None).release == 3
    releases.unhold()
    assert (nightly(job, Stages()).status, releases.get_or_current(None).rows) == ("published", 109)


def test_verify_reads_every_file_and_exits_with_3_if_one_has_changed(
    published: Path, tmp_path: Path, manta: Manta
):
    root = Path(shutil.copytree(published, tmp_path / "releases"))
    undamaged = json.loads(manta("releases", "verify", str(root), "--json").out)
    assert (undamaged["release"], undamaged["whole"], undamaged["faults"]) == (3, True, [])
    manifest = Releases(open_store(root)).get_or_current(None)
    file = root / manifest.ids[0].path
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    commit, damage = root / commit_path(2), "expected commit 2 after commit 1"
    commit.rename(root / "kept")
    ended = manta("releases", "verify", str(root), "--sizes")
    assert (ended.code, damage in ended.out) == (3, True), ended.err
    assert damage in json.loads(manta("releases", "verify", str(root), "--sizes", "--json").out)["damage"]
    (root / "kept").rename(commit)
    assert manta("releases", "verify", str(root), "--sizes").code == 0, "sizes do not reveal the change"
    ended = manta("releases", "verify", str(root))
    assert (ended.code, manifest.ids[0].path in ended.out, "sha256" in ended.out) == (3, True, True)
    file.unlink()
    assert manta("releases", "verify", str(root), "--sizes").code == 3
    found = json.loads(manta("releases", "verify", str(root), "--json").out)
    assert [(fault["path"], fault["found"]) for fault in found["faults"]] == [(manifest.ids[0].path, None)]
