"""Releases that are written file by file, as a night publishes them."""

import re
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.device import resolve
from pipeline.index.build.build import fill, remove, train, write_index
from pipeline.index.build.index_shape import plan_index
from pipeline.index.build.merge import FilledShard, merge_on_disk
from pipeline.index.files.ids import write_ids
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.settings import EncoderSettings, EncodeSettings, IndexSettings
from pipeline.store.files.base import Store, sha256_of
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus
from pipeline.store.records.write_once import store_by_content
from pipeline.store.releases.manifest import EncoderFiles, IndexFiles, ReleaseManifest
from pipeline.store.releases.release import Releases
from tests.index.clustered import Map

WORDS = re.findall(
    r"\w+",
    """a man in a blue shirt stands on a ladder and cleans window two dogs run girl reads book on the grass
    quick brown fox jumps over lazy dog near river bank then it sleeps
    Schnee liegt auf dem Dach der alten Mühle am Fluss""",
)
UNIT_ROWS = 50


def texts(rows: int, seed: int = 0) -> list[str]:
    """Make texts of 3 to 8 words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(3, 9))) for _ in range(rows)]


def open_encoder(folder: Path) -> Encoder:
    """Load an encoder, not compiled."""
    return load_encoder(EncoderSettings(path=str(folder)), EncodeSettings(compile=False), "cpu")


class ChoosyEncoder(Encoder):
    """An encoder that raises for texts with a snowman, and once `is_broken` is set for every text."""

    is_broken = False

    def encode_unchecked(self, texts: str | Sequence[str], *, query: bool = False) -> np.ndarray:
        if self.is_broken or any("\u2603" in text for text in texts):
            raise IndexError("index out of range in self")
        return super().encode_unchecked(texts, query=query)


def choosy_encoder(folder: Path) -> ChoosyEncoder:
    """Load an encoder that cannot encode some texts."""
    return ChoosyEncoder(
        open_folder(EncoderSettings(path=str(folder))), EncodeSettings(compile=False), resolve("cpu")
    )


def addresses_of_rows(rows: int) -> np.ndarray:
    """Return the addresses of rows in units of UNIT_ROWS."""
    return (np.arange(rows) // UNIT_ROWS << 32) | np.arange(rows) % UNIT_ROWS


def ids_table(corpus: Sequence[str], rows: slice, ids: str | Sequence[str]) -> pa.Table:
    """Make a table of addresses, ids and kept columns.

    Args:
        ids: string or int, to generate ids of that type, or the ids themselves.
    """
    numbers = np.arange(len(corpus))[rows]
    generated = pa.array(numbers) if ids == "int" else pa.array([f"row-{number}" for number in numbers])
    names = generated if isinstance(ids, str) else pa.array(ids[rows])
    return pa.table(
        {
            "address": pa.array(addresses_of_rows(len(corpus))[rows]),
            "id": names,
            "text": list(corpus[rows]),
            "length": [len(text) for text in corpus[rows]],
        }
    )


def store_empty_corpus(store: Store) -> FileRef:
    """Store an empty corpus record, because every release names one."""
    return store_by_content(store, Corpus(id="", digest="", units=()).to_json(), "corpus", ".json")


class Publisher:
    """Publishes corpora with one encoder into one store.

    Attributes:
        in_units: texts are in corpus units, not among the kept columns.
        kept: further kept columns, with a value for each text.
        encoder_path: path of the encoder in the store.
    """

    in_units = False
    encoder_path = "encoders/e"

    def __init__(self, store: Store, folder: Path, scratch: Path) -> None:
        self.store, self.scratch, self.encoder = store, scratch, open_encoder(folder)
        self.kept: dict[str, pa.Array] = {}

    def __call__(
        self,
        corpus: Sequence[str],
        *,
        transform: Map | None = None,
        kind: str = "flat",
        on_disk: str = "auto",
        ids: str | Sequence[str] = "string",
    ) -> ReleaseManifest:
        """Publish a release of these texts with an index of one part."""
        files = self._index(self.encoder.encode(corpus), transform, IndexSettings(kind=kind, on_disk=on_disk))
        return self.commit(
            corpus,
            IndexFiles(kind=kind, factory=kind, dim=48, files=files),
            len(corpus),
            ids=ids,
        )

    def with_delta(self, corpus: Sequence[str], base: int, dead: Sequence[int]) -> ReleaseManifest:
        """Publish `base` rows in one part, the others in a second, and `dead` rows as tombstones."""
        vectors, addresses = self.encoder.encode(corpus), addresses_of_rows(len(corpus))
        files = []
        for rows in (slice(0, base), slice(base, None)):
            index = train(plan_index(len(corpus), 48, IndexSettings(kind="flat")), None, vectors)
            fill(index, [(addresses[rows], vectors[rows])])
            write_index(index, self.scratch / "part.faiss")
            files.append(self.put(self.scratch / "part.faiss", "indexes", ".faiss"))
        pq.write_table(pa.table({"address": addresses[list(dead)]}), self.scratch / "dead.parquet")
        tombstones = self.put(self.scratch / "dead.parquet", "indexes", ".parquet")
        index_files = IndexFiles(kind="flat", factory="Flat", dim=48, parts=2, files=tuple(files))
        return self.commit(corpus, index_files, len(corpus) - len(dead), tombstones=tombstones)

    def without(self, corpus: Sequence[str], dead: Sequence[int]) -> ReleaseManifest:
        """Publish all rows without the `dead` ones, which are removed from the index."""
        vectors, addresses = self.encoder.encode(corpus), addresses_of_rows(len(corpus))
        index = train(plan_index(len(corpus), 48, IndexSettings(kind="flat")), None, vectors)
        fill(index, [(addresses, vectors)])
        remove(index, addresses[list(dead)])
        write_index(index, self.scratch / "index.faiss")
        files = (self.put(self.scratch / "index.faiss", "indexes", ".faiss"),)
        return self.commit(
            corpus, IndexFiles(kind="flat", factory="Flat", dim=48, files=files), len(corpus) - len(dead)
        )

    def commit(
        self,
        corpus: Sequence[str],
        index: IndexFiles,
        rows: int,
        tombstones: FileRef | None = None,
        ids: str | Sequence[str] = "string",
    ) -> ReleaseManifest:
        """Publish a release of these index files."""
        before = Releases(self.store).current()
        half = len(corpus) // (2 * UNIT_ROWS) * UNIT_ROWS
        references = []
        for first, stop in ((0, half), (half, len(corpus))):
            starts = range(first, stop, UNIT_ROWS)
            tables = [ids_table(corpus, slice(start, min(start + UNIT_ROWS, stop)), ids) for start in starts]
            for name, column in self.kept.items():
                for number, start in enumerate(starts):
                    values = column.slice(start, tables[number].num_rows)
                    tables[number] = tables[number].append_column(name, values)
            if tables:
                tables = [table.drop_columns(["text"]) for table in tables] if self.in_units else tables
                write_ids(self.scratch / "ids.arrow", tables)
                references.append(self.put(self.scratch / "ids.arrow", "ids", ".arrow"))
        units = self._store_units(corpus) if self.in_units else ()
        candidate = ReleaseManifest(
            parent=before.release if before else None,
            space_id=self.encoder.space_id,
            numerics={},
            rows=rows,
            units=units,
            next_ordinal=99,
            index=index,
            ids=tuple(references),
            encoder=self._store_encoder(),
            corpus=store_empty_corpus(self.store),
            tombstones=tombstones,
            settings={"encoder": {"path": "elsewhere"}},
        )
        return Releases(self.store).publish(candidate, str)

    def _store_units(self, corpus: Sequence[str]) -> tuple[VectorUnit, ...]:
        units = []
        for ordinal, start in enumerate(range(0, len(corpus), UNIT_ROWS)):
            rows = list(corpus[start : start + UNIT_ROWS])
            pq.write_table(
                pa.table(
                    {
                        "id": [f"row-{start + row}" for row in range(len(rows))],
                        "text": pa.array(rows, pa.large_string()),
                    }
                ),
                self.scratch / "unit",
            )
            texts = self.put(self.scratch / "unit", "units/corpus", ".parquet")
            vectors = {
                "path": texts.path,
                "record": texts.path,
                "sha256": "",
                "space_id": "",
                "numerics_id": "",
            }
            units.append(VectorUnit(ordinal=ordinal, rows=len(rows), corpus=texts, **vectors))
        return tuple(units)

    def put(self, file: Path, folder: str, suffix: str) -> FileRef:
        """Store a file under a name made of its content."""
        digest = sha256_of(file)
        reference = FileRef(path=f"{folder}/{digest[:24]}{suffix}", sha256=digest, bytes=file.stat().st_size)
        self.store.put(file, reference.path)
        return reference

    def _index(
        self, vectors: np.ndarray, transform: Map | None, settings: IndexSettings
    ) -> tuple[FileRef, ...]:
        dim = 48 if transform is None else len(transform.bias)
        plan = plan_index(len(vectors), dim, settings)
        index = train(plan, transform, vectors)
        filled = fill(index, [(addresses_of_rows(len(vectors)), vectors)])
        write_index(index, self.scratch / "index.faiss")
        if not plan.on_disk:
            return (self.put(self.scratch / "index.faiss", "indexes", ".faiss"),)
        merged, lists = merge_on_disk(
            [
                FilledShard(
                    self.scratch / "index.faiss",
                    filled.rows,
                    filled.probe_addresses,
                    filled.probe_vectors,
                    "space",
                )
            ],
            self.scratch,
        )
        write_index(merged, self.scratch / "mapped.faiss")
        return self.put(self.scratch / "mapped.faiss", "indexes", ".faiss"), self.put(
            lists, "indexes", ".ivfdata"
        )

    def _store_encoder(self) -> EncoderFiles:
        folder, references = self.encoder.folder, []
        for name in folder.files:
            content = folder.file(name).read_bytes()
            self.store.write(f"{self.encoder_path}/{name}", content)
            references.append(FileRef(path=name, sha256=sha256(content).hexdigest(), bytes=len(content)))
        return EncoderFiles(path=self.encoder_path, files=tuple(references))
