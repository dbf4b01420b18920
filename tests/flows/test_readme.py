"""The README's Python runs as it stands there."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import ray

from pipeline import open_release
from pipeline.flows.cluster import Cluster
from pipeline.flows.nightly import nightly
from pipeline.log import Stages
from pipeline.settings import Job
from tests.flows.conftest import ROOT, sentences


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


@pytest.fixture
def published(cluster: Cluster, make_job: Callable[..., Job]) -> str:
    return nightly(make_job("whiten.mode=off", "index.kind=IVF4,Flat", "gates.recall_at_10="), Stages()).root


def test_searching_from_python_and_with_plain_faiss(published: str, capsys: pytest.CaptureFixture[str]):
    release = open_release(published)
    names: dict[str, Any] = {"raw_vectors": release.encode(sentences(3))}
    searching = [block.replace("out/quickstart/releases", published) for block in blocks() if "faiss" in block or "open_release" in block]
    assert len(searching) == 2
    for block in searching:
        exec(block, names)
    addresses, rows = names["addresses"], names["ids"].take(names["rows"])["id"].to_pylist()
    assert addresses.shape == (3, 10)
    assert [rows[place] for place in (0, 10, 20)] == ["row-00000", "row-00001", "row-00002"]
    assert rows == release.search(names["raw_vectors"], 10)["id"].to_pylist()
    assert "row-00000" in capsys.readouterr().out


def test_a_dataset_gains_a_vector_column_in_three_lines(cluster: Cluster, encoder: Path, tmp_path: Path):
    block = next(block for block in blocks() if "EncodeBlocks" in block)
    pa.parquet.write_table(pa.table({"text": sentences(30)}), tmp_path / "corpus.parquet")
    names: dict[str, Any] = {"ray": ray}
    exec(block.replace('"corpus"', repr(str(tmp_path / "corpus.parquet"))).replace("all-MiniLM-L6-v2", str(encoder)).replace("size=2", "size=1"), names)
    assert len(names["rows"].take_all()[0]["vector"]) == 48
