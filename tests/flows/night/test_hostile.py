"""A corpus of an attacker: rows are published as data, never as markup, code or terminal commands."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.night.nightly import nightly
from pipeline.log import Stages
from pipeline.settings import Job
from tests.conftest import CommandResult
from tests.flows.conftest import sentences

HOSTILE = (
    "<script>document.title='evil'</script>",
    "<img src=x onerror=evil()>",
    "</style><svg onload=evil()>",
    "-->",
    "]]>",
    "<a href='javascript:evil()'>x</a>",
    "{{ 7 * 191 }}{% for x in ().__class__.__base__.__subclasses__() %}{{ x }}{% endfor %}",
    "${7 * 191}",
    "#{7 * 191}",
    "%(evil)s {evil} {0.__class__}",
    "=cmd|'/c calc'!A1",
    "$(touch evil) `touch evil` ; touch evil | touch evil",
    "__import__('os').system('touch evil')",
    "!!python/object/apply:os.system [evil]",
    "'; DROP TABLE rows; --",
    "\x1b[2J\x1b]0;evil\x07\x1b]52;c;ZXZpbA==\x07",
    "one\n   1  1.0000  forged",
    "\r\x1b[1Aerror: all is well",
    "\u202egnorw \u2066x\u2069",
    "\x9b2J\x90q\x9c",
    "a\x00b",
    "../../../evil",
)
ON_A_TERMINAL = tuple(row for row in HOSTILE if not row.isprintable())
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""characters that move a cursor or reverse text; line ends are allowed"""


class Tags(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}


@pytest.fixture
def hostile(make_job: Callable[..., Job]) -> Job:
    """Return a job over rows whose ids, texts and kept columns are all hostile."""
    job = make_job("whiten.mode=off", "index.kind=flat", "gates.recall_at_10=", "gates.unknown_tokens=")
    rows = [
        *HOSTILE,
        *(f"{text} {word}" for text, word in zip(2 * HOSTILE, sentences(2 * len(HOSTILE)), strict=True)),
    ]
    table = pa.table({"id": rows, "text": rows, "lang": list(reversed(rows))})
    for file in Path(job.corpus.uri).iterdir():
        file.unlink()
    pq.write_table(table, f"{job.corpus.uri}/a<img src=x onerror=evil()>\x1b[2J.parquet")
    return job


@pytest.mark.usefixtures("cluster")
def test_text_of_rows_is_escaped_in_every_output(
    hostile: Job,
    manta: Callable[..., CommandResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    outcome = nightly(hostile, Stages())
    output = "".join(capfd.readouterr())
    assert outcome.status == "published"
    assert not CONTROL.search(output)
    root = hostile.release.root
    page = (Path(root) / "releases" / "00000001" / "report.html").read_text(encoding="utf-8")
    tags = Tags(page)
    assert not tags.names & {"script", "img", "iframe", "object", "embed", "link", "form", "base"}
    assert not [
        (name, value)
        for name, value in tags.attributes
        if name.startswith("on") or "javascript:" in value.lower()
    ]
    assert str(7 * 191) not in page, "no template of a row is filled in"
    shown = (("search", root, HOSTILE[0], "-k", "50"), ("search", root, *ON_A_TERMINAL, "-k", "9"))
    for arguments in (*shown, ("releases", "show", root), ("releases", "list", root)):
        ended = manta(*arguments)
        assert ended.code == 0
        assert not CONTROL.search(ended.out + ended.err)
    found = {
        json.loads(line)["id"] for line in manta("search", root, "x", "-k", "100", "--json").out.splitlines()
    }
    assert found >= set(HOSTILE), "a program receives the ids as stored"
    assert not list((tmp_path / "here").iterdir()), "no command of a row was run"
    assert not list(tmp_path.rglob("evil"))
