"""A training is identified by its definition: equal settings continue it, and others are refused by name."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import digest_of
from pipeline.errors import ConfigError, DataError
from pipeline.flows.train.run_folder import (
    _NEWER,
    _NOT_DEFINING,
    RESULT,
    ResultRecord,
    RunFolder,
    RunRecord,
    _not_defining,
    open_run,
)
from pipeline.models.folder.folder import open_folder
from pipeline.settings import TrainSettings
from tests.flows.train.training import training_job, write_sentences


def run_of(folder: Path, encoder: Path, *overrides: str) -> RunFolder:
    job = training_job(folder, encoder, *overrides)
    return open_run(job.train, open_folder(job.encoder))


def record_of(run: RunFolder) -> RunRecord:
    return RunRecord(
        name=run.name,
        digest=run.digest,
        definition=run.definition,
        encoder="MiniLM",
        counts=({"rows": 96, "unlabelled": 0},),
        steps_per_epoch=12,
        steps=12,
    )


def test_settings_without_effect_on_a_step_keep_the_name(tmp_path: Path, encoder: Path):
    free = ("train.name=null", "train.objective=simcse")
    name = run_of(tmp_path, encoder, *free).name
    assert name.startswith("simcse-")
    for same in (
        "train.workers=2",
        "train.threads=3",
        "train.failures=0",
        "train.checkpoint.steps=9",
        "train.watch.steps=7",
        "cluster.cpus_per_worker=2",
    ):
        assert run_of(tmp_path, encoder, *free, same).name == name
    for other in (
        "train.seed=1",
        "train.epochs=2",
        "train.order.seed=1",
        "train.objective={name: simcse, options: {temperature: 0.1}}",
        "encoder.pooling=cls",
    ):
        assert run_of(tmp_path, encoder, *free, other).name != name


def test_a_length_for_training_texts_is_part_of_the_definition_if_it_is_set(tmp_path: Path, encoder: Path):
    unset, given = run_of(tmp_path, encoder), run_of(tmp_path, encoder, "train.max_length=12")
    assert "max_length" not in unset.definition["train"]  # as in trainings that are older than the setting
    unset.begin(record_of(unset))
    with pytest.raises(ConfigError, match=r"train.max_length is 12 and was None"):
        given.check()


@pytest.mark.parametrize(
    ("objective", "pooling", "corrections"),
    [
        ("simcse", "mean", None),
        ("pser", "mean", {"pser": "keep_special"}),
        ("[simcse, pser]", "mean", {"pser": "keep_special"}),
        ("pser", "cls", None),  # whose [CLS] token kept its position before the correction, too
        ("{name: pser, options: {keep_special: false}}", "mean", None),
        ("quickthoughts", "mean", {"quickthoughts": "batches span documents"}),
        ("[translation, simcse]", "mean", {"translation": "output biases"}),
        ("optiprompt", "mean", {"optiprompt": "template"}),
        ("{name: optiprompt, options: {template: 'a [X] [MASK]'}}", "mean", None),
    ],
)
def test_only_trainings_that_a_correction_changes_have_it_in_their_definition(
    tmp_path: Path, encoder: Path, objective: str, pooling: str, corrections: dict[str, str] | None
):
    run = run_of(tmp_path, encoder, f"train.objective={objective}", f"encoder.pooling={pooling}")
    assert run.definition.get("corrections") == corrections


def test_columns_of_hard_negatives_that_are_found_by_their_names_are_part_of_the_definition(
    tmp_path: Path, encoder: Path
):
    """Earlier versions left out negative_1: such a training is not continued with further candidates."""
    texts = {"anchor": ["a"], "positive": ["b"]}
    pq.write_table(pa.table({**texts, "negative": ["c"]}), tmp_path / "triples.parquet")
    pq.write_table(pa.table({**texts, "negative_1": ["c"], "negative_2": ["d"]}), tmp_path / "rows.parquet")
    found = {
        name: run_of(
            tmp_path, encoder, "train.objective=supervised", f"train.data={tmp_path / name}.parquet"
        ).definition["data"][0]
        for name in ("triples", "rows")
    }
    assert "negatives" not in found["triples"]
    assert found["rows"]["negatives"] == {"negative": "negative_1", "negative2": "negative_2"}


def test_the_name_depends_on_the_files_and_the_weights_of_sources(tmp_path: Path, encoder: Path):
    before = run_of(tmp_path, encoder, "train.name=null")
    write_sentences(tmp_path / "sentences.parquet", count=97)
    after = run_of(tmp_path, encoder, "train.name=null")
    assert before.name != after.name
    weighted = f"train.data={{uri: {tmp_path / 'sentences.parquet'}, weight: 2}}"
    assert run_of(tmp_path, encoder, "train.name=null", weighted).name != after.name


def test_the_name_does_not_depend_on_the_spelling_of_the_encoder_path(
    tmp_path: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(encoder.parent)
    names = {
        run_of(tmp_path, encoder, "train.name=null", f"encoder.path={path}").name
        for path in (encoder, f"./{encoder.name}", encoder.as_uri())
    }
    assert len(names) == 1


def test_an_explicit_name_with_other_settings_is_refused_and_the_settings_are_named(
    tmp_path: Path, encoder: Path
):
    run = run_of(tmp_path, encoder)
    run.begin(record_of(run))
    again = run_of(tmp_path, encoder, "train.workers=2", "train.checkpoint.keep=3")
    again.begin(record_of(again))
    other = run_of(tmp_path, encoder, "train.seed=5", "train.optimizer.learning_rate=0.5")
    with pytest.raises(
        ConfigError,
        match=(
            r"train.name run.*train.optimizer.learning_rate is 0.5 and was 0.001; train.seed is 5 and was "
            r"0; restore these settings"
        ),
    ):
        other.check()


def test_a_changed_file_is_another_training(tmp_path: Path, encoder: Path):
    run = run_of(tmp_path, encoder)
    run.begin(record_of(run))
    os.utime(tmp_path / "sentences.parquet", ns=(1, 1))
    changed = r"train.data\[0\]: sentences.parquet has changed; restore these settings .* and files"
    with pytest.raises(ConfigError, match=changed):
        run_of(tmp_path, encoder).check()
    (tmp_path / "sentences.parquet").rename(tmp_path / "other.parquet")
    other = f"train.data=[{{uri: {tmp_path / 'other.parquet'}}}]"
    with pytest.raises(
        ConfigError, match=r"\]: sentences.parquet is gone; train.data\[0\]: other.parquet is new"
    ):
        run_of(tmp_path, encoder, other).check()


def test_a_folder_with_other_content_is_not_modified(tmp_path: Path, encoder: Path):
    run = run_of(tmp_path, encoder)
    run.store.write("notes.txt", b"mine")
    with pytest.raises(ConfigError, match=r"notes.txt and no run.json; set train.name or train.root"):
        run.begin(record_of(run))


def test_a_file_in_place_of_the_folder_of_trainings_is_named(tmp_path: Path, encoder: Path):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ConfigError, match=r"file.*: expected a directory, found a file"):
        run_of(tmp_path, encoder, f"train.root={tmp_path / 'file'}").check()


def test_a_truncated_record_is_written_again(tmp_path: Path, encoder: Path):
    run = run_of(tmp_path, encoder)
    run.store.write("run.json", record_of(run).to_json()[:50])
    run.begin(record_of(run))
    assert RunRecord.load(run.store, "run.json") == record_of(run)


@pytest.mark.parametrize("name", ["../out", "a/b", "", ".hidden", "a b"])
def test_an_invalid_folder_name_is_refused(tmp_path: Path, encoder: Path, name: str):
    with pytest.raises(ConfigError, match=r"train.name: expected letters"):
        run_of(tmp_path, encoder, f"train.name='{name}'")


def test_missing_training_files_are_named(tmp_path: Path, encoder: Path):
    with pytest.raises(DataError, match=r"none.parquet"):
        run_of(tmp_path, encoder, f"train.data={tmp_path / 'none.parquet'}")


def test_a_stored_result_is_found(tmp_path: Path, encoder: Path):
    run = run_of(tmp_path, encoder)
    assert run.result() is None
    result = ResultRecord(
        name="run", digest=run.digest, space_id="abc", steps=12, best_step=8, metrics={"dev": 81.25}
    )
    run.store.create(RESULT, result.to_json())
    assert run.result() is None  # the encoder is missing
    run.store.write("encoder/config.json", b"{}")
    assert run.result() == result


def test_a_definition_has_every_setting_that_is_not_named_and_none_that_is_newer_at_its_default():
    """A new setting fails here: name it in _NEWER, so that trainings that began before keep their digest,
    or in _NOT_DEFINING if it does not change the result.
    """
    settings = TrainSettings()
    dumped = settings.model_dump(mode="json", exclude=_not_defining(settings))
    assert digest_of(dumped) == "43a2aa443dcee9e592ec8b2fc8afb448b380bfb7ee49248e8adbb6abdcbf09d5"
    assert not _NOT_DEFINING & dumped.keys()
    for name, value in {
        "dev": {"measure": "pearson"},
        "test": {"uri": "test.parquet"},
        "max_length": 12,
        "schedule": {"final": 0.1},
        "expand": {"words": "words.txt"},
        "convolutional": {"width": 8},
    }.items():
        changed = TrainSettings.model_validate({name: value})
        assert changed.model_dump(exclude=_not_defining(changed))[name]
    assert {name.partition(".")[0] for name in _NEWER} <= TrainSettings.model_fields.keys()
