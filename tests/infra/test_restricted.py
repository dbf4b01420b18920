"""Containers meet the pod security standard "restricted" and have a read-only root; network policies admit
only the pods that need to connect.
"""

import pytest

from tests.infra.manifests import clusters, containers, is_selected, labels, of_kind, pods

MAY_BE_MOUNTED = {
    "configMap",
    "emptyDir",
    "secret",
    "projected",
    "downwardAPI",
    "csi",
    "persistentVolumeClaim",
    "ephemeral",
}
WRITTEN = {"/tmp", "/cache"}  # Ray writes to /tmp, and MANTA_CACHE is /cache
parametrize = pytest.mark.parametrize


@parametrize("name", containers())
def test_containers_meet_the_restricted_pod_security_standard(name: str):
    pod, container = containers()[name]
    own, shared = container["securityContext"], pod["securityContext"]
    effective = shared | own
    assert effective["runAsNonRoot"] is True
    assert effective["runAsUser"] == 1000, "the user of the image, not root"
    assert effective["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own["allowPrivilegeEscalation"] is False
    assert own["capabilities"] == {"drop": ["ALL"]}
    assert not own.get("privileged")
    assert own.get("procMount", "Default") == "Default"
    assert not [port for port in container.get("ports", []) if "hostPort" in port]


@parametrize("name", pods())
def test_a_pod_shares_nothing_with_its_node(name: str):
    pod = pods()[name]
    assert not [field for field in ("hostNetwork", "hostPID", "hostIPC") if pod.get(field)]
    for volume in pod.get("volumes", []):
        [kind] = volume.keys() - {"name"}
        assert kind in MAY_BE_MOUNTED
        assert kind != "emptyDir" or volume["emptyDir"]["sizeLimit"]


@parametrize("name", containers())
def test_the_root_is_read_only_and_written_folders_are_volumes(name: str):
    pod, container = containers()[name]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    empty = {volume["name"] for volume in pod["volumes"] if "emptyDir" in volume}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert all(mount["name"] in empty or mount["readOnly"] for mount in mounts.values())
    environment = {variable["name"]: variable.get("value") for variable in container.get("env", [])}
    for variable in environment.keys() & {"HOME", "MANTA_CACHE"}:
        assert environment[variable] in mounts
    if "follow" in name:  # a container that waits for a job writes nothing
        return
    assert mounts.keys() & WRITTEN == (WRITTEN if "MANTA_CACHE" in environment else {"/tmp"})
    assert name.endswith(("ray-head", "ray-worker", " serve")) == ("MANTA_CACHE" in environment)


@parametrize("name", clusters())
def test_the_autoscaler_can_read_the_logs_of_its_head(name: str):
    spec = clusters()[name]
    [head] = spec["headGroupSpec"]["template"]["spec"]["containers"]
    assert [mount for mount in spec["autoscalerOptions"]["volumeMounts"] if mount in head["volumeMounts"]]


def reaches(source: dict[str, str], inside: bool, target: dict[str, str], port: int) -> bool:
    """Return whether the policies let a pod with those labels, inside the namespace or not, connect."""
    policies = [
        policy["spec"]
        for policy in of_kind("NetworkPolicy").values()
        if is_selected(policy["spec"]["podSelector"], target)
    ]
    assert policies, "a pod without a policy is open to all"
    return any(
        is_selected(peer.get("podSelector", {}), source)
        and (inside or "namespaceSelector" in peer)
        and ("ports" not in rule or port in {allowed["port"] for allowed in rule["ports"]})
        for policy in policies
        for rule in policy.get("ingress", [])
        for peer in rule["from"]
    )


NODES = {name: found for name, found in labels().items() if "ray.io/cluster" in found}
OTHERS = {name: found for name, found in labels().items() if "ray.io/cluster" not in found}
PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001, "metrics": 8080, "raylet": 30_000, "search": 8000}
STRANGERS: dict[str, tuple[dict[str, str], bool]] = {
    "a pod of the namespace": ({"app": "notebook"}, True),
    "a pod elsewhere": ({}, False),
    "another team's cluster": ({"ray.io/cluster": "theirs"}, False),
    "a pod elsewhere that calls itself ours": (
        {"app.kubernetes.io/part-of": "manta", "ray.io/cluster": "manta"},
        False,
    ),
}


@parametrize("target", labels())
@parametrize("stranger", STRANGERS)
def test_other_pods_can_connect_to_nothing(stranger: str, target: str):
    source, inside = STRANGERS[stranger]
    assert not [name for name, port in PORTS.items() if reaches(source, inside, labels()[target], port)]


@parametrize("target", NODES)
def test_nodes_can_connect_to_each_other_and_submitters_to_the_job_api_only(target: str):
    found = NODES[target]
    assert all(reaches(source, True, found, port) for source in NODES.values() for port in PORTS.values())
    for name, source in OTHERS.items():
        open_to = {kind for kind, port in PORTS.items() if reaches(source, True, found, port)}
        assert open_to == (
            {"dashboard"} if name.endswith("submitter") and found["ray.io/node-type"] == "head" else set()
        ), name


def test_the_operator_can_connect_to_the_job_api_and_prometheus_to_metrics():
    operator = {"app.kubernetes.io/component": "kuberay-operator"}
    prometheus = {"app.kubernetes.io/name": "prometheus"}
    assert NODES
    for found in NODES.values():
        head = found["ray.io/node-type"] == "head"
        assert {kind for kind, port in PORTS.items() if reaches(operator, False, found, port)} == (
            {"dashboard"} if head else set()
        )
        assert {kind for kind, port in PORTS.items() if reaches(prometheus, False, found, port)} == {
            "metrics"
        }


def test_labelled_clients_and_prometheus_can_connect_to_searches_only():
    [target] = [labels for labels in OTHERS.values() if labels["app.kubernetes.io/component"] == "serve"]
    for source in ({"manta-serve-client": "true"}, {"app.kubernetes.io/name": "prometheus"}):
        assert [name for name, port in PORTS.items() if reaches(source, False, target, port)] == ["search"]


@parametrize("target", OTHERS)
def test_no_pod_of_ours_can_connect_to_the_schedule_submitters_and_services(target: str):
    assert not [
        name
        for name, source in labels().items()
        for port in PORTS.values()
        if reaches(source, True, OTHERS[target], port)
    ]
