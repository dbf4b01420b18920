"""The parsed manifests of infra/kuberay, and a check of values against the types in fields.json."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
INFRA = ROOT / "infra"
KUBERAY = INFRA / "kuberay"
NOT_MANIFESTS = ("nightly.yaml", "kustomization.yaml")  # settings of a job; kustomize's own file
FIELDS: dict[str, Any] = json.loads((Path(__file__).parent / "fields.json").read_text())
_PLAIN: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "number": (int, float),
}


@cache
def manifests() -> dict[str, dict[str, Any]]:
    """Return every manifest by its file, name and kind."""
    files = [file for file in sorted(KUBERAY.glob("*.yaml")) if file.name not in NOT_MANIFESTS]
    return {
        f"{file.name} {found['metadata']['name']} {found['kind']}": found
        for file in files
        for found in yaml.safe_load_all(file.read_text())
    }


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {name: found for name, found in manifests().items() if found["kind"] == kind}


def jobs() -> dict[str, dict[str, Any]]:
    """Return the spec of every RayJob, including those that a schedule creates."""
    return {name: found["spec"] for name, found in of_kind("RayJob").items()} | {
        name: found["spec"]["jobTemplate"] for name, found in of_kind("RayCronJob").items()
    }


def clusters() -> dict[str, dict[str, Any]]:
    """Return the spec of every cluster."""
    own = {name: spec["rayClusterSpec"] for name, spec in jobs().items() if "rayClusterSpec" in spec}
    return own | {name: found["spec"] for name, found in of_kind("RayCluster").items()}


def pods() -> dict[str, dict[str, Any]]:
    """Return the spec of every pod that a manifest creates."""
    found = {}
    for name, spec in clusters().items():
        found[f"{name} head"] = spec["headGroupSpec"]["template"]["spec"]
        found |= {
            f"{name} {group['groupName']}": group["template"]["spec"] for group in spec["workerGroupSpecs"]
        }
    found |= {f"{name} submitter": spec["submitterPodTemplate"]["spec"] for name, spec in jobs().items()}
    return found | {name: template["spec"] for name, template in templates().items()}


def templates() -> dict[str, dict[str, Any]]:
    """Return the template of every pod that Kubernetes itself creates."""
    scheduled = {
        name: cron["spec"]["jobTemplate"]["spec"]["template"] for name, cron in of_kind("CronJob").items()
    }
    return scheduled | {name: found["spec"]["template"] for name, found in of_kind("Deployment").items()}


def containers() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return (pod spec, container spec) of every container that a manifest creates, and of the autoscaler
    that the operator adds to each head.
    """
    found = {
        f"{name} {each['name']}": (pod, each)
        for name, pod in pods().items()
        for kind in ("initContainers", "containers")
        for each in pod.get(kind, [])
    }
    for name, spec in clusters().items():
        found[f"{name} autoscaler"] = (spec["headGroupSpec"]["template"]["spec"], spec["autoscalerOptions"])
    return found


def labels() -> dict[str, dict[str, str]]:
    """Return the labels of every pod: those of its manifest, and on Ray's nodes those of the operator."""
    found = {}
    for name, spec in clusters().items():
        groups = {"head": spec["headGroupSpec"]} | {
            group["groupName"]: group for group in spec["workerGroupSpecs"]
        }
        for group, made in groups.items():
            kind = {"ray.io/cluster": name, "ray.io/node-type": "head" if group == "head" else "worker"}
            found[f"{name} {group}"] = made["template"]["metadata"]["labels"] | kind
    found |= {
        f"{name} submitter": spec["submitterPodTemplate"]["metadata"]["labels"]
        for name, spec in jobs().items()
    }
    return found | {name: template["metadata"]["labels"] for name, template in templates().items()}


def is_selected(selector: dict[str, Any], pod_labels: dict[str, str]) -> bool:
    """Return whether a label selector matches a pod with those labels."""
    exists = {"Exists": True, "DoesNotExist": False}
    wanted = selector.get("matchLabels", {}).items() <= pod_labels.items()
    return wanted and all(
        (rule["key"] in pod_labels) == exists[rule["operator"]]
        for rule in selector.get("matchExpressions", [])
    )


def wrong(value: Any, kind: Any, path: str) -> list[str]:
    """List the paths in the value that are unknown fields, or have values of another type."""
    if isinstance(kind, list):
        if not isinstance(value, list):
            return [f"{path}: not a list"]
        return [
            text for number, item in enumerate(value) for text in wrong(item, kind[0], f"{path}[{number}]")
        ]
    if kind == "any":
        return []
    if kind == "map":
        fine = isinstance(value, dict) and all(
            isinstance(key, str) and isinstance(item, str) for key, item in value.items()
        )
        return [] if fine else [f"{path}: not a map of strings to strings"]
    if kind in _PLAIN:
        fine = isinstance(value, _PLAIN[kind]) and (kind == "boolean" or not isinstance(value, bool))
        return [] if fine else [f"{path}: {value!r} is not of type {kind}"]
    if not isinstance(value, dict):
        return [f"{path}: not of type {kind}"]
    unknown = [f"{path}.{name}: no field of {kind}" for name in value if name not in FIELDS[kind]]
    return unknown + [
        text
        for name, item in value.items()
        if name in FIELDS[kind]
        for text in wrong(item, FIELDS[kind][name], f"{path}.{name}")
    ]
