"""Every sentence is encoded once per space, results are reused, and scores equal those of the encoder."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import ConfigError, DataError, ModelError, SpaceMismatch
from pipeline.flows.evaluate.evaluate import Evaluation, compares_candidates, evaluate
from pipeline.flows.evaluate.report import facts_of, page_of, store_evaluation
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings
from pipeline.stats.moments import Moments
from pipeline.store.files.open_store import open_store
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.releases.release import Releases
from pipeline.transforms.whitening import Whitening, fit_whitening
from tests.flows.conftest import sentences
from tests.flows.evaluate.evaluating import distinct, job, oracle, vector_rows, write_pairs
from tests.index.published import Publisher

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two STS tasks that share sentences, some with white space around them. Only STS12 has a
    missing and an empty sentence.
    """
    folder = tmp_path_factory.mktemp("evaluate")
    texts = sentences(90)
    first = write_pairs(folder / "tasks/sts/STS12.parquet", 60, 0, [*texts[:60], ""])
    write_pairs(folder / "tasks/sts/STSB-test.parquet", 50, 1, [f" {text}\n" for text in texts[30:]])
    table = pq.read_table(first)
    left = [None, *table["sentence1"].to_pylist()[1:]]
    pq.write_table(table.set_column(1, "sentence1", pa.array(left)), first)
    return folder


def write_whitening(file: Path, encoder: Path, space_id: str | None = None) -> Whitening:
    """Fit a whitening of 60 sentences to 8 components."""
    folder = open_folder(EncoderSettings(path=str(encoder)))
    vectors = load_encoder(EncoderSettings(path=str(encoder)), EncodeSettings(), "cpu").encode(sentences(60))
    fitted = fit_whitening(Moments.of(vectors), 8, space_id=space_id or folder.space_id)
    file.write_bytes(fitted.to_bytes())
    return fitted


@pytest.fixture(scope="module")
def evaluation(folder: Path, encoder: Path, child: LocalWorkers) -> Evaluation:
    """Evaluate one encoder raw, whitened, and with another pooling."""
    write_whitening(folder / "whitening.safetensors", encoder)
    candidates = (
        f"[{{}}, {{transform: {folder / 'whitening.safetensors'}}}, {{name: cls, encoder: {{path: "
        f"{encoder}, pooling: cls}}}}]"
    )
    with connect(ClusterSettings(), Stages(), local=child):
        return evaluate(job(folder, encoder, f"evaluate.candidates={candidates}"), Stages())


def test_scores_match_each_encoder_with_its_transform(folder: Path, encoder: Path, evaluation: Evaluation):
    raw, cls = EncoderSettings(path=str(encoder)), EncoderSettings(path=str(encoder), pooling="cls")
    whitening = Whitening.from_bytes((folder / "whitening.safetensors").read_bytes())
    assert [measured.task.name for measured in evaluation.measured] == ["STS12", "STSB-test"]
    for measured in evaluation.measured:
        file = folder / f"tasks/sts/{measured.task.name}.parquet"
        expected = [oracle(file, raw), oracle(file, raw, whitening), oracle(file, cls)]
        np.testing.assert_allclose([scored.result.value for scored in measured.results], expected, atol=1e-3)
    assert [candidate.name for candidate in evaluation.candidates] == [
        encoder.name,
        f"{encoder.name} + whitening",
        "cls",
    ]


def test_scores_of_shortened_vectors_are_those_of_the_first_components(
    tmp_path: Path, encoder: Path, child: LocalWorkers
):
    file = write_pairs(tmp_path / "tasks/sts/STS12.parquet", 40)
    with connect(ClusterSettings(), Stages(), local=child):
        whole, short = (
            evaluate(job(tmp_path, encoder, *overrides), Stages()) for overrides in ((), ("encoder.dim=20",))
        )
    settings = EncoderSettings(path=str(encoder))
    expected = [oracle(file, settings), oracle(file, settings, lambda vectors: vectors[:, :20])]
    assert abs(expected[0] - expected[1]) > 0.1, "the last components matter"
    found = [each.measured[0].results[0].result.value for each in (whole, short)]
    np.testing.assert_allclose(found, expected, atol=1e-3)
    assert [each.candidates[0].dim for each in (whole, short)] == [48, 20]


def test_a_sentence_is_encoded_once_per_space_for_all_tasks_and_candidates(
    folder: Path, evaluation: Evaluation
):
    files = [folder / f"tasks/sts/{name}.parquet" for name in ("STS12", "STSB-test")]
    count = distinct(*files)
    assert count < sum(distinct(file) for file in files)
    raw, whitened, cls = (candidate.space_id for candidate in evaluation.candidates)
    assert raw == whitened != cls
    assert (vector_rows(folder, raw), vector_rows(folder, cls)) == (count, count)
    assert evaluation.encoded == 2 * count


def test_a_second_run_reuses_vectors_and_another_task_encodes_only_new_sentences(
    folder: Path, encoder: Path, evaluation: Evaluation, tmp_path: Path
):
    repeated = evaluate(job(folder, encoder), Stages())
    assert repeated.encoded == 0
    assert repeated.speeds[0] == evaluation.speeds[0] is not None, (
        "the speed is known even if nothing is encoded"
    )
    assert [measured.results[0] for measured in repeated.measured] == [
        measured.results[0] for measured in evaluation.measured
    ]
    known = [folder / f"tasks/sts/{name}.parquet" for name in ("STS12", "STSB-test")]
    further = write_pairs(folder / "further.parquet", 40, 2, sentences(100)[80:])
    shutil.copytree(folder / "root", tmp_path / "root")
    own = evaluate(
        job(
            folder,
            encoder,
            f"evaluate.own=[{{kind: sts, uri: {further}}}]",
            f"release.root={tmp_path / 'root'}",
        ),
        Stages(),
    )
    assert own.encoded == distinct(*known, further) - distinct(*known) > 0
    assert own.measured[-1].task.name == "further"
    assert own.speeds == repeated.speeds, "the speed is that of the run that encoded most"
    np.testing.assert_allclose(
        own.measured[-1].results[0].result.value,
        oracle(further, EncoderSettings(path=str(encoder))),
        atol=1e-3,
    )


def test_missing_tasks_are_named_and_averages_list_their_tasks(evaluation: Evaluation):
    assert [task.name for task in evaluation.missing] == ["STS13", "STS14", "STS15", "STS16", "SICK-R"]
    page, facts = page_of(evaluation, ""), facts_of(evaluation)
    (average,) = page.averages
    assert average.label == "average of the 2 measured: STS12, STSB-test"
    values = [
        [each["value"] for each in facts["results"] if each["candidate"] == candidate.name]
        for candidate in evaluation.candidates
    ]
    np.testing.assert_allclose([score.value for score in average.scores], np.mean(values, axis=1))
    assert not average.complete


@pytest.mark.usefixtures("evaluation")  # which counts the sentences that it encodes in the same root
def test_intervals_contain_their_values_and_equal_candidates_do_not_differ(folder: Path, encoder: Path):
    same = evaluate(job(folder, encoder, "evaluate.candidates=[{name: one}, {name: two}]"), Stages())
    rows = page_of(same, "").rows
    assert rows
    for row in rows:
        one, two = row.scores
        assert one.low is not None
        assert one.high is not None
        assert one.low < one.value < one.high  # type: ignore[operator]
        difference = row.differences[1]
        assert difference is not None
        assert (difference.value, difference.low, difference.high, difference.excludes_zero) == (
            0,
            0,
            0,
            False,
        )
        assert two == one


def test_a_release_is_evaluated_with_its_encoder_and_transform(
    folder: Path, encoder: Path, evaluation: Evaluation, tmp_path: Path
):
    store = open_store(tmp_path / "releases")
    first = Publisher(store, encoder, tmp_path)(["two dogs run", "a girl reads"])
    content = (folder / "whitening.safetensors").read_bytes()
    store.write("transforms/w.safetensors", content)
    transform = FileRef(
        path="transforms/w.safetensors", sha256=sha256(content).hexdigest(), bytes=len(content)
    )
    Releases(store).publish(first.model_copy(update={"parent": 1, "release": 0, "transform": transform}), str)
    candidates = f"[release:1, '{tmp_path / 'releases'}#current']"
    of_releases = evaluate(
        job(
            folder,
            encoder,
            f"evaluate.candidates={candidates}",
            f"release.root={tmp_path / 'releases'}",
            f"evaluate.root={folder / 'root'}",
        ),
        Stages(),
    )
    assert of_releases.encoded == 0, "the release's encoder is the same space"
    assert [candidate.name for candidate in of_releases.candidates] == ["release 1", "release 2"]
    assert [candidate.transform_id for candidate in of_releases.candidates] == [
        candidate.transform_id for candidate in evaluation.candidates[:2]
    ]
    assert [measured.results[:2] for measured in of_releases.measured] == [
        measured.results[:2] for measured in evaluation.measured
    ]


def test_a_transform_of_another_space_is_refused_naming_both_spaces(
    folder: Path, encoder: Path, tmp_path: Path
):
    write_whitening(tmp_path / "w.safetensors", encoder, space_id="5face" * 8)
    with pytest.raises(SpaceMismatch, match="5face5face") as caught:
        evaluate(
            job(folder, encoder, f"evaluate.candidates=[{{transform: {tmp_path / 'w.safetensors'}}}]"),
            Stages(),
        )
    assert open_folder(EncoderSettings(path=str(encoder))).space_id in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("candidate", "kind", "words"),
    [
        ("/nowhere/model", ModelError, "/nowhere/model"),
        ("release:7", DataError, "release 7"),
        ("release:current", DataError, "expected a published release, found none"),
        ("{transform: /nowhere/t.safetensors}", DataError, "no such file"),
        (
            f"{{transform: {__file__}}}",
            DataError,
            r"transform .*test_evaluate\.py: expected a safetensors file",
        ),
        ("{name: a}, {name: a}", ConfigError, "'a' twice"),
    ],
)
def test_invalid_candidates_are_refused(
    folder: Path, encoder: Path, candidate: str, kind: type[Exception], words: str
):
    with pytest.raises(kind, match=words):
        evaluate(job(folder, encoder, f"evaluate.candidates=[{candidate}]"), Stages())


def test_candidates_without_tasks_are_refused(encoder: Path, tmp_path: Path):
    bare = job(tmp_path, encoder, "evaluate.tasks=")
    assert not compares_candidates(bare)
    assert compares_candidates(bare, analyses=True)
    with pytest.raises(ConfigError, match="tasks to evaluate the candidates on"):
        compares_candidates(
            job(tmp_path, encoder, "evaluate.tasks=", "evaluate.candidates=[release:current]")
        )


def test_page_and_json_are_stored_with_equal_values(evaluation: Evaluation):
    stored_evaluation = store_evaluation(evaluation, "2026-01-02 03:04 UTC")
    stored = json.loads(Path(stored_evaluation.json).read_text())
    assert stored == json.loads(json.dumps(stored_evaluation.facts))
    assert {
        "id",
        "candidates",
        "results",
        "differences",
        "averages",
        "missing",
        "warnings",
        "sentences_encoded",
        "settings",
        "packages",
    } <= set(stored)
    assert {"space_id", "transform_id", "numerics", "release", "encoder"} <= set(stored["candidates"][0])
    assert {
        "task",
        "candidate",
        "metric",
        "value",
        "low",
        "high",
        "count",
        "figures",
        "facts",
        "numerics",
    } <= set(stored["results"][0])
    assert stored["results"][0]["metric"] == "Spearman x100, cosine, all"
    assert [(each["candidate"], each["against"]) for each in stored["differences"][:2]] == [
        (each.name, evaluation.candidates[0].name) for each in evaluation.candidates[1:]
    ]
    page = Path(stored_evaluation.report).read_text()
    assert all(candidate.name in page for candidate in evaluation.candidates)
    assert page.count("sentences/s on one worker") == len(evaluation.candidates)
    assert all(each["sentences_per_s"] > 0 and each["bytes"] > 0 for each in stored["candidates"])
    assert "no file sts/STS14.parquet" in page
