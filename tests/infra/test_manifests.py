"""The manifests of infra/kuberay have the fields of KubeRay and Kubernetes, pass the operator's validation,
and refer only to things that exist.
"""

import importlib
import re
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import load_settings
from pipeline.settings import Job
from tests.infra.manifests import (
    INFRA,
    KUBERAY,
    NOT_MANIFESTS,
    ROOT,
    clusters,
    jobs,
    manifests,
    of_kind,
    pods,
    wrong,
)

SETTINGS = "/etc/manta/"
NIGHT = "rayjob-nightly.yaml manta-nightly RayJob"
API = {
    "RayCluster": "ray.io/v1",
    "RayJob": "ray.io/v1",
    "RayCronJob": "ray.io/v1",
    "CronJob": "batch/v1",
    "ServiceAccount": "v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "PodMonitor": "monitoring.coreos.com/v1",
    "Deployment": "apps/v1",
    "Service": "v1",
    "PodDisruptionBudget": "policy/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
}
IMAGE = re.compile(r"manta:(\d+\.\d+\.\d+)-ray(\d+\.\d+\.\d+)-(cpu|gpu)")
ORDER = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")
SECRET = re.compile("KEY|SECRET|TOKEN|PASSWORD")
parametrize = pytest.mark.parametrize


def pinned(name: str) -> str:
    return re.search(rf"^{name}==(\S+)$", (INFRA / "constraints.txt").read_text(), re.MULTILINE)[1]


def named(value: Any, key: str) -> list[Any]:
    """List the values of a key at any depth."""
    if isinstance(value, dict):
        return ([value[key]] if key in value else []) + [
            found for item in value.values() for found in named(item, key)
        ]
    return [found for item in value for found in named(item, key)] if isinstance(value, list) else []


@parametrize("name", manifests())
def test_every_field_exists_in_the_definition_of_its_kind(name: str):
    manifest = manifests()[name]
    assert manifest["apiVersion"] == API[manifest["kind"]]
    assert wrong(manifest, manifest["kind"], name) == []
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?", manifest["metadata"]["name"]), (
        "KubeRay accepts at most 47 characters"
    )


def test_a_misspelt_field_and_a_wrong_type_are_detected():
    job = of_kind("RayJob")[NIGHT]
    assert wrong({**job, "spec": {**job["spec"], "backofLimit": 2}}, "RayJob", "job") == [
        "job.spec.backofLimit: no field of RayJobSpec"
    ]
    assert wrong({**job, "spec": {**job["spec"], "backoffLimit": "2"}}, "RayJob", "job") == [
        "job.spec.backoffLimit: '2' is not of type integer"
    ]
    assert wrong({**job, "spec": "2"}, "RayJob", "job") == ["job.spec: not of type RayJobSpec"]
    assert wrong({"num-cpus": 0}, "map", "params") == ["params: not a map of strings to strings"]


@parametrize("name", jobs())
def test_jobs_pass_the_validation_of_the_operator(name: str):
    spec = jobs()[name]
    shared = "clusterSelector" in spec
    assert shared != ("deletionStrategy" in spec), "KubeRay deletes nothing of a job that selects its cluster"
    rules = spec.get("deletionStrategy", {"deletionRules": []})["deletionRules"]
    assert shared or rules
    assert not {"suspend", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished"} & spec.keys(), (
        "deletion rules exclude them"
    )
    assert shared != ("rayClusterSpec" in spec)
    assert not (shared and spec.get("backoffLimit")), "a retry is a new cluster"
    last: dict[str, tuple[int, int]] = {}
    for rule in rules:
        condition = dict(rule["condition"])
        seconds = condition.pop("ttlSeconds")
        [(status, value)] = condition.items()
        assert value in {"jobStatus": ("SUCCEEDED", "FAILED"), "jobDeploymentStatus": ("Failed",)}[status]
        assert rule["policy"] != "DeleteWorkers" or not spec["rayClusterSpec"]["enableInTreeAutoscaling"]
        row, before = ORDER.index(rule["policy"]), last.get(value, (-1, 0))
        assert row > before[0], "each policy once: workers before the cluster, the cluster before the job"
        assert seconds >= before[1]
        last[value] = (row, seconds)
    assert 0 < spec["preRunningDeadlineSeconds"] < spec["activeDeadlineSeconds"]


@parametrize("name", jobs())
def test_the_command_of_every_job_exists_with_valid_settings(name: str):
    words = [word for each in shlex.split(jobs()[name]["entrypoint"]) for word in each.split()]
    modules = [words[row + 1] for row, word in enumerate(words) if word == "-m"]
    configs = [words[row + 1] for row, word in enumerate(words) if word == "--config"]
    assert modules
    assert len(configs) == len(modules)
    for module in modules:
        assert hasattr(importlib.import_module(module), module.removeprefix("jobs."))
    for config in configs:
        assert config.startswith(SETTINGS)
        file = config.removeprefix(SETTINGS)
        assert file in generated()["manta-settings"], "the mounted ConfigMap holds it"
        job = load_settings(Job, KUBERAY / file)
        assert job.cluster.address is None, "the cluster is that of the RayJob"
        assert all(uri.startswith("s3://") for uri in (job.release.root, job.corpus.uri, job.encoder.path)), (
            "pods share no disk"
        )


def generated() -> dict[str, list[str]]:
    """Return the files of every ConfigMap that kustomize generates, by its name."""
    return {
        made["name"]: made["files"]
        for made in yaml.safe_load((KUBERAY / "kustomization.yaml").read_text())["configMapGenerator"]
    }


def test_every_file_is_used_and_every_reference_exists():
    kustomization = yaml.safe_load((KUBERAY / "kustomization.yaml").read_text())
    for file in (*kustomization["resources"], *(file for files in generated().values() for file in files)):
        assert (KUBERAY / file).is_file(), file
    mounted = [
        volume["name"] for spec in pods().values() for volume in named(spec.get("volumes", []), "configMap")
    ]
    assert set(mounted) == generated().keys()
    classes = {found["metadata"]["name"] for found in of_kind("PriorityClass").values()}
    assert {spec["priorityClassName"] for spec in pods().values() if "priorityClassName" in spec} == classes
    [cluster] = of_kind("RayCluster").values()
    assert {
        spec["clusterSelector"]["ray.io/cluster"] for spec in jobs().values() if "clusterSelector" in spec
    } == {cluster["metadata"]["name"]}
    assert {file.name for file in KUBERAY.glob("*.yaml")} - set(NOT_MANIFESTS) == {
        name.split()[0] for name in manifests()
    }


def test_every_command_that_runs_on_a_cluster_has_a_manifest():
    started = {
        module for spec in jobs().values() for module in re.findall(r"-m (jobs\.\w+)", spec["entrypoint"])
    }
    assert started == {
        f"jobs.{name}" for name in ("preflight", "nightly", "encode", "whiten", "index", "evaluate")
    }


def test_all_manifests_define_the_same_cluster_and_night():
    night = jobs()[NIGHT]
    assert len(clusters()) > 1
    assert [name for name, spec in clusters().items() if spec != night["rayClusterSpec"]] == []
    assert jobs()["raycronjob.yaml manta-nightly RayCronJob"] == night
    schedules = [cron["spec"] for kind in ("CronJob", "RayCronJob") for cron in of_kind(kind).values()]
    assert len(schedules) == 2
    assert len({(cron["schedule"], cron["timeZone"]) for cron in schedules}) == 1


@parametrize("name", clusters())
def test_clusters_use_autoscaler_v2_and_run_no_work_on_the_head(name: str):
    spec = clusters()[name]
    assert spec["enableInTreeAutoscaling"]
    assert spec["autoscalerOptions"]["version"] == "v2"
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["rayVersion"] == pinned("ray")
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    assert set(groups) == {"cpu", "gpu"}
    assert all(group["minReplicas"] <= group["replicas"] <= group["maxReplicas"] for group in groups.values())
    [container] = groups["gpu"]["template"]["spec"]["containers"]
    assert (
        container["resources"]["limits"]["nvidia.com/gpu"]
        == groups["gpu"]["rayStartParams"]["num-gpus"]
        == "1"
    )
    night = load_settings(Job, KUBERAY / "nightly.yaml")
    assert night.cluster.gpus_per_worker == 1, "the group gpu has one in each pod"
    assert night.cluster.workers.max == groups["gpu"]["maxReplicas"], (
        "a pool asks for as many workers as the group may have"
    )
    for group in groups.values():
        [container] = group["template"]["spec"]["containers"]
        assert (
            float(container["resources"]["requests"]["cpu"])
            == float(group["rayStartParams"]["num-cpus"])
            >= night.cluster.cpus_per_worker
        )


@parametrize("name", pods())
def test_pods_have_limits_and_their_mounts_exist(name: str):
    spec = pods()[name]
    assert spec["restartPolicy"] == ("Always" if name.endswith("Deployment") else "Never"), (
        "autoscaler v2 and the schedule's failure policy require Never, a Deployment Always"
    )
    for container in spec["containers"]:
        asked, limit = container["resources"]["requests"], container["resources"]["limits"]
        assert asked == limit | {"cpu": asked["cpu"]}, "only cores have no limit, so that idle ones are used"
        assert "cpu" not in limit
        mounts = {mount["name"]: mount for mount in container.get("volumeMounts", [])}
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        assert mounts.keys() == volumes.keys()
        environment = {variable["name"]: variable for variable in container.get("env", [])}
        secrets = {name: each for name, each in environment.items() if SECRET.search(name)}
        assert [name for name, each in secrets.items() if "secretKeyRef" not in each["valueFrom"]] == []
        if "MANTA_CACHE" in environment:
            assert mounts["cache"]["mountPath"] == environment["MANTA_CACHE"]["value"]
            room = int(volumes["cache"]["emptyDir"]["sizeLimit"].removesuffix("Gi"))
            assert int(environment["MANTA_CACHE_GIB"]["value"]) < room, "a pod that exceeds it is evicted"
            compiled = environment.get("TORCHINDUCTOR_CACHE_DIR", {"value": "/cache/"})["value"]
            assert compiled.startswith("/cache/"), "/tmp has a night's scratch files"


def test_every_node_gets_its_credentials_from_secrets():
    for name, spec in pods().items():
        if name.endswith((" head", " cpu", " gpu")):
            environment = named(spec["containers"], "env")
            assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= {
                variable["name"] for variables in environment for variable in variables
            }, name


def test_images_have_this_version_and_the_pinned_ray():
    texts = [
        file.read_text()
        for file in (*KUBERAY.glob("*.yaml"), INFRA / "ray-cluster.yaml", INFRA / "Dockerfile")
    ]
    found = [image for text in texts for image in re.findall(r"manta:\d[\w.-]+", text)]
    assert len(found) >= 20
    assert {IMAGE.fullmatch(image).groups()[:2] for image in found} == {
        (version("manta-embeddings"), pinned("ray"))
    }
    for name, spec in pods().items():
        assert {container["image"].rpartition("-")[2] for container in spec["containers"]} == {
            "gpu" if name.endswith(" gpu") else "cpu"
        }


def test_the_schedule_forbids_concurrent_nights_and_has_minimal_permissions():
    [cron] = of_kind("CronJob").values()
    night = jobs()[NIGHT]
    assert cron["spec"]["concurrencyPolicy"] == "Forbid"
    assert cron["spec"]["startingDeadlineSeconds"] > 0
    assert cron["spec"]["successfulJobsHistoryLimit"] > 0
    assert cron["spec"]["failedJobsHistoryLimit"] > 0
    job = cron["spec"]["jobTemplate"]["spec"]
    tries = 1 + night["backoffLimit"]
    assert job["activeDeadlineSeconds"] > tries * night["activeDeadlineSeconds"], (
        "its pod waits for the night's end, and KubeRay's deadline begins again with each try"
    )
    [account] = of_kind("ServiceAccount").values()
    [role] = of_kind("Role").values()
    [binding] = of_kind("RoleBinding").values()
    assert job["template"]["spec"]["serviceAccountName"] == account["metadata"]["name"]
    assert role["rules"] == [
        {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create", "get"]},
        {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["delete"]},
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account["metadata"]["name"]}]
    [container] = job["template"]["spec"]["containers"]
    mounted = Path(container["volumeMounts"][0]["mountPath"])
    assert [Path(word).relative_to(mounted).as_posix() for word in container["command"][1:]] == list(
        reversed(generated()["manta-schedule"])
    )
    assert ROOT.joinpath("infra/kuberay/follow_rayjob.py").is_file()


def test_the_submitter_of_a_scheduled_night_has_another_name_than_the_schedules_job():
    """KubeRay looks for its submitter, a Job, under the name of the RayJob: it would take the schedule's Job
    for the submitter, and never submit the night.
    """
    [cron] = of_kind("CronJob").values()
    [container] = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each for each in container["env"]}
    field = environment["JOB_NAME"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert field == "metadata.labels['batch.kubernetes.io/job-name']", "one RayJob for all pods of a Job"
    job = f"{cron['metadata']['name']}-29384160"
    night = environment["RAYJOB_NAME"]["value"].replace("$(JOB_NAME)", job)
    assert night != job
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?", night)
    by_hand = {found["metadata"]["name"] for found in of_kind("RayJob").values()}
    assert not by_hand & {job, night}


def test_nodes_of_the_launcher_have_the_token_and_require_it():
    cluster = yaml.safe_load((INFRA / "ray-cluster.yaml").read_text())
    assert "--env RAY_AUTH_MODE=token" in cluster["docker"]["run_options"]
    home = re.search(r"^WORKDIR (\S+)$", (INFRA / "Dockerfile").read_text(), re.MULTILINE)[1]
    assert cluster["file_mounts"] == {f"{home}/.ray/auth_token": "~/.ray/auth_token"}, (
        "the path at which Ray looks for a token by default"
    )
    starts = [
        line
        for key in ("head_start_ray_commands", "worker_start_ray_commands")
        for line in cluster[key]
        if "ray start" in line
    ]
    assert len(starts) == 2
    assert "--dashboard-host=127.0.0.1" in starts[0]


@parametrize("file", ["infra/README.md", "infra/ray-cluster.yaml", "README.md"])
def test_documents_on_clusters_and_submission_mention_the_token(file: str):
    text = (ROOT / file).read_text()
    first = min(
        text.index(command) for command in ("ray start --head", "ray job submit --address") if command in text
    )
    assert "RAY_AUTH_MODE=token" in text[:first]
