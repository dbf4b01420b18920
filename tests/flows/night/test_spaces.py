"""Vectors of two encoders never end up in one index or unit."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pipeline.errors import DataError, ModelError, SpaceMismatch
from pipeline.flows.corpus import open_releases
from pipeline.flows.encode.unit import EncodeUnit
from pipeline.flows.night.previous import load_previous
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.store import open_store
from tests.flows.night.test_incremental import BASE, Night, live_vectors
from tests.models.folders import save_folder


@pytest.fixture
def night(tmp_path: Path) -> Night:
    folder = tmp_path / "model"
    folder.mkdir()
    made = Night(tmp_path / "night", save_folder(folder, "bert"), "index.kind=flat")
    made.put({"a.parquet": BASE})
    return made


def replace_model(night: Night, tmp_path: Path) -> str:
    """Write another model under the same name. Returns its space."""
    place = Path(night.job.encoder.path)
    shutil.rmtree(place)
    place.mkdir()
    save_folder(place, "bert", seed=9)
    return open_folder(night.job.encoder).space_id


def test_a_worker_with_another_model_than_the_driver_refuses_to_encode(night: Night, tmp_path: Path):
    here = open_folder(night.job.encoder).space_id
    task = EncodeUnit(
        open_store(tmp_path / "out"),
        EncoderSettings(path=night.job.encoder.path),
        EncodeSettings(),
        here,
        "id",
    )
    there = replace_model(night, tmp_path)
    with pytest.raises(SpaceMismatch, match=f"{here}.*{there}"):
        task.start()


def test_another_model_under_the_same_path_reuses_no_unit(night: Night, tmp_path: Path):
    night.run()
    first, vectors = night.current(), live_vectors(night)
    there = replace_model(night, tmp_path)
    night.run()
    now = night.current()
    assert (first.space_id != there, now.space_id) == (True, there)
    corpus = next(choice.sentence for choice in now.choices if choice.what == "corpus")
    assert (
        f"the encoder's space is {there}, that of release 1 is {first.space_id} (the settings are the "
        "same: a file of the encoder changed)"
    ) in corpus
    assert not {unit.path for unit in first.units} & {unit.path for unit in now.units}
    assert live_vectors(night).keys() == vectors.keys()
    assert not set(live_vectors(night).values()) & set(vectors.values())


def test_a_night_with_another_encoder_names_the_changed_settings(night: Night):
    night.run()
    before = load_previous(open_releases(night.job))
    other = night.job.encoder.model_copy(
        update={"pooling": "max", "max_length": 12, "query_prompt": "query: "}
    )
    reason = before.parent_corpus(night.job.model_copy(update={"encoder": other}), 1).rebuild_reason
    assert reason.endswith("(encoder.pooling, encoder.max_length changed)")


def test_a_record_moved_to_another_space_is_refused_naming_both_spaces(night: Night, tmp_path: Path):
    night.run()
    first = night.current()
    store = open_store(night.job.release.root)
    there = replace_model(night, tmp_path)
    unit = first.units[0]
    store.write(unit.record.replace(first.space_id[:16], there[:16]), store.read(unit.record))
    with pytest.raises(SpaceMismatch, match=f"{there}.*{first.space_id}"):
        night.run()


def test_a_release_with_a_replaced_encoder_refuses_queries(night: Night):
    from pipeline.index.search import open_release

    night.run()
    manifest, store = night.current(), open_store(night.job.release.root)
    config = f"{manifest.encoder.path}/config.json"
    changed = json.loads(store.read(config)) | {"layer_norm_eps": 1e-3}
    store.write(config, json.dumps(changed).encode())
    with pytest.raises(DataError, match="sha256"):
        open_release(night.job.release.root).search("a dog runs")


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
