"""Nights decide on the transform, and faiss answers raw vectors as numpy does after the transform."""

import shutil
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError
from pipeline.flows.corpus import open_releases
from pipeline.flows.encode.trial_encode import SampleTexts
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.previous_release import load_previous
from pipeline.flows.night.publish import NightOutcome
from pipeline.flows.rows import LiveRows, units_by_ordinal
from pipeline.flows.transform.decide import check_dev
from pipeline.flows.transform.moments import HeldOutMoments
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.settings import Job, WhitenSettings
from pipeline.stats.moments import Moments
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.release import Releases
from pipeline.transforms.chain import name_of
from pipeline.transforms.transform import load_transform
from tests.flows.conftest import job_arguments, sentences, write_corpus
from tests.flows.transform.oracles import (
    Map,
    raw_vectors,
    shrunken_zca,
    sif,
    standardized_without_top,
)

pytestmark = pytest.mark.usefixtures("cluster")
NEW_SETTINGS = ("transform", "rotation", "shrinkage", "ridge", "remove", "centred", "flow")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Path:
    """A corpus of 400 rows, which is encoded once for all nights below."""
    folder = tmp_path_factory.mktemp("nights")
    write_corpus(folder / "corpus")
    return folder


@pytest.fixture
def night(root: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., NightOutcome]:
    monkeypatch.setenv("MANTA_CACHE", str(root / "cache"))

    def run(*overrides: str) -> NightOutcome:
        return nightly(make(root, encoder, *overrides), Stages())

    return run


def make(root: Path, encoder: Path, *overrides: str) -> Job:
    return load_settings(Job, None, (*job_arguments(root, encoder), "gates.recall_at_10=0.5", *overrides))


@pytest.mark.parametrize(
    ("settings", "name", "oracle"),
    [
        (("whiten.transform=components", "whiten.centred=false"), "components", sif),
        (
            (
                "whiten.transform=standardize+components",
                "whiten.remove=2",
                "index.kind=IVF4,Flat",
                "index.nprobe=4",
            ),
            "standardize+components",
            standardized_without_top,
        ),
        (("whiten.rotation=zca", "whiten.shrinkage=auto"), "whitening", shrunken_zca),
    ],
)
def test_the_index_transforms_raw_vectors_as_numpy_does(
    night: Callable[..., NightOutcome], settings: tuple[str, ...], name: str, oracle: Callable[..., Map]
):
    outcome = night("whiten.mode=on", *settings)
    release = open_release(outcome.root)
    assert release.manifest.transform is not None
    assert name_of(load_transform(Path(outcome.root, release.manifest.transform.path).read_bytes())) == name
    raw = raw_vectors(outcome.root, release.manifest).astype(np.float64)
    moved = oracle(raw)(raw)
    unit = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    cosines = unit[:20] @ unit.T
    scores, addresses = faiss.read_index(
        str(Path(outcome.root, outcome.facts["index"]["files"][0]["path"]))
    ).search(raw[:20].astype(np.float32), 5)
    np.testing.assert_allclose(scores, -np.sort(-cosines, axis=1)[:, :5], atol=2e-3)
    placed = (addresses >> 32) * 50 + (addresses & 0xFFFFFFFF)
    np.testing.assert_allclose(np.take_along_axis(cosines, placed, axis=1), scores, atol=2e-3)
    assert release.search(sentences(400)[:5], 1)["id"].to_pylist() == [f"row-{row:05d}" for row in range(5)]
    decision = next(choice for choice in release.manifest.choices if choice.what == "whitening")
    assert decision.sentence.startswith(
        "Whitening is used" if name == "whitening" else f"The transform {name} is used"
    )
    assert "transform and normalisation are inside the index" in Path(outcome.report).read_text()


def test_a_release_of_a_version_with_whitening_only_is_continued(
    night: Callable[..., NightOutcome], root: Path, encoder: Path
):
    first = night("whiten.mode=on", "whiten.k=20")
    releases = open_releases(make(root, encoder))
    newest = releases.get(first.release)
    older = {
        **newest.settings,
        "whiten": {
            name: value for name, value in newest.settings["whiten"].items() if name not in NEW_SETTINGS
        },
    }
    releases.publish(
        newest.model_copy(update={"parent": first.release, "settings": older}), lambda number: ""
    )
    assert night("whiten.mode=on", "whiten.k=20").status == "unchanged", (
        "settings that the older version lacks have their defaults"
    )
    pq.write_table(
        pa.table({"id": ["late"], "text": ["a late row stands near the old river"], "lang": ["en"]}),
        root / "corpus" / "part-late.parquet",
    )
    outcome = night("whiten.mode=on", "whiten.k=20")
    assert (outcome.status, outcome.rows, outcome.facts["transform_id"]) == (
        "published",
        401,
        first.facts["transform_id"],
    )
    decisions = {choice["what"]: choice for choice in outcome.facts["decisions"]}
    assert decisions["whitening"]["chosen"] == "kept, used"
    assert decisions["index"]["chosen"] != "built anew"
    (root / "corpus" / "part-late.parquet").unlink()


def test_k_is_chosen_on_held_out_rows_with_a_curve_in_the_report(night: Callable[..., NightOutcome]):
    outcome = night("whiten.mode=on", "whiten.k=likelihood")
    numbers = next(
        choice["numbers"] for choice in outcome.facts["decisions"] if choice["what"] == "whitening"
    )
    curve = {int(name[2:]): figure for name, figure in numbers.items() if name.startswith("k_")}
    assert numbers["k"] == max(curve, key=lambda k: curve[k])
    assert outcome.facts["index"]["dim"] == numbers["k"]
    page = Path(outcome.report).read_text()
    assert "chosen by log-likelihood per row, nats" in page
    assert f"k {numbers['k']}: {curve[numbers['k']]:.4f}" in page


def test_held_out_rows_do_not_depend_on_the_units(
    night: Callable[..., NightOutcome], root: Path, encoder: Path
):
    night()
    manifest = open_releases(make(root, encoder)).current()
    assert manifest is not None
    source = LiveRows(open_store(root / "releases"), manifest.space_id, "id")
    drawn = HeldOutMoments(source, 80).start()(units_by_ordinal(manifest))
    moments = Moments.from_bytes(drawn.read(source.store))
    raw = raw_vectors(str(root / "releases"), manifest)
    assert moments.count == 80
    assert np.abs(moments.mean - raw.mean(axis=0)).max() < 5 * raw.std(axis=0).max() / np.sqrt(80)
    assert HeldOutMoments(source, 80).start()(units_by_ordinal(manifest)) == drawn


def test_sizes_are_chosen_on_a_file_of_scores(night: Callable[..., NightOutcome], root: Path):
    texts, rng = sentences(60), np.random.default_rng(0)
    pq.write_table(
        pa.table({"sentence1": texts[:30], "sentence2": texts[30:], "score": rng.uniform(0, 5, 30)}),
        root / "dev.parquet",
    )
    by_dev = ("whiten.k=dev", "whiten.remove=dev", f"whiten.dev={root / 'dev.parquet'}")
    outcome = night("whiten.mode=on", "whiten.transform=components+whitening", *by_dev)
    numbers = next(
        choice["numbers"] for choice in outcome.facts["decisions"] if choice["what"] == "whitening"
    )
    assert {"k", "remove", "remove_0", "remove_1"} <= set(numbers)
    assert outcome.facts["index"]["dim"] == numbers["k"]
    page = Path(outcome.report).read_text()
    assert "Components kept, k, chosen by Spearman" in page
    assert "Directions removed, chosen by Spearman" in page
    with pytest.raises(DataError, match=r"whiten.dev.*Parquet"):
        night("whiten.transform=components", "whiten.remove=dev", f"whiten.dev={root / 'none.parquet'}")


def test_a_stored_decision_is_reused_without_its_dev_file_and_under_another_drift_limit(
    night: Callable[..., NightOutcome], root: Path
):
    pq.write_table(
        pa.table(
            {"sentence1": sentences(40)[:20], "sentence2": sentences(40)[20:], "score": list(range(20))}
        ),
        root / "gone.parquet",
    )
    settings = ("whiten.k=dev", f"whiten.dev={root / 'gone.parquet'}")
    first = night(*settings)
    (root / "gone.parquet").unlink()
    outcome = night(*settings, "whiten.max_drift=0.2")
    assert (outcome.status, outcome.facts["transform_id"]) == ("published", first.facts["transform_id"])
    assert next(
        choice["chosen"] for choice in outcome.facts["decisions"] if choice["what"] == "whitening"
    ).startswith("kept")
    with pytest.raises(DataError, match=r"whiten\.dev: .*expected a Parquet file"):
        night(*settings, "whiten.ridge=0.1")


def test_settings_without_effect_on_a_release_publish_none(night: Callable[..., NightOutcome]):
    used = ("whiten.mode=on", "whiten.k=16")
    assert night(*used).status == "published"
    assert night(*used, "whiten.flow.seed=3", "whiten.write_vectors=true").status == "unchanged"
    assert night(*used, "whiten.ridge=0.2").status == "published"
    assert night("whiten.mode=off").status == "published"
    assert night("whiten.mode=off", "whiten.ridge=0.2").status == "unchanged"


def test_a_fit_with_a_missing_file_is_fitted_again(
    night: Callable[..., NightOutcome], root: Path, capsys: pytest.CaptureFixture[str]
):
    first = night("whiten.mode=on", "whiten.k=18")
    stored = Path(first.root, "transforms", f"{first.facts['transform_id'][:24]}.safetensors")
    content = stored.read_bytes()
    stored.unlink()
    outcome = night("whiten.mode=on", "whiten.k=18", "whiten.max_drift=0.2")
    assert f"{stored.name}, of release {first.release}, is gone" in capsys.readouterr().err
    assert (outcome.status, outcome.facts["transform_id"], stored.read_bytes()) == (
        "published",
        first.facts["transform_id"],
        content,
    )


@pytest.mark.parametrize("mode", ["on", "auto"])
def test_a_transform_of_vectors_of_another_space_is_not_kept(night: Callable[..., NightOutcome], mode: str):
    """The vectors of the other space have more components, then as many."""
    for encoder in (("encoder.dim=24",), ("encoder.dim=40",), ("encoder.dim=40", "encoder.max_length=12")):
        outcome = night(f"whiten.mode={mode}", "whiten.k=8", "whiten.max_drift=100", *encoder)
        release = Releases(open_store(outcome.root)).current()
        assert release is not None
        assert (outcome.status, release.release) == ("published", outcome.release)
        assert release.whitening is not None
        assert release.whitening.fitted is not None
        fitted = load_transform(Path(outcome.root, release.whitening.fitted.path).read_bytes())
        assert fitted.space_id == release.space_id


def test_a_refusal_for_too_few_rows_is_kept_until_there_are_more(tmp_path: Path, encoder: Path):
    def whitening(count: int, seed: int = 0) -> dict[str, object]:
        shutil.rmtree(tmp_path / "corpus", ignore_errors=True)
        write_corpus(tmp_path / "corpus", count, seed=seed)
        outcome = nightly(make(tmp_path, encoder, "whiten.max_drift=0.6"), Stages())
        assert outcome.status == "published"
        return dict(next(choice for choice in outcome.facts["decisions"] if choice["what"] == "whitening"))

    first = whitening(100)
    assert first["chosen"] == "decided, not used"
    assert "rows" in str(first["sentence"])
    second, third = whitening(102), whitening(104)
    assert second["chosen"] == third["chosen"] == "kept, not used"
    assert f"{first['sentence']} No fit was tried again: 104 rows, 100 then, drift " in str(third["sentence"])
    assert whitening(180)["chosen"] == "decided, not used", "more rows by more than max_drift"
    release = Releases(open_store(tmp_path / "releases")).current()
    assert release is not None
    kept = WhitenSettings.model_validate(release.settings["whiten"] | {"dev": str(tmp_path / "none.parquet")})
    settings = release.settings | {"whiten": kept.model_dump(mode="json")}
    with pytest.raises(DataError, match=r"whiten\.dev: .*expected a Parquet file"):
        check_dev(kept, release.model_copy(update={"settings": settings}))
    assert "decided" in str(whitening(400)["chosen"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("whiten.transform=flow", "affine map, which a faiss index can hold.*manta whiten"),
        ("whiten.transform=standardize+flow", "affine map"),
        ("whiten.transform=whitenig", "did you mean 'whitening'"),
        ("whiten.remove=dev", "components among the steps"),
    ],
)
def test_a_transform_that_no_index_can_hold_is_refused_before_anything_is_read(
    tmp_path: Path, encoder: Path, settings: str, message: str
):
    write_corpus(tmp_path / "corpus")
    with pytest.raises(ConfigError, match=message) as caught:
        nightly(make(tmp_path, encoder, settings), Stages())
    assert caught.value.exit_code == 2
    assert not (tmp_path / "releases" / "units").exists()


def test_a_corpus_of_short_texts_cannot_be_compared(
    night: Callable[..., NightOutcome], root: Path, encoder: Path
):
    night()
    releases = open_releases(make(root, encoder))
    corpus = load_previous(releases).corpus
    assert corpus is not None
    for characters, count in ((10_000, 0), (15, 5)):
        sample = SampleTexts(releases.store, 5, characters)
        assert len(sample.texts([sample.work(corpus.units)])) == count
