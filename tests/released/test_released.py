"""Names, records and identities stay those of the first version, and its root is read and extended."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.config import digest_of
from pipeline.device import Device
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.index.search.search import open_release
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.models.layers.linear import is_onednn
from pipeline.models.layers.numerics import Arithmetic
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.releases.manifest import ReleaseManifest
from pipeline.store.releases.release import Releases
from tests.models.folders import save_folder
from tests.released.small import run_night, set_corpus, unpack

RELEASES = (1, 2)
# Files with times, and temporary files of a night.
NEW_EACH_TIME = ("index.html", "commits", "releases", "candidates", "indexes/work")
SPACES = {
    (): "895ee16e859d8b1e635e61bb5789396438dc17283c6157c0537d1b40f5439d13",
    ("prompt", "query: "): "e7a9c0fa55b6b86c208d4aa5b137ddd8a5a4370fdd79da742dd7c64487353ae1",
    ("query_prompt", "query: "): "895ee16e859d8b1e635e61bb5789396438dc17283c6157c0537d1b40f5439d13",
    ("max_length", 32): "c6aefcb013b96472d6a9f3cf091ab7cc65053f02e2a081f4607fbc7840acd846",
    ("pooling", "cls"): "808eaa85ef7f5cb2f041dfe8b2679b150b39e37455c3cefa2a574cafecb016be",
    ("pooling", "max+mean"): "b8c478f38c30da2531f35d012969d8b5e9f4ea1b53afce852710c6b5bc0deca0",
    ("normalize", True): "4858335a65cdb70a5596870d33eac1a8c5609de04717c5dbf3c65d875a9f7930",
    (
        "template",
        'This sentence : "[X]" means [MASK] .',
    ): "72c7eb72c295029548f3745c161204f286c1f9e7e2c62d42aa9a3a3786b9c704",
    ("ensure_final_punctuation", True): "72c41d30a071d7ba2fe0223dd9a982c3dc2929571b965b795fa7b670e81e0947",
}
PACKED, PADDED = "PackedModel", "PaddedModel"


@pytest.fixture
def released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Unpack the archive into the working directory; return its root."""
    monkeypatch.chdir(unpack(tmp_path))
    return tmp_path / "root"


@pytest.fixture(scope="module")
def rerun(tmp_path_factory: pytest.TempPathFactory, child: LocalWorkers) -> Path:
    """Unpack the archive, and run the same two nights with the current code into the folder `again`."""
    folder = unpack(tmp_path_factory.mktemp("released"))
    with pytest.MonkeyPatch.context() as patch, connect(ClusterSettings(), Stages(), local=child):
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")  # with more threads, attention heads of 8 values give other bits
        for number in RELEASES:
            set_corpus(folder / f"corpus-{number}")
            assert run_night("again").release == number
    return folder


def names(root: Path) -> set[str]:
    """Return the names of the files that depend only on content and settings."""
    found = {file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file()}
    return {name for name in found if not name.startswith(NEW_EACH_TIME)}


def values(record: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a JSON value with its path."""
    if isinstance(record, dict):
        for key, value in record.items():
            yield from values(value, f"{path}.{key}")
    elif isinstance(record, list):
        for number, value in enumerate(record):
            yield from values(value, f"{path}[{number}]")
    else:
        yield path, record


def manifests(root: Path) -> list[ReleaseManifest]:
    return [Releases(open_store(root)).get(number) for number in RELEASES]


# Still understood in YAML and in the manifests of old releases, but written under another name.
REPLACED_SETTINGS = {".evaluate.geometry.centred"}  # evaluate.geometry.mev


def computes_alike(folder: Path) -> bool:
    """Return whether this machine computes the vectors of the archive bit for bit."""
    return manifests(folder / "root")[0].numerics.keys() == manifests(folder / "again")[0].numerics.keys()


def test_files_of_the_corpus_have_their_names_and_bytes(rerun: Path):
    kept = ("units/corpus", "keys", "encoders")
    wanted = {name for name in names(rerun / "root") if name.startswith(kept)}
    assert {folder for folder in kept if any(name.startswith(folder) for name in wanted)} == set(kept)
    assert {name for name in names(rerun / "again") if name.startswith(kept)} == wanted
    for name in wanted:
        assert (rerun / "again" / name).read_bytes() == (rerun / "root" / name).read_bytes(), name


def test_vectors_moments_transforms_and_indexes_have_their_names_and_bytes(rerun: Path):
    if not computes_alike(rerun):
        pytest.skip("another processor or torch than the archive's, so other bits in the vectors")
    assert names(rerun / "again") == names(rerun / "root")
    for name in names(rerun / "root"):
        if not name.endswith(".json"):
            assert (rerun / "again" / name).read_bytes() == (rerun / "root" / name).read_bytes(), name


def test_records_keep_every_key_and_value(rerun: Path):
    """Later versions may add keys. A seal covers all keys, so it may differ."""
    if not computes_alike(rerun):
        pytest.skip("another processor or torch than the archive's, so other bits in the vectors")
    for name in names(rerun / "root"):
        if name.endswith(".json"):
            old, new = (
                dict(values(json.loads((rerun / root / name).read_bytes()))) for root in ("root", "again")
            )
            assert {path: new.get(path) for path in old if path != ".seal"} == {
                path: value for path, value in old.items() if path != ".seal"
            }, name


def test_manifests_keep_every_key_and_value(rerun: Path):
    same = ["space_id", "rows", "parent", "next_ordinal", "corpus", "ids", "dead"]
    of_bits = (
        set() if computes_alike(rerun) else {"fingerprint"}
    )  # like transform_id, it hashes vectors' bits
    if not of_bits:
        same.append("transform_id")
    for old, new in zip(manifests(rerun / "root"), manifests(rerun / "again"), strict=True):
        assert {path for path, _ in values(old.settings)} - REPLACED_SETTINGS <= {
            path for path, _ in values(new.settings)
        }
        assert {name: getattr(new, name) for name in same} == {name: getattr(old, name) for name in same}
        indexes = [
            (
                each.kind,
                each.factory,
                each.parts,
                {k: each.settings[k] for k in each.settings.keys() - of_bits},
            )
            for each in (old.index, new.index)
        ]
        assert indexes[0] == indexes[1]
        assert old.counts.items() <= new.counts.items()
        measured = {name: gate.value for name, gate in new.gates.items() if name in old.gates}
        expected = {name: gate.value for name, gate in old.gates.items()}
        # a cosine of vectors with other last bits may differ in its own
        assert measured == (expected if not of_bits else pytest.approx(expected, abs=1e-6))
        assert [(choice.what, choice.chosen) for choice in new.choices] == [
            (choice.what, choice.chosen) for choice in old.choices
        ]


def test_an_old_root_is_read(released: Path):
    rows = [row for file in sorted(Path("corpus-2").iterdir()) for row in pq.read_table(file).to_pylist()]
    found = open_release(released)
    assert (found.number, len(found)) == (2, len(rows))
    answers = found.search([row["text"] for row in rows], k=1)
    assert answers["id"].to_pylist() == [row["id"] for row in rows]
    assert np.allclose(answers["score"], 1, atol=1e-5)
    assert len(open_release(released, 1)) == 120


@pytest.mark.usefixtures("cluster", "unit_form")
def test_an_old_root_is_extended_and_rolled_back(released: Path):
    set_corpus(Path("corpus-2"))
    assert run_night("root").status == "unchanged"
    table = pq.read_table("corpus/part-0.parquet")
    pq.write_table(table.slice(1), "corpus/part-0.parquet")
    outcome = run_night("root")
    assert (outcome.status, outcome.release, outcome.rows, outcome.facts["counts"]["encoded"]) == (
        "published",
        3,
        117,
        0,
    )
    assert [choice["chosen"] for choice in outcome.facts["decisions"][:2]] == ["kept", "kept, used"]

    releases = Releases(open_store(released))
    releases.rollback(1)
    assert releases.current().release == 1
    first = table["text"][0].as_py()
    assert open_release(released).search(first, k=1)["id"].to_pylist() == [table["id"][0].as_py()]


@pytest.mark.parametrize(("setting", "space"), SPACES.items(), ids=lambda value: str(value)[:24])
def test_space_ids_do_not_change(setting: tuple[str, Any], space: str, released: Path):
    assert (
        open_folder(EncoderSettings(path="encoder", **dict([setting] if setting else []))).space_id == space
    )


@pytest.mark.parametrize(
    ("family", "forward"),
    [("bert", PACKED), ("roberta", PACKED), ("distilbert", PACKED), ("mpnet", PACKED), ("electra", PADDED)],
)
def test_numerics_ids_do_not_change(family: str, forward: str, tmp_path: Path):
    """The expected values are spelled out: if a class is renamed, last night's vectors must stay usable."""
    encoder = load_encoder(
        EncoderSettings(path=str(save_folder(tmp_path, family))), EncodeSettings(max_tokens=512), "cpu"
    )
    device = Device("cpu")
    assert encoder.numerics_id == digest_of(
        {
            "version": "packed-1",
            "model": forward,
            "dtype": "float32",
            "max_tokens": 512,
            "fused": False,
            "torch": torch.__version__,
            "device": "cpu",
            "instructions": device.instruction_set(),
            "onednn": is_onednn(torch.device("cpu"), torch.float32),
        }
    )


@pytest.mark.parametrize(
    ("dtype", "version"), [("bfloat16", "packed-3"), ("float16", "packed-1"), ("int8", "packed-1")]
)
def test_numerics_ids_of_lower_precision_do_not_change(dtype: str, version: str):
    """Vectors in bfloat16 with sums in bfloat16 (packed-1), or torch's attention (packed-2), have others."""
    device = Device("cpu")
    weights = {"int8": torch.float32}.get(dtype, getattr(torch, dtype))
    assert Arithmetic(device, dtype, 512, fused=False).numerics_id(PACKED) == digest_of(
        {
            "version": version,
            "model": PACKED,
            "dtype": dtype,
            "max_tokens": 512,
            "fused": False,
            "torch": torch.__version__,
            "device": "cpu",
            "instructions": device.instruction_set(),
            "onednn": is_onednn(torch.device("cpu"), weights),
        }
    )
