"""Harvest docstrings as a corpus that every machine has: the standard library and the installed packages."""

import contextlib
import gc
import hashlib
import os
import sysconfig
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.base import Store
from pipeline.store.store import open_store
from pipeline.text.corpus.docstring_parser import Docstring, PythonFile, parse_docstrings

FILE = "docstrings.parquet"
_SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "text", "kind", "signature", "package")])
_MAX_METHODS_OF_A_FILE = 8  # so that one large class does not fill its package's part
_SKIPPED = {
    *("test", "tests", "testing", "conftest", "idlelib", "lib2to3", "turtledemo", "site", "dist"),
    *("vendor", "vendored", "thirdparty", "third_party", "extern", "externals", "site_packages"),
}


def harvest_docstrings(store: Store | str | Path, max_rows: int | None = None) -> int:
    """Write the docstrings of the standard library and of the installed packages to a Parquet file.

    The sources are parsed, nothing is imported. All of the standard library comes first, then equal parts of
    the packages up to `max_rows`. Tests, vendored copies and private names are left out. Equal environments
    give equal bytes; an equal file is not written again.

    Returns:
        The number of docstrings in the file.
    """
    root = store if isinstance(store, Store) else open_store(store)
    paths = sysconfig.get_paths()
    with _without_garbage_collection():
        found = collect_docstrings(
            [Path(paths["stdlib"])], [Path(paths["purelib"]), Path(paths["platlib"])], max_rows
        )
    content = _parquet(found)
    if not root.exists(FILE) or root.read(FILE) != content:
        root.write(FILE, content)
    return len(found)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector: it takes 8 of 13 s on the nodes of syntax trees, which have no
    cycles.
    """
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
    first = [
        one
        for directory in dict.fromkeys(standard)
        for package in _packages(directory)
        for one in _distinct_docstrings(package, seen)
    ]
    if max_rows is not None:
        first = sorted(first, key=_sort_key)[:max_rows]
    packages = [
        _distinct_docstrings(package, seen, _MAX_METHODS_OF_A_FILE)
        for directory in dict.fromkeys(installed)
        for package in _packages(directory)
    ]
    return sorted(
        [*first, *_equal_parts(packages, None if max_rows is None else max_rows - len(first))],
        key=lambda one: one.id,
    )


def _sort_key(one: Docstring) -> tuple[bool, bytes]:
    """Functions and classes before methods and modules; within both, a hash of the id for an even
    selection.
    """
    return one.kind not in ("function", "class"), hashlib.blake2b(one.id.encode(), digest_size=8).digest()


def _equal_parts(streams: list[Iterator[Docstring]], room: int | None) -> list[Docstring]:
    """Take items from the streams in equal parts; the unused part of a short stream goes to the others."""
    if room is None:
        return [one for stream in streams for one in stream]
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


def _packages(directory: Path) -> list[list[PythonFile]]:
    """Modules of each package below a directory; within a package, those nearest to the top first."""
    grouped: dict[str, list[PythonFile]] = {}
    for module in _walk_modules(directory):
        grouped.setdefault(module.name.split(".")[0], []).append(module)
    return [
        sorted(grouped[name], key=lambda module: (module.name.count("."), module.name))
        for name in sorted(grouped)
    ]


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
    modules: list[PythonFile], seen: set[str], most_methods: int | None = None
) -> Iterator[Docstring]:
    """Yield the docstrings of modules in order, except texts and names that are already in `seen`."""
    for module in modules:
        methods = 0
        for one in parse_docstrings(module):
            methods += one.kind == "method"
            if not seen.isdisjoint((one.text, one.id)) or (
                one.kind == "method" and most_methods is not None and methods > most_methods
            ):
                continue
            seen.update((one.text, one.id))
            yield one


def _parquet(found: list[Docstring]) -> bytes:
    columns = [[getattr(one, name) for one in found] for name in _SCHEMA.names]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table([pa.array(column, pa.string()) for column in columns], schema=_SCHEMA),
        sink,
        compression="zstd",
    )
    return bytes(sink.getvalue())
