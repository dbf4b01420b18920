"""Settings of the root that holds the releases of a corpus; each section has a module of its name."""

from pipeline.config import Settings
from pipeline.settings.corpus import Uri


class ReleaseSettings(Settings):
    """Locations of releases and of their commits."""

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
