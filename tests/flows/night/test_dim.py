"""Nights over truncated vectors and over static embeddings: whitened, indexed and searched."""

from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.flows.encode.encode import EncodeBlocks
from pipeline.flows.night.nightly import nightly
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from pipeline.store.rows.schema import vector_matrix
from tests.flows.conftest import sentences
from tests.models.folder.static_folders import save_static
from tests.models.folders import word_piece

Make = Callable[..., Job]
pytestmark = pytest.mark.usefixtures("cluster")


def stored_vectors(root: str) -> tuple[list[str], np.ndarray]:
    """Return the texts and the raw vectors of the current release."""
    manifest = Releases(open_store(root)).current()
    assert manifest is not None
    rows = pa.concat_tables([pq.read_table(Path(root, unit.path)) for unit in manifest.units])
    return rows["text"].to_pylist(), vector_matrix(rows["vector"])


def cut(vectors: np.ndarray, dim: int) -> np.ndarray:
    return vectors[:, :dim] / np.linalg.norm(vectors[:, :dim], axis=1, keepdims=True)


@pytest.mark.parametrize(("kind", "mode"), [("flat", "on"), ("IVF8,SQ8", "off"), ("hnsw", "auto")])
def test_a_release_of_truncated_vectors_finds_every_text(make_job: Make, kind: str, mode: str):
    job = make_job("encoder.dim=20", f"index.kind={kind}", f"whiten.mode={mode}", "gates.recall_at_10=0.5")
    outcome = nightly(job, Stages())
    assert outcome.status == "published"
    texts, vectors = stored_vectors(job.release.root)
    whole = load_encoder(EncoderSettings(path=job.encoder.path), EncodeSettings()).encode(texts)
    np.testing.assert_allclose(vectors, cut(whole, 20), atol=1e-6)
    index = faiss.read_index(str(Path(outcome.root, outcome.facts["index"]["files"][0]["path"])))
    assert index.d == 20
    release = open_release(outcome.root)
    asked = sentences(400)[:20]
    assert release.search(asked, 1)["text"].to_pylist() == asked
    assert release.search(cut(whole, 20)[:3], 1)["text"].to_pylist() == texts[:3]
    blocks = EncodeBlocks(job.encoder)
    column = blocks(pa.table({"text": texts[:5]}))["vector"]
    np.testing.assert_allclose(vector_matrix(column), vectors[:5], atol=1e-6)


@pytest.mark.parametrize("mode", ["off", "on", "auto"])
def test_another_number_of_components_starts_from_scratch(make_job: Make, mode: str):
    settings = (f"whiten.mode={mode}", "gates.recall_at_10=", "index.kind=flat")
    first = nightly(make_job("encoder.dim=20", *settings), Stages())
    again = nightly(make_job("encoder.dim=20", *settings), Stages())
    second = nightly(make_job("encoder.dim=12", *settings), Stages())
    assert (first.status, again.status, second.status) == ("published", "unchanged", "published")
    assert stored_vectors(second.root)[1].shape == (400, 12)


def test_a_night_over_static_embeddings(make_job: Make, tmp_path: Path):
    model = save_static(tmp_path / "static", word_piece(), normalize=True)
    job = make_job(f"encoder.path={tmp_path / 'static'}", "whiten.mode=on", "gates.recall_at_10=0.5")
    outcome = nightly(job, Stages())
    assert outcome.status == "published"
    texts, vectors = stored_vectors(job.release.root)
    np.testing.assert_allclose(vectors, model.encode(texts), atol=1e-6)
    asked = sentences(400)[:20]
    found = open_release(outcome.root).search(asked, 1)
    np.testing.assert_allclose(found["score"].to_numpy(), 1, atol=1e-4)
