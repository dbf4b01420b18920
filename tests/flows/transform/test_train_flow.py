"""A flow is trained on all live rows that are not held out, in one order.

Its bytes do not depend on the worker, or on how often the training was killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.errors import ConfigError, DataError
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.single_stage import encode_corpus, fit_corpus_transform
from pipeline.flows.rows import LiveRows
from pipeline.flows.transform.train_flow import FlowTraining, RowOrder, TrainFlow, check_flow
from pipeline.flows.workers.interface import Workers
from pipeline.log import Stages
from pipeline.settings import FlowSettings, Job
from pipeline.stats.moments import Moments
from pipeline.store.rows.schema import vector_matrix
from pipeline.transforms.chain import steps_of
from pipeline.transforms.compare import DevPairs
from pipeline.transforms.flow import Flow
from pipeline.transforms.transform import load_transform, space_after
from pipeline.transforms.whitening import fit_whitening
from tests.flows.conftest import ROOT
from tests.flows.index.extending import SPACE, Chain

ROWS = (210, 190, 200)


def chain(folder: Path, rows: tuple[int, ...] = ROWS, dim: int = 24) -> Chain:
    """Units with these numbers of rows; ten rows are dead."""
    made = Chain(folder / "root", None, dim=dim)  # type: ignore[arg-type]  no index is built here
    for each in rows:
        made.add(each, dropped=[1])
    return made.kill(10)


def source(made: Chain) -> LiveRows:
    return LiveRows(made.store, SPACE, "id", made.dead_file())


def training(folder: Path, **settings: object) -> FlowTraining:
    """600 rows in three units, five epochs of 14 steps."""
    made = chain(folder)
    return FlowTraining(
        source(made), tuple(made.units), FlowSettings.model_validate({"epochs": 5.0} | settings)
    )


def trained(given: FlowTraining) -> Flow:
    reference = TrainFlow().start()(given)
    return Flow.from_bytes(reference.read(given.source.store))


def stored(given: FlowTraining) -> dict[str, bytes]:
    store = given.source.store
    return {entry.path: store.read(entry.path) for entry in store.list("transforms")}


def same(raw: np.ndarray) -> np.ndarray:
    return raw


@pytest.mark.parametrize(
    "rows",
    [(600,), (90, 1, 40) * 4, (17_000, 300)],
    ids=["one unit", "two windows", "a unit of three pieces"],
)
def test_an_epoch_holds_every_live_row_once_except_held_out_rows(tmp_path: Path, rows: tuple[int, ...]):
    made = chain(tmp_path, rows, dim=4)
    live = made.live()
    left_out = np.array(live[::7])
    order = RowOrder(source(made), made.units, left_out, 1, seed=3)
    wanted = np.array([made.vectors[address] for address in np.setdiff1d(live, left_out).tolist()])
    assert (order.rows, order.steps_per_epoch) == (len(wanted), len(wanted))
    both = np.concatenate(list(islice(order.batches(0, same), 2 * len(wanted))))
    for epoch in np.split(both, 2):
        np.testing.assert_array_equal(epoch[np.lexsort(epoch.T)], wanted[np.lexsort(wanted.T)])
    assert not np.array_equal(*np.split(both, 2))


def test_the_order_depends_on_the_seed_and_any_step_can_be_the_first(tmp_path: Path):
    made = chain(tmp_path, (90, 1, 40) * 4)
    order = RowOrder(source(made), made.units, np.zeros(0, np.int64), 32, seed=3)
    steps = order.steps_per_epoch
    batches = list(islice(order.batches(0, same), 3 * steps))
    assert {len(batch) for batch in batches} == {32}
    for start in (1, steps - 1, steps, 2 * steps + 5):
        resumed = islice(order.batches(start, same), 3 * steps - start)
        for resumed_batch, batch in zip(resumed, batches[start:], strict=True):
            np.testing.assert_array_equal(resumed_batch, batch)
    np.testing.assert_array_equal(next(order.batches(0, lambda raw: 2 * raw)), 2 * batches[0])
    other = RowOrder(source(made), made.units, np.zeros(0, np.int64), 32, seed=4)
    assert not np.array_equal(next(other.batches(0, same)), batches[0])


def test_a_batch_mixes_rows_of_all_units(tmp_path: Path):
    made = chain(tmp_path, (100,) * 8)
    batch = next(RowOrder(source(made), made.units, np.zeros(0, np.int64), 64, seed=0).batches(0, same))
    of_row = {vector.tobytes(): address >> 32 for address, vector in made.vectors.items()}
    assert len({of_row[row.tobytes()] for row in batch}) >= 7


def test_likelihood_of_held_out_rows_rises_along_the_reported_curve(tmp_path: Path):
    given = training(tmp_path)
    flow = trained(given)
    assert [point.step for point in flow.curve] == [0, *(-(-70 * number // 20) for number in range(1, 21))]
    assert flow.curve[-1].heldout < flow.curve[0].heldout
    assert (flow.heldout_rows, flow.fitted_rows, flow.space_id, flow.metric) == (118, 472, SPACE, None)
    live = given.source.batches(given.units)
    x = np.concatenate([vectors for _, vectors in live])
    assert len(x) == 590
    np.testing.assert_allclose(flow.inverse(flow(x)), x, atol=1e-4)
    assert np.abs(flow(x).mean(axis=0)).max() < 0.5


def test_a_fraction_of_an_epoch_trains_on_that_fraction_of_rows(tmp_path: Path):
    flow = trained(training(tmp_path, epochs=0.5))
    assert (flow.curve[-1].step, flow.fitted_rows) == (7, 7 * 32)


def test_a_killed_training_resumes_to_the_same_bytes(tmp_path: Path):
    more = {"epochs": 4.0, "checkpoint_steps": 5}
    undisturbed = training(tmp_path / "undisturbed", **more | {"checkpoint_steps": 100_000})
    trained(undisturbed)
    given = training(tmp_path / "killed", **more)
    checkpoint = tmp_path / "killed" / "root" / given.checkpoint
    program = (
        "from pathlib import Path; from tests.flows.transform.test_train_flow import *; "
        f"trained(training(Path({str(tmp_path / 'killed')!r}), **{more}))"
    )
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    deadline = time.monotonic() + 60
    while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it was killed in the middle"
    assert list(stored(given)) == [given.checkpoint]
    trained(given)
    assert stored(given) == stored(undisturbed)


def test_only_checkpoint_settings_can_change_without_a_new_training(tmp_path: Path):
    given = training(tmp_path / "one")
    assert training(tmp_path / "two", checkpoint_steps=7).id == given.id
    others = [
        training(tmp_path / str(number), **{name: value})
        for number, (name, value) in enumerate({"seed": 1, "epochs": 1.0, "width": 8}.items())
    ]
    fewer = FlowTraining(given.source, given.units[:2], given.settings)
    living = FlowTraining(LiveRows(given.source.store, SPACE, "id"), given.units, given.settings)
    assert len({each.id for each in (given, fewer, living, *others)}) == 6


def test_behind_another_transform_the_flow_is_fitted_to_its_output(tmp_path: Path):
    given = training(tmp_path)
    x = np.concatenate([vectors for _, vectors in given.source.batches(given.units)])
    whitening = fit_whitening(Moments.of(x), 8, space_id=SPACE)
    flow = trained(FlowTraining(given.source, given.units, given.settings, before=whitening))
    assert (flow.k, flow.space_id) == (8, space_after(whitening))
    z = flow(whitening(x))
    assert np.abs(z.mean(axis=0)).max() < 0.5
    assert abs(z.std() - 1) < 0.2


def test_dev_is_scored_during_the_training(tmp_path: Path):
    given, rng = training(tmp_path), np.random.default_rng(0)
    x = np.concatenate([vectors for _, vectors in given.source.batches(given.units)])
    dev = DevPairs(x[:50], x[50:100], rng.normal(size=50))
    flow = trained(FlowTraining(given.source, given.units, given.settings, dev=dev))
    assert flow.metric == "Spearman"
    assert flow.curve[-1].dev == pytest.approx(dev.score(flow), abs=1e-3)
    assert any(note.startswith("Spearman on the dev task went from") for note in flow.notes)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("whiten.flow.levels=6", "dimension 24 with 6 levels; set whiten.flow.levels to at most 3"),
        (
            "whiten.transform=whitening+flow whiten.k=10 whiten.flow.levels=3",
            "dimension 10 with 3 levels; set whiten.flow.levels to at most 1",
        ),
        (
            "whiten.transform=whitening+flow whiten.k=10 whiten.rotation=zca whiten.flow.levels=4",
            "dimension 24 with 4 levels",
        ),
        ("whiten.transform=whitening+flow whiten.flow.levels=4", None),
        ("whiten.mode=off whiten.flow.levels=9", None),
        ("whiten.transform=whitening whiten.flow.levels=9", None),
    ],
)
def test_invalid_levels_are_refused_before_anything_is_encoded(settings: str, words: str | None):
    whitening = load_settings(Job, None, ("whiten.transform=flow", *settings.split())).whiten
    if words is None:
        check_flow(whitening, 24)
        return
    with pytest.raises(ConfigError, match=words):
        check_flow(whitening, 24)


def test_a_failed_training_is_explained_and_stores_nothing(tmp_path: Path):
    cases = {
        "levels": training(tmp_path / "a", levels=4),
        "rate": training(tmp_path / "b", learning_rate=1e9, checkpoint_steps=1),
    }
    few = chain(tmp_path / "c", (15,))
    cases["rows"] = FlowTraining(source(few), tuple(few.units), FlowSettings())
    with pytest.raises(
        ConfigError, match=r"dimension 24 with 4 levels; set whiten\.flow\.levels to at most 3"
    ):
        trained(cases["levels"])
    with pytest.raises(
        DataError, match=r"flow training: expected a finite likelihood.*lower whiten\.flow\.learning_rate"
    ):
        trained(cases["rate"])
    with pytest.raises(DataError, match="flow: expected at least 10 rows to train on, found 5"):
        trained(cases["rows"])
    assert [stored(given) for given in cases.values()] == [{}, {}, {}]


def test_manta_whiten_trains_a_flow_behind_other_steps_and_writes_its_vectors(
    cluster: Workers, make_job: Callable[..., Job]
):
    job = make_job(
        "whiten.transform=standardize+flow",
        "whiten.write_vectors=true",
        "whiten.flow.epochs=2",
        "whiten.flow.depth=1",
    )
    store, decision, written = fit_corpus_transform(job, Stages())
    assert decision.ref is not None
    assert written is not None
    chain = load_transform(decision.ref.read(store))
    standardised, flow = steps_of(chain)
    assert isinstance(flow, Flow)
    assert (flow.space_id, flow.metric, chain.affine()) == (space_after(standardised), "MRR", None)
    rows = [pq.read_table(store.open(unit.path, unit.sha256)) for unit in written.units]
    raw = [
        pq.read_table(store.open(unit.path, unit.sha256)) for unit in encode_corpus(job, Stages())[2].units
    ]
    for transformed, own in zip(rows, raw, strict=True):
        np.testing.assert_allclose(
            vector_matrix(transformed["vector"]), chain(vector_matrix(own["vector"])), atol=1e-4
        )
    with pytest.raises(
        ConfigError,
        match=r"whiten\.transform: expected an affine map, which a faiss index can hold, found flow",
    ):
        nightly(job, Stages())
