"""JSON lines, write_json_lines to a folder and read as a corpus."""

import gzip
import json

from hypothesis import strategies as st

from pipeline.settings import CorpusSettings
from pipeline.text.formats.reader import read_batches, survey_files
from pipeline.text.sources.sources import list_files


def rows_of(file, corpus=None, columns=None):
    """Read good rows, bad rows and numbers of rows with surrogates; columns default to a survey's."""
    corpus = (corpus or CorpusSettings()).model_copy(update={"uri": str(file)})
    files = list_files(corpus)
    batches = list(read_batches(files[0], corpus, columns or survey_files(files, corpus).columns))
    good, bad = [
        [row for batch in batches for row in getattr(batch, side).to_pylist()] for side in ("good", "bad")
    ]
    return good, bad, sorted(row for batch in batches for row in batch.surrogates)


def write_json_lines(tmp_path, *lines, name="a.jsonl", end=b"\n"):
    content = b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + end for line in lines
    )
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return tmp_path / name


characters = st.characters(exclude_categories=())


values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(characters, max_size=4)
    | st.lists(st.integers(0, 9), max_size=2)
)
