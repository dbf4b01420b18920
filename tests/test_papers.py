"""Claims of papers are well formed, their settings are accepted, verdicts follow the rule, and rows run."""

import json
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from jobs.command import named_configs
from pipeline.config import load_settings, validated
from pipeline.flows.train.plan import check_settings
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import CandidateSettings, EncoderSettings, Job
from tests.benchmarks.papers.__main__ import TABLES, chosen
from tests.benchmarks.papers.claim import Claim, Row, Table, Training, falling, first_is_above, trainings
from tests.benchmarks.papers.data import COUNTS, SOURCES, Sources, token_counts
from tests.benchmarks.papers.learning_cases import CASES
from tests.benchmarks.papers.measure import Column
from tests.benchmarks.papers.movement import print_movement
from tests.benchmarks.papers.rated_pairs import read_pairs
from tests.benchmarks.papers.runner import Runner, arguments, training_settings
from tests.benchmarks.papers.tables import print_results
from tests.benchmarks.papers.verdict import Comparison
from tests.flows.conftest import sentences
from tests.flows.evaluate.evaluating import oracle, write_pairs
from tests.models.folders import save_folder
from tests.report.test_geometry import FULL

every_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.key)
TRAININGS = {
    f"{table.key} {row.name} {number}": training
    for table in TABLES
    for row in table.rows
    for number, training in enumerate(trainings(row.training))
}
MADE = ("counts", "nli-texts.parquet")  # files whose paths the runner puts in
values = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=4)
intervals = st.lists(
    st.tuples(st.integers(-3, 3), st.integers(0, 3)).map(lambda pair: (float(pair[0]), float(sum(pair)))),
    max_size=3,
)


@every_table
def test_claims_name_rows_and_columns_of_their_table(table: Table):
    names = [row.name for row in table.rows]
    assert len(set(names)) == len(names)
    for claim in table.claims:
        assert {claim.above, claim.below} <= set(names)
        assert claim.above != claim.below
        assert claim.column in table.columns
    assert table.claims
    assert all(len(row.published) <= len(table.columns) for row in table.rows)


@every_table
def test_published_numbers_agree_with_the_claims(table: Table):
    for claim in table.claims:
        column = table.columns.index(claim.column)
        published = [table.row(name).published[column:][:1] for name in (claim.above, claim.below)]
        if all(published) and None not in (*published[0], *published[1]):
            assert published[0] > published[1], claim


def test_tables_have_distinct_names():
    assert len({table.key for table in TABLES}) == len(TABLES)


@pytest.mark.parametrize("name", TRAININGS)
def test_the_product_accepts_the_settings_of_a_training(name: str):
    training = TRAININGS[name]
    start = None if training.start == "new" and training.after is None else "start"
    settings = {"train.data": {"uri": "rows.parquet"}} | training_settings(training, start, steps=7, seed=3)
    job = load_settings(Job, named_configs()[f"train/{training.config}"], arguments(settings))
    check_settings(job.train)
    assert training.data in SOURCES
    assert (job.train.seed, job.train.order.seed) == (3, 3)
    assert job.train.max_steps == (training.max_steps or round(7 * training.steps))
    assert training.rate is None or job.train.optimizer.learning_rate == training.rate
    assert (job.train.new_encoder is None) == (training.start != "new")


@pytest.mark.parametrize("name", CASES)
def test_the_product_accepts_the_settings_of_a_case_of_learning(name: str):
    case = CASES[name]
    settings = training_settings(case, None, steps=1, seed=0)
    job = load_settings(Job, named_configs()[f"train/{case.config}"], arguments(settings))
    check_settings(job.train)
    assert case.data in SOURCES
    assert job.train.new_encoder is not None
    assert job.train.max_steps == case.max_steps


def test_every_config_of_a_new_encoder_has_a_case_of_learning():
    configs = {
        name: load_settings(Job, file, ()) for name, file in named_configs().items() if "train/" in name
    }
    new = {name.removeprefix("train/") for name, job in configs.items() if job.train.new_encoder is not None}
    assert new == {case.config for case in CASES.values()}


@every_table
def test_the_product_accepts_the_candidates_and_the_columns(table: Table):
    for row, column in product(table.rows, table.columns):
        encoder = {"path": "start", **row.encoder}
        validated(CandidateSettings, {"encoder": encoder, "fit": row.fit}, table.key)
        measured = Column.of(column)
        assert bool(measured.tasks) != bool(measured.metric)
        assert measured.aggregation in ("all", "wmean")
        assert row.layer is None or measured.metric is not None


def test_names_choose_the_tables_that_begin_with_them_in_their_order():
    assert [table.key for table in chosen(["simcse-d", "layers"])] == ["simcse-dropout", "layers"]
    every = chosen([""])
    assert sorted(table.key for table in every) == sorted(table.key for table in TABLES)
    assert [table.cost for table in every] == sorted(table.cost for table in TABLES)
    assert chosen(["layers", ""])[0].key == "layers"
    assert chosen(["no such table"]) == []


@given(values, values, intervals)
def test_a_verdict_is_that_of_a_plain_reading_of_the_rule(
    above: list[float], below: list[float], found: list[tuple[float, float]]
):
    separate = len(above) > 1 and len(below) > 1 and (min(above) < max(above) or min(below) < max(below))
    shown = (separate and all(a > b for a in above for b in below)) or (
        found != [] and min(low for low, _ in found) > 0
    )
    opposite = (separate and all(a < b for a in above for b in below)) or (
        found != [] and max(high for _, high in found) < 0
    )
    expected = "shown" if shown else "opposite" if opposite else "not shown"
    assert Comparison(above, below, found).verdict == expected


@given(values, values)
def test_the_mirrored_claim_has_the_opposite_verdict(above: list[float], below: list[float]):
    mirrored = {"shown": "opposite", "opposite": "shown", "not shown": "not shown"}
    assert Comparison(below, above).verdict == mirrored[Comparison(above, below).verdict]


def test_one_seed_without_a_bootstrap_shows_nothing():
    assert Comparison([80.0], [40.0]).verdict == "not shown"
    assert Comparison([80.0], [40.0], [(38.0, 42.0)]).verdict == "shown"
    assert Comparison([80.0, 80.0], [79.0, 79.0], [(-1.0, 3.0)] * 2).verdict == "not shown"  # no training
    assert Comparison((), (40.0,)).verdict == "not run"


def test_orders_become_pairs():
    assert [(each.above, each.below) for each in falling("c", "1", "2", "3")] == [("1", "2"), ("2", "3")]
    assert [(each.above, each.below) for each in first_is_above("c", "1", "2", "3")] == [
        ("1", "2"),
        ("1", "3"),
    ]


def test_a_training_comes_after_the_one_that_it_starts_from():
    first = Training("sbert-nli", "nli")
    second = Training("sbert-sts", "STS-B train", after=first)
    assert list(trainings(second)) == [first, second]
    assert Row("untrained").start == "english"
    assert Row("trained", training=second).start == "english"


def test_values_are_read_from_the_answer_of_an_evaluation():
    scores = {"a": {"CR": 70, "TREC": 60, "MRPC": 80}, "b": {"CR": 1, "TREC": 2, "MRPC": 3}}
    facts = {
        "results": [
            {"candidate": candidate, "task": task, "value": value}
            for candidate, of_tasks in scores.items()
            for task, value in of_tasks.items()
        ],
        "differences": [
            {"task": "CR", "candidate": name, "low": low, "high": 9.0}
            for name, low in zip("bc", (1.0, 2.0), strict=True)
        ],
        "average_differences": [{"candidate": "b", "low": -1.0, "high": 3.0}],
    }
    assert Column.of("transfer").value(facts, "a", None) == 70
    assert Column.of("transfer").value(facts, "b", None) == 2
    assert Column.of("transfer").interval(facts, "b") == (-1.0, 3.0)
    assert Column.of("CR").value(facts, "b", None) == 1
    assert Column.of("CR").interval(facts, "c") == (2.0, 9.0)


def test_metrics_are_read_from_the_answer_as_it_is_written():
    facts = {"geometry": FULL.model_dump(mode="json")}
    for named, name in product(FULL.series, ("alignment", "uniformity", "anisotropy", "edit correlation")):
        column = Column.of(name)
        assert column.value(facts, named.name, None) == named.space.metrics[str(column.metric)].value
    (depths,) = FULL.depths
    for level in depths.levels:
        expected = level.metrics["word_cosine"].value
        assert Column.of("word cosine").value(facts, "a layer", level.number) == expected


DEV = "STSB-dev"
AVERAGE = {"pooling": "table", "normalize": False}
SIMCSE = {"name": "simcse", "options": {"head": "none"}}
SMALL = Table(
    "small",
    "authors",
    "source",
    (DEV, "anisotropy"),
    (
        Row("all tokens", encoder=AVERAGE),
        Row("fewer", encoder={**AVERAGE, "exclude": ["frequent"], "frequent": 2, "frequencies": COUNTS}),
        Row(
            "trained",
            training=Training("simcse-unsupervised", "wikipedia", {"train.objective": SIMCSE}, rows=8),
        ),
    ),
    (Claim("all tokens", "fewer", DEV), Claim("trained", "all tokens", "anisotropy")),
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Sources:
    """Small sets of the names that the program reads, with a random start."""
    top = tmp_path_factory.mktemp("papers")
    for name in ("STS12", "STS13", "STS15", "STSB-train", DEV):
        write_pairs(top / "data" / "sts" / f"{name}.parquet", 40)
    (top / "data" / "wiki").mkdir()
    pq.write_table(pa.table({"text": sentences(60)}), top / "data" / "wiki" / "sentences.parquet")
    (top / "made").mkdir()
    return Sources(top / "data", None, top / "made", str(save_folder(top / "start", "bert")))


@pytest.mark.usefixtures("cluster")
def test_rows_run_to_the_end_and_are_measured_as_the_encoders_that_they_name(
    sources: Sources, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    space = open_folder(EncoderSettings(path=sources.start)).space_id
    starts, identities = {"english": sources.start}, {"english": space}
    runner = Runner(
        tmp_path, starts, identities, sources, 2, [0], {"train.precision": "bfloat16"}, 0.5, float("inf")
    )
    runner.run(SMALL)
    assert runner.skipped == {}
    product_path = runner.product(SMALL.row("trained").training, 0)
    settings = json.loads((Path(product_path).parent / "run.json").read_text())["definition"]["train"]
    assert (settings["precision"], settings["optimizer"]["learning_rate"]) == ("bfloat16", 5e-5)
    counts = {"exclude": ("frequent",), "frequent": 2, "frequencies": token_counts(sources)}
    encoders = {
        "all tokens": EncoderSettings(path=sources.start, **AVERAGE),
        "fewer": EncoderSettings(path=sources.start, **AVERAGE, **counts),
        "trained": EncoderSettings(path=product_path),
    }
    for name, encoder in encoders.items():
        expected = oracle(sources.data / "sts" / f"{DEV}.parquet", encoder)
        assert runner.value(SMALL.row(name), DEV, 0) == pytest.approx(expected, abs=1e-3), name
    assert len({runner.value(row, DEV, 0) for row in SMALL.rows}) == 3
    assert len(print_results(runner, SMALL, {})) == 2
    print_movement(runner, SMALL)
    *_, line = capsys.readouterr().out.strip().splitlines()
    name, _, before, after, cosine = (cell.strip() for cell in line.strip("|").split("|"))
    start = EncoderSettings(path=sources.start, pooling="cls")
    file = sources.data / "sts" / f"{DEV}.parquet"
    assert name == "trained"
    assert float(before) == pytest.approx(oracle(file, start), abs=0.01)
    assert float(after) == pytest.approx(oracle(file, encoders["trained"]), abs=0.01)
    texts = read_pairs(file).texts
    old, new = (load_encoder(each).encode(texts) for each in (start, encoders["trained"]))
    assert float(cosine) == pytest.approx(1 - cdist(old, new, "cosine").diagonal().mean(), abs=6e-4)


def test_pairs_are_scored_as_by_scipy(tmp_path: Path):
    pairs = read_pairs(write_pairs(tmp_path / "pairs.parquet", 40))
    x = np.random.default_rng(0).normal(size=(80, 8))
    chosen = np.arange(40) % 3 > 0
    for rows in (None, chosen):
        left, right, scores = (
            each if rows is None else each[rows] for each in (x[:40], x[40:], pairs.scores)
        )
        expected = spearmanr(1 - cdist(left, right, "cosine").diagonal(), scores).statistic
        assert pairs.score(x, rows) == pytest.approx(100 * expected)
    assert pairs.texts == [*pairs.left, *pairs.right]
