"""Releases of one unit, published without a night."""

from hashlib import sha256

from pipeline.store.files.base import Store
from pipeline.store.records.release_units import VectorUnit, store_units
from pipeline.store.records.sealed_json import FileRef
from pipeline.store.records.units import Corpus, CorpusUnit, TableBucket
from pipeline.store.releases.manifest import EncoderFiles, IndexFiles, ReleaseManifest
from pipeline.store.releases.release import Releases


def candidate(store: Store, name: str, parent: int | None, shared: str = "shared") -> ReleaseManifest:
    """A release with files of its own and one unit that it shares with others of the same `shared`."""

    def ref(path: str) -> FileRef:
        content = path.encode()
        store.write(path, content)
        return FileRef(path=path, sha256=sha256(content).hexdigest(), rows=1, bytes=len(content))

    text = ref(f"units/corpus/{shared}.parquet")
    row = CorpusUnit(name="0", ordinal=0, path=text.path, rows=1, bytes=text.bytes, sha256=text.sha256)
    corpus = Corpus(
        id=name,
        digest=name,
        units=(row,),
        keys=(TableBucket(**dict(ref(f"keys/{name}/00000.parquet"))),),
        quarantine=ref(f"quarantine/{name}.parquet"),
        counts={"rows": 1, "quarantined": 0},
    )
    store.write(f"keys/{name}/corpus.json", corpus.to_json())
    vectors = ref(f"units/vectors/s/{shared}.parquet")
    unit = VectorUnit(
        ordinal=0,
        path=vectors.path,
        rows=1,
        sha256=vectors.sha256,
        space_id="s",
        numerics_id="n",
        corpus=text,
        record=ref(f"units/vectors/s/{shared}.json").path,
        moments=ref(f"moments/s/{shared}.safetensors"),
    )
    return ReleaseManifest(
        parent=parent,
        space_id="s",
        numerics={"n": 1},
        rows=1,
        units=store_units(store, (unit,)),
        next_ordinal=1,
        ids=(ref(f"ids/{name}.arrow"),),
        moments=ref(f"moments/{name}.safetensors"),
        index=IndexFiles(kind="flat", factory="Flat", dim=2, files=(ref(f"indexes/{name}.faiss"),)),
        transform=ref(f"transforms/{name}.safetensors"),
        encoder=EncoderFiles(
            path="encoders/e",
            files=(ref("encoders/e/config.json").model_copy(update={"path": "config.json"}),),
        ),
        corpus=FileRef(path=f"keys/{name}/corpus.json", sha256=sha256(corpus.to_json()).hexdigest()),
    )


def publish(store: Store, name: str, shared: str = "shared") -> ReleaseManifest:
    releases = Releases(store)
    current = releases.current()
    return releases.publish(
        candidate(store, name, current.release if current else None, shared), lambda number: f"<html>{number}"
    )
