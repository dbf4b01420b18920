"""Vectors of two encoders never end up in one index or unit."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pipeline.errors import DataError, GatesRefused, ModelError, SpaceMismatch
from pipeline.flows.corpus import open_releases
from pipeline.flows.encode.unit import EncodeUnit
from pipeline.flows.night.previous_release import load_previous
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.open_store import open_store
from tests.flows.night.test_incremental import BASE, Night, live_vectors
from tests.models.folders import save_folder


@pytest.fixture
def night(tmp_path: Path) -> Night:
    folder = tmp_path / "model"
    folder.mkdir()
    night = Night(tmp_path / "night", save_folder(folder, "bert"), "index.kind=flat")
    night.put({"a.parquet": BASE})
    return night


@pytest.fixture
def released(night: Night, child: LocalWorkers) -> Night:
    """The night after its first run. Later runs have new child processes, which have not loaded the model."""
    with connect(night.job.cluster, Stages(), local=child):
        night.run()
    return night


def replace_model(night: Night, tmp_path: Path) -> str:
    """Write another model under the same name. Returns its space."""
    folder = Path(night.job.encoder.path)
    shutil.rmtree(folder)
    folder.mkdir()
    save_folder(folder, "bert", seed=9)
    return open_folder(night.job.encoder).space_id


def allow_another_space(night: Night) -> None:
    """Allow the vectors to be of another space although no setting changed."""
    gates = night.job.gates.model_copy(update={"space": None})
    night.job = night.job.model_copy(update={"gates": gates})


def test_a_worker_with_another_model_than_the_driver_refuses_to_encode(night: Night, tmp_path: Path):
    old_space = open_folder(night.job.encoder).space_id
    task = EncodeUnit(
        open_store(tmp_path / "out"),
        EncoderSettings(path=night.job.encoder.path),
        EncodeSettings(),
        old_space,
        "id",
    )
    new_space = replace_model(night, tmp_path)
    with pytest.raises(SpaceMismatch, match=f"{old_space}.*{new_space}"):
        task.start()


def test_another_model_under_the_same_path_reuses_no_unit(released: Night, tmp_path: Path):
    first, vectors = released.current(), live_vectors(released)
    new_space = replace_model(released, tmp_path)
    with pytest.raises(GatesRefused, match=r"a file of .* changed; .* set gates.space=null for one night"):
        released.run()
    assert not list(Path(released.job.release.root).glob(f"units/vectors/{new_space[:16]}/*.json"))
    allow_another_space(released)
    released.run()
    now = released.current()
    assert (first.space_id != new_space, now.space_id) == (True, new_space)
    corpus = next(choice.sentence for choice in now.choices if choice.what == "corpus")
    assert (
        f"the encoder's space is {new_space}, that of release 1 is {first.space_id} (the settings are the "
        "same: a file of the encoder changed)"
    ) in corpus
    assert not {unit.path for unit in first.units} & {unit.path for unit in now.units}
    assert live_vectors(released).keys() == vectors.keys()
    assert not set(live_vectors(released).values()) & set(vectors.values())


def test_a_night_with_another_encoder_names_the_changed_settings(released: Night):
    before = load_previous(open_releases(released.job))
    other = released.job.encoder.model_copy(
        update={"pooling": "max", "max_length": 12, "query_prompt": "query: "}
    )
    reason = before.parent_corpus(released.job.model_copy(update={"encoder": other})).rebuild_reason
    assert reason.endswith("(encoder.pooling, encoder.max_length changed)")


def test_a_record_moved_to_another_space_is_refused_naming_both_spaces(released: Night, tmp_path: Path):
    first = released.current()
    store = open_store(released.job.release.root)
    new_space = replace_model(released, tmp_path)
    allow_another_space(released)
    unit = first.units[0]
    store.write(unit.record.replace(first.space_id[:16], new_space[:16]), store.read(unit.record))
    with pytest.raises(SpaceMismatch, match=f"{new_space}.*{first.space_id}"):
        released.run()


def test_a_release_with_a_replaced_encoder_refuses_queries(released: Night):
    from pipeline.index.search.search import open_release

    manifest, store = released.current(), open_store(released.job.release.root)
    config = f"{manifest.encoder.path}/config.json"
    changed = json.loads(store.read(config)) | {"layer_norm_eps": 1e-3}
    store.write(config, json.dumps(changed).encode())
    with pytest.raises(DataError, match="sha256"):
        open_release(released.job.release.root).search("a dog runs")


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        (
            "output.dense.bias",
            float("inf"),
            r"in .*layer\.0\.output\.dense\.bias, found NaN or infinity in 1",
        ),
        ("output.dense.weight", 3e38, "finite vectors, found NaN or infinity for 'A sentence"),
    ],
)
def test_an_unusable_encoder_ends_the_first_night_before_the_corpus_is_read(
    night: Night, name: str, value: float, found: str
):
    weights = Path(night.job.encoder.path) / "model.safetensors"
    tensors = load_file(weights)
    tensors[f"encoder.layer.0.{name}"][3] = value
    save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(ModelError, match=found) as caught:
        night.run()
    assert caught.value.exit_code == 4
    assert [entry.path for entry in open_releases(night.job).store.list("")] == []
