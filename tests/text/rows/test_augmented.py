"""Augmented units are read through their manifest, or through the newest manifest of a folder."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.settings.training import SourceSettings
from pipeline.store.files.open_store import open_store
from pipeline.text.rows.augmented import manifest_units, newest_manifest
from pipeline.text.rows.training_rows import open_training_rows, stamps_of, training_files
from tests.text.rows.augmenting import write_manifest

FIRST, SECOND, OTHER = (
    {"text": [f"{name} {row}" for row in range(rows)], "variant_zh": ["v"] * rows}
    for name, rows in (("first", 25), ("second", 12), ("other", 4))
)


def texts(uri: str) -> list[str]:
    pairs = open_training_rows(SourceSettings(uri=uri), ["text"])
    return [text for table in pairs.read(pairs.spans()) for text in table["text"].to_pylist()]


@pytest.mark.parametrize("kind", ["path", "file", "link", "s3"])
def test_a_folder_is_read_by_its_newest_manifest_in_order(tmp_path: Path, s3: str, kind: str):
    store = open_store(f"{s3}/rows-{tmp_path.name}" if kind == "s3" else tmp_path)
    old = write_manifest(store, "main", [FIRST, SECOND])
    new = write_manifest(store, "main", [OTHER, FIRST])
    write_manifest(store, "more", [SECOND])
    store.write("augmented/main/lease-0123.json", b"{}")
    if kind == "link":
        (tmp_path / "latest").symlink_to(tmp_path / "augmented" / "main")
    folder_names = {
        "path": f"{tmp_path}/augmented/main/",
        "file": (tmp_path / "augmented" / "main").as_uri(),
        "link": f"{tmp_path}/latest",
    }
    folder = folder_names.get(kind, store.uri_of("augmented/main"))
    assert newest_manifest(folder) == new
    assert texts(folder) == texts(new) == OTHER["text"] + FIRST["text"]
    assert texts(old) == FIRST["text"] + SECOND["text"]
    assert [file.stamp for file in training_files(old)] != [file.stamp for file in training_files(new)]
    assert training_files(old)[0] == training_files(new)[1]


def test_rows_of_a_manifest_stay_as_they_are_if_a_newer_one_is_added(tmp_path: Path):
    store = open_store(tmp_path)
    write_manifest(store, "main", [FIRST, SECOND])
    rows = open_training_rows(SourceSettings(uri=f"{tmp_path}/augmented/main"), ["text"])
    write_manifest(store, "main", [OTHER])
    rows.check_unchanged()
    assert stamps_of([f"{tmp_path}/augmented/main"]) == {}


def test_a_folder_without_manifests_of_augmented_units_is_read_as_parquet_files(tmp_path: Path):
    for folder in (tmp_path / "augmented" / "main", tmp_path / "plain"):
        folder.mkdir(parents=True)
        if folder.name == "plain":
            (folder / "00000001.json").write_text("{}")
        pq.write_table(pa.table(FIRST), folder / "x.parquet")
        assert newest_manifest(str(folder)) is None
        assert [file.name for file in training_files(str(folder))] == ["x.parquet"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("gone", "no such file"),
        ("short", r"a unit of [\d,]+ bytes, as augmented/main/00000001.json says, found [\d,]+ bytes"),
        ("other", r"sha256 [0-9a-f]{16}"),
    ],
)
def test_unit_that_differs_from_its_manifest_is_refused(tmp_path: Path, damage: str, message: str):
    uri = write_manifest(open_store(tmp_path), "main", [FIRST, SECOND])
    unit = Path(manifest_units(uri)[1].uri)
    content = unit.read_bytes()
    unit.unlink()
    if damage != "gone":
        unit.write_bytes(content[:-1] if damage == "short" else content[:-1] + b"x")
    with pytest.raises(DataError, match=message):
        training_files(uri)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "a manifest of manta augment, found no such file"),
        (b'{"text": "a"}\n', "Augmented record"),
        (b"{", "Augmented record"),
    ],
)
def test_invalid_manifest_is_refused(tmp_path: Path, content: bytes | None, message: str):
    manifest = tmp_path / "augmented" / "main" / "00000001.json"
    if content is not None:
        manifest.parent.mkdir(parents=True)
        manifest.write_bytes(content)
    with pytest.raises(DataError, match=message):
        training_files(str(manifest))
