"""Commands of a cluster by faults of its machines: each ends as documented, and loses nothing.

The machines are namespaces, see `machines.py`: a head without CPUs, where commands run unless the fault is
there, and two nodes of one CPU. Corpus, encoder and results are on an S3 server. `ENDS` has all cells.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.flows.conftest import write_corpus
from tests.flows.evaluate.evaluating import write_pairs
from tests.flows.night.machines import HEAD, JOBS, PORT, WORKING, Flaw, Listing, Machines, why_not
from tests.flows.train.training import write_sentences
from tests.text.pairs.building import inference

pytestmark = [pytest.mark.alone, pytest.mark.timeout(1500)]
_PATIENCE_S = 600.0
_GIVEN = "s3://manta/given"
_NODE = WORKING[-1]  # the node with the fault
_NO_ATTEMPTS = r"(?!.*\.attempts/)"


class Command(NamedTuple):
    """A command over the data below _GIVEN."""

    arguments: tuple[str, ...]
    """its name and settings; the root of its results is {root}"""
    stage: str
    """the stage in which a fault comes"""
    done: str
    """pattern of the paths that only a command that ended has written"""
    equal: str
    """pattern of the paths whose bytes do not depend on the time"""


_CLUSTER = (f"cluster.address={HEAD}:{PORT}", "cluster.small_rows=0", "cluster.workers={min: 1, max: 2}")
_WAITS = ("cluster.patience_s=180", "cluster.wait_s=45")
_CORPUS = (f"corpus.uri={_GIVEN}/corpus", f"encoder.path={_GIVEN}/encoder", "encode.unit_rows=25")
_NIGHT = (*_CORPUS, "whiten.mode=off", "index.kind=flat", "gates.recall_at_10=0.1", "index.queries=60")
_NIGHTLY = Command(
    ("nightly", *_CLUSTER, *_WAITS, *_NIGHT, "release.root={root}"),
    "encode",
    "^commits/",
    f"^{_NO_ATTEMPTS}(units|ids|keys)/|^indexes/[^/]+$",
)
COMMANDS = {
    "nightly": _NIGHTLY,
    "job": _NIGHTLY._replace(arguments=("nightly", *_CLUSTER[1:], *_WAITS, *_NIGHT, "release.root={root}")),
    "train": Command(
        (
            "train",
            _CLUSTER[0],
            *_WAITS,
            f"encoder.path={_GIVEN}/encoder",
            f"train.data={_GIVEN}/sentences.parquet",
            "train.root={root}",
            "train.name=run",
            "train.workers=2",
            "train.epochs=20",
            "train.order={batch_rows: 8, window_rows: 32}",
            "train.checkpoint={steps: 20, minutes: null}",
            "train.optimizer.learning_rate=0.001",
            "train.watch={steps: 1, trackers: []}",
        ),
        "training: [0-9]+ of",
        "^run/(encoder/|result.json)",
        r"^run/encoder/.*\.(safetensors|json)$",
    ),
    "augment": Command(
        (
            "augment",
            *_CLUSTER,
            *_WAITS,
            f"corpus.uri={_GIVEN}/corpus",
            "augment.unit_rows=25",
            "augment.variants.cut=crop",
            "augment.variants.less={method: delete, options: {count: 2}}",
            "release.root={root}",
        ),
        "variants",
        r"^augmented/.*\.json$",
        f"^{_NO_ATTEMPTS}units/.*parquet$",
    ),
    "evaluate": Command(
        (
            "evaluate",
            *_CLUSTER,
            *_WAITS,
            f"encoder.path={_GIVEN}/encoder",
            f"evaluate.tasks={_GIVEN}/tasks",
            "evaluate.bootstrap=50",
            "release.root={root}",
        ),
        "encode encoder",
        r"/evaluation\.json$",
        r"^evaluations/(draws|units)/.*(parquet|[0-9a-f]{32}\.json)$",
    ),
    "pairs": Command(
        (
            "pairs",
            "pairs.kind=nli",
            f"pairs.data={_GIVEN}/nli.parquet",
            "pairs.root={root}",
            "pairs.name=made",
        ),
        "read",
        "train.parquet$",
        "train.parquet$",
    ),
    "count": Command(
        ("count", *_CLUSTER, *_WAITS, *_CORPUS, "release.root={root}"), "count", "^counts/", "^counts/"
    ),
}
FAULTS = {
    "none": "nothing",
    "killed": "the node is killed in a stage",
    "late": "the node joins in a stage",
    "no project": "the node lacks Manta",
    "version": "the node has another PyTorch",
    "memory": "the node has 500 MiB of memory for all its processes",
    "clock": "the node's clock is two hours ahead",
    "disk": "4 % of the node's disks are free",
    "head": "the head is killed in a stage",
}


class End(NamedTuple):
    """How a command ends."""

    code: int = 0
    says: str = ""
    """pattern in its output"""


ENDS: Mapping[str, Mapping[str, End]] = {
    "none": {name: End() for name in COMMANDS},
    "killed": {
        "nightly": End(0, "node 10.77.0.3 is lost; its unfinished work is repeated on the 1 that is left"),
        "job": End(),
        "train": End(75, "since such a node was lost"),
        "augment": End(),
        "evaluate": End(),
        "count": End(),
    },
    "late": {"nightly": End(), "augment": End(), "train": End(2, "cluster")},
    "no project": {
        "nightly": End(2, "node 10.77.0.3: ModuleNotFoundError: No module named 'pipeline"),
        "train": End(2, "node 10.77.0.3: ModuleNotFoundError"),
        "augment": End(2, "node 10.77.0.3: ModuleNotFoundError"),
        "evaluate": End(2, "node 10.77.0.3: ModuleNotFoundError"),
        "count": End(2, "node 10.77.0.3: ModuleNotFoundError"),
        "job": End(),
    },
    "version": {
        "nightly": End(2, "node 10.77.0.3: torch 1.0.0"),
        "train": End(2, "node 10.77.0.3: torch 1.0.0"),
        "evaluate": End(2, "node 10.77.0.3: torch 1.0.0"),
        "job": End(1, "node 10.77.0.3: torch 1.0.0"),
    },
    "memory": {"nightly": End(), "train": End(75)},
    "clock": {
        name: End(2, "expected a clock that agrees with the store's")
        for name in ("nightly", "train", "pairs")
    },
    "disk": {
        "nightly": End(0, "10.77.0.3: the disk of .* has .* free"),
        "train": End(75, "10.77.0.3: the disk of .* has .* free"),
        "pairs": End(),
    },
    "head": {
        "nightly": End(75, "no answer from its head"),
        "train": End(75, "no answer from its head"),
        "job": End(-9),
    },
}
CELLS = [(fault, command) for fault, ends in ENDS.items() for command in ends]


@dataclass
class Cluster:
    """Machines, the fault that they have, and the files of the undisturbed commands."""

    machines: Machines
    folder: Path
    fault: str = "none"
    undisturbed: dict[str, dict[str, str]] = field(default_factory=dict)

    def flaw(self, fault: str) -> Flaw:
        """Return the flaw from which a node suffers from its start."""
        scratch, metadata = self.machines.scratch, self.folder / "METADATA"
        match fault:
            case "no project":
                return Flaw(f"for folder in pipeline jobs; do mount -t tmpfs none {ROOT}/$folder; done")
            case "version":
                metadata.write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0.0\n")
                installed = distribution("torch")._path / "METADATA"  # type: ignore[attr-defined]
                return Flaw(f"mount --bind {metadata} {installed}")
            case "memory":
                return Flaw(memory=500 << 20)
            case "clock":
                library = self.folder / "clock.so"
                source = Path(__file__).parent / "night" / "clock.c"
                subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
                return Flaw(variables={"LD_PRELOAD": str(library)})
            case "disk":
                fill = "mount -t tmpfs -o size=100m none {0}; head -c 96m /dev/zero > {0}/full"
                return Flaw("; ".join(map(fill.format, ("/tmp/ray", scratch))) + f"; mkdir {scratch}/home")
        return Flaw()

    def prepare(self, fault: str) -> None:
        """Give the node the fault from its start, or none if the fault comes later."""
        fault = "none" if fault in ("killed", "head") else fault
        if fault == self.fault and fault not in ("late", "memory"):
            return
        self.machines.kill(_NODE)
        self.machines.wait_for_nodes(1, *WORKING[:-1])
        if fault != "late":
            self.machines.join(_NODE, self.flaw(fault))
            self.machines.wait_for_nodes(1, *WORKING)
        self.fault = fault

    def strike(self, fault: str) -> None:
        """Do what a fault does in the middle of a command."""
        self.fault = fault
        if fault == "killed":
            self.machines.kill(_NODE)
        elif fault == "head":
            self.machines.kill(1)
        else:
            self.machines.join(_NODE)
            self.fault = "none"

    def run(self, command: str, root: str, fault: str = "none") -> tuple[int, str]:
        """Run a command; the fault strikes when its stage begins. Returns its exit code and its output."""
        module, *given = COMMANDS[command].arguments
        settings = [setting.replace("{root}", root) for setting in given]
        log, words = self.folder / "log", ["-m", f"jobs.{module}", "--json", *settings]
        whole = [sys.executable, *words]
        if command == "job":
            whole = ["ray", "job", "submit", "--address", JOBS, "--working-dir", ".", "--", "python", *words]
        node = 1  # pairs uses no other, so its faults are on its own
        if command == "pairs" and fault != "none":
            node = _NODE
        elif fault == "head" and command != "job":
            node = WORKING[0]
        process = self.machines.inside(whole, node, log, self.flaw(fault) if node == _NODE else Flaw())
        deadline, stage = time.monotonic() + _PATIENCE_S, COMMANDS[command].stage
        pattern = stage if "[" in stage else f"{stage}: starts"
        if fault in ("killed", "head", "late"):
            while not re.search(f'"event": "{pattern}', log.read_text()) and process.poll() is None:
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.05)
            if process.poll() is None:
                self.strike(fault)
        return process.wait(deadline - time.monotonic()), log.read_text()

    def heal(self) -> None:
        """Start what the fault ended."""
        if self.fault == "head":
            for number in (1, *WORKING):
                self.machines.kill(number)
            self.machines.start()
            self.machines.wait_for_nodes(1, *WORKING)
            self.fault = "none"
        else:
            self.prepare("none")

    def files(self, root: str) -> dict[str, str]:
        """Return the etag of each file below a root."""
        listing = Listing(self.machines, root)
        try:
            return {path: stamp for path, (stamp, _) in listing.files().items()}
        finally:
            listing.close()


def results(command: str, files: Mapping[str, str]) -> dict[str, str]:
    """Return the files whose bytes do not depend on the time."""
    return {path: stamp for path, stamp in files.items() if re.search(COMMANDS[command].equal, path)}


def is_done(command: str, files: Mapping[str, str]) -> bool:
    return any(re.search(COMMANDS[command].done, path) for path in files)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    disk, logs = tmp_path_factory.mktemp("disk"), tmp_path_factory.mktemp("logs")
    shutil.copytree(encoder, disk / "encoder")
    write_corpus(disk / "corpus", count=600)
    write_sentences(disk / "sentences.parquet", 101)
    write_pairs(disk / "tasks" / "sts" / "STS12.parquet", 300)
    pq.write_table(pa.Table.from_pylist(inference(200)), disk / "nli.parquet")
    machines = Machines(disk, tmp_path_factory.mktemp("scratch"), logs)
    try:
        machines.build()
        copy = f"import s3fs; s3fs.S3FileSystem().put({str(disk)!r}, {_GIVEN!r}, recursive=True)"
        copying = machines.inside([sys.executable, "-c", copy])
        assert copying.wait() == 0, copying.communicate()[1]
        yield Cluster(machines, logs)
    finally:
        machines.tear_down()


def undisturbed(cluster: Cluster, command: str) -> dict[str, str]:
    """Return the results of a command without faults."""
    if command not in cluster.undisturbed:
        cluster.prepare("none")
        code, log = cluster.run(command, f"s3://manta/none/{command}")
        assert code == 0, log[-3000:]
        files = cluster.files(f"s3://manta/none/{command}")
        assert is_done(command, files)
        cluster.undisturbed[command] = results(command, files)
    return cluster.undisturbed[command]


@pytest.mark.parametrize(("fault", "command"), CELLS, ids=[" ".join(cell) for cell in CELLS])
def test_a_command_ends_as_documented_and_loses_nothing(cluster: Cluster, fault: str, command: str):
    if fault == "clock" and shutil.which("cc") is None:
        pytest.skip("a compiler is needed (cc), for a library that changes the clock of a process")
    end, root = ENDS[fault][command], f"s3://manta/{fault.replace(' ', '-')}/{command}"
    expected = undisturbed(cluster, command)
    assert expected, "the undisturbed command wrote results"
    if fault == "none":
        return
    cluster.prepare(fault)
    code, log = cluster.run(command, root, fault)
    assert code == end.code, log[-5000:]
    assert re.search(end.says, log), log[-5000:]
    if fault in ("killed", "late", "head"):
        cluster.heal()
    files = cluster.files(root)
    assert is_done(command, files) == (code == 0), "results are there, whole, only if the command ended well"
    if code not in (0, 2) or fault == "clock":  # 2 is a refusal before any work, except for clocks
        cluster.heal()
        code, log = cluster.run(command, root)
        assert code == 0, log[-5000:]
        files = cluster.files(root)
    if code == 0:
        assert results(command, files) == expected, "the same bytes as without the fault"
