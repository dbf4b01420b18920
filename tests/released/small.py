"""A small root of two nights that the first version wrote, and the program that made it.

`root.tar.gz` holds `encoder/`, the corpora of both nights and `root/`. It is never replaced, because later
versions must be able to read the files of an earlier one.
"""

import os
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.flows.night.nightly import nightly
from pipeline.flows.night.publish import NightOutcome
from pipeline.log import Stages
from pipeline.settings import Job

ARCHIVE = Path(__file__).parent / "root.tar.gz"
MODIFIED = 1_700_000_000  # time stamp of every corpus file, on which the names of key tables depend
SETTINGS = (
    "corpus.uri=corpus",
    "corpus.keep=[lang]",
    "encoder.path=encoder",
    "encode.unit_rows=50",
    "encode.device=cpu",
    "index.queries=20",
    "index.kind=hnsw",
    "whiten.mode=on",
    "whiten.max_drift=0.5",
)


def unpack(folder: Path) -> Path:
    """Unpack the archive into `folder`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def set_corpus(rows: Path) -> None:
    """Make `corpus/` of the working directory a copy of `rows`, with fixed time stamps."""
    shutil.rmtree("corpus", ignore_errors=True)
    shutil.copytree(rows, "corpus")
    for file in Path("corpus").iterdir():
        os.utime(file, (MODIFIED, MODIFIED))


def run_night(root: str) -> NightOutcome:
    """Run a night over `corpus/` of the working directory."""
    return nightly(load_settings(Job, None, (*SETTINGS, f"release.root={root}")), Stages())


def change(before: Path, after: Path) -> None:
    """Write the second night's corpus: three rows deleted, one changed, one new."""
    shutil.copytree(before, after)
    file = after / "part-1.parquet"
    rows = pq.read_table(file).to_pylist()[3:]
    rows[0]["text"] = "a changed sentence about a river"
    rows.append({"id": "new-1", "text": "a new sentence about old books", "lang": "en"})
    pq.write_table(pa.Table.from_pylist(rows), file)


def main(folder: Path) -> None:
    """Make `root.tar.gz` in `folder`, which holds `encoder/` and the first night's corpus in `corpus-1/`."""
    os.chdir(folder)
    change(Path("corpus-1"), Path("corpus-2"))
    for corpus in ("corpus-1", "corpus-2"):
        set_corpus(Path(corpus))
        run_night("root")
    shutil.rmtree("root/indexes/work")  # temporary files of a night
    with tarfile.open("root.tar.gz", "w:gz") as archive:
        for name in ("encoder", "corpus-1", "corpus-2", "root"):
            archive.add(name)


if __name__ == "__main__":
    main(Path.cwd())
