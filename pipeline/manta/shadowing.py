"""Detect a package of the user that shadows Manta's `pipeline` or `jobs`, because it has the same name."""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

# package -> file by which Manta's own package of that name is recognized
_OWN_FILES = {"pipeline": "flows/night/nightly.py", "jobs": "nightly.py"}


def check_packages() -> None:
    """Raise ImportError if `import pipeline` or `import jobs` would load a package that is not Manta's."""
    for name in _OWN_FILES:
        if (found := find_other(name, importlib.util.find_spec(name))) is not None:
            raise ImportError(
                f"{name}: expected Manta's package, found {found}, which shadows it; {_remedy(found)}",
                name=name,
                path=found,
            )


def find_other(name: str, spec: importlib.machinery.ModuleSpec | None) -> str | None:
    """Return the path of the package that `spec` finds; None if it is Manta's own, or `spec` is None."""
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    if any(Path(folder, _OWN_FILES[name]).is_file() for folder in folders):
        return None
    return folders[0] if folders else str(spec.origin)


def _remedy(found: str) -> str:
    """Return what to do about the package at `found`."""
    parent = os.path.dirname(found)
    if "site-packages" in Path(found).parts:
        return "uninstall the distribution that it belongs to, or install Manta in an environment of its own"
    on_path = next((entry or os.getcwd() for entry in sys.path if os.path.abspath(entry) == parent), parent)
    return f"rename it, or run where {on_path} is not on Python's path"
