"""Candidates of an evaluation: encoders and releases, resolved to a vector space and a transform."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from pipeline.errors import ConfigError, DataError, SpaceMismatch
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import open_folder
from pipeline.post import Transform, load_transform
from pipeline.post.chain import name_of
from pipeline.settings import CandidateSettings, EncoderSettings, Job
from pipeline.store.base import Store
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.release import Releases
from pipeline.store.store import open_store, store_of
from pipeline.store.units import FileRef
from pipeline.store.verify import check_files


@dataclass(frozen=True)
class Contender:
    """A resolved candidate: the encoder of its vectors, and the transform applied before comparison."""

    name: str
    encoder: EncoderSettings
    space_id: str
    dim: int
    """width of the raw vectors"""
    transform: FileRef | None = None
    """a copy of the transform in the store of the evaluations"""
    transform_id: str | None = None
    kind: str | None = None
    """of the transform, for people"""
    k: int | None = None
    """width of the transformed vectors"""
    release: int | None = None
    root: str | None = None
    bytes: int = 0
    """size of the encoder's files"""

    @property
    def id(self) -> tuple[str, str | None]:
        """Return space and transform, which determine every score."""
        return self.space_id, self.transform_id

    @property
    def overrides(self) -> dict[str, Any]:
        """Return the settings that differ from those of the encoder's folder."""
        return self.encoder.model_dump(mode="json", exclude_defaults=True, exclude={"path"})

    def facts(self) -> dict[str, Any]:
        """Return the candidate as a JSON object."""
        return {
            "name": self.name,
            "encoder": self.encoder.path,
            "overrides": self.overrides,
            "release": self.release,
            "root": self.root,
            "space_id": self.space_id,
            "dim": self.dim,
            "bytes": self.bytes,
            "transform_id": self.transform_id,
            "transform": self.kind,
            "k": self.k,
        }


def contenders(job: Job, store: Store) -> tuple[Contender, ...]:
    """Resolve the job's candidates in order, or its own encoder without any. Copies transforms to `store`.

    Raises:
        ConfigError: two candidates have one name.
        DataError: a release or a transform is missing.
        ModelError: an encoder cannot be used.
        SpaceMismatch: a transform belongs to another space.
    """
    given = job.evaluate.candidates or (CandidateSettings(),)
    found = [
        _of_release(each, job, store) if each.release is not None else _of_encoder(each, job, store)
        for each in given
    ]
    counts = Counter(each.name for each in given if each.name)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ConfigError(
            "evaluate.candidates",
            "names that distinguish candidates",
            f"{twice[0]!r} twice",
            "name each once",
        )
    return tuple(_distinguished(found))


def _of_encoder(given: CandidateSettings, job: Job, store: Store) -> Contender:
    encoder = given.encoder or job.encoder
    folder = open_folder(encoder)
    plain = Contender(
        given.name or _encoder_name(encoder), encoder, folder.space_id, folder.dim, bytes=_bytes(folder)
    )
    if given.transform is None:
        return plain
    home, path = store_of(given.transform)
    try:
        content = home.read(path)
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(
            f"transform {given.transform}",
            "a file of a fitted transform",
            "no such file",
            "give one of those below transforms/ of a release root",
        ) from None
    try:
        transform = load_transform(content)
    except DataError as error:
        raise DataError(f"transform {given.transform}", error.expected, error.found, error.remedy) from None
    if transform.space_id != folder.space_id:
        where, found = f"transform {given.transform}", f"one fitted in space {transform.space_id}"
        raise SpaceMismatch(
            where,
            f"a transform of space {folder.space_id}, that of encoder {encoder.path}",
            found,
            "fit it on vectors of this encoder (manta whiten)",
        )
    named = plain if given.name else replace(plain, name=f"{plain.name} + {name_of(transform)}")
    return _with_transform(named, transform, content, store)


def _of_release(given: CandidateSettings, job: Job, store: Store) -> Contender:
    manifest, releases = _released(given, job)
    needed = (*manifest.encoder.references(), manifest.transform)
    check_files(releases.store, (file for file in needed if file))
    encoder = _encoder_of(manifest, releases.store)
    folder = open_folder(encoder)
    if folder.space_id != manifest.space_id:
        where = releases.store.uri_of(manifest.encoder.path)
        remedy = "the encoder folder is not that of the release: restore it"
        raise SpaceMismatch(
            where,
            f"space {manifest.space_id} of release {manifest.release}",
            f"space {folder.space_id}",
            remedy,
        )
    name = given.name or f"release {manifest.release}"
    plain = Contender(
        name,
        encoder,
        folder.space_id,
        folder.dim,
        bytes=_bytes(folder),
        release=manifest.release,
        root=releases.store.uri,
    )
    if manifest.transform is None:
        return plain
    content = manifest.transform.read(releases.store)
    return _with_transform(plain, load_transform(content), content, store)


def _bytes(folder: EncoderFolder) -> int:
    """Return the size of all files that loading needs."""
    return sum((folder.path / name).stat().st_size for name in folder.files)


def _released(given: CandidateSettings, job: Job) -> tuple[ReleaseManifest, Releases]:
    root, own = given.root or job.release.root, given.root is None
    commits = open_store(job.release.commits_root) if own and job.release.commits_root else None
    releases = Releases(open_store(root), commits)
    number = given.release
    manifest = releases.current() if number in (None, "current") else releases.get(int(number or 0))
    if manifest is None:
        raise DataError(
            releases.store.uri,
            "a published release",
            "none",
            "run `manta nightly` first, or name an encoder in evaluate.candidates",
        )
    return manifest, releases


def _encoder_of(manifest: ReleaseManifest, store: Store) -> EncoderSettings:
    """Return the release's own copy of its encoder, with the settings of its night."""
    try:
        return EncoderSettings.model_validate(
            {**manifest.settings.get("encoder", {}), "path": store.uri_of(manifest.encoder.path)}
        )
    except ValidationError as error:
        where = f"release {manifest.release}: settings.encoder"
        raise DataError(
            where,
            "settings that this version knows",
            str(error.errors()[0]["loc"]),
            "evaluate it with the version that wrote it",
        ) from None


def _with_transform(plain: Contender, transform: Transform, content: bytes, store: Store) -> Contender:
    path = f"transforms/{transform.transform_id[:24]}.safetensors"
    digest = hashlib.sha256(content).hexdigest()
    reference = FileRef(path=path, sha256=digest, rows=transform.fitted_rows, bytes=len(content))
    if not reference.is_complete(store):
        store.write(path, content)
    return replace(
        plain,
        transform=reference,
        transform_id=transform.transform_id,
        kind=name_of(transform),
        k=transform.k,
    )


def _encoder_name(encoder: EncoderSettings) -> str:
    """Return the last part of the encoder's path, and the settings that differ from its folder."""
    changed = encoder.model_dump(exclude_defaults=True, exclude={"path", "query_prompt", "frequencies"})
    return " ".join(
        [
            encoder.path.rstrip("/").rpartition("/")[2] or encoder.path,
            *(f"{name}={_short(value)}" for name, value in changed.items()),
        ]
    )


def _short(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _distinguished(found: list[Contender]) -> Iterator[Contender]:
    """Yield the candidates, each with a unique name."""
    seen: Counter[str] = Counter()
    for each in found:
        seen[each.name] += 1
        yield each if seen[each.name] == 1 else replace(each, name=f"{each.name} ({seen[each.name]})")
