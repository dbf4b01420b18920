"""Commands and code of the documents that need Ray: trainings in the documented order, and the column of
vectors on machines of one core and of two.
"""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.workers.interface import Workers
from tests.conftest import ROOT, CommandResult
from tests.flows.conftest import sentences
from tests.flows.documents.documents import commands, need, python_blocks
from tests.flows.documents.test_documents import runs_on_ray
from tests.text.pairs.building import inference

pytestmark = pytest.mark.slow
README = ROOT / "README.md"
SETTINGS = ROOT / "jobs" / "configs" / "README.md"
SMALL = {
    "pairs": (),
    "train": ("train.max_steps=2", "train.order.batch_rows=8", "train.watch={trackers: []}"),
    "augment": ("corpus.max_rows=60",),
    "encode": (),
}


def is_run(command: str) -> bool:
    """Return whether the command needs Ray, or writes the pairs of a training that does."""
    if need(command) is not None:
        return False
    return runs_on_ray(command) or command.startswith("manta pairs pairs.")


def test_commands_of_trainings_and_variants_run_in_the_documented_order(
    ray_cluster: Workers,
    encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    manta: Callable[..., CommandResult],
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    (tmp_path / "out" / "quickstart" / "corpus").mkdir(parents=True)
    rows = pa.table({"id": [f"r{number}" for number in range(60)], "text": sentences(60)})
    pq.write_table(rows, tmp_path / "out" / "quickstart" / "corpus" / "part-0.parquet")
    pq.write_table(pa.Table.from_pylist(inference(40)), tmp_path / "nli.parquet")
    ordered = [command for command in commands(SETTINGS) if is_run(command)]
    assert {command for command in commands(README) if runs_on_ray(command)} < set(ordered)
    assert [command.split()[1] for command in ordered] == [
        "train",
        "encode",
        "pairs",
        "train",
        "augment",
        "train",
    ]
    for command in ordered:
        _, verb, *arguments = shlex.split(command.replace("all-MiniLM-L6-v2", str(encoder)))
        ended = manta(verb, *arguments, *SMALL[verb])
        assert ended.code == 0, f"{command}\n{ended.err}"


@pytest.mark.parametrize("cores", [1, 2])
def test_the_documented_dataset_code_runs_on_any_number_of_cores(cores: int, encoder: Path, tmp_path: Path):
    for number in range(3):
        (tmp_path / "corpus").mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": sentences(20, number)}), tmp_path / "corpus" / f"{number}.parquet")
    block = next(block for block in python_blocks(README) if "EncodeBlocks" in block).replace(
        "all-MiniLM-L6-v2", str(encoder)
    )
    start = (
        f"import ray\nray.init(address='local', num_cpus={cores}, include_dashboard=False, "
        "object_store_memory=100_000_000)\n"
    )
    program = start + block + "rows.write_parquet('made')\n"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=500)
    rows = pq.read_table(tmp_path / "made")
    assert (len(rows), rows["vector"].null_count) == (60, 0)
