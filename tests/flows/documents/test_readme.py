"""Python blocks of the documents that search a release run as printed."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from pipeline.flows.night.nightly import nightly
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import Job
from tests.flows.conftest import ROOT, sentences

pytestmark = pytest.mark.usefixtures("cluster")


def blocks(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


@pytest.fixture
def published(make_job: Callable[..., Job]) -> str:
    return nightly(make_job("whiten.mode=off", "index.kind=IVF4,Flat", "gates.recall_at_10="), Stages()).root


def test_documented_search_with_faiss_alone_equals_search_from_python(
    published: str, capsys: pytest.CaptureFixture[str]
):
    release = open_release(published)
    names: dict[str, Any] = {"raw_vectors": release.encode(sentences(3))}
    for block in search_blocks(published)[:2]:
        exec(block, names)
    addresses, rows = names["addresses"], names["ids"].take(names["rows"])["id"].to_pylist()
    assert addresses.shape == (3, 10)
    assert [rows[index] for index in (0, 10, 20)] == ["row-00000", "row-00001", "row-00002"]
    assert rows == release.search(names["raw_vectors"], 10)["id"].to_pylist()
    assert "row-00000" in capsys.readouterr().out


def test_the_example_of_the_readme_searches_a_release(published: str):
    (block,) = (block for block in blocks("README.md") if "open_release" in block)
    names: dict[str, Any] = {}
    exec(block.replace("out/quickstart/releases", published), names)
    assert names["table"].num_rows == 3


def test_documented_search_with_faiss_alone_covers_delta_and_tombstones(make_job: Callable[..., Job]):
    job = make_job("whiten.mode=off", "index.kind=hnsw", "gates.recall_at_10=")
    nightly(job, Stages())
    part = Path(job.corpus.uri) / "part-2.parquet"
    table = pa.parquet.read_table(part)
    changed = [
        f"{text} again" if number < 3 else text for number, text in enumerate(table["text"].to_pylist())
    ]
    pa.parquet.write_table(table.set_column(1, "text", pa.array(changed)).slice(0, len(table) - 10), part)
    root = nightly(job, Stages()).root
    release = open_release(root)
    assert (release.manifest.index.parts, release.manifest.tombstones is not None, len(release)) == (
        2,
        True,
        390,
    )
    names: dict[str, Any] = {"raw_vectors": release.encode([*sentences(400)[-3:], changed[0]])}
    for block in search_blocks(root)[:3]:
        exec(block, names)
    rows = names["ids"]["id"].to_pylist()
    ids_by_address = dict(zip(names["ids"]["address"].to_pylist(), rows, strict=True))
    found = [ids_by_address[address] for address in names["addresses"].ravel().tolist()]
    assert found == release.search(names["raw_vectors"], 10)["id"].to_pylist()
    assert found[30] == table["id"][0].as_py()
    assert not set(found) & set(table["id"].to_pylist()[-10:])


@pytest.mark.parametrize("kind", ["flat", "IVF4,Flat"])
def test_documented_filters_with_faiss_alone_equal_filters_from_python(
    make_job: Callable[..., Job], kind: str
):
    root = nightly(make_job("whiten.mode=off", f"index.kind={kind}", "gates.recall_at_10="), Stages()).root
    names: dict[str, Any] = {"release": open_release(root)}
    names["raw_vectors"] = names["release"].encode(sentences(3))
    (block,) = (block for block in blocks("pipeline/store/README.md") if "release.count" in block)
    for each in (block, search_blocks(root)[1], search_blocks(root)[3]):
        exec(each.replace("posixpath.%", "row-0003%"), names)
    found = names["ids"].take(np.searchsorted(names["ids"]["address"], names["addresses"].ravel()))["id"]
    expected = names["release"].search(names["raw_vectors"], 10, where="id like 'row-0003%'")
    assert found.to_pylist() == expected["id"].to_pylist()
    assert set(found.to_pylist()) <= {f"row-{number:05d}" for number in range(30, 40)}


@pytest.mark.usefixtures("unit_form")
def test_documented_reading_of_units_gives_every_vector(make_job: Callable[..., Job]):
    root = nightly(make_job("whiten.mode=off", "index.kind=flat"), Stages()).root
    names: dict[str, Any] = {"root": Path(root), "pa": pa, "pq": pa.parquet}
    names["manifest"] = json.loads(Path(root, "releases/00000001/manifest.json").read_text())
    (block,) = (block for block in blocks("pipeline/store/README.md") if 'manifest["units"]' in block)
    exec(block, names)
    assert sorted(names["vectors"]["id"].to_pylist()) == [f"row-{number:05d}" for number in range(400)]


def search_blocks(root: str) -> list[str]:
    """Return the four blocks that search: with this package, and with plain faiss in one part, in two, and
    with a filter. Retrievers of other libraries, which are not installed here, are left out.
    """
    found = [
        block.replace("out/quickstart/releases", root)
        for block in blocks("pipeline/store/README.md")
        if ("faiss" in block or "open_release" in block) and "BaseRetriever" not in block
    ]
    assert len(found) == 4
    return found
