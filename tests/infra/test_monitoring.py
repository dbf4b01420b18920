"""Dashboard, alert rules and scrape examples are complete and query series that exist."""

import re
from itertools import combinations
from typing import Any

import pytest
import yaml

from pipeline.flows.workers import metrics
from pipeline.serve.metrics import ServiceMetrics
from tests.infra.manifests import INFRA, is_selected, labels, of_kind, pods
from tests.infra.queries import RULES, alerts, dashboard, exported, names, names_used, queries

SERIES = {
    exported(value): value for value in vars(metrics).values() if isinstance(value, metrics.MetricSeries)
}
# Labels of the series that no night exports: those of Ray's nodes, of services, and of kube-state-metrics.
_OF_JOBS = ("namespace", "job_name")
OTHERS = {
    "ray_node_mem_used": ("NodeAddress",),
    "ray_node_mem_total": ("NodeAddress",),
    "manta_serve_requests_total": ("route", "status"),
    "manta_serve_refused_release": ("instance",),
    "manta_serve_refresh_failures_total": ("instance",),
    "manta_serve_tokens_refused": ("instance",),
    "manta_serve_logged_queries_total": ("instance", "outcome"),
    "manta_serve_query_log_tidied_timestamp_seconds": ("instance",),
    "manta_serve_shadow_open": ("instance",),
    "manta_serve_canary_returned_release": ("instance",),
    "kube_job_failed": (*_OF_JOBS, "condition"),
    "kube_job_owner": (*_OF_JOBS, "owner_kind", "owner_name"),
    "kube_job_status_start_time": _OF_JOBS,
    "kube_cronjob_created": ("namespace", "cronjob"),
    "kube_deployment_status_replicas_available": ("namespace", "deployment"),
    "kube_cronjob_status_last_successful_time": ("namespace", "cronjob"),
}
PANELS = {"stat", "timeseries"}
UNITS = {"s", "none", "short", "percentunit", "rowsps"}
DURATION = re.compile(r"(\d+)([smhd])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def test_names_are_found_in_a_query():
    query = (
        'sum by (task, doing) (rate(ray_a_total{doing="store"}[5m])) / ignoring (doing) group_left '
        "sum(max_over_time(ray_b[1h])) > 0.3 and ray_c == 1"
    )
    assert names(query) == {"ray_a_total", "ray_b", "ray_c"}


def test_every_queried_metric_exists():
    assert names_used() <= SERIES.keys() | OTHERS.keys()


def test_services_export_the_metrics_that_are_queried():
    exported_names = ServiceMetrics().text().decode()
    assert all(f"# TYPE {name} " in exported_names for name in OTHERS if name.startswith("manta_serve_"))


def test_every_exported_metric_is_in_a_chart_or_an_alert():
    assert SERIES.keys() <= names_used()


@pytest.mark.parametrize("query", queries())
def test_queries_are_balanced_and_use_labels_of_their_metrics(query: str):
    assert all(query.count(left) == query.count(right) for left, right in ("()", "[]", "{}"))
    assert query.count('"') % 2 == 0
    known = {
        label for name in names(query) for label in (SERIES[name].labels if name in SERIES else OTHERS[name])
    }
    grouped = {
        label
        for group in re.findall(r"\b(?:by|ignoring)\s*\(([^)]*)\)", query)
        for label in re.split(r",\s*", group)
    }
    assert grouped | set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', query)) <= known


@pytest.mark.parametrize("query", queries())
def test_rates_are_taken_of_counters_only(query: str):
    for function, name in re.findall(r"(\w+)\((ray_manta_\w+)", query):
        counted = SERIES[name].kind == "Counter"
        assert function not in ("rate", "increase") or counted
        assert function != "last_over_time" or not counted


def test_panels_have_distinct_ids_and_positions_with_types_and_queries():
    panels = dashboard()["panels"]
    assert {panel["type"] for panel in panels} <= PANELS
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert all(
        panel["targets"] and all(target["expr"] and target["refId"] for target in panel["targets"])
        for panel in panels
    )
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in panels} <= UNITS
    positions = [panel["gridPos"] for panel in panels]
    assert all(
        position["x"] >= 0 and position["w"] > 0 and position["h"] > 0 and position["x"] + position["w"] <= 24
        for position in positions
    )
    assert not [pair for pair in combinations(positions, 2) if overlap(*pair)]


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


def test_the_dashboard_has_a_data_source_variable():
    found = dashboard()
    [variable] = found["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", "prometheus")
    reference = {"type": "prometheus", "uid": f"${{{variable['name']}}}"}
    sources = [panel["datasource"] for panel in found["panels"]] + [
        target["datasource"] for panel in found["panels"] for target in panel["targets"]
    ]
    assert all(source == reference for source in sources)
    assert found["uid"]
    assert found["title"]
    assert found["schemaVersion"] >= 36


def test_alerts_have_a_severity_a_description_and_a_runbook_section():
    rules = alerts()
    assert rules
    text = (INFRA / "README.md").read_text()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["runbook"] == f"infra/README.md#{rule['alert'].lower()}"
        assert re.search(rf"^#+ {rule['alert']}$", text, re.MULTILINE), (
            "the runbook has a section of that name"
        )
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert labels <= set(re.findall(r"\w+", " ".join(re.findall(r"\bby\s*\(([^)]*)\)", rule["expr"]))))


def seconds(duration: str) -> int:
    return sum(int(count) * SECONDS[unit] for count, unit in DURATION.findall(duration))


def test_the_scrape_interval_catches_gauges_of_ended_processes():
    endpoints: list[dict[str, Any]] = [
        endpoint
        for monitor in of_kind("PodMonitor").values()
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    ]
    scrape = yaml.safe_load((INFRA / "prometheus" / "scrape.yaml").read_text())
    intervals = [endpoint["interval"] for endpoint in endpoints] + [
        config["scrape_interval"] for config in scrape["scrape_configs"]
    ]
    assert len(intervals) >= 3
    assert all(0 < seconds(interval) <= 15 for interval in intervals)
    assert scrape["rule_files"] == ["alerts.yaml"]
    assert all((INFRA / name).is_file() for name in RULES)


def test_the_alerts_from_outside_name_the_cronjob_and_the_deployment():
    [cron], [deployment] = of_kind("CronJob").values(), of_kind("Deployment").values()
    text = (INFRA / "prometheus/kubernetes.yaml").read_text()
    names = re.findall(r'(?:cronjob|owner_name)="([^"]*)"', text)
    assert len(names) == 4
    assert set(names) == {cron["metadata"]["name"]}
    assert re.findall(r'deployment="([^"]*)"', text) == [deployment["metadata"]["name"]]


@pytest.mark.parametrize("name", labels())
def test_one_monitor_scrapes_each_ray_pod_and_service_at_a_port_that_it_has(name: str):
    found = [
        {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]}
        for monitor in of_kind("PodMonitor").values()
        if is_selected(monitor["spec"]["selector"], labels()[name])
    ]
    ports = {port["name"] for container in pods()[name]["containers"] for port in container.get("ports", [])}
    assert len(found) == bool(ports), "pods without a port, of submitters and the schedule, have no metrics"
    assert all(wanted <= ports for wanted in found)


def test_prometheus_has_the_token_of_the_services():
    [monitor] = [
        found for found in of_kind("PodMonitor").values() if found["metadata"]["name"] == "manta-serve"
    ]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    [service] = [pod["containers"][0] for name, pod in pods().items() if name.endswith("Deployment")]
    variables = {each["name"]: each.get("valueFrom") for each in service["env"]}
    assert endpoint["authorization"] == {
        "type": "Bearer",
        "credentials": variables["MANTA_SERVE_TOKEN"]["secretKeyRef"],
    }
