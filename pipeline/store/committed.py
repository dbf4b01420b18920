"""Load the manifest that a commit makes current, and check that it is the one that was committed."""

from hashlib import sha256

from pipeline.errors import DataError
from pipeline.store.base import Store
from pipeline.store.commits import Commit
from pipeline.store.manifest import ReleaseManifest
from pipeline.store.release_units import UnitTable


class ManifestChanged(DataError):
    """A release has another manifest than was committed, or the table of its units is missing."""


def load_manifest(store: Store, commit: Commit) -> ReleaseManifest | None:
    """Load the manifest of a commit; None for a void commit, or if the release was pruned.

    Raises:
        ManifestChanged: the manifest was changed, or the table of its units is missing or incomplete.
    """
    if commit.manifest is None or commit.sha256 is None:
        return None
    where = store.uri_of(commit.manifest)
    try:
        content = store.read(commit.manifest)
    except FileNotFoundError:  # pruned
        return None
    if (found := sha256(content).hexdigest()) != commit.sha256:
        raise ManifestChanged(
            where,
            f"sha256 {commit.sha256[:16]}...",
            f"{found[:16]}...",
            "it was changed after it was published: restore it, or roll back to another release",
        )
    manifest = ReleaseManifest.from_json(content, where, store)
    if isinstance(manifest.units, UnitTable) and not manifest.units.is_complete():
        raise ManifestChanged(
            store.uri_of(manifest.units.file.path),
            f"the table of the {len(manifest.units):,} units of release {manifest.release}",
            "no such file, or one of another size",
            f"restore it, or roll back to another release; without a copy, delete {where}",
        )
    return manifest
