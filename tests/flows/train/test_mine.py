"""Hard negatives of training pairs, against a brute-force search over all of them."""

from collections import deque
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError
from pipeline.flows.run import Run
from pipeline.flows.train import equal_texts
from pipeline.flows.train.equal_texts import KNOWN_SCHEMA, find_equal_texts, remove_equal_texts
from pipeline.flows.train.mine import _units, mine
from pipeline.flows.workers.cluster import connect
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import Job
from pipeline.settings.training import PairSettings
from pipeline.store.dead import Dead
from pipeline.store.store import open_store
from pipeline.text.corpus.partitions import read_from_all
from pipeline.text.rows.training_rows import open_training_rows
from tests.flows.conftest import sentences

PAIRS = 180
ROUNDING = 1e-6  # of a cosine
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    return write_questions(tmp_path_factory.mktemp("pairs"))


def write_questions(folder: Path) -> tuple[Path, list[tuple[str, str]]]:
    """Write two files of pairs: anchors in several pairs, positives in several pairs, positives that are
    anchors too, and white space around texts.
    """
    texts, random = sentences(150), np.random.default_rng(0)
    rows = [(texts[left], texts[right]) for left, right in random.integers(0, len(texts), (PAIRS, 2))]
    rows[7] = (rows[3][0], f"  {rows[3][1]} ")
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(PAIRS), 2)):
        table = pa.table(
            {"question": [rows[row][0] for row in part], "positive": [rows[row][1] for row in part]}
        )
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=40)
    return folder, rows


def job_of(encoder: Path, *overrides: str) -> Job:
    fixed = (
        f"encoder.path={encoder}",
        "encode.unit_rows=50",
        "index.queries=40",
        "train.objective=supervised",
        "train.mine.neighbours=60",
        "train.mine.margin=-0.005",
    )
    return load_settings(Job, None, (*fixed, *overrides))


def source_of(folder: Path) -> PairSettings:
    return PairSettings(uri=str(folder), columns={"anchor": "question"}, weight=3)


def mined(job: Job, folder: Path, root: Path) -> tuple[PairSettings, list[tuple[str, str, str]]]:
    """Mine negatives; return the new source and the rows of its files."""
    with connect(job.cluster, Stages()) as cluster:
        (found,) = mine(Run(job, open_store(root), cluster, Stages()), (source_of(folder),))
    return found, rows_of(found)


def rows_of(found: PairSettings) -> list[tuple[str, str, str]]:
    table = pa.concat_tables([pq.read_table(file) for file in sorted(Path(found.uri).glob("*.parquet"))])
    return list(zip(*(table[name].to_pylist() for name in ("anchor", "positive", "negative")), strict=True))


def expected(
    job: Job, rows: list[tuple[str, str]]
) -> list[tuple[tuple[str, str], dict[str, float], list[list[str]]]]:
    """Rank all distinct positives for every pair by brute force.

    Returns each pair with the cosines of its anchor to all candidates, and the negatives that the rules leave
    when the bound is lowered and when it is raised by `ROUNDING`: a candidate whose cosine lies at the bound
    may be taken or not.
    """
    settings, encoder = job.train.mine, load_encoder(job.encoder, job.encode)
    rows = [(anchor.strip(), positive.strip()) for anchor, positive in rows]
    candidates = list(dict.fromkeys(positive for _, positive in rows))
    texts = sorted({text for row in rows for text in row})
    vectors = {
        text: vector / np.linalg.norm(vector)
        for text, vector in zip(texts, encoder.encode(texts), strict=True)
    }
    matrix = np.stack([vectors[text] for text in candidates])
    found = []
    for anchor, positive in rows:
        cosines = matrix @ vectors[anchor]
        right = {anchor, *(other for same, other in rows if same == anchor)}
        ranked = [place for place in np.argsort(-cosines, kind="stable") if candidates[place] not in right][
            settings.skip : settings.neighbours
        ]
        bound = cosines[candidates.index(positive)] - settings.margin if settings.margin is not None else 1.0
        bound = min(bound, settings.most or 1.0)
        allowed = [
            [candidates[place] for place in ranked if cosines[place] <= limit][: settings.negatives]
            for limit in (bound - ROUNDING, bound + ROUNDING)
        ]
        found.append(((anchor, positive), dict(zip(candidates, cosines.tolist(), strict=True)), allowed))
    return found


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("train.mine.negatives=3", "train.mine.skip=2", "encode.unit_rows=64"),
        ("train.mine.margin=null", "train.mine.most=0.9893", "index.kind=ivf_flat", "index.nprobe=500"),
    ],
)
def test_negatives_are_those_of_a_brute_force_search(overrides, pairs, encoder: Path, tmp_path: Path):
    folder, rows = pairs
    job = job_of(encoder, *overrides)
    found, got = mined(job, folder, tmp_path)
    assert found.weight == 3
    assert len(got) > 20
    left = deque(got)
    for pair, cosines, allowed in expected(job, rows):
        negatives = [left.popleft()[2] for _ in range(max(map(len, allowed))) if left and left[0][:2] == pair]
        reached = np.array([cosines[text] for text in negatives])  # texts of one cosine may change places
        assert any(
            len(wanted) == len(negatives)
            and np.allclose(reached, [cosines[text] for text in wanted], rtol=0, atol=ROUNDING)
            for wanted in allowed
        ), pair
    assert not left


def test_random_negatives_depend_on_the_seed_only(pairs, encoder: Path, tmp_path: Path):
    folder, _ = pairs
    options = ("train.mine.pick=random", "train.mine.margin=null")
    first = mined(job_of(encoder, *options), folder, tmp_path / "one")[1]
    assert (
        mined(job_of(encoder, *options, "encode.unit_rows=64", "index.shards=2"), folder, tmp_path / "two")[1]
        == first
    )
    assert mined(job_of(encoder, *options, "train.seed=1"), folder, tmp_path / "one")[1] != first


def test_repeated_and_interrupted_runs_reuse_stored_negatives(pairs, encoder: Path, tmp_path: Path):
    folder, _ = pairs
    job = job_of(encoder)
    found, got = mined(job, folder, tmp_path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    again, _ = mined(job, folder, tmp_path)
    assert again == found
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()} == before

    place, lost = Path(found.uri).parent, Path(found.uri) / "part-00002.parquet"
    bytes_before = lost.read_bytes()
    lost.unlink()
    (place / "part-00001.json").unlink()
    (place / "mined.json").unlink()
    assert mined(job, folder, tmp_path)[1] == got
    assert lost.read_bytes() == bytes_before
    made = {
        file
        for file in (tmp_path / "pairs").rglob("*/*")
        if file.is_file() and file.stat().st_mtime_ns != before.get(file)
    }
    assert {file.name for file in made} == {
        "part-00001.json",
        "part-00001.parquet",
        "part-00002.parquet",
        "mined.json",
    }


def test_the_result_does_not_depend_on_the_parts_of_the_keys(
    pairs, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, rows = pairs
    store, opened = open_store(tmp_path), open_training_rows(source_of(folder), ("anchor", "positive"))
    units = [
        (anchors, positives.model_copy(update={"ordinal": number}))
        for number, (anchors, positives) in enumerate(_units(opened, 50, store))
    ]
    found = []
    for lines in (1 << 22, 50):
        monkeypatch.setattr(equal_texts, "_PAIRS_IN_MEMORY", lines)
        with connect(job_of(encoder).cluster, Stages()) as cluster:
            equal = find_equal_texts(Run(job_of(encoder), store, cluster, Stages()), units, "equal")
        assert len(equal.known) == (1 if lines > PAIRS else 4)
        of_units = []
        for number, (anchors, _) in enumerate(units):
            known = read_from_all(store, equal.known, KNOWN_SCHEMA, number, number + 1).to_pydict()
            of_units.append(sorted(zip(known["anchor"], known["address"], strict=True)))
            keys = pq.read_table(tmp_path / anchors.path, columns=["text_key"])["text_key"].to_pylist()
            assert {anchor for anchor, _ in of_units[-1]} == set(keys), "each anchor has its own positive"
        found.append((equal.repeats, of_units, len({pair for each in of_units for pair in each})))
        assert all(len(set(each)) == len(each) for each in of_units)
    assert found[0] == found[1]
    remove_equal_texts(store, "equal")
    assert not list((tmp_path / "equal").glob("*"))
    stripped = [(anchor, positive.strip()) for anchor, positive in rows]
    firsts = list(dict.fromkeys(positive for _, positive in stripped))
    assert len(Dead.load(store, found[0][0])) == PAIRS - len(firsts)
    assert found[0][2] == len({*stripped, *((anchor, anchor) for anchor, _ in rows if anchor in firsts)})


def test_an_empty_result_is_an_error_with_advice(pairs, encoder: Path, tmp_path: Path):
    folder, _ = pairs
    with pytest.raises(DataError, match=rf"none of {PAIRS}.*lower train\.mine\.margin"):
        mined(job_of(encoder, "train.mine.margin=2"), folder, tmp_path)
    with pytest.raises(ConfigError, match=r"new weights \(train\.fresh\)"):
        mined(job_of(encoder, "train.fresh=true"), folder, tmp_path)
    with pytest.raises(
        ConfigError, match="an objective that reads anchor, positive and negative, found simcse: text"
    ):
        mined(job_of(encoder, "train.objective=simcse"), folder, tmp_path)
