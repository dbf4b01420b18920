"""A node answers what a command asks of it; one that cannot import the code is named."""

import sys
from pathlib import Path

import pytest

from pipeline.flows.workers import check_nodes as nodes
from pipeline.flows.workers.check_nodes import NodeCheck, ask_nodes, software
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.nodes import ResourceDemand, nodes_alive, take_joined
from pipeline.flows.workers.tasks import Pool
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.store.files.local import LocalStore
from tests.flows.tasks import NameProcess

_PATIENCE_S = 60.0


@pytest.mark.usefixtures("ray_cluster")
def test_a_node_reports_its_versions_disks_stores_and_speed(encoder: Path, tmp_path: Path):
    stores = {"release.root": LocalStore(str(tmp_path / "root"))}
    with nodes.probe_in(stores) as probe:
        lacking = {**stores, "train.root": LocalStore(str(tmp_path / "other"))}
        check = NodeCheck(lacking, probe, EncoderSettings(path=str(encoder)), EncodeSettings())
        [answer] = ask_nodes(check, _PATIENCE_S, demand=ResourceDemand(1.0, 0.0))
        [small] = ask_nodes(check, _PATIENCE_S, demand=ResourceDemand(1.0, 8.0))
    assert answer.facts is not None, answer.problem
    assert answer.facts.software == software()
    assert answer.facts.unreachable.keys() == {"train.root"}
    assert any("ray" in folder for folder in answer.facts.disks)
    assert answer.facts.tokens_per_s is not None
    assert answer.facts.tokens_per_s > 0
    assert small.facts is not None, "a node without room for a worker is asked without GPUs"
    assert small.facts.tokens_per_s is None


@pytest.mark.usefixtures("ray_cluster")
def test_a_node_that_cannot_import_the_code_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = "from pipeline.flows.workers.check_nodes import NodeCheck\nclass Absent(NodeCheck): ..."
    (tmp_path / "only_of_the_driver.py").write_text(source)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    import only_of_the_driver  # type: ignore[import-not-found]

    [answer] = ask_nodes(only_of_the_driver.Absent({}, ""), _PATIENCE_S)
    assert answer.facts is None
    assert answer.lasts
    assert answer.problem == "ModuleNotFoundError: No module named 'only_of_the_driver'"
    [problem] = nodes.find_problems([answer])
    assert f"node {answer.name}: {answer.problem}" in str(problem)


def test_nodes_that_join_are_returned_once(ray_cluster: Workers):
    alive = nodes_alive()
    assert take_joined(alive) == set()
    assert take_joined([*alive, "new"]) == {"new"}
    assert take_joined([*alive, "new"]) == set()


def test_workers_have_the_name_of_their_task(ray_cluster: Workers):
    names = dict(ray_cluster.map_units(NameProcess(), [0, 1], Pool(1, cpus=0.5)))
    assert set(names.values()) == {"ray::MapWorker(MapBatches(NameProcess)).submit"}
    assert ray_cluster.run(NameProcess(), 0, Pool(1, cpus=0.5)) == "ray::NameProcess"
