"""Which cluster is meant, how many workers it gets, and what a wrong address is called. No Ray is started."""

import pytest

from pipeline.errors import ConfigError
from pipeline.flows.cluster import Cluster, address_of, connect
from pipeline.log import Stages
from pipeline.settings import ClusterSettings


@pytest.mark.parametrize(("setting", "variable", "expected"), [
    (None, None, ("local", "local Ray")),
    (None, "", ("local", "local Ray")),
    (None, "10.0.0.1:6379", ("10.0.0.1:6379", "RAY_ADDRESS")),
    (None, "http://127.0.0.1:8265", ("local", "local Ray")),
    (None, "https://127.0.0.1:8265", ("local", "local Ray")),
    ("auto", "10.0.0.1:6379", ("auto", "cluster.address")),
])
def test_the_setting_goes_before_the_environment_and_a_dashboard_is_no_cluster(monkeypatch, setting, variable, expected):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    assert address_of(ClusterSettings(address=setting)) == expected


@pytest.mark.parametrize(("setting", "variable", "words"), [
    ("nonsense", None, r"^cluster\.address: .*found 'nonsense'.*set cluster\.address to null"),
    ("host:port", None, r"^cluster\.address: .*found 'host:port'"),
    ("http://127.0.0.1:8265", None, r"^cluster\.address: .*found 'http://127\.0\.0\.1:8265'"),
    (None, "nonsense", r"^RAY_ADDRESS: .*found 'nonsense'.*unset RAY_ADDRESS"),
])
def test_a_malformed_address_is_a_wrong_setting_and_says_where_it_stands(monkeypatch, setting, variable, words):
    import ray

    if ray.is_initialized():
        pytest.skip("a connected Ray is used as it is")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    with pytest.raises(ConfigError, match=words), connect(ClusterSettings(address=setting), Stages()):
        pass


def test_workers_that_are_set_are_trusted_where_the_cluster_has_yet_to_grow():
    small = Cluster(cpus=2, gpus=0)
    assert small.workers(ClusterSettings(workers=8, gpus_per_worker=1), 100) == 8
    assert small.workers(ClusterSettings(workers=8, cpus_per_worker=4), 3) == 3
    assert small.workers(ClusterSettings(), 100) == 2
    with pytest.raises(ConfigError, match="1 GPUs for one worker"):
        small.workers(ClusterSettings(gpus_per_worker=1), 100)
