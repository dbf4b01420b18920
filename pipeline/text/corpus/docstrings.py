"""Harvest docstrings as a corpus that every machine has: the standard library and the installed packages."""

import contextlib
import gc
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.store import open_store
from pipeline.text.corpus.docstring_parser import Docstring, PythonFile, parse_docstrings

FILE = "docstrings.parquet"
_SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "text", "kind", "signature", "package")])
_MAX_METHODS_OF_A_FILE = 8  # so that one large class does not fill its package's part
_SKIPPED = {
    *("test", "tests", "testing", "conftest", "idlelib", "lib2to3", "turtledemo", "site", "dist"),
    *("vendor", "vendored", "thirdparty", "third_party", "extern", "externals", "site_packages"),
}


def harvest_docstrings(store: str | Path, max_rows: int | None = None) -> int:
    """Write the docstrings of the standard library and of the installed packages to a Parquet file.

    The sources are parsed, nothing is imported. All of the standard library comes first, then equal parts of
    the packages up to `max_rows`. Tests, vendored copies and private names are left out. Equal environments
    give equal bytes; an equal file is not written again.

    Returns:
        The number of docstrings in the file.
    """
    root = open_store(store)
    stdlib, *installed = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
    with _without_garbage_collection():
        found = collect_docstrings([stdlib], installed, max_rows)
    rows = [{name: getattr(one, name) for name in _SCHEMA.names} for one in found]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), sink, compression="zstd")
    content = sink.getvalue().to_pybytes()
    if not root.exists(FILE) or root.read(FILE) != content:
        root.write(FILE, content)
    return len(found)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which takes 8 of 13 s on syntax trees; they have no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect_docstrings(
    standard: Iterable[Path], installed: Iterable[Path], max_rows: int | None = None
) -> list[Docstring]:
    """Collect docstrings, sorted by id.

    Args:
        standard: directories that come first; if they have more than `max_rows` docstrings, an even selection
            is taken.
        installed: directories whose packages get equal parts of the remaining rows.
        max_rows: number of docstrings at most; None: no limit.
    """
    seen: set[str] = set()
    first = [one for package in _packages(standard) for one in _distinct_docstrings(package, seen)]
    if max_rows is not None:
        first = sorted(first, key=_sort_key)[:max_rows]
    packages = [_distinct_docstrings(each, seen, _MAX_METHODS_OF_A_FILE) for each in _packages(installed)]
    room = sys.maxsize if max_rows is None else max_rows - len(first)
    return sorted([*first, *_equal_parts(packages, room)], key=lambda one: one.id)


def _sort_key(one: Docstring) -> tuple[bool, bytes]:
    """Sort functions and classes before methods and modules, and by a hash of the id within both."""
    return one.kind not in ("function", "class"), hashlib.blake2b(one.id.encode(), digest_size=8).digest()


def _equal_parts(streams: list[Iterator[Docstring]], room: int) -> list[Docstring]:
    """Take items from the streams in equal parts; the unused part of a short stream goes to the others."""
    found: list[Docstring] = []
    while streams and len(found) < room:
        part, unfinished = max(1, (room - len(found)) // len(streams)), []
        for stream in streams:
            taken = list(islice(stream, min(part, room - len(found))))
            found += taken
            if len(taken) == part:
                unfinished.append(stream)
        streams = unfinished
    return found


def _packages(directories: Iterable[Path]) -> Iterator[list[PythonFile]]:
    """Yield the modules of each package below the directories, in a package the nearest to the top first."""
    for directory in dict.fromkeys(directories):
        grouped: dict[str, list[PythonFile]] = {}
        for module in _walk_modules(directory):
            grouped.setdefault(module.name.split(".")[0], []).append(module)
        for name in sorted(grouped):
            yield sorted(grouped[name], key=lambda module: (module.name.count("."), module.name))


def _walk_modules(directory: Path) -> Iterator[PythonFile]:
    """Yield the public modules below a directory."""
    for base, folders, names in os.walk(directory):
        parts = Path(base).relative_to(directory).parts
        folders[:] = sorted(folder for folder in folders if _is_public(folder))
        for name in sorted(names):
            stem = name.removesuffix(".py")
            if stem != name and ((stem == "__init__" and parts) or _is_public(stem)):
                yield PythonFile(".".join(parts if stem == "__init__" else (*parts, stem)), Path(base, name))


def _is_public(name: str) -> bool:
    return (
        name.isidentifier()
        and not name.startswith(("_", "test_"))
        and not name.endswith("_test")
        and name not in _SKIPPED
    )


def _distinct_docstrings(
    modules: list[PythonFile], seen: set[str], most_methods: int = sys.maxsize
) -> Iterator[Docstring]:
    """Yield the docstrings of modules in order, except texts and names that are already in `seen`."""
    for module in modules:
        methods = 0
        for one in parse_docstrings(module):
            methods += one.kind == "method"
            surplus = one.kind == "method" and methods > most_methods
            if not surplus and seen.isdisjoint((one.text, one.id)):
                seen.update((one.text, one.id))
                yield one
