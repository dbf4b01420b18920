"""The queries of the dashboard and of the alerts, and the names of the series that they read."""

import json
import re
from typing import Any

import yaml

from pipeline.flows.workers.metrics import MetricSeries
from tests.infra.manifests import INFRA

RULES = ("prometheus/alerts.yaml", "prometheus/kubernetes.yaml")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((INFRA / "grafana" / "dashboard.json").read_text())
    return found


def alerts() -> list[dict[str, Any]]:
    return [
        rule
        for name in RULES
        for group in yaml.safe_load((INFRA / name).read_text())["groups"]
        for rule in group["rules"]
    ]


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]] + [
        rule["expr"] for rule in alerts()
    ]


def exported(series: MetricSeries) -> str:
    """Return the name of a series in Prometheus."""
    return f"ray_{series.name}_total" if series.kind == "Counter" else f"ray_{series.name}"


def names(query: str) -> set[str]:
    """Return the series that a query reads: its words except functions, keywords, labels and quoted words."""
    bare = re.sub(r'"[^"]*"', "", query)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", bare)
    return set(re.findall(r"[A-Za-z_:][\w:]*(?!\w)(?!\s*\()", bare)) - {
        "by",
        "and",
        "or",
        "unless",
        "group_left",
        "group_right",
        "bool",
        "offset",
    }


def names_used() -> set[str]:
    return {name for query in queries() for name in names(query)}
