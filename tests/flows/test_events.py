"""A receiver gets each transition as JSON, and whatever it does, the night or the command is not lost."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError, GatesRefused
from pipeline.flows.events import tell, told_of_errors
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers import metrics
from pipeline.flows.workers.metrics_file import RecordedMetrics
from pipeline.log import Stages, listening
from pipeline.settings import EventSettings, Job
from tests.conftest import CommandResult

# Appends the event, with its arguments, to the file of its first argument.
COLLECTOR = """
import json, sys
event = json.load(sys.stdin)
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(event | {"arguments": sys.argv[2:]}) + chr(10))
"""


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    """A command that appends each event to the file events.jsonl."""
    (tmp_path / "collect.py").write_text(COLLECTOR)
    return (sys.executable, str(tmp_path / "collect.py"), str(tmp_path / "events.jsonl"))


def events(folder: Path) -> list[dict[str, object]]:
    """Return the events that the command was told, and empty its file."""
    file = folder / "events.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return [json.loads(line) for line in lines]


class Receiver:
    """A web server on this machine that answers with the given statuses, then with 204."""

    def __init__(self, *statuses: int, delay_s: float = 0.0) -> None:
        self.requests: list[tuple[dict[str, str], dict[str, str]]] = []
        rest, received = list(statuses), self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((json.loads(body), dict(self.headers)))
                time.sleep(delay_s)
                self.send_response(rest.pop(0) if rest else 204)
                self.send_header("Location", "http://localhost:1/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook/secret-part"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.flows.events._PAUSE_S", 0.01)


@pytest.fixture
def recorded() -> Iterator[RecordedMetrics]:
    """The metrics of the test."""
    values = RecordedMetrics()
    metrics.listeners.append(values.record)
    yield values
    metrics.listeners.remove(values.record)


@pytest.mark.usefixtures("cluster")
def test_nights_and_commands_tell_every_transition_in_order(
    make_job: Callable[..., Job],
    tmp_path: Path,
    command: tuple[str, ...],
    manta: Callable[..., CommandResult],
):
    settings = ("whiten.mode=off", "gates.recall_at_10=", f"release.on_event.command={json.dumps(command)}")
    approval, root = "release.publish=approval", str(tmp_path / "releases")
    file = tmp_path / "night.yaml"
    file.write_text(json.dumps({"release": {"on_event": {"command": command}}}))

    def drop_row() -> None:
        part = tmp_path / "corpus" / "part-0.parquet"
        pq.write_table(pq.read_table(part).slice(1), part)

    def releases(name: str, *arguments: str) -> None:
        assert manta("releases", name, root, *arguments, "--config", str(file)).code == 0

    nightly(make_job(*settings), Stages())
    nightly(make_job(*settings), Stages())  # nothing changed: nothing is told
    drop_row()
    nightly(make_job(*settings, approval), Stages())
    drop_row()
    nightly(make_job(*settings, approval), Stages())
    drop_row()
    with pytest.raises(GatesRefused):
        nightly(make_job(*settings, "gates.max_size_gib=1e-9"), Stages())
    with pytest.raises(DataError):
        nightly(make_job(*settings, "corpus.text=absent"), Stages())
    name = json.loads(manta("releases", "list", root, "--json").out)["waiting"]["candidate"]
    releases("promote", name, "--by", "Ann", "--note", "good")
    releases("promote", name, "--by", "Ann")  # again: nothing is told
    releases("rollback", "1")
    releases("hold", "--reason", "an audit")
    releases("hold")  # again: nothing is told
    releases("release")
    told = events(tmp_path)
    assert [event["event"] for event in told] == [
        *("published", "waiting", "superseded", "waiting", "refused", "failed"),
        *("promoted", "rolled back", "held", "released"),
    ]
    assert {event["root"] for event in told} == {root}
    assert (told[0]["release"], told[0]["rows"], told[0]["arguments"]) == (1, 400, [])
    assert told[1]["candidate"] == told[2]["candidate"] != told[3]["candidate"]
    assert Path(str(told[3]["report"])).is_file()
    assert "GiB of index files" in str(told[4]["reason"])
    assert (told[4]["exit_code"], told[5]["exit_code"]) == (5, 3)
    assert (told[6]["release"], told[6]["by"], told[6]["note"]) == (2, "Ann", "good")
    assert told[8]["reason"] == "an audit"


def test_a_command_gets_its_arguments_without_a_shell(tmp_path: Path, command: tuple[str, ...]):
    words = ("$HOME", "; touch injected", "a b")
    assert tell(EventSettings(command=(*command, *words)), "held", "s3://bucket/root", release=3)
    (event,) = events(tmp_path)
    assert event["arguments"] == list(words)
    assert (event["event"], event["root"], event["release"]) == ("held", "s3://bucket/root", 3)


def test_an_error_is_told_with_the_name_that_the_root_has_elsewhere(
    tmp_path: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    settings = EventSettings(command=command)
    for root in ("releases", "s3://bucket/root/"):
        with pytest.raises(DataError), told_of_errors(settings, root):
            raise DataError("here", "one thing", "another", "do this")
    with pytest.raises(KeyboardInterrupt), told_of_errors(settings, "releases"):
        raise KeyboardInterrupt
    told = events(tmp_path)
    local = str(tmp_path / "releases")
    assert [event["root"] for event in told] == [local, "s3://bucket/root", local]
    assert [(event["event"], event["exit_code"]) for event in told] == [
        ("failed", 3),
        ("failed", 3),
        ("stopped", 130),
    ]
    assert told[-1]["reason"] == "stopped by a signal; the next run continues it"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit('no\\nmail')", "exit code 1: no mail"),
        ("import time; time.sleep(60)", "did not end within 0.5 s"),
        ("import os, time; os.fork() or time.sleep(60); time.sleep(60)", "did not end within 0.5 s"),
    ],
)
def test_a_command_that_fails_or_hangs_is_a_warning(program: str, words: str, recorded: RecordedMetrics):
    start = time.monotonic()
    with listening() as said:
        assert not tell(
            EventSettings(command=(sys.executable, "-c", program), timeout_s=0.5, retries=1), "failed", "r"
        )
    assert time.monotonic() - start < 20
    assert any(words in line for line in said), said
    assert 'manta_events_total{event="failed",outcome="failed"} 1' in recorded.text()


def test_a_missing_program_is_tried_once(tmp_path: Path):
    with listening() as said:
        assert not tell(EventSettings(command=(str(tmp_path / "absent"),)), "held", "r")
    assert any("No such file" in line for line in said)


def test_a_post_has_the_secrets_of_the_environment_and_is_repeated(
    monkeypatch: pytest.MonkeyPatch, recorded: RecordedMetrics
):
    receiver = Receiver(503, 429)
    monkeypatch.setenv("HOOK_TOKEN", "Bearer 0123")
    settings = EventSettings(url=receiver.url, headers={"Authorization": "HOOK_TOKEN"})
    assert tell(settings, "published", "r", release=1)
    receiver.close()
    assert [headers["Authorization"] for _, headers in receiver.requests] == 3 * ["Bearer 0123"]
    assert len({body["id"] for body, _ in receiver.requests}) == 1, "one event, told again"
    assert receiver.requests[0][1]["Content-Type"] == "application/json"
    assert 'manta_events_total{event="published",outcome="told"} 1' in recorded.text()
    assert "0123" not in repr(settings)


@pytest.mark.parametrize("status", [400, 404, 302, 307])
def test_a_refusal_and_a_redirect_are_not_repeated_and_the_address_is_not_shown(
    status: int, monkeypatch: pytest.MonkeyPatch
):
    receiver = Receiver(status)
    monkeypatch.setenv("HOOK_URL", receiver.url)
    with listening() as said:
        assert not tell(EventSettings(url="$HOOK_URL"), "held", "r")
    receiver.close()
    assert len(receiver.requests) == 1
    assert any(f"answered with status {status}" in line for line in said)
    assert not any("secret-part" in line for line in said)


def test_a_server_that_does_not_answer_or_listen_is_a_warning(monkeypatch: pytest.MonkeyPatch):
    receiver = Receiver(delay_s=5)
    start = time.monotonic()
    with listening() as said:
        assert not tell(EventSettings(url=receiver.url, timeout_s=0.3, retries=1), "held", "r")
        receiver.close()
        assert not tell(EventSettings(url=receiver.url, retries=1), "held", "r")
    assert time.monotonic() - start < 5
    assert any("did not answer within 0.3 s" in line for line in said)
    assert any("refused" in line for line in said)


def test_a_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HOOK_URL", raising=False)
    with listening() as said:
        assert not tell(EventSettings(url="$HOOK_URL"), "held", "r")
    assert any("variable HOOK_URL is not set" in line for line in said)
    monkeypatch.setenv("HOOK_URL", "http://example.com/")
    with listening() as said:
        assert not tell(EventSettings(url="$HOOK_URL"), "held", "r")
    assert any("https://" in line for line in said)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("url=http://example.com/hook", "https://"),
        ("url=ftp://example.com/hook", "https://"),
        ("url=http://localhost.example.com/", "https://"),
        ("url=$not-a-name", "https://"),
        ("headers={Authorization: 'Bearer 0123'}", "environment variable"),
        ("headers={Authorization: TOKEN}", "url, as headers have no effect"),
        ("command=echo hello", "command"),
        ("timeout_s=0", "timeout_s"),
    ],
)
def test_settings_that_would_fail_or_leak_are_refused(setting: str, words: str):
    with pytest.raises(ConfigError, match=r"release\.on_event") as caught:
        load_settings(Job, None, (f"release.on_event.{setting}",))
    assert words in str(caught.value)


def test_nobody_is_told_by_default(recorded: RecordedMetrics):
    assert tell(EventSettings(), "held", "r")
    assert not recorded.has(metrics.EVENTS)
    assert os.environ.get("HOOK_URL") is None
