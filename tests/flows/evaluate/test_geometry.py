"""Geometry of candidates equals that measured by hand; stored results are reused.

An encoder is measured once for all its transforms.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError, ModelError
from pipeline.flows.context import FlowContext
from pipeline.flows.evaluate.candidates import ResolvedCandidate
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.evaluate.geometry import measure_geometry
from pipeline.flows.evaluate.report import store_evaluation
from pipeline.flows.workers.cluster import connect
from pipeline.log import Stages
from pipeline.models.classic.dan import write_dan_folder
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.vectorfile import read_vectors
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import ClusterSettings, EncoderSettings, Job
from pipeline.settings.weights import DanSettings
from pipeline.stats.encoder_geometry import GeometryReport
from pipeline.stats.geometry import anisotropy, cosines
from pipeline.stats.moments import Moments
from pipeline.store.files.base import Store
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.transforms.whitening import Whitening, fit_whitening
from tests.flows.conftest import WORDS, sentences

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def measure(tmp_path: Path) -> Callable[..., GeometryReport]:
    def measure_candidates(job: Job, *candidates: ResolvedCandidate) -> GeometryReport:
        stages = Stages()
        with connect(ClusterSettings(), stages) as cluster:
            context = FlowContext(job, open_store(tmp_path / "evaluations"), cluster, stages)
            return measure_geometry(context, candidates)

    return measure_candidates


def write_sts(folder: Path, pairs: int = 80) -> str:
    (folder / "sts").mkdir(parents=True)
    texts = sentences(2 * pairs, seed=5)
    table = pa.table(
        {"sentence1": texts[:pairs], "sentence2": texts[pairs:], "score": np.linspace(0, 5, pairs)}
    )
    pq.write_table(table, folder / "sts/STSB-dev.parquet")
    return f"evaluate.tasks={folder}"


def plain(job: Job, name: str = "plain") -> ResolvedCandidate:
    folder = open_folder(job.encoder)
    return ResolvedCandidate(name, job.encoder, folder.space_id, folder.dim)


def whitened(job: Job, store: Store, name: str = "whitened") -> tuple[ResolvedCandidate, Whitening]:
    """Return the job's encoder with a whitening of sixty other sentences to eight components."""
    folder = open_folder(job.encoder)
    fitted = fit_whitening(
        Moments.of(load_encoder(job.encoder, job.encode).encode(sentences(60, seed=9))),
        8,
        space_id=folder.space_id,
    )
    content = fitted.to_bytes()
    store.write("transforms/w.safetensors", content)
    reference = FileRef(
        path="transforms/w.safetensors", sha256=hashlib.sha256(content).hexdigest(), bytes=len(content)
    )
    return ResolvedCandidate(
        name, job.encoder, folder.space_id, folder.dim, reference, fitted.transform_id
    ), fitted


def test_geometry_matches_the_encoder_and_its_transform(
    make_job: Callable[..., Job], measure: Callable[..., GeometryReport], tmp_path: Path
):
    job = make_job(write_sts(tmp_path / "tasks"), "evaluate.geometry.sentences=120")
    candidate, transform = whitened(job, open_store(tmp_path / "evaluations"))
    first_token = plain(
        job.model_copy(update={"encoder": job.encoder.model_copy(update={"pooling": "cls"})}), "cls"
    )
    geometry = measure(job, plain(job), candidate, first_token)
    assert [series.name for series in geometry.series] == ["plain", "whitened", "cls"]
    assert (geometry.sentences, geometry.pairs, geometry.pairs_source, geometry.missing) == (
        120,
        80,
        "STSB-dev",
        {},
    )
    vectors = load_encoder(job.encoder, job.encode).encode(sentences(160, seed=5))
    for series, x in zip(geometry.series[:2], (vectors, transform(vectors)), strict=True):
        similarity = cosines(x[:80], x[80:])
        assert series.space.metrics["gold_correlation"].value == pytest.approx(
            100 * np.corrcoef(np.argsort(np.argsort(similarity)), np.arange(80))[0, 1], abs=1e-3
        )
        assert series.space.metrics["alignment"].count == 16
        assert series.space.dim == x.shape[1]
    levels = geometry.depths[0].levels
    assert [depth.name for depth in geometry.depths] == ["plain, cls"]  # another pooling has the same layers
    assert [level.number for level in levels] == [0, 1, 2, 3]
    assert levels[3].metrics["sentence_anisotropy"].value == pytest.approx(
        geometry.series[0].space.metrics["anisotropy"].value, abs=1e-5
    )  # mean pooling
    vocabulary = load_encoder(job.encoder, job.encode)._tokenizer.vocabulary()
    for level in levels:
        values = [each.value for each in level.lowest]
        assert len(values) == 10
        assert values == sorted(values)
        assert values[0] <= level.metrics["self_similarity"].value
        assert {each.word for each in level.lowest} <= vocabulary.keys()
        assert min(each.sentences for each in level.lowest) >= 5
    assert (
        sum(band.words for band in geometry.depths[0].bands)
        == geometry.depths[0].words["table_anisotropy"].count
    )
    assert GeometryReport.model_validate_json(geometry.model_dump_json()) == geometry


def test_texts_are_sampled_by_hash_and_a_second_run_reuses_vectors(
    make_job: Callable[..., Job], measure: Callable[..., GeometryReport], tmp_path: Path
):
    job = make_job("evaluate.geometry.sentences=100")
    first = measure(job, plain(job))
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "evaluations/geometry").iterdir()}
    assert len(files) == 1
    assert measure(job, plain(job, "another name")).series[0].space == first.series[0].space
    assert {file: file.stat().st_mtime_ns for file in files} == files
    other = (
        measure(make_job("evaluate.geometry.sentences=400"), plain(job)).series[0].space.metrics["anisotropy"]
    )
    everything = load_encoder(job.encoder, job.encode).encode(sentences(400))
    assert other.value == pytest.approx(anisotropy(everything), abs=1e-6)
    assert other.count == 400
    assert first.missing == {"pairs": "evaluate.tasks is not set: it names a folder with STS-B"}


def test_without_a_corpus_the_texts_of_the_pairs_are_used(
    make_job: Callable[..., Job],
    measure: Callable[..., GeometryReport],
    tmp_path: Path,
):
    nowhere = f"corpus.uri={tmp_path / 'nowhere'}"
    job = make_job(write_sts(tmp_path / "tasks"), nowhere)
    candidate, _ = whitened(job, open_store(tmp_path / "evaluations"))
    geometry = measure(job, candidate)
    assert (geometry.source, geometry.sentences) == ("STSB-dev", 160)
    assert "nowhere" in geometry.missing["corpus"]
    assert [series.name for series in geometry.series] == ["whitened without its transform", "whitened"]
    with pytest.raises(DataError, match="neither"):
        measure(make_job(nowhere), candidate)


def test_word_vectors_report_that_they_have_no_layers(
    make_job: Callable[..., Job], measure: Callable[..., GeometryReport], tmp_path: Path
):
    words = sorted({word for text in sentences(400) for word in text.split()})
    rng = np.random.default_rng(0)
    (tmp_path / "words.txt").write_text(
        "\n".join(f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(size=6))}" for word in words)
    )
    pq.write_table(
        pa.table({"id": ["u"], "text": ["unheard"], "lang": ["en"]}), tmp_path / "corpus/more.parquet"
    )
    job = make_job(f"encoder.path={tmp_path / 'words.txt'}")
    geometry = measure(job, plain(job))
    depth = geometry.depths[0]
    assert (
        geometry.series[0]
        .space.missing["direction"]
        .startswith("1 of 401 sampled texts have the zero vector")
    )
    assert depth.levels == ()
    assert "layers" in depth.missing
    assert set(depth.words) == {"frequency_norm", "frequency_distance", "table_anisotropy"}


def test_static_words_of_a_layer_are_an_encoder(
    make_job: Callable[..., Job], measure: Callable[..., GeometryReport], tmp_path: Path
):
    job = make_job("evaluate.geometry.sentences=400", "evaluate.geometry.static_words=true")
    (depth,) = measure(job, plain(job)).depths
    assert [each.layer for each in depth.static_words] == [0, 1, 2, 3]
    texts = sentences(400)
    hidden_states = load_encoder(job.encoder, job.encode).hidden_states()
    tokens = hidden_states.tokens(texts)
    words = hidden_states.words(tokens)
    compared = 0
    for each in depth.static_words[1:4:2]:
        states = np.zeros((len(tokens.ids), hidden_states.width))
        for batch in hidden_states.states(tokens):
            owners = [np.arange(tokens.offsets[row], tokens.offsets[row + 1]) for row in batch.rows]
            states[np.concatenate(owners)] = batch.layers[each.layer]
        parts = list(read_vectors(Path(each.uri), each.uri))
        names = [name for part, _ in parts for name in part]
        assert len(names) == each.words > 20
        encoder = load_encoder(EncoderSettings(path=each.uri, normalize=False), job.encode)
        for name, encoded in zip(names, encoder.encode(names), strict=True):
            token_id = hidden_states._tokenizer.vocabulary()[name]
            rows = np.flatnonzero(words.is_word & (tokens.ids == token_id))
            rows = rows[np.unique(tokens.owners[rows], return_index=True)[1]]
            if len(rows) < (words.is_word & (tokens.ids == token_id)).sum():
                continue  # the word occurs twice in a sentence, and a random occurrence is used
            expected = np.linalg.svd(states[rows])[2][0]
            expected *= np.sign((states[rows] @ expected).mean())
            np.testing.assert_allclose(encoded, expected, atol=1e-4)
            compared += 1
    assert compared > 0
    file = Path(depth.static_words[0].uri)
    content = file.read_bytes()
    file.unlink()
    assert measure(job, plain(job)).depths == (depth,)
    assert file.read_bytes() == content, "a deleted file is written again"


def test_geometry_can_be_evaluated_without_tasks(make_job: Callable[..., Job]):
    made = evaluate(make_job("evaluate.geometry.sentences=60"), Stages(), geometry=True)
    kept = store_evaluation(made, "today")
    assert kept.facts["geometry"]["sentences"] == 60
    assert "Geometry of the space" in Path(kept.report).read_text()


def test_an_encoder_without_hidden_states_is_refused_before_anything_is_encoded(
    make_job: Callable[..., Job], tmp_path: Path
):
    shape = DanSettings(width=8, layers=1, buckets=8, word_dim=8)
    write_dan_folder(shape, Counter(WORDS), tmp_path / "dan", seed=0)
    job = make_job(f"evaluate.candidates=[{{}}, {tmp_path / 'dan'}]")
    with pytest.raises(ModelError, match="--geometry: dan: expected an encoder whose tokens have hidden"):
        evaluate(job, Stages(), geometry=True)
    assert not list((tmp_path / "releases").rglob("*.parquet"))
