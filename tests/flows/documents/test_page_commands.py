"""Commands that a page prints run as printed, even if paths contain spaces and quotes."""

import contextlib
import html
import io
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.report.releases_page import PAGE, refresh_page
from pipeline.log import Stages
from pipeline.report.training import render
from pipeline.report.training_report import EncoderSummary, TrainingReport
from pipeline.settings import Job
from pipeline.settings.training import TrainSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.conftest import CommandResult
from tests.flows.train.training import write_sts
from tests.store.candidates import candidate

pytestmark = pytest.mark.usefixtures("cluster")


def blocks(page: str) -> list[str]:
    """Return the blocks of code of a page, without the settings."""
    return [
        html.unescape(block)
        for block in re.findall(r"<pre>(.*?)</pre>", page.split("<h2>Provenance</h2>")[0], re.DOTALL)
    ]


def commands(page: str) -> Iterator[list[str]]:
    """Yield the arguments of each shell command."""
    for block in blocks(page):
        if block.startswith("manta "):
            yield from (shlex.split(line)[1:] for line in block.splitlines())


def printed(code: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    return out.getvalue()


@pytest.mark.parametrize("apart", [False, True], ids=["commits beside", "commits apart"])
def test_commands_on_the_page_of_a_night_run(
    apart: bool, make_job: Callable[..., Job], tmp_path: Path, manta: Callable[..., CommandResult]
):
    root = tmp_path / "all 'my' releases"
    roots = [f"release.root={root}", *([f"release.commits_root={tmp_path / 'its commits'}"] if apart else [])]
    outcome = nightly(make_job("whiten.mode=off", *roots), Stages())
    page = Path(outcome.report).read_text()
    ran = [manta(*command) for command in commands(page)]
    assert [(ended.code, ended.out.count("\n") > 1) for ended in ran] == [(0, True)]
    search, faiss = (block for block in blocks(page) if "import" in block.splitlines()[0])
    assert "row-0" in printed(search)
    assert "row-0" in printed(faiss)


@pytest.mark.parametrize("apart", [False, True], ids=["commits beside", "commits apart"])
def test_the_command_on_the_page_of_a_held_root_ends_the_hold(
    apart: bool, tmp_path: Path, manta: Callable[..., CommandResult]
):
    root = open_store(tmp_path / "all 'my' releases")
    commits = open_store(tmp_path / "its commits") if apart else None
    releases = Releases(root, commits)
    releases.publish(candidate(root, "one", None), str)
    releases.hold(1)
    refresh_page(releases)
    page = root.read(PAGE).decode()
    (command,) = (html.unescape(code) for code in re.findall("<code>(manta .*?)</code>", page))
    ended = manta(*shlex.split(command)[1:])
    assert (ended.code, Releases(root, commits).commits.hold()) == (0, None), ended.err
    assert "<code>manta" not in root.read(PAGE).decode()


def test_commands_on_the_page_of_a_training_run(
    tmp_path: Path, encoder: Path, manta: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    run, start = tmp_path / "my trainings" / "it's new", tmp_path / "the start"
    shutil.copytree(encoder, run / "encoder")
    shutil.copytree(encoder, start)
    dev = write_sts(tmp_path / "own pairs.parquet")
    report = TrainingReport(
        name="new",
        uri=str(run),
        settings=TrainSettings.model_validate({"dev": {"uri": str(dev)}}),
        encoder=str(start),
        start_space="5f" * 32,
        sources=(),
        steps=1,
        planned_steps=1,
        steps_per_epoch=1,
        lines=(),
        trained_encoder=EncoderSummary("a1" * 32, 48, 64, ("mean",), True),
    )
    page = render(report, [])
    (command,) = commands(page)
    assert command[0] == "evaluate"
    ended = manta(*command)
    assert (ended.code, "the start" in ended.out) == (0, True), ended.err
    (code,) = (block for block in blocks(page) if not block.startswith("manta "))
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["vectors"].shape == (2, 48)
    assert list(commands(render(replace(report, settings=TrainSettings()), []))) == []
