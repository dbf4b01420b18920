"""Another package of the same name, found before a part of Manta: `pipeline` and `jobs` are names that
projects like to give their own code.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

PARTS = {
    "pipeline": "flows/night/nightly.py",
    "jobs": "nightly.py",
}  # each with a file that no other package of that name has


def refuse_others() -> None:
    """ImportError if importing `pipeline` or `jobs` would find another package than Manta's.

    Imports neither.
    """
    for name in PARTS:
        if (found := other(name, importlib.util.find_spec(name))) is not None:
            raise ImportError(
                f"{name}: expected Manta's package, found {found}, which hides it; {_remedy(found)}",
                name=name,
                path=found,
            )


def other(name: str, spec: importlib.machinery.ModuleSpec | None) -> str | None:
    """Return the path of another package of that name; None if it is Manta's own, or there is none."""
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    if any(Path(folder, PARTS[name]).is_file() for folder in folders):
        return None
    return folders[0] if folders else str(spec.origin)


def _remedy(found: str) -> str:
    parent = os.path.dirname(found)
    if "site-packages" in Path(found).parts:
        return "uninstall the package that it belongs to, or give Manta an environment of its own"
    on_path = next((entry or os.getcwd() for entry in sys.path if os.path.abspath(entry) == parent), parent)
    return f"rename it, or run where {on_path} is not on Python's path"
