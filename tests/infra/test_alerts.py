"""Every alert fires when it must, and is silent otherwise, by Prometheus's own `promtool test rules`."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.infra.queries import alerts


class Firing(NamedTuple):
    """A time at which an alert fires, with its labels besides the severity, and its sentence."""

    time: str
    summary: str
    labels: dict[str, str] = {}


class Case(NamedTuple):
    """What Prometheus scrapes, and the times at which an alert fires or is silent."""

    alert: str
    story: str
    interval: str
    series: dict[str, str]
    silent: tuple[str, ...]
    firing: tuple[Firing, ...] = ()


PUBLISHED = 'ray_manta_release_published_timestamp_seconds{WorkerId="a"}'
UNKNOWN = "No night has reported a release, for 12 days or since these rules were loaded"
JOB = 'namespace="manta",job_name="manta-nightly-7"'
OF_THE_SCHEDULE = f'kube_job_owner{{{JOB},owner_kind="CronJob",owner_name="manta-nightly"}}'
CRON = 'namespace="manta",cronjob="manta-nightly"'
DEPLOYED = 'kube_deployment_status_replicas_available{namespace="manta",deployment="manta-serve"}'
NEVER = "No scheduled night has succeeded for 1d 16h 0m 0s"
CASES = [
    Case(
        "MantaReleaseTooOld",
        "a release at 0 h, whose night is scraped for an hour, and no night after it",
        "10m",
        {PUBLISHED: "0x6 _x4000"},
        silent=("30h",),
        firing=(
            Firing("40h", "The current release is 1d 16h 0m 0s old"),
            Firing("13d", "The current release is 13d 0h 0m 0s old"),
        ),
    ),
    Case(
        "MantaReleaseTooOld",
        "a release each day",
        "1h",
        {PUBLISHED: "0x23 86400x23 172800x23"},
        silent=("1h", "30h", "50h", "71h"),
    ),
    Case("MantaReleaseUnknown", "never a night", "1h", {}, ("35h",), (Firing("37h", UNKNOWN),)),
    Case(
        "MantaReleaseUnknown",
        "a night, then nothing: the alert begins while MantaReleaseTooOld still fires",
        "10m",
        {PUBLISHED: "0x6 _x4000"},
        silent=("1h", "10d", "13d"),
        firing=(Firing("332h", UNKNOWN), Firing("20d", UNKNOWN)),
    ),
    Case(
        "MantaNightFailed",
        "a night fails within two minutes, on a head that is gone four minutes later",
        "15s",
        {'ray_manta_nights_total{WorkerId="a",outcome="failed",exit_code="75"}': "_x40 1x8 _x2000"},
        silent=("9m", "2h"),
        firing=(
            Firing(
                "30m", "A night ended with exit code 75 (failed)", {"outcome": "failed", "exit_code": "75"}
            ),
        ),
    ),
    Case(
        "MantaNightFailed",
        "a night succeeds",
        "15s",
        {'ray_manta_nights_total{WorkerId="a",outcome="published",exit_code="0"}': "_x40 1x8 _x200"},
        silent=("30m",),
    ),
    Case(
        "MantaNightFailed",
        "a defect ends one night, and somebody another with Ctrl-C",
        "15s",
        {
            'ray_manta_nights_total{outcome="failed",exit_code="70"}': "_x40 1x8 _x2000",
            'ray_manta_nights_total{outcome="stopped",exit_code="130"}': "_x40 1x8 _x2000",
        },
        silent=("9m", "2h"),
        firing=(
            Firing(
                "30m", "A night ended with exit code 70 (failed)", {"outcome": "failed", "exit_code": "70"}
            ),
        ),
    ),
    Case(
        "MantaFollowUpFailed",
        "an export fails after one night, and succeeds after the next",
        "1h",
        {
            'ray_manta_follow_up_failed{step="export parquet out docs"}': "1x23 0x48",
            'ray_manta_follow_up_failed{step="prune"}': "0x72",
        },
        silent=("25h", "48h"),
        firing=(
            Firing(
                "2h",
                "After a night, this failed - export parquet out docs",
                {"step": "export parquet out docs"},
            ),
        ),
    ),
    Case(
        "MantaEventsNotTold",
        "a receiver takes the event of one night, and not that of the next",
        "15s",
        {
            'ray_manta_events_total{event="published",outcome="told"}': "_x40 1x8 _x2000",
            'ray_manta_events_total{event="refused",outcome="failed"}': "_x40 1x8 _x2000",
        },
        silent=("9m", "2h"),
        firing=(
            Firing(
                "30m",
                "The receiver of release.on_event was not told - refused",
                {"event": "refused"},
            ),
        ),
    ),
    Case(
        "MantaGateRefused",
        "one of two gates refuses the candidate of one night",
        "15s",
        {
            'ray_manta_gate_passed{WorkerId="a",gate="recall_at_10"}': "_x40 0x2 _x500",
            'ray_manta_gate_passed{WorkerId="a",gate="unique_ids"}': "_x40 1x2 _x500",
        },
        silent=("5m", "2h"),
        firing=(
            Firing(
                "30m",
                "The gate recall_at_10 refused the candidate; the previous release stays current",
                {"gate": "recall_at_10"},
            ),
        ),
    ),
    Case(
        "MantaUnitsFailing",
        "one of ten attempts at a task's units fails, one of a hundred at another's",
        "15s",
        {
            'ray_manta_units_total{WorkerId="a",task="EncodeUnit",outcome="done"}': "0x20 9x200 _x500",
            'ray_manta_units_total{WorkerId="a",task="EncodeUnit",outcome="restarted"}': "_x20 1x200 _x500",
            'ray_manta_units_total{WorkerId="a",task="FillShard",outcome="done"}': "0x20 99x200 _x500",
            'ray_manta_units_total{WorkerId="a",task="FillShard",outcome="failed"}': "_x20 1x200 _x500",
        },
        silent=("4m", "9m", "130m"),
        firing=(
            Firing(
                "15m",
                "10% of the attempts at units of EncodeUnit failed, or were restarted because their process "
                "died",
                {"task": "EncodeUnit"},
            ),
        ),
    ),
    Case(
        "MantaQuarantineSpike",
        "a release of a thousand rows; one night quarantines eight rows for one reason and four for another",
        "1m",
        {
            'ray_manta_release_rows{WorkerId="a"}': "1000x5 _x1000",
            'ray_manta_quarantined_rows_total{WorkerId="b",reason="duplicate_id"}': "_x60 8x5 _x1000",
            'ray_manta_quarantined_rows_total{WorkerId="b",reason="no_text"}': "_x60 4x5 _x1000",
        },
        silent=("50m", "8h"),
        firing=(Firing("2h", "12 rows were quarantined, more than 1 % of the release"),),
    ),
    Case(
        "MantaQuarantineSpike",
        "ten rows of a thousand",
        "1m",
        {
            'ray_manta_release_rows{WorkerId="a"}': "1000x5 _x200",
            'ray_manta_quarantined_rows_total{WorkerId="b",reason="no_text"}': "_x60 10x5 _x200",
        },
        silent=("2h",),
    ),
    Case(
        "MantaWorkersWaitForStore",
        "for an hour, workers spend half of their time on the store",
        "15s",
        {
            'ray_manta_worker_seconds_total{WorkerId="a",doing="store"}': "0+1x480",
            'ray_manta_worker_seconds_total{WorkerId="a",doing="device"}': "0+9x240 2160+1x240",
        },
        silent=("1h",),
        firing=(Firing("110m", "Encode workers spend 50% of their time on the store"),),
    ),
    Case(
        "MantaNodeOutOfMemory",
        "one of two nodes uses 97 % of its memory for five minutes",
        "15s",
        {
            'ray_node_mem_used{NodeAddress="10.0.0.1"}': "50x40 97x20 50x40",
            'ray_node_mem_total{NodeAddress="10.0.0.1"}': "100x100",
            'ray_node_mem_used{NodeAddress="10.0.0.2"}': "94x100",
            'ray_node_mem_total{NodeAddress="10.0.0.2"}': "100x100",
        },
        silent=("5m", "11m", "20m"),
        firing=(Firing("14m", "Node 10.0.0.1 uses 97% of its memory", {"NodeAddress": "10.0.0.1"}),),
    ),
    Case(
        "MantaNightJobFailed",
        "a night ends after an hour before it is connected to Ray; its Job is kept for days",
        "5m",
        {
            f'kube_job_failed{{{JOB},condition="true"}}': "_x12 1x2000",
            f"kube_job_status_start_time{{{JOB}}}": "0x2000",
            OF_THE_SCHEDULE: "1x2000",
        },
        silent=("30m", "25h"),
        firing=(
            Firing(
                "2h",
                "The night manta-nightly-7 failed",
                {"namespace": "manta", "job_name": "manta-nightly-7"},
            ),
        ),
    ),
    Case(
        "MantaNightJobFailed",
        "a night that goes on, and a failed Job that the schedule did not create",
        "5m",
        {
            f"kube_job_status_start_time{{{JOB}}}": "0x100",
            OF_THE_SCHEDULE: "1x100",
            'kube_job_failed{namespace="manta",job_name="other",condition="true"}': "1x100",
            'kube_job_status_start_time{namespace="manta",job_name="other"}': "0x100",
        },
        silent=("2h",),
    ),
    Case(
        "MantaNoSuccessfulNight",
        "the schedule is created at 0 h, and no night succeeds",
        "5m",
        {f"kube_cronjob_created{{{CRON}}}": "0x800"},
        silent=("35h",),
        firing=(Firing("40h", NEVER, {"namespace": "manta"}),),
    ),
    Case(
        "MantaNoSuccessfulNight",
        "the schedule is old; a night succeeds at 10 h, and none after it",
        "5m",
        {
            f"kube_cronjob_created{{{CRON}}}": "-864000x800",
            f"kube_cronjob_status_last_successful_time{{{CRON}}}": "-36000x120 36000x680",
        },
        silent=("9h", "45h"),
        firing=(Firing("50h", NEVER, {"namespace": "manta"}),),
    ),
    Case(
        "MantaRowsDeleted",
        "a night that loses 5 % of the rows, then one that loses 30 %",
        "1m",
        {'ray_manta_gate_value{WorkerId="a",gate="deleted_rows"}': "0.05x10 0.3x10 _x200"},
        silent=("5m", "3h"),
        firing=(Firing("15m", "30% of the previous release's rows are not in the corpus any more"),),
    ),
    Case(
        "MantaQueriesFarFromCorpus",
        "a night whose queries are like rows, then one whose queries are not",
        "1m",
        {'ray_manta_gate_value{WorkerId="a",gate="far_queries"}': "0.06x10 0.4x10 _x200"},
        silent=("5m", "3h"),
        firing=(Firing("15m", "40% of the queries of users have no near answer in the corpus"),),
    ),
    Case(
        "MantaServeDown",
        "one of two pods is drained, and an hour later both crash for half an hour",
        "1m",
        {DEPLOYED: "2x20 1x10 2x50 0x30 2x60"},
        silent=("25m", "1h22m", "2h"),
        firing=(Firing("1h40m", "No pod of the search service in manta is ready", {"namespace": "manta"}),),
    ),
    Case(
        "MantaServeRefusesRelease",
        "another encoder is published after ten minutes, and rolled back an hour later",
        "1m",
        {'manta_serve_refused_release{instance="search:8080"}': "0x10 2x60 0x60"},
        silent=("5m", "15m", "100m"),
        firing=(
            Firing(
                "40m",
                "The service search:8080 refuses release 2, which is of another space, and answers from an "
                "older one",
                {"instance": "search:8080"},
            ),
        ),
    ),
    Case(
        "MantaServeNotFollowing",
        "one failure, and later a release that cannot be opened, which is tried every ten minutes",
        "1m",
        {'manta_serve_refresh_failures_total{instance="a"}': "0x9 1x80 2x9 3x9 4x9 5x9 6x80"},
        silent=("15m", "30m", "90m", "3h20m"),
        firing=(
            Firing(
                "125m",
                "A service cannot read or open the current release, and answers from an older one",
                {"instance": "a"},
            ),
        ),
    ),
    Case(
        "MantaServeFailing",
        "a seventh of the requests fails for half an hour",
        "1m",
        {
            'manta_serve_requests_total{instance="a",route="/search",status="200"}': "0+60x120",
            'manta_serve_requests_total{instance="a",route="/search",status="500"}': "0x30 10+10x30 310x60",
        },
        silent=("20m", "90m"),
        firing=(Firing("55m", "14.29% of the requests to services failed with a status of 500 or above"),),
    ),
    Case(
        "MantaServeCanaryReturned",
        "a release is tried, the service returns from it, and the root is rolled back an hour later",
        "1m",
        {'manta_serve_canary_returned_release{instance="search:8080"}': "0x20 7x60 0x20"},
        silent=("15m", "90m"),
        firing=(
            Firing(
                "30m",
                "The service search:8080 has returned from release 7, which failed searches or was slow",
                {"instance": "search:8080"},
            ),
        ),
    ),
    Case(
        "MantaServeShadowClosed",
        "a service without a shadow is started again with one, which is lost after an hour",
        "1m",
        {'manta_serve_shadow_open{instance="search:8080"}': "_x20 0x5 1x60 0x90"},
        silent=("15m", "40m", "100m"),
        firing=(
            Firing(
                "130m",
                "The shadow of the service search:8080 answers nothing",
                {"instance": "search:8080"},
            ),
        ),
    ),
    Case(
        "MantaServeTokensRefused",
        "a file is broken for three minutes, and later for an hour",
        "1m",
        {'manta_serve_tokens_refused{instance="search:8080"}': "0x9 1x2 0x20 1x60 0x20"},
        silent=("12m", "30m", "100m"),
        firing=(
            Firing(
                "50m",
                "The service search:8080 cannot use its file of tokens, and keeps the tokens of before",
                {"instance": "search:8080"},
            ),
        ),
    ),
    Case(
        "MantaQueryLogFailing",
        "three queries that are not written, and later a log whose old lines stay for three hours",
        "1m",
        {
            'manta_serve_logged_queries_total{instance="a",outcome="written"}': "0+60x400",
            'manta_serve_logged_queries_total{instance="a",outcome="failed"}': "0x30 3x370",
            'manta_serve_query_log_tidied_timestamp_seconds{instance="a"}': "0+60x200 12000x200",
            'manta_serve_query_log_tidied_timestamp_seconds{instance="without a log"}': "0x400",
        },
        silent=("20m", "120m", "300m"),
        firing=tuple(
            Firing(
                when,
                "The service a cannot write its log of queries, or cannot remove old lines from it",
                {"instance": "a"},
            )
            for when in ("50m", "340m")
        ),
    ),
    Case(
        "MantaScheduleUnknown",
        "the schedule is deleted after five hours",
        "1m",
        {f"kube_cronjob_created{{{CRON}}}": "0x300 _x600"},
        silent=("2h", "5h", "6h"),
        firing=(
            Firing("8h", "Prometheus does not see the CronJob manta-nightly", {"cronjob": "manta-nightly"}),
        ),
    ),
]


def write_test(case: Case, folder: Path) -> Path:
    """Write the case as a file for promtool, with a file that has only its rule."""
    [rule] = [rule for rule in alerts() if rule["alert"] == case.alert]
    (folder / "rule.yaml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [rule]}]}))
    checks = [
        {
            "eval_time": each.time,
            "alertname": case.alert,
            "exp_alerts": [
                {
                    "exp_labels": rule["labels"] | each.labels,
                    "exp_annotations": {**rule["annotations"], "summary": each.summary},
                }
            ],
        }
        for each in case.firing
    ]
    checks += [{"eval_time": time, "alertname": case.alert, "exp_alerts": []} for time in case.silent]
    test = {
        "name": case.story,
        "interval": case.interval,
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": checks,
    }
    file = folder / "test.yaml"
    interval = "1m" if case.interval.endswith("s") else case.interval
    whole = {"evaluation_interval": interval, "rule_files": ["rule.yaml"], "tests": [test]}
    file.write_text(yaml.safe_dump(whole))
    return file


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, of Debian's package prometheus")
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.alert}: {case.story}")
def test_an_alert_fires_at_its_times_and_not_at_others(case: Case, tmp_path: Path):
    command = ["promtool", "test", "rules", write_test(case, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried_while_it_fires_and_while_it_is_silent():
    names = {rule["alert"] for rule in alerts()}
    assert {case.alert for case in CASES if case.firing} == names
    assert {case.alert for case in CASES if case.silent} == names
