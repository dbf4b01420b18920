"""A sample over units is the same from their stored samples as from the units themselves."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.errors import DataError
from pipeline.flows.encode.samples import sample_unit
from pipeline.flows.night.nightly import nightly
from pipeline.flows.rows import LiveRows
from pipeline.flows.workers.interface import Workers
from pipeline.index.build.sample import LEAST_SAMPLED_ROWS, SAMPLE_SIZES
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.store.files.open_store import open_store
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import UnitRecord
from pipeline.store.releases.release import Releases
from tests.flows.conftest import WORDS, write_corpus
from tests.flows.index.extending import SPACE, Chain

pytestmark = pytest.mark.usefixtures("cluster")


def write_words(file: Path) -> None:
    """Write vectors of the words of the corpus in the format of word2vec."""
    rng = np.random.default_rng(0)
    lines = (f"{word} {' '.join(f'{value:.4f}' for value in rng.normal(size=8))}" for word in WORDS)
    file.write_text("\n".join([f"{len(WORDS)} 8", *lines, ""]))


@pytest.fixture
def chain(cluster: Workers, tmp_path: Path) -> Chain:
    """Three large units, one of them without some rows, and a small one; with dead rows in two."""
    chain = Chain(tmp_path / "root", cluster).add(LEAST_SAMPLED_ROWS).add(5_000, dropped=range(0, 900, 7))
    return chain.add(300).add(6_000).kill(700, units=(1,)).kill(60, units=(2,))


def with_sample(chain: Chain, unit: VectorUnit) -> VectorUnit:
    file = pq.ParquetFile(unit.file.open(chain.store))
    sample = sample_unit(chain.store, file, f"{SPACE[:16]}/{unit.ordinal}")
    return unit.model_copy(update={"sample": sample})


def test_stored_samples_equal_samples_of_the_units(chain: Chain):
    source = LiveRows(chain.store, SPACE, "id", chain.dead_file())
    sampled = [with_sample(chain, unit) for unit in chain.units]
    assert [unit.sample is not None for unit in sampled] == [True, True, False, True]
    sizes = [("train", 2_000), ("train", 9_000), ("queries", 150), ("queries", 900), ("held out", 120)]
    for salt, count in [*sizes, ("another", 30)]:
        for dead in (False, True):
            expected = source.sample(chain.units, count, salt, dead=dead)
            found = source.sample(sampled, count, salt, dead=dead)
            for array, expected_array in zip(found, expected, strict=True):
                np.testing.assert_array_equal(array, expected_array)
    addresses, vectors = source.sample(sampled, 2_000, "train")
    for address, vector in zip(addresses.tolist(), vectors, strict=True):
        np.testing.assert_array_equal(vector, chain.vectors[address])


def test_units_are_not_read_for_a_sample_that_is_stored(chain: Chain):
    source = LiveRows(chain.store, SPACE, "id", chain.dead_file())
    sampled = [with_sample(chain, unit) for unit in chain.units if unit.ordinal != 2]
    for unit in sampled:
        chain.store.delete(unit.path)
    for salt, size in SAMPLE_SIZES.items():
        assert len(source.sample(sampled, 2 * size, salt)[0]) == 2 * size
    with pytest.raises(DataError, match="no such file"):
        source.sample(sampled, 4 * max(SAMPLE_SIZES.values()), "train")


def test_a_changed_sample_is_refused(chain: Chain):
    source, unit = LiveRows(chain.store, SPACE, "id"), with_sample(chain, chain.units[0])
    assert unit.sample is not None
    chain.store.write(unit.sample.path, b"changed")
    with pytest.raises(DataError, match="sha256"):
        source.sample([unit], 10, "queries")


def test_samples_are_made_once_for_units_of_earlier_versions(make_job: Callable[..., Job], tmp_path: Path):
    write_words(tmp_path / "words.vec")
    job = make_job(f"encoder.path={tmp_path / 'words.vec'}", "encode.unit_rows=8000", "whiten.mode=off")
    write_corpus(tmp_path / "corpus", LEAST_SAMPLED_ROWS)
    store = open_store(job.release.root)

    def published() -> FileRef:
        assert nightly(job, Stages()).status == "published"
        manifest = Releases(store).current()
        assert manifest is not None
        assert manifest.units[0].sample is not None
        return manifest.units[0].sample

    sample = published()
    [(path, record)] = (
        (entry.path, UnitRecord.from_json(store.read(entry.path), entry.path))
        for entry in store.list("units/vectors", ".json")
    )
    assert record.sample == sample
    content = sample.read(store)
    store.delete(sample.path)
    store.write(path, record.model_copy(update={"sample": None}).to_json())
    assert published() == sample
    assert sample.read(store) == content, "the sample is the same as that made with the vectors"
    for entry in store.list("units/samples", ".json"):
        store.delete(entry.path)
    write_corpus(tmp_path / "corpus", LEAST_SAMPLED_ROWS + 1)
    assert published() == sample
    assert not store.list("units/samples", ".json"), "the previous release names the sample"
