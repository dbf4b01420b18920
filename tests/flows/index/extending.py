"""Releases of random vectors: units are added, rows are deleted, and each night's index is published."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import load_settings
from pipeline.flows.context import FlowContext
from pipeline.flows.index.build import IndexInput, build_index
from pipeline.flows.index.extend import extend_index
from pipeline.flows.index.records import BuiltIndex, load_queries, load_truth, store_queries
from pipeline.flows.workers.interface import Workers
from pipeline.index.files.ids import Ids
from pipeline.index.files.parts import Parts, load_index
from pipeline.index.measure.truth import NO_NEIGHBOUR, NOT_A_ROW
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.stats.moments import Moments
from pipeline.store.files.open_store import open_store
from pipeline.store.records.dead import Dead
from pipeline.store.records.release_units import VectorUnit
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.write_once import store_by_content
from pipeline.store.releases.manifest import Choice, EncoderFiles, ReleaseManifest
from pipeline.store.releases.release import Releases
from pipeline.store.rows.schema import vector_column, vectors_schema, writer_options
from tests.index.published import store_empty_corpus

DIM = 24
SPACE = "5" * 64


@dataclass
class Chain:
    """A root with its releases, and the rows that are live now."""

    root: str | Path
    cluster: Workers
    overrides: Sequence[str] = ()
    space_id: str = SPACE
    seed: int = 0
    dim: int = DIM
    clusters: int = 12
    units: list[VectorUnit] = field(default_factory=list)
    vectors: dict[int, np.ndarray] = field(default_factory=dict)
    dead: list[int] = field(default_factory=list)
    before: ReleaseManifest | None = None
    built: BuiltIndex | None = None
    choices: tuple[Choice, ...] = ()
    users: np.ndarray | None = None
    """(q, d) float32, vectors of the queries of gates.queries"""

    def __post_init__(self) -> None:
        self.store, self.rng = open_store(self.root), np.random.default_rng(self.seed)
        self.centres = np.random.default_rng(99).normal(size=(self.clusters, self.dim))

    def copy(self, root: Path) -> "Chain":
        """Copy the releases below another root."""
        shutil.copytree(self.root, root)
        lists = {"units": [*self.units], "vectors": dict(self.vectors), "dead": [*self.dead]}
        return replace(self, root=root, **lists)

    @property
    def job(self) -> Job:
        """The job of each night."""
        overrides = [
            f"release.root={self.root}",
            "index.queries=40",
            "index.shards=2",
            "cluster.index_workers=2",
            "corpus.keep=[name]",
        ]
        return load_settings(Job, None, (*overrides, *self.overrides))

    def add(
        self, rows: int, spread: float = 0.7, dropped: Sequence[int] = (), centre: int | None = None
    ) -> "Chain":
        """Add a unit of `rows` vectors around the centres, or around one of them.

        The corpus unit has the dropped rows too.
        """
        ordinal = max((unit.ordinal for unit in self.units), default=-1) + 1
        clusters = self.rng.integers(0, self.clusters, rows) if centre is None else np.full(rows, centre)
        raw = (self.centres[clusters] + spread * self.rng.normal(size=(rows, self.dim)) + 0.3).astype(
            np.float32
        )
        numbers = np.delete(np.arange(rows + len(dropped)), list(dropped))
        schema = vectors_schema(
            pa.field("id", pa.string()), [pa.field("name", pa.string())], self.dim, self.space_id
        )
        ids = [f"u{ordinal}-{number}" for number in numbers]
        columns = [
            pa.array(ids),
            pa.array([bytes(16)] * rows, pa.binary(16)),
            vector_column(raw, schema.field("vector")),
            pa.array([name.upper() for name in ids]),
        ]
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), sink, **writer_options(schema))
        content = sink.getvalue().to_pybytes()
        path, digest = f"units/{ordinal:05d}.parquet", sha256(content).hexdigest()
        self.store.write(path, content)
        unit = VectorUnit(
            ordinal=ordinal,
            path=path,
            rows=rows,
            bytes=len(content),
            sha256=digest,
            space_id=self.space_id,
            numerics_id="n",
            corpus=FileRef(path=path, sha256=digest),
            record=path,
            dropped=tuple(dropped),
            moments=store_by_content(
                self.store, Moments.of(raw).to_bytes(), f"moments/{ordinal}", ".safetensors", rows
            ),
        )
        self.units.append(unit)
        self.vectors |= dict(zip(((ordinal << 32) | numbers).tolist(), raw, strict=True))
        return self

    def kill(self, count: int | None, units: Sequence[int] | None = None) -> "Chain":
        """Delete `count` live rows, or all, of some units or of any."""
        choice = [address for address in self.live() if units is None or address >> 32 in units]
        self.dead += self.rng.choice(choice, len(choice) if count is None else count, replace=False).tolist()
        return self

    def live(self) -> list[int]:
        """Return the addresses of live rows, ascending."""
        ordinals, dead = {unit.ordinal for unit in self.units}, set(self.dead)
        return [
            address for address in sorted(self.vectors) if address not in dead and address >> 32 in ordinals
        ]

    def dead_file(self) -> FileRef | None:
        """Store the addresses of dead rows; None without any."""
        return Dead(np.array(sorted(self.dead), dtype=np.int64)).store_in(self.store, "dead/dead")

    def context(self, stages: Stages) -> FlowContext:
        """Return the context of a night."""
        return FlowContext(self.job, self.store, self.cluster, stages)

    def vectors_to_index(self) -> IndexInput:
        """Return tonight's live vectors."""
        users = None
        if self.users is not None:
            addresses = np.full(len(self.users), NOT_A_ROW, dtype=np.int64)
            with self.store.scratch() as scratch:
                users = store_queries(self.store, addresses, self.users, scratch)
        return IndexInput(tuple(self.units), self.dead_file(), None, self.dim, user_queries=users)

    def night(self, stages: Stages | None = None) -> BuiltIndex:
        """Build or extend tonight's index, and publish it."""
        context, vectors = self.context(stages or Stages()), self.vectors_to_index()
        if self.before is None:
            built, choices = build_index(context, vectors), ()
        else:
            built, choices = extend_index(context, vectors, self.before)
        self.built, self.choices = built, choices
        self.before = Releases(self.store).publish(self._manifest(built, vectors.dead), str)
        return built

    def chosen(self) -> dict[str, str]:
        """Return the choice of the last night for each question."""
        return {choice.what: choice.chosen for choice in self.choices}

    def parts(self) -> Parts:
        """Open the last night's index."""
        assert self.built is not None
        return load_index(self.store, self.built.index_files(), self.built.tombstones)

    def assert_sound(self, *, exhaustive: bool = True) -> None:
        """Assert that the release holds exactly the live rows with their ids, and answers as numpy does.

        Its stored exact neighbours must be exact.
        """
        built, live, parts = self.built, np.array(self.live()), self.parts()
        assert built is not None
        raw = np.array([self.vectors[address] for address in live.tolist()])
        held = np.concatenate(list(parts.addresses()))
        assert (
            sorted(np.setdiff1d(held, Dead.load(self.store, built.tombstones).addresses).tolist())
            == live.tolist()
        )
        assert (
            len(held) - (built.tombstones.rows if built.tombstones else 0)
            == len(live)
            == built.rows
            == parts.ntotal
            == built.measured.rows
        )
        ids = Ids([self.store.local(reference.path, reference.sha256) for reference in built.ids])
        assert ids.take(live).to_pylist() == [
            {"id": f"u{a >> 32}-{a & 0xFFFFFFFF}", "name": f"U{a >> 32}-{a & 0xFFFFFFFF}"}
            for a in live.tolist()
        ]
        queries, truth = load_queries(self.store, built.queries), load_truth(self.store, built.truth)
        exact = _cosines(queries.vectors, raw)
        exact[queries.addresses[:, None] == live[None]] = -np.inf
        order = np.argsort(-exact, axis=1, kind="stable")
        others = np.isfinite(exact).sum(axis=1)
        for row in range(len(queries)):
            listed = int((truth.addresses[row] != NO_NEIGHBOUR).sum())
            assert listed >= min(100, others[row])
            np.testing.assert_allclose(truth.scores[row][:listed], exact[row][order[row][:listed]], atol=1e-5)
            assert (truth.addresses[row][:listed] == live[order[row][:listed]]).mean() > 0.98
        if exhaustive:
            near_rows = raw[::37] + 0.01
            found = parts.search(near_rows, 10)[1]
            np.testing.assert_array_equal(
                np.sort(found), np.sort(live[np.argsort(-_cosines(near_rows, raw), axis=1)[:, :10]])
            )

    def _manifest(self, built: BuiltIndex, dead: FileRef | None) -> ReleaseManifest:
        return ReleaseManifest(
            parent=self.before.release if self.before else None,
            space_id=self.space_id,
            numerics={"n": built.rows},
            rows=built.rows,
            units=tuple(self.units),
            dead=dead,
            next_ordinal=max(unit.ordinal for unit in self.units) + 1,
            tombstones=built.tombstones,
            index=built.index_files(),
            ids=built.ids,
            encoder=EncoderFiles(path="encoders/none", files=()),
            corpus=store_empty_corpus(self.store),
            choices=self.choices,
            settings=self.job.model_dump(mode="json"),
        )


def _cosines(queries: np.ndarray, raw: np.ndarray) -> np.ndarray:
    left, right = (
        x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
        for x in (queries, raw)
    )
    return np.asarray(left @ right.T)
