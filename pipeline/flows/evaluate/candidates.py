"""Candidates of an evaluation: encoders and releases, resolved to a vector space and a transform."""

import hashlib
from collections import Counter
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
from pipeline.store.release import Releases
from pipeline.store.store import open_store, store_of
from pipeline.store.stored import FileRef
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
    if twice := [
        name for name, count in Counter(each.name for each in given if each.name).items() if count > 1
    ]:
        raise ConfigError(
            "evaluate.candidates",
            "names that distinguish candidates",
            f"{twice[0]!r} twice",
            "name each once",
        )
    seen = Counter[str]()
    for number, each in enumerate(found):
        seen[each.name] += 1
        if seen[each.name] > 1:
            found[number] = replace(each, name=f"{each.name} ({seen[each.name]})")
    return tuple(found)


def _plain(name: str, encoder: EncoderSettings, folder: EncoderFolder) -> Contender:
    """Return an encoder as a candidate without a transform."""
    return Contender(
        name,
        encoder,
        folder.space_id,
        folder.dim,
        bytes=sum((folder.path / file).stat().st_size for file in folder.files),
    )


def _of_encoder(given: CandidateSettings, job: Job, store: Store) -> Contender:
    encoder = given.encoder or job.encoder
    plain = _plain(given.name or _encoder_name(encoder), encoder, open_folder(encoder))
    if given.transform is None:
        return plain
    where, (home, path) = f"transform {given.transform}", store_of(given.transform)
    try:
        content = home.read(path)
    except (FileNotFoundError, IsADirectoryError):
        raise DataError(
            where,
            "a file of a fitted transform",
            "no such file",
            "give one of those below transforms/ of a release root",
        ) from None
    try:
        transform = load_transform(content)
    except DataError as error:
        raise DataError(where, error.expected, error.found, error.remedy) from None
    if transform.space_id != plain.space_id:
        raise SpaceMismatch(
            where,
            f"a transform of space {plain.space_id}, that of encoder {encoder.path}",
            f"one fitted in space {transform.space_id}",
            "fit it on vectors of this encoder (manta whiten)",
        )
    named = plain if given.name else replace(plain, name=f"{plain.name} + {name_of(transform)}")
    return _with_transform(named, transform, content, store)


def _of_release(given: CandidateSettings, job: Job, store: Store) -> Contender:
    """Resolve a release, with its own copy of its encoder and the settings of its night."""
    commits = job.release.commits_root if given.root is None else None
    releases = Releases(open_store(given.root or job.release.root), open_store(commits) if commits else None)
    home = releases.store
    current = given.release == "current"
    manifest = releases.current() if current else releases.get(int(given.release or 0))
    if manifest is None:
        raise DataError(
            home.uri,
            "a published release",
            "none",
            "run `manta nightly` first, or name an encoder in evaluate.candidates",
        )
    check_files(home, [*manifest.encoder.references(), *filter(None, [manifest.transform])])
    where = home.uri_of(manifest.encoder.path)
    try:
        encoder = EncoderSettings.model_validate({**manifest.settings.get("encoder", {}), "path": where})
    except ValidationError as error:
        raise DataError(
            f"release {manifest.release}: settings.encoder",
            "settings that this version knows",
            str(error.errors()[0]["loc"]),
            "evaluate it with the version that wrote it",
        ) from None
    plain = _plain(given.name or f"release {manifest.release}", encoder, open_folder(encoder))
    if plain.space_id != manifest.space_id:
        raise SpaceMismatch(
            where,
            f"space {manifest.space_id} of release {manifest.release}",
            f"space {plain.space_id}",
            "the encoder folder is not that of the release: restore it",
        )
    plain = replace(plain, release=manifest.release, root=home.uri)
    if manifest.transform is None:
        return plain
    content = manifest.transform.read(home)
    return _with_transform(plain, load_transform(content), content, store)


def _with_transform(plain: Contender, transform: Transform, content: bytes, store: Store) -> Contender:
    path = f"transforms/{transform.transform_id[:24]}.safetensors"
    file = FileRef(
        path=path, sha256=hashlib.sha256(content).hexdigest(), rows=transform.fitted_rows, bytes=len(content)
    )
    if not file.is_complete(store):
        store.write(path, content)
    return replace(
        plain, transform=file, transform_id=transform.transform_id, kind=name_of(transform), k=transform.k
    )


def _encoder_name(encoder: EncoderSettings) -> str:
    """Return the last part of the encoder's path, and the settings that differ from its folder."""
    changed = encoder.model_dump(exclude_defaults=True, exclude={"path", "query_prompt", "frequencies"})
    values = {name: value if isinstance(value, tuple) else (value,) for name, value in changed.items()}
    name = encoder.path.rstrip("/").rpartition("/")[2] or encoder.path
    return " ".join([name, *(f"{option}={'+'.join(map(str, value))}" for option, value in values.items())])
