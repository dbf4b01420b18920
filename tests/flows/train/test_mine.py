"""Hard negatives of training pairs, against a brute-force search over all of them."""

from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError
from pipeline.flows.context import FlowContext
from pipeline.flows.train import equal_texts
from pipeline.flows.train.equal_texts import KNOWN_SCHEMA, find_equal_texts, remove_equal_texts
from pipeline.flows.train.mine import _units, check_mining, mine
from pipeline.flows.workers.cluster import connect
from pipeline.log import Stages
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import Job
from pipeline.settings.training import SourceSettings
from pipeline.store.files.open_store import open_store
from pipeline.store.records.dead import Dead
from pipeline.text.key_tables.partitions import read_from_all
from pipeline.text.rows.training_rows import open_training_rows
from tests.flows.conftest import sentences

PAIRS = 180
ROUNDING = 1e-6  # of a cosine
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    """Write the pairs of `write_questions`."""
    return write_questions(tmp_path_factory.mktemp("pairs"))


def write_questions(folder: Path) -> tuple[Path, list[tuple[str, str]]]:
    """Write two files of pairs; return their folder and the pairs.

    Some anchors and some positives are in several pairs, some texts are both an anchor and a positive, and a
    text has white space around it.
    """
    texts, random = sentences(150), np.random.default_rng(0)
    rows = [(texts[left], texts[right]) for left, right in random.integers(0, len(texts), (PAIRS, 2))]
    rows[7] = (rows[3][0], f"  {rows[3][1]} ")
    folder.mkdir(parents=True, exist_ok=True)
    for number, part in enumerate((rows[: PAIRS // 2], rows[PAIRS // 2 :])):
        questions, positives = zip(*part, strict=True)
        table = pa.table({"question": questions, "positive": positives})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=40)
    return folder, rows


def job_of(encoder: Path, *overrides: str) -> Job:
    """Return a job that mines in units of 50 rows."""
    fixed = (
        f"encoder.path={encoder}",
        "encode.unit_rows=50",
        "index.queries=40",
        "train.objective=supervised",
        "train.mine.neighbours=60",
        "train.mine.margin=-0.005",
    )
    return load_settings(Job, None, (*fixed, *overrides))


def source_of(folder: Path) -> SourceSettings:
    return SourceSettings(uri=str(folder), columns={"anchor": "question"}, weight=3)


def mined(job: Job, folder: Path, root: Path) -> tuple[SourceSettings, list[tuple[str, str, str]]]:
    """Mine negatives; return the new source and the rows of its files."""
    with connect(job.cluster, Stages()) as cluster:
        (found,) = mine(FlowContext(job, open_store(root), cluster, Stages()), (source_of(folder),))
    return found, rows_of(found)


def rows_of(found: SourceSettings) -> list[tuple[str, str, str]]:
    table = pa.concat_tables([pq.read_table(file) for file in sorted(Path(found.uri).glob("*.parquet"))])
    return list(zip(*(table[name].to_pylist() for name in ("anchor", "positive", "negative")), strict=True))


class Expected(NamedTuple):
    """Negatives of a pair by brute force.

    Attributes:
        pair: anchor and positive.
        cosines: cosine of the anchor with each candidate.
        allowed: negatives with the bound on cosines lowered by `ROUNDING`, and those with the bound raised by
            it, because rounding decides on a candidate whose cosine is at the bound.
    """

    pair: tuple[str, str]
    cosines: dict[str, float]
    allowed: list[list[str]]


def by_brute_force(job: Job, rows: list[tuple[str, str]]) -> list[Expected]:
    """Rank all distinct positives for every pair."""
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
        correct = {anchor, *(other for same, other in rows if same == anchor)}
        ranked = [index for index in np.argsort(-cosines, kind="stable") if candidates[index] not in correct]
        ranked = ranked[settings.skip : settings.neighbours]
        bound = cosines[candidates.index(positive)] - settings.margin if settings.margin is not None else 1.0
        bound = min(bound, settings.most or 1.0)
        allowed = [
            [candidates[index] for index in ranked if cosines[index] <= limit][: settings.negatives]
            for limit in (bound - ROUNDING, bound + ROUNDING)
        ]
        by_text = dict(zip(candidates, cosines.tolist(), strict=True))
        found.append(Expected((anchor, positive), by_text, allowed))
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
    source, found = mined(job, folder, tmp_path)
    assert source.weight == 3
    assert len(found) > 20
    remaining = deque(found)
    for pair, cosines, allowed in by_brute_force(job, rows):
        most = max(map(len, allowed))
        negatives = [remaining.popleft()[2] for _ in range(most) if remaining and remaining[0][:2] == pair]
        reached = np.array([cosines[text] for text in negatives])  # texts of equal cosines have any order
        assert any(
            len(expected) == len(negatives)
            and np.allclose(reached, [cosines[text] for text in expected], rtol=0, atol=ROUNDING)
            for expected in allowed
        ), pair
    assert not remaining


def test_random_negatives_depend_on_the_seed_only(pairs, encoder: Path, tmp_path: Path):
    folder, _ = pairs

    def random_negatives(root: str, *overrides: str) -> list[tuple[str, str, str]]:
        job = job_of(encoder, "train.mine.pick=random", "train.mine.margin=null", *overrides)
        return mined(job, folder, tmp_path / root)[1]

    first = random_negatives("one")
    assert random_negatives("two", "encode.unit_rows=64", "index.shards=2") == first
    assert random_negatives("one", "train.seed=1") != first


def modification_times(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


def test_repeated_and_interrupted_runs_reuse_stored_negatives(pairs, encoder: Path, tmp_path: Path):
    folder, _ = pairs
    job = job_of(encoder)
    source, found = mined(job, folder, tmp_path)
    before = modification_times(tmp_path)
    assert mined(job, folder, tmp_path)[0] == source
    assert modification_times(tmp_path) == before

    records, lost = Path(source.uri).parent, Path(source.uri) / "part-00002.parquet"
    bytes_before = lost.read_bytes()
    lost.unlink()
    (records / "part-00001.json").unlink()
    (records / "mined.json").unlink()
    assert mined(job, folder, tmp_path)[1] == found
    assert lost.read_bytes() == bytes_before
    after = modification_times(tmp_path / "pairs")
    assert {file.name for file, time in after.items() if time != before.get(file)} == {
        "part-00001.json",
        "part-00001.parquet",
        "part-00002.parquet",
        "mined.json",
    }


def test_equal_texts_do_not_depend_on_the_number_of_parts_that_find_them(
    pairs, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, rows = pairs
    store, opened = open_store(tmp_path), open_training_rows(source_of(folder), ("anchor", "positive"))
    units = [
        (anchors, positives.model_copy(update={"ordinal": number}))
        for number, (anchors, positives) in enumerate(_units(opened, 50, store))
    ]
    found = []
    for pairs_in_memory, parts in ((1 << 22, 1), (50, 4)):
        monkeypatch.setattr(equal_texts, "_PAIRS_IN_MEMORY", pairs_in_memory)
        with connect(job_of(encoder).cluster, Stages()) as cluster:
            equal = find_equal_texts(FlowContext(job_of(encoder), store, cluster, Stages()), units, "equal")
        assert len(equal.known) == parts
        of_units = []
        for number, (anchors, _) in enumerate(units):
            known = read_from_all(store, equal.known, KNOWN_SCHEMA, number, number + 1).to_pydict()
            of_units.append(sorted(zip(known["anchor"], known["address"], strict=True)))
            keys = pq.read_table(tmp_path / anchors.path, columns=["text_key"])["text_key"].to_pylist()
            assert {anchor for anchor, _ in of_units[-1]} == set(keys)  # each anchor has its own positive
        found.append((equal.repeats, of_units, len({pair for each in of_units for pair in each})))
        assert all(len(set(each)) == len(each) for each in of_units)
    assert found[0] == found[1]
    remove_equal_texts(store, "equal")
    assert not list((tmp_path / "equal").glob("*"))
    stripped = [(anchor, positive.strip()) for anchor, positive in rows]
    firsts = list(dict.fromkeys(positive for _, positive in stripped))
    repeats, _, distinct_pairs = found[0]
    assert len(Dead.load(store, repeats)) == PAIRS - len(firsts)
    assert distinct_pairs == len({*stripped, *((anchor, anchor) for anchor, _ in rows if anchor in firsts)})


def test_an_empty_result_is_an_error_with_advice(pairs, encoder: Path, tmp_path: Path):
    folder, _ = pairs
    with pytest.raises(DataError, match=rf"none of {PAIRS}.*lower train\.mine\.margin"):
        mined(job_of(encoder, "train.mine.margin=2"), folder, tmp_path)


def test_pairs_without_a_text_are_left_out_so_that_no_blank_becomes_a_negative(encoder: Path, tmp_path: Path):
    texts = sentences(40)
    table = pa.table({"question": [*texts[:19], None], "positive": [None, *texts[20:39]]})
    pq.write_table(table, tmp_path / "pairs.parquet")
    job = job_of(encoder, "train.mine.margin=-1", "train.mine.negatives=20", "index.queries=10")
    _, rows = mined(job, tmp_path / "pairs.parquet", tmp_path / "root")
    assert {pair[:2] for pair in rows} == {*zip(texts[1:19], texts[20:38], strict=True)}
    assert not any(text.isspace() for row in rows for text in row)


def test_settings_that_cannot_use_mined_negatives_are_refused(pairs, encoder: Path, tmp_path: Path):
    folder, _ = pairs
    with pytest.raises(ConfigError, match=r"new weights \(train\.fresh\)"):
        mined(job_of(encoder, "train.fresh=true"), folder, tmp_path)
    with pytest.raises(
        ConfigError, match="an objective that reads anchor, positive and negative, found simcse: text"
    ):
        mined(job_of(encoder, "train.objective=simcse"), folder, tmp_path)


@pytest.mark.parametrize("root", ["pairs", "pairs/models", "pairs/models/../mined"])
def test_mining_into_the_folder_of_its_pairs_is_refused_before_work(encoder: Path, tmp_path: Path, root: str):
    """Another run would read the mined rows as pairs."""
    data = tmp_path / "pairs"
    given = (f"train.root={tmp_path / root}", f"train.data={data}", "train.mine.enabled=true")
    with pytest.raises(ConfigError, match=r"train\.root: .*expected a folder that is not below train\.data"):
        check_mining(job_of(encoder, *given))
    check_mining(job_of(encoder, f"train.root={tmp_path / 'models'}", *given[1:]))
    check_mining(job_of(encoder, f"train.root={data / '_models'}", *given[1:]))
