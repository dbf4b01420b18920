"""The disk space that a night needs, part by part, estimated from sizes and row counts.

The corpus is not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.errors import ConfigError
from pipeline.flows.corpus import open_releases
from pipeline.flows.encode.encoder_copy import encoder_copy_path
from pipeline.flows.night.previous import changed_files, load_previous
from pipeline.index.plan import plan_index
from pipeline.index.sample import LEAST_SAMPLED_ROWS, SAMPLE_SIZES
from pipeline.log import size
from pipeline.models.folder.folder import open_folder
from pipeline.settings import Job
from pipeline.store.base import Store
from pipeline.store.disk import temporary_files
from pipeline.store.local import LocalStore
from pipeline.text.corpus.sources import SourceFile

# bytes of one row in the key tables and beside the index: id, text key, address, file, row
_TABLE_BYTES = 120
_REPORT_BYTES = 1 << 20  # bytes of report, manifests and records, which do not grow with the rows
_LINE_BYTES = 100  # bytes of one row in the temporary files of ingestion, beside its text


@dataclass(frozen=True)
class SpaceEstimate:
    """Estimate of the bytes that a night needs.

    Attributes:
        stored: bytes written below release.root, by purpose.
        scratch: largest total size of temporary files at one time, in bytes.
    """

    stored: Mapping[str, int]
    scratch: int

    @property
    def sentence(self) -> str:
        """The sizes of all parts that are not empty."""
        parts = {**self.stored, "scratch": self.scratch}
        return ", ".join(f"{name} {size(count)}" for name, count in parts.items() if count)


def estimate_space(job: Job, store: Store, files: Mapping[SourceFile, int]) -> SpaceEstimate:
    """Estimate the space that a night needs.

    Files of the previous release are on the disk already, and stay there. On the first night of a root, the
    index counts twice, because the second night needs space for its own index beside the first one.

    Args:
        store: store of the results.
        files: number of rows of each input file.
    """
    folder, previous = open_folder(job.encoder), load_previous(open_releases(job))
    release = previous.release
    same_space = release is not None and release.space_id == folder.space_id
    new_files = changed_files(files, previous.corpus if same_space else None)
    max_rows = job.corpus.max_rows or sum(files.values())
    all_rows = min(sum(files.values()), max_rows)
    new_rows = min(sum(files[file] for file in new_files), max_rows)
    new_bytes = sum(file.size for file in new_files)
    vector_bytes = folder.dim * (2 if job.encode.vectors == "float16" else 4)
    new_units = -(-new_rows // job.encode.unit_rows)
    moments_bytes = new_units * folder.dim * (folder.dim + 1) * 4  # one triangle of a float64 matrix each
    # units with fewer than LEAST_SAMPLED_ROWS rows have no sample
    sampled_units = new_rows // max(job.encode.unit_rows, LEAST_SAMPLED_ROWS)
    sample_bytes = sampled_units * sum(SAMPLE_SIZES.values()) * vector_bytes
    index = plan_index(max(all_rows, 1), folder.dim, job.index, target=job.gates.wanted_recall)
    indexes = {"index": index.file_bytes} if release else {"two indexes": 2 * index.file_bytes}
    copy = encoder_copy_path(folder)
    encoder_files = {f"{copy}/{name}": folder.file(name).stat().st_size for name in folder.files}
    kept_columns = new_bytes if job.corpus.keep else 0  # not more than the files that they are read from
    stored = {
        "vectors": new_rows * vector_bytes + moments_bytes + sample_bytes,
        "texts": new_bytes,
        "tables": all_rows * _TABLE_BYTES + kept_columns,
        **indexes,
        "report and samples": _REPORT_BYTES + 2 * job.index.queries * folder.dim * 4,
        "encoder": sum(count for path, count in encoder_files.items() if store.size(path) != count),
    }
    return SpaceEstimate(stored, max(new_bytes + new_rows * _LINE_BYTES, index.file_bytes))


def check_disk_space(estimate: SpaceEstimate, store: Store, root: str) -> str:
    """Return a sentence on the free and the needed space.

    Raises:
        ConfigError: the disk of `root`, or the disk of temporary files, has too little free space.
    """
    stored, free = sum(estimate.stored.values()), store.free_bytes()
    if free is not None:
        needed = stored + estimate.scratch
        if free < needed:
            remedy = "make room (manta releases prune), or choose another release.root"
            raise ConfigError(root, _needed(needed, estimate), size(free), remedy)
        return f"{size(free)} free, about {size(needed)} needed: {estimate.sentence}"
    folder = temporary_files()
    free = LocalStore(folder).free_bytes() or 0
    if free < estimate.scratch:
        remedy = "make room there, or set TMPDIR to a larger disk"
        raise ConfigError(folder, _needed(estimate.scratch, estimate), size(free), remedy)
    return (
        f"an object store: no limit known, about {size(stored)} needed; {size(free)} free for scratch in "
        f"{folder}: {estimate.sentence}"
    )


def _needed(count: int, estimate: SpaceEstimate) -> str:
    return f"about {size(count)} free ({estimate.sentence})"
