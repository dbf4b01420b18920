"""Settings of the root that holds the releases of a corpus; each section has a module of its name."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.config import Settings
from pipeline.settings.corpus import Uri

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOOPBACK = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/.*)?")


class EventSettings(Settings):
    """The receiver of events: nights that published, wait, were refused or failed, and other transitions."""

    command: tuple[str, ...] = ()
    """program with its arguments, run without a shell; it reads the event, a JSON object, from standard
    input. [mail-event, --to, ops], for example; []: none"""
    url: str | None = None
    """address that the event is posted to as JSON: https://..., or http:// of this machine. $NAME: the
    environment variable NAME has the address, because it contains a secret. null: none"""
    headers: dict[str, str] = {}
    """headers of the request, each with the name of the environment variable that has its value:
    {Authorization: HOOK_TOKEN}, for example"""
    timeout_s: Annotated[float, Field(gt=0, le=60)] = 10.0
    """time of one attempt"""
    retries: Annotated[int, Field(ge=0, le=5)] = 2
    """further attempts after a failure. If all fail, a warning says so, and nothing else changes"""

    @model_validator(mode="after")
    def _one_receiver(self) -> Self:
        if self.command and self.url:
            raise ValueError("command or url, not both")
        if self.headers and not self.url:
            raise ValueError("url, as headers have no effect without it")
        return self

    @field_validator("url")
    @classmethod
    def _safe_address(cls, url: str | None) -> str | None:
        if url is not None and not (url.startswith("$") and _VARIABLE.fullmatch(url[1:])):
            check_event_address(url)
        return url

    @field_validator("headers")
    @classmethod
    def _variables(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, variable in headers.items():
            if not re.fullmatch(r"[A-Za-z0-9-]+", name) or not _VARIABLE.fullmatch(variable):
                raise ValueError("names of headers, each with the name of an environment variable")
        return headers


def check_event_address(url: str) -> None:
    """Raise ValueError if events must not be sent to this address, because others could read them."""
    if not re.fullmatch(r"https://[^/\s]+(/\S*)?", url) and not _LOOPBACK.fullmatch(url):
        raise ValueError("an address that begins with https://, or with http:// and the name of this machine")


class ExportSettings(Settings):
    """An export: the arguments KIND, TARGET and --name of `manta export`."""

    kind: str
    """parquet (files of changes), pgvector, qdrant, lancedb, milvus, opensearch or elasticsearch"""
    target: Uri
    """address of the server, without user and password, or a folder"""
    name: str = "manta"
    """name of the table, collection or index; of files, their folder"""


class ReleaseSettings(Settings):
    """Locations of releases and of their commits, and the work that follows a release."""

    root: Uri = "releases"
    """a directory or an s3:// URI"""
    commits_root: str | None = None
    """another store for commits, needed if the store of `root` overwrites files that exist (no conditional
    writes); null: `root`"""
    publish: Literal["gates", "approval"] = "gates"
    """gates: a night publishes a candidate that passed its gates; approval: the candidate waits until
    `manta releases promote` publishes it, or a later night's candidate takes its place"""
    erase_after_days: int | None = Field(default=None, ge=1)
    """number of days after which rows that the corpus does not have any more are erased from all releases, as
    by `manta erase`. Every night begins with it, and erases the rows of a bounded number of units. Services
    and other commands must not use the root meanwhile; otherwise the night goes on, ends with exit code 75,
    and the next night tries again. null: nothing is erased"""
    protected: Uri | None = None
    """file of ids that must not be erased (a legal hold), a path or URI, in the formats of corpus.exclude.
    `manta erase` refuses them, and erase_after_days keeps and counts them. null: none"""
    show_deleted_texts: bool = False
    """whether reports, and `manta releases diff`, show the texts of deleted rows and the earlier texts of
    changed rows; otherwise only their ids. Fixed queries that are the text of a row are replaced when no row
    has that text any more"""
    metrics_file: str | None = None
    """file that every night replaces with its metrics, for the textfile collector of Prometheus's node
    exporter: /var/lib/node_exporter/manta.prom, for example. On a cluster, Ray exports them, too; without
    one, this is the only way. null: no file"""
    mlflow: bool = False
    """log the settings, metrics and report of each night that makes a candidate as a run of MLflow, in the
    experiment MLFLOW_EXPERIMENT_NAME (default: manta) of the server MLFLOW_TRACKING_URI. Needs the package
    mlflow or mlflow-skinny. If the server fails, the night publishes nevertheless"""
    keep: int | None = Field(default=None, ge=2)
    """number of releases to keep: every night ends with `manta releases prune ROOT --keep N`. The current
    release counts, and so does the one before, which searches may still read. If it fails, the release stays
    published, the night ends with exit code 75, and the next night tries again. null: nothing is removed"""
    after: tuple[ExportSettings, ...] = ()
    """exports of the current release with which every night ends, before it prunes; a list of mappings with
    kind, target and name, as in [{kind: pgvector, target: "postgresql://localhost/search", name: docs}]. A
    failure is treated as one of `keep` is"""
    on_event: EventSettings = EventSettings()
