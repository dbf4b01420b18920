"""The predicted cost of nights, from ten thousand rows to a billion; `pytest -s -n 0` prints the tables."""

import pytest

from pipeline.errors import ConfigError
from pipeline.flows.encode import trial_encode
from pipeline.flows.night.planning import cost
from pipeline.flows.night.planning.cost import NightCost, NightSize, predict_cost
from pipeline.flows.workers.nodes import Node
from pipeline.index.build import centroids
from pipeline.index.build.index_shape import plan_index
from pipeline.log import duration
from pipeline.settings import ClusterSettings, EncodeSettings, Job
from pipeline.text.ingest import part_writer

# Four encode workers share the GPU of a node. Its speed is assumed: no GPU was measured.
JOB = Job(cluster=ClusterSettings(gpus_per_worker=0.25), encode=EncodeSettings(device="cuda"))
NODE, GPU_ROWS_PER_S, TEXT_BYTES = Node(cpus=16, gpus=1), 30_000.0, 100.0


def predicted(rows: int, dim: int, nodes: int, job: Job = JOB, node: Node = NODE) -> NightCost:
    plan = plan_index(rows, dim, job.index)
    return predict_cost(job, NightSize(rows, TEXT_BYTES, dim, GPU_ROWS_PER_S, plan), nodes * (node,))


@pytest.mark.parametrize("dim", [384, 1_024])
def test_a_table_of_all_sizes_grows_with_the_rows_and_shrinks_with_the_nodes(dim: int):
    print(f"\n{'rows':>13} {'dim':>5}  {'10 nodes':>14}{'node-hours':>12}{'100 nodes':>14}{'node-hours':>12}")
    before = None
    for power in range(4, 10):
        few, many = (predicted(10**power, dim, nodes) for nodes in (10, 100))
        print(
            f"{10**power:>13,} {dim:>5}  {duration(3_600 * few.hours):>14}{few.node_hours:>12.3g}"
            f"{duration(3_600 * many.hours):>14}{many.node_hours:>12.3g}"
        )
        assert many.hours <= few.hours
        assert many.node_hours >= few.node_hours
        if before is not None:
            assert few.hours >= before.hours
        before = few


@pytest.mark.parametrize("dim", [384, 1_024])
@pytest.mark.parametrize("nodes", [10, 100])
def test_no_stage_is_faster_than_all_its_processors_or_than_its_work_of_one_process(dim: int, nodes: int):
    cost = predicted(10**9, dim, nodes)
    print(f"\n10^9 x {dim} on {nodes} nodes: {cost.hours:.2f} hours, {cost.node_hours:.1f} node-hours")
    for stage in cost.stages:
        print(
            f"| {stage.stage} | {stage.wall_s / 60:,.1f} | {stage.cpu_s / 3_600:,.1f} | "
            f"{stage.gpu_s / 3_600:,.2f} | {stage.alone_s / 60:,.1f} | {stage.moved_bytes / 1e12:,.2f} | "
            f"{stage.requests / 1e6:,.1f} |"
        )
        assert stage.wall_s >= stage.alone_s
        assert stage.wall_s >= (stage.cpu_s / NODE.cpus) / nodes
        assert stage.wall_s >= stage.gpu_s / nodes


def test_more_dimensions_cost_more_in_every_stage_that_reads_vectors():
    narrow, wide = (predicted(10**8, dim, 10) for dim in (384, 1_024))
    for stage in ("encode", "whiten", "index", "merge"):
        assert wide.of(stage).cpu_s > narrow.of(stage).cpu_s


def test_work_of_one_process_takes_as_long_on_more_nodes():
    few, many = (predicted(10**9, 384, nodes) for nodes in (10, 100))
    assert [stage.alone_s for stage in few.stages] == [stage.alone_s for stage in many.stages]


def test_a_corpus_that_only_one_machine_sees_is_read_by_one_process():
    plan = plan_index(10**9, 384, JOB.index)
    size = NightSize(10**9, TEXT_BYTES, 384, GPU_ROWS_PER_S, plan, reads_on_workers=False)
    here = predict_cost(JOB, size, 100 * (NODE,)).of("ingest")
    assert here.workers == 1
    assert here.requests == 0, "its temporary files are on its own disk"
    assert here.wall_s > 10 * predicted(10**9, 384, 100).of("ingest").wall_s


def test_k_means_runs_on_a_gpu_only_if_the_workers_have_one_and_there_are_not_many_lists():
    cpu_job = Job()
    assert predicted(10**7, 384, 10).of("train").gpu_s > 0
    for rows, job in ((10**7, cpu_job), (10**9, cpu_job), (10**9, JOB)):
        on_cpus = predicted(rows, 384, 10, job).of("train")
        assert on_cpus.gpu_s == 0
        assert on_cpus.workers == 16


def test_a_billion_rows_take_two_hours_and_twenty_node_hours_at_most_on_ten_nodes():
    cost = predicted(10**9, 384, 10)
    assert cost.hours <= 2
    assert cost.node_hours <= 20
    assert cost.of("encode").wall_s > 3_600 * cost.hours / 2


def test_the_prediction_uses_the_constants_of_the_night():
    assert cost.GROUPS_PER_ROW == centroids.GROUPS_PER_ROW
    assert cost.REFINING_ROUNDS == centroids.REFINING_ROUNDS
    assert cost.PART_BYTES == part_writer._PART_BYTES
    assert cost.TEXT_UNITS == trial_encode.MAX_SAMPLED_UNITS


def test_a_night_that_was_measured_is_predicted_within_a_factor_of_two():
    """Compare with the 135,070 captions of tests/benchmarks/README.md ("Nights"), on two cores."""
    job, rows = Job(), 135_070
    plan = plan_index(rows, 384, job.index)
    cost = predict_cost(job, NightSize(rows, 60.0, 384, rows / 129 / 2, plan), (Node(cpus=2),))
    measured = {"ingest": 0.7, "encode": 129.0, "whiten": 4.0, "train": 9.6, "index": 4.0}
    for stage, seconds in measured.items():
        assert seconds / 2 < cost.of(stage).wall_s < 2 * seconds, stage
    assert 157 / 2 < 3_600 * cost.hours < 157 * 2


def test_a_worker_that_fits_no_node_is_an_error():
    with pytest.raises(ConfigError, match=r"1 CPU and 0\.25 GPUs for one worker, found 2 nodes of 16 CPUs"):
        predicted(10**6, 384, 2, node=Node(cpus=16))
