"""Commands of the documents run as printed, in any order, on small corpora with a small encoder."""

import contextlib
import importlib.util
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages
from pipeline.settings import ClusterSettings, Job
from tests.conftest import ROOT, CommandResult
from tests.flows.conftest import sentences
from tests.flows.documents.documents import DOCUMENTS, NEEDS, commands, need, python_blocks, shell_blocks
from tests.flows.evaluate.evaluating import write_pairs
from tests.text.pairs.building import inference

Manta = Callable[..., CommandResult]
BARE = (
    "manta init",
    "manta train",
    "manta augment",
    "manta count",
    "manta pairs",
    "manta encode",
    "manta index",
    "manta whiten",
    "manta evaluate",
    "manta search-template",
    "manta nightly",
    "manta plan",
    "manta preflight",
    "manta releases diff",
    "manta releases prune",
    "manta releases rollback",
    "manta export",
    "manta nightly --verify",
    "manta search",
)
"""commands that sentences name without their arguments: only their --help is run"""
SMALL = (
    "corpus.max_rows=80",
    "gates.max_deleted=",  # the roots have releases of other corpora
    "gates.recall_at_10=0.1",
    "gates.unknown_tokens=1",  # the small encoder knows few words
    "index.queries=20",
    "whiten.dev_texts=20",
    "evaluate.bootstrap=20",
)
JOBS = ("plan", "preflight", "encode", "whiten", "index", "evaluate", "search-template", "nightly")


def runs_on_ray(command: str) -> bool:
    """Return whether a command needs Ray or the result of a training; on_ray/test_documents.py runs these."""
    return (
        command not in BARE
        and "--describe" not in command
        and (command.startswith(("manta train", "manta augment")) or "trainings/" in command)
    )


def commands_run_here() -> list[str]:
    found = dict.fromkeys(command for file in DOCUMENTS for command in commands(file))
    return [command for command in found if need(command) is None and not runs_on_ray(command)]


def test_every_command_is_run_or_listed_with_its_requirement():
    all_commands = [command for file in DOCUMENTS for command in commands(file)]
    assert len(all_commands) > 60
    unlisted = [
        command
        for command in all_commands
        if need(command) is None and not command.startswith(("manta ", "python -m jobs."))
    ]
    assert not unlisted
    unused = [
        beginning
        for beginning in NEEDS
        if beginning.split()[0] != "ray"
        and not any(need(command) == NEEDS[beginning] for command in all_commands)
    ]
    assert not unused


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_every_block_of_commands_is_valid_shell(file: Path):
    for block in shell_blocks(file):
        parsed = subprocess.run(["bash", "-n"], input=block, text=True, capture_output=True, timeout=30)
        assert parsed.returncode == 0, block + parsed.stderr


@pytest.mark.parametrize(
    "command",
    sorted(
        {
            command.split()[2]
            for file in DOCUMENTS
            for command in commands(file)
            if command.startswith("python -m ")
        }
    ),
)
def test_every_module_in_a_command_exists(command: str):
    assert command == "jobs.<name>" or importlib.util.find_spec(command) is not None


@pytest.fixture(scope="module")
def documents_folder(encoder: Path, child: LocalWorkers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with everything that the documents assume: a corpus, an encoder, tasks, the files of
    jobs/configs, and a release in each root that they name.
    """
    folder = tmp_path_factory.mktemp("documents")
    (folder / "jobs").symlink_to(ROOT / "jobs")
    (folder / "models").mkdir()
    (folder / "models" / "new").symlink_to(encoder)
    texts = sentences(80)
    for uri in ("bucket/docs", "docs"):
        (folder / uri).mkdir(parents=True)
        names = ("doc_id", "body") if "/" in uri else ("id", "text")
        pq.write_table(
            pa.table(dict(zip(names, ([f"d{number}" for number in range(80)], texts), strict=True))),
            folder / uri / "part-0.parquet",
        )
    for task in ("STS12", "STS13", "STSB-dev"):
        write_pairs(folder / "tasks" / "sts" / f"{task}.parquet", 40)
    pq.write_table(pa.Table.from_pylist(inference(40)), folder / "nli.parquet")
    (folder / "queries.txt").write_text("".join(f"{text.partition(' ')[2]}\n" for text in texts[:40]))
    (folder / "judged.csv").write_text("query,id\n" + "".join(f"{texts[row]},d{row}\n" for row in range(9)))
    lake = next(block for block in python_blocks(ROOT / "jobs/configs/README.md") if "deltalake" in block)
    with contextlib.chdir(folder):
        exec(lake, {})
    (folder / "night.yaml").write_text(f"corpus: {{uri: {folder}/docs}}\nrelease: {{root: {folder}/night}}\n")
    with connect(ClusterSettings(), Stages(), local=child):
        for root in ("bucket/index", "out/quickstart/releases", "out/docs"):
            chunks = ("corpus.chunk.by=sentences", "corpus.chunk.overlap=16") if root == "out/docs" else ()
            settings = (
                f"corpus.uri={folder}/docs",
                f"release.root={folder}/{root}",
                f"encoder.path={encoder}",
                *SMALL,
                *chunks,
            )
            assert nightly(load_settings(Job, None, settings), Stages()).status == "published"
    return folder


@pytest.mark.parametrize("command", commands_run_here())
def test_a_documented_command_runs_as_printed(
    command: str,
    documents_folder: Path,
    encoder: Path,
    cluster: Workers,
    manta: Manta,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(documents_folder)
    words = shlex.split(command.replace("s3://bucket", f"{documents_folder}/bucket"))
    values = {
        "ROOT": f"{documents_folder}/bucket/index",
        "N": "1",
        "A": "1",
        "B": "1",
        "FILE": "night.yaml",
        "CORPUS": "docs",
    }
    words = [values.get(word, word) for word in words]
    if command in BARE or command.startswith("python -m"):
        words = [*words, "--help"]
    elif words[1] in JOBS:
        words += [*SMALL, f"encoder.path={encoder}"]
    elif words[1] == "init":
        (documents_folder / "night.yaml").unlink(missing_ok=True)
    elif words[1:3] in (["releases", "rollback"], ["releases", "hold"]):
        manta("releases", "release", values["ROOT"])  # another command may hold a release
    ended = manta(*(words[1:] if words[0] == "manta" else ["nightly", "--help"]))
    assert ended.code == 0, ended.err


def test_the_example_of_the_readme_returns_the_stated_vectors(capsys: pytest.CaptureFixture[str]):
    block = next(block for block in python_blocks(ROOT / "README.md") if "manta.encode" in block)
    names: dict[str, object] = {}
    shapes = [
        eval(line.split("#")[0], names)
        for line in block.splitlines()
        if line.startswith("manta.") or exec(line, names)
    ]
    assert shapes == [(384,), (2, 384)]
    for line, value in zip(
        [line for line in block.splitlines() if "#" in line], [*shapes, names["encoder"]], strict=True
    ):
        assert line.split("# ")[1].startswith(repr(value)), "the comment shows the value"


def test_the_documented_model_for_mteb_works(encoder: Path):
    mteb = pytest.importorskip("mteb")
    block = next(block for block in python_blocks(ROOT / "jobs/configs/README.md") if "mteb_model" in block)
    program = block.replace("mteb.evaluate(", "(").replace(
        "models/new", str(encoder)
    )  # which would fetch the task's data
    names: dict[str, object] = {}
    exec(program, names)
    model, tasks = names["results"]
    assert isinstance(model, mteb.models.EncoderProtocol)
    assert [task.metadata.name for task in tasks] == ["STS12"]
    assert np.isfinite(model.mteb_model_meta.embed_dim)
