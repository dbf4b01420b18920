"""Settings of the root that holds the releases of a corpus; each section has a module of its name."""

from pydantic import Field

from pipeline.config import Settings
from pipeline.settings.corpus import Uri


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
