"""The crontab and the units of one machine start what they say, and retry what is worth it; the recipes of
the runbook work as they are printed.
"""

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from jobs.boundary import EXIT_CODES
from pipeline.config import load_settings
from pipeline.index.search.search import open_release
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from tests.conftest import ROOT, CommandResult
from tests.erased.scan import Sought, traces
from tests.flows.conftest import write_corpus
from tests.flows.evaluate.evaluating import write_pairs
from tests.infra.manifests import INFRA
from tests.models.folders import save_folder
from tests.released.small import SETTINGS, set_corpus, unpack

MACHINE = INFRA / "machine"
UNITS = sorted(MACHINE.glob("*.service"))
SCRIPT = MACHINE / "night.sh"
PROGRAM = """#!/bin/sh
echo "$@" >> {folder}/calls
set -- $(cat {folder}/codes)
echo "this attempt ends with $1"
code=$1; shift; echo "$@" > {folder}/codes
exit "$code"
"""
CRON = {"HOME": "/", "LOGNAME": "nobody", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
"""The environment in which cron starts a command."""
OVERRIDES = ("whiten.mode=off", "index.kind=flat", "gates.recall_at_10=", "index.queries=60")


@pytest.fixture
def attempts(tmp_path: Path) -> Callable[[str], tuple[int, str, list[str]]]:
    """Run night.sh with a program that ends with one exit code after the other.

    Returns the exit code, the output, and the arguments of each attempt.
    """
    program = tmp_path / "manta"
    program.write_text(PROGRAM.format(folder=tmp_path))
    program.chmod(0o755)
    variables = CRON | {"MANTA": str(program), "MANTA_PAUSES": "0 0 0"}

    def run(codes: str) -> tuple[int, str, list[str]]:
        (tmp_path / "codes").write_text(codes)
        done = subprocess.run(
            [SCRIPT, "/etc/manta/nightly.yaml", tmp_path], capture_output=True, text=True, env=variables
        )
        calls = tmp_path / "calls"
        return (
            done.returncode,
            done.stdout + done.stderr,
            calls.read_text().splitlines() if calls.exists() else [],
        )

    return run


@pytest.mark.parametrize(
    ("codes", "last", "times"),
    [("0", 0, 1), ("75 75 0", 0, 3), ("75 75 75 0", 75, 3), ("75 5", 5, 2)]
    + [(code, int(code), 1) for code in ("2", "3", "4", "5", "70", "130", "137")],
)
def test_only_75_is_tried_again_and_only_a_failure_is_mailed(
    attempts: Callable[[str], tuple[int, str, list[str]]], codes: str, last: int, times: int
):
    code, output, calls = attempts(codes)
    assert (code, calls) == (last, ["nightly --config /etc/manta/nightly.yaml"] * times)
    assert bool(output) == bool(last)
    if last:
        assert f"ended with exit code {last}" in output
        assert f"this attempt ends with {last}" in output


def test_a_night_that_is_still_running_is_not_joined_by_another(
    attempts: Callable[[str], tuple[int, str, list[str]]], tmp_path: Path
):
    with (tmp_path / "night.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, output, calls = attempts("0")
    assert (code, calls) == (75, [])
    assert "75" in output


def cron_lines() -> list[tuple[str, str]]:
    """Return the schedule and the command of each line of the crontab."""
    lines = [line for line in (MACHINE / "crontab").read_text().splitlines() if re.match(r"[\d*]", line)]
    return [(" ".join(line.split()[:5]), line.split(maxsplit=5)[5]) for line in lines]


def test_the_crontab_has_valid_times_absolute_paths_and_no_percent_sign():
    """A percent sign ends a command of cron."""
    assert len(cron_lines()) == 2
    for schedule, command in cron_lines():
        assert all(re.fullmatch(r"\*|\d+", field) for field in schedule.split())
        assert "%" not in command
        assert all(word.startswith("/") for word in command.split() if "/" in word)
        assert command.startswith("/")


def exec_line(unit: Path) -> list[str]:
    """Return the words of the command that a unit starts."""
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.MULTILINE)
    return shlex.split(line)


def test_units_start_commands_by_absolute_paths_and_mail_their_failure():
    assert len(UNITS) == 4
    for unit in UNITS:
        assert exec_line(unit)[0].startswith("/")
        assert ("OnFailure=manta-failed@%n.service" in unit.read_text()) == ("@" not in unit.name)
    for timer in MACHINE.glob("*.timer"):
        assert timer.with_suffix(".service") in UNITS


def test_units_do_not_repeat_what_needs_a_person():
    codes = {int(code) for code in re.findall(r"\b(\d+) [a-z]", EXIT_CODES)}
    kept = {
        unit.stem: {
            int(code)
            for line in re.findall(r"^RestartPreventExitStatus=(.*)$", unit.read_text(), re.MULTILINE)
            for code in line.split()
        }
        for unit in UNITS
    }
    assert kept["manta-night"] == kept["manta-copy"] == codes - {0, 75}
    assert kept["manta-serve"] == {2, 4}, "3 is a root before its first release"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, of systemd")
def test_systemd_reads_the_units(tmp_path: Path):
    """It refuses programs that do not exist, so another one stands for them."""
    for file in (*UNITS, *MACHINE.glob("*.timer")):
        text = file.read_text().replace("/opt/manta/bin/manta", "/bin/true")
        (tmp_path / file.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *sorted(tmp_path.iterdir())], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    for timer in MACHINE.glob("*.timer"):
        (when,) = re.findall(r"^OnCalendar=(.*)$", timer.read_text(), re.MULTILINE)
        subprocess.run(["systemd-analyze", "calendar", when], check=True, capture_output=True)


def test_settings_of_the_machine_are_valid_and_their_paths_absolute():
    job = load_settings(Job, MACHINE / "nightly.yaml", ())
    assert job.release.keep == 7
    paths = [job.corpus.uri, job.release.root, job.release.metrics_file, job.release.after[0].target]
    assert all(str(path).startswith("/") for path in paths)


@pytest.fixture
def machine(tmp_path: Path, encoder: Path) -> Callable[[str], str]:
    """Lay out the folders of the machine below `tmp_path`; return a function that puts these into a text."""
    folders = {"/var/lib/manta": "lib", "/etc/manta": "etc", "/mnt/backup/manta": "backup"}
    for name in folders.values():
        (tmp_path / name).mkdir()

    def located(text: str) -> str:
        for before, name in folders.items():
            text = text.replace(before, str(tmp_path / name))
        return text

    settings = yaml.safe_load(located((MACHINE / "nightly.yaml").read_text()))
    settings["encoder"] = {"path": str(encoder)}
    (tmp_path / "etc" / "nightly.yaml").write_text(yaml.safe_dump(settings))
    write_corpus(tmp_path / "lib" / "corpus")
    return located


def recipe(title: str) -> list[list[str]]:
    """Return the lines of each block of a recipe."""
    text = (INFRA / "README.md").read_text().partition(f"\n### {title}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```bash\n(.*?)^```$", text.partition("\n### ")[0], re.DOTALL | re.MULTILINE)
    return [block.splitlines() for block in blocks]


@pytest.fixture
def run_line(
    manta: Callable[..., CommandResult], machine: Callable[[str], str]
) -> Callable[..., list[CommandResult]]:
    """Run a line of a recipe: commands of manta in this process, others as they are; `||` as a shell does."""

    def run(line: str, *overrides: str) -> list[CommandResult]:
        results = []
        for command in machine(line).split(" || "):
            words = shlex.split(command)
            if words[0] == "manta":
                own = overrides if "--config" in words else ()
                results.append(manta(*words[1:], *own))
            else:
                done = subprocess.run(words, capture_output=True, text=True)
                results.append(CommandResult(done.returncode, done.stdout, done.stderr))
            if results[-1].code == 0:
                break
        return results

    return run


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_recipe_for_another_encoder(
    run_line: Callable[..., list[CommandResult]], manta: Callable[..., CommandResult], tmp_path: Path
):
    lib, config = tmp_path / "lib", str(tmp_path / "etc" / "nightly.yaml")
    save_folder(lib / "new-encoder", "mpnet")
    write_pairs(lib / "tasks/sts/STS13.parquet", 40)
    assert manta("nightly", "--config", config, *OVERRIDES).code == 0
    before = open_release(lib / "releases").search("a man reads", 5)
    (block,) = recipe("Change the encoder")
    for line in block:
        overrides = ("evaluate.bootstrap=50",) if "evaluate" in line else OVERRIDES
        results = run_line(line, *overrides)
        assert [result.code for result in results] == [0], results[-1].err
    old, new = (Releases(open_store(lib / name)).get_or_current(None) for name in ("releases", "releases-2"))
    assert old.space_id != new.space_id
    assert new.counts["encoded"] == 400, "the cost: each row once"
    assert open_release(lib / "releases").search("a man reads", 5).equals(before)
    again = json.loads(manta("nightly", "--json", "--config", config, *OVERRIDES).out)
    assert (again["status"], again["after"][0]["status"]) == ("unchanged", "unchanged"), (
        "the old root and its target are as before"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_recipe_for_an_upgrade_of_a_root_of_the_first_version(
    run_line: Callable[..., list[CommandResult]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(unpack(tmp_path / "lib"))
    set_corpus(Path("corpus-2"))
    shutil.move("root", "releases")
    before = {path: path.stat().st_mtime_ns for path in Path("releases").rglob("*") if path.is_file()}
    job = load_settings(Job, None, (*SETTINGS, f"release.root={tmp_path / 'lib' / 'releases'}"))
    settings = job.model_dump(mode="json", exclude_unset=True)
    (tmp_path / "etc" / "nightly.yaml").write_text(yaml.safe_dump(settings))
    (block,) = recipe("Upgrade")
    trial = Releases(open_store("trial"))
    for line in block:
        results = run_line(line)
        assert [result.code for result in results] == [0], results[-1].err
        if "nightly --config" in line:
            assert trial.history()
    assert not Path("trial").exists()
    after = {path: path.stat().st_mtime_ns for path in Path("releases").rglob("*") if path.is_file()}
    assert after == before, "the root itself was not touched"


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_recipe_for_a_restored_root(
    run_line: Callable[..., list[CommandResult]],
    machine: Callable[[str], str],
    manta: Callable[..., CommandResult],
    tmp_path: Path,
):
    config, lib = str(tmp_path / "etc" / "nightly.yaml"), tmp_path / "lib"
    assert manta("nightly", "--config", config, *OVERRIDES).code == 0
    copy = machine(" ".join(exec_line(MACHINE / "manta-copy.service")))
    assert copy == machine(cron_lines()[1][1].partition(" >")[0]), "cron and systemd do the same"
    assert manta(*shlex.split(copy)[1:]).code == 0
    write_corpus(lib / "corpus", count=380)
    assert manta("nightly", "--config", config, *OVERRIDES).code == 0

    (one_file,), lost = recipe("Restore from a copy")
    assert manta("releases", "rollback", str(lib / "releases"), "1").code == 0
    path = Releases(open_store(lib / "releases")).get(1).index.files[0].path
    (lib / "releases" / path).write_bytes((tmp_path / "backup" / path).read_bytes()[:-1])
    results = run_line(one_file.replace("PATH", path))
    assert [result.code for result in results] == [3, 0]
    assert path in results[0].out
    assert manta("releases", "verify", str(lib / "releases")).code == 0

    assert Releases(open_store(lib / "releases")).numbers() == [1, 2]
    write_corpus(lib / "corpus", count=370)
    codes = [[result.code for result in run_line(line, *OVERRIDES)] for line in lost]
    assert codes == [[0], [0], [0], [75, 0]]
    restored = Releases(open_store(lib / "releases"))
    assert (restored.numbers(), restored.get(2).rows) == ([1, 2], 370)
    last = json.loads(manta("nightly", "--json", "--config", config, *OVERRIDES).out)
    assert (last["status"], last["after"][0]["status"]) == ("unchanged", "unchanged")


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_recipe_for_forgetting_a_person(
    run_line: Callable[..., list[CommandResult]], manta: Callable[..., CommandResult], tmp_path: Path
):
    config, lib = str(tmp_path / "etc" / "nightly.yaml"), tmp_path / "lib"
    assert manta("nightly", "--config", config, *OVERRIDES).code == 0
    assert manta("releases", "copy", str(lib / "releases"), str(tmp_path / "backup")).code == 0
    gone = [f"row-{row:05d}" for row in range(390, 400)]
    sought = Sought.of(lib / "releases", gone)
    folders = [lib / "releases", lib / "exports", tmp_path / "backup"]
    assert all(traces([folder], sought) for folder in folders)
    write_corpus(lib / "corpus", count=390)
    (tmp_path / "etc" / "persons.txt").write_text("".join(f"{each}\n" for each in gone))
    (block,) = recipe("Forget a person")
    for line in block:
        results = run_line(line, *OVERRIDES)
        assert [result.code for result in results] == [0], results[-1].err
    assert traces([*folders, lib / "metrics"], sought) == []
    assert Releases(open_store(tmp_path / "backup")).get_or_current(None).rows == 390
    last = json.loads(manta("nightly", "--json", "--config", config, *OVERRIDES).out)
    assert (last["status"], last["after"][0]["status"]) == ("unchanged", "unchanged")


@pytest.mark.slow
def test_the_line_of_the_crontab_publishes_a_release(machine: Callable[[str], str], tmp_path: Path):
    program = tmp_path / "manta"
    program.write_text(f'#!/bin/sh\ncd {ROOT} && exec {shlex.quote(os.sys.executable)} -m jobs."$@"\n')
    program.chmod(0o755)
    shutil.copy(SCRIPT, tmp_path / "night.sh")
    config = tmp_path / "etc" / "nightly.yaml"
    settings = yaml.safe_load(config.read_text())
    settings |= {"whiten": {"mode": "off"}, "index": {"kind": "flat"}, "gates": {"recall_at_10": None}}
    config.write_text(yaml.safe_dump(settings))
    command = machine(cron_lines()[0][1]).replace("/opt/manta/night.sh", str(tmp_path / "night.sh"))
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd="/",
        env=CRON | {"MANTA": str(program), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert Releases(open_store(tmp_path / "lib" / "releases")).numbers() == [1]
    assert "ray_manta_nights_total" in (tmp_path / "lib" / "metrics" / "manta.prom").read_text()
    assert list((tmp_path / "lib" / "exports").glob("docs/00000001/manifest.json"))
