"""The command line around its jobs: first steps, version, names of shipped settings, completion, interrupts,
and wrong input, which is never reported as a defect.
"""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer

from jobs.boundary import Say, guarded
from jobs.command import named_configs
from pipeline.config import load_settings, to_yaml
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.commits import Commit, commit_path
from tests.conftest import ROOT, CommandResult

Manta = Callable[..., CommandResult]


def test_manta_without_a_command_prints_the_first_steps_and_fails(manta: Manta):
    ended = manta()
    assert ended.code == 2
    steps = re.findall(r"^  manta (\w+)", ended.out, re.MULTILINE)
    assert steps == ["nightly", "init", "nightly", "search"]


def test_the_next_step_follows_from_what_was_done_in_the_directory(
    manta: Manta, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    assert manta().out.endswith("\nNext: manta nightly --config quickstart\n")
    root = load_settings(Job, ROOT / "jobs" / "configs" / "quickstart.yaml").release.root
    (tmp_path / root / "commits").mkdir(parents=True)
    assert f'\nNext: manta search {root} "join two paths"' in manta().out
    (tmp_path / "night.yaml").touch()
    assert manta().out.endswith("\nNext: manta nightly --config night.yaml\n")


def test_the_version_comes_first(manta: Manta):
    ended = manta("--version")
    assert ended.code == 0
    assert ended.out.startswith(
        f"manta {version('manta-embeddings')} (Python {sys.version.split()[0]}, ray {version('ray')}, "
    )


@pytest.mark.parametrize("name", ["quickstart", "train/cert", "cert"])
def test_settings_that_come_with_manta_are_found_by_name(
    name: str, manta: Manta, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    file = next(
        file for file in (ROOT / "jobs" / "configs").rglob("*.yaml") if file.stem == name.split("/")[-1]
    )
    assert manta("train", "--config", name, "--print-config").out == to_yaml(load_settings(Job, file))
    (tmp_path / "quickstart").write_text("corpus: {uri: mine}")
    local = json.loads(manta("nightly", "--config", "quickstart", "--print-config", "--json").out)
    assert local["corpus"]["uri"] == "mine", "a local file takes precedence over the shipped one of its name"


def test_an_unknown_name_gets_the_nearest_as_a_suggestion(manta: Manta):
    assert "did you mean 'quickstart'?" in manta("nightly", "--config", "quikstart").err
    missing = manta("nightly", "--config", "zzz")
    assert missing.code == 2
    assert "known names: augment/back-translation, evaluate, nightly, quickstart" in missing.err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("index.kind=hnws", "did you mean 'hnsw'?"),
        ("index.kind=ivf-flat", "did you mean 'ivf_flat'?"),
        ("index.kind=HNWS32", "could not parse index string HNWS32); correct the string"),
        ("whiten.mode=of", "did you mean 'off'?"),
        ("encode.dtype=float23", "did you mean 'float32'?"),
        ("encoder.exclude=[frequnt]", "did you mean 'frequent'?"),
        ("encoder.pooling=meen", "did you mean 'mean'?"),
        ("whiten.transform=whitning", "did you mean 'whitening'?"),
        ("release.root=''", "release.root: expected"),
        ("release.root=s3://", "expected s3://bucket or s3://bucket/prefix, found no bucket"),
        ("release.root=s3://my bucket/x", "expected a bucket's name of ASCII letters, digits, dots"),
        ("release.root={corpus}", "expected a directory, found a file"),
        ("release.root=/proc/nothing", "expected a writable folder"),
        ('release.root="a\\0b"', "release.root: expected"),
    ],
)
def test_a_wrong_value_is_refused_with_a_suggestion_before_any_work(
    given: str, words: str, encoder: Path, tmp_path: Path, manta: Manta
):
    pq.write_table(
        pa.table({"id": ["a", "b"], "text": ["one text", "another text"]}), tmp_path / "corpus.parquet"
    )
    arguments = [
        f"corpus.uri={tmp_path / 'corpus.parquet'}",
        f"encoder.path={encoder}",
        f"release.root={tmp_path / 'root'}",
    ]
    ended = manta("nightly", *arguments, given.replace("{corpus}", str(tmp_path / "corpus.parquet")))
    assert ended.code == (4 if "pooling" in given else 2), ended.err
    assert words in ended.err
    assert "encode: starts" not in ended.err
    assert "faiss::" not in ended.err


def test_a_closed_pipe_is_not_reported_as_a_defect(tmp_path: Path):
    program = f"{sys.executable} -m manta nightly --print-config | true; echo ${{PIPESTATUS[0]}}"
    ended = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.stdout, ended.stderr) == ("0\n", "")


@pytest.mark.parametrize("module", ["jobs.cli", "typer", "pydantic", "yaml"])
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        ("SIGINT", 130, ""),
        ("SIGTERM", 75, "error: stopped by SIGTERM before the command began: run it again\n"),
    ],
)
def test_a_signal_while_modules_are_imported_ends_the_process(module: str, number: str, code: int, said: str):
    program = f"""
import builtins, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
plain = builtins.__import__
def interrupted(name, *rest):
    if name == {module!r}:
        os.kill(os.getpid(), signal.{number})
    return plain(name, *rest)
sys.argv = ["manta", "nightly"]
from manta.__main__ import run
builtins.__import__ = interrupted
run()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", said)


def test_sigterm_while_a_single_command_imports_its_modules_ends_it_with_75(tmp_path: Path):
    """`python -m jobs.NAME` is what schedulers start on a cluster."""
    (tmp_path / "sitecustomize.py").write_text(
        """
import builtins, os, signal
plain = builtins.__import__
def interrupted(name, *rest, **named):
    if name == "typer":
        os.kill(os.getpid(), signal.SIGTERM)
    return plain(name, *rest, **named)
builtins.__import__ = interrupted
"""
    )
    ended = subprocess.run(
        [sys.executable, "-m", "jobs.nightly"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    said = "error: stopped by SIGTERM before the command began: run it again\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (75, "", said)


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """Return a function that lists bash's completions of its last argument."""
    script = tmp_path_factory.mktemp("completion") / "manta.bash"
    with script.open("w") as out:
        subprocess.run(
            [sys.executable, "-m", "manta", "completion", "bash"], stdout=out, check=True, timeout=60
        )

    def complete(*words: str) -> list[str]:
        program = (
            f'. {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _manta; printf "%s\\n" '
            '"${COMPREPLY[@]}"'
        )
        return subprocess.run(
            ["bash", "-c", program, "bash", *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            cwd=ROOT,
        ).stdout.split()

    return complete


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ni",), ["nightly"]),
        (("releases", "ro"), ["rollback"]),
        (("releases", "rollback", "--com"), ["--commits-root"]),
        (("nightly", "--conf"), ["--config"]),
        (("nightly", "--config", "quickst"), ["quickstart"]),
        (("nightly", "corpus.k"), ["corpus.keep="]),
        (("nightly", "--json", "train.order.batch"), ["train.order.batch_rows="]),
        (("nightly", "whiten.mode", "=", "o"), ["on", "off"]),
        (("nightly", "whiten.mode", "="), ["auto", "on", "off"]),
        (("nightly", "index.kind", "=", "hn"), ["hnsw"]),
        (("nightly", "encode.compile=t"), ["encode.compile=true"]),
        (("nightly", "corpus.uri", "=", "pyproj"), ["pyproject.toml"]),
        (("search", "pyproj"), ["pyproject.toml"]),
    ],
)
def test_bash_completes_commands_options_settings_values_and_files(
    bash: Callable[..., list[str]], words: tuple[str, ...], expected: list[str]
):
    assert bash("manta", *words) == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
def test_zsh_completes_with_the_script_for_bash(tmp_path: Path, manta: Manta):
    script = subprocess.run(
        [sys.executable, "-m", "manta", "completion", "zsh"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    (tmp_path / "manta.zsh").write_text(script)
    program = f"""
. {tmp_path}/manta.zsh && print $_comps[manta]
COMP_WORDS=(manta nightly whiten.mode=o) COMP_CWORD=2; emulate ksh -c _manta; print -r -- $COMPREPLY
COMP_WORDS=(manta releases ro) COMP_CWORD=2; emulate ksh -c _manta; print -r -- $COMPREPLY
"""
    ended = subprocess.run(
        ["zsh", "-fc", program],
        env=os.environ | {"ZDOTDIR": str(tmp_path)},  # compinit writes its dump there
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.stdout.splitlines()[1:] == ["whiten.mode=on whiten.mode=off", "rollback"], ended.stderr


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("manta ni", ["nightly"]),
        ("manta releases ro", ["rollback"]),
        ("manta nightly whiten.mode=o", ["whiten.mode=off", "whiten.mode=on"]),
        ("manta nightly corpus.k", ["corpus.keep="]),
        ("manta nightly --config quickst", ["quickstart"]),
    ],
)
def test_fish_completes(line: str, expected: list[str], tmp_path: Path):
    script = subprocess.run(
        [sys.executable, "-m", "manta", "completion", "fish"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    (tmp_path / "manta.fish").write_text(script)
    environment = {**os.environ, "HOME": str(tmp_path)}
    ended = subprocess.run(
        ["fish", "-c", f"source {tmp_path}/manta.fish; complete -C '{line}'"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=environment,
    )
    assert sorted(found.split("\t")[0] for found in ended.stdout.splitlines()) == expected


def test_every_setting_and_shipped_config_is_completed(manta: Manta):
    script = manta("completion", "bash").out
    for name in ("encoder.path=", "train.optimizer.learning_rate=", "cluster.workers.max=", *named_configs()):
        assert name in script


def test_a_failed_thread_start_is_a_transient_error(manta: Manta, tmp_path: Path):
    store = open_store(tmp_path)
    store.write(commit_path(1), Commit(commit=1, kind="void").to_json())
    before = threading.stack_size(1 << 46)  # more than a process can address
    try:
        ended = manta("releases", "list", str(tmp_path), "--json")
    finally:
        threading.stack_size(before)
    assert ended.code == json.loads(ended.out)["exit_code"] == 75
    assert "error: this machine starts no further thread or process; end other programs" in ended.err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "no further thread or process"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "ulimit -n"),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "no memory is left"),
        (MemoryError(), "no memory is left"),
        (ImportError("libtorch.so: failed to map segment from shared object"), "no memory is left"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."), "no memory is left"),
        (RuntimeError("std::bad_alloc"), "no memory is left"),
    ],
    ids=["threads", "files", "memory", "MemoryError", "library", "torch", "faiss"],
)
def test_errors_for_lack_of_resources_are_transient(
    error: Exception, words: str, capfd: pytest.CaptureFixture[str]
):
    def work(say: Say) -> None:
        raise error

    with pytest.raises(typer.Exit) as ended:
        guarded(work, as_json=False, verbose=False)
    assert ended.value.exit_code == 75
    assert words in capfd.readouterr().err


@pytest.mark.parametrize("job", ["search {} text", "releases diff {} 1", "nightly release.root={}"])
def test_a_limit_of_addresses_that_libraries_exceed_is_named(tmp_path: Path, job: str):
    command = f"ulimit -v 800000; exec {sys.executable} -m jobs.{job.format(tmp_path)} --json"
    ended = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert json.loads(ended.stdout)["exit_code"] == ended.returncode == 2
    assert "at least 4 GiB of address space, mostly for libraries, found 0.8 GiB" in ended.stderr


def test_a_command_without_these_libraries_runs_with_fewer_addresses(tmp_path: Path):
    command = f"ulimit -v 3500000; exec {sys.executable} -m jobs.releases list {tmp_path} --json"
    ended = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "addresses" not in ended.stderr
    assert ended.returncode == 0, ended.stderr
