"""Collect docstrings of the standard library and the installed packages, as a corpus for tests and trials."""

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
_MAX_METHODS = 8  # taken from one file, so that a large class does not use up its package's rows
_SKIPPED_NAMES = {  # modules and packages of tests, demos and vendored copies
    *("test", "tests", "testing", "conftest", "idlelib", "lib2to3", "turtledemo", "site", "dist"),
    *("vendor", "vendored", "thirdparty", "third_party", "extern", "externals", "site_packages"),
}


def harvest_docstrings(store: str | Path, max_rows: int | None = None) -> int:
    """Write the docstrings of the standard library and of the installed packages to a Parquet file.

    The sources are parsed, not imported. The standard library is taken first; the packages share the
    remaining rows equally. Tests, vendored copies and private names are left out. Equal environments give
    equal bytes; an equal file is not written again.

    Args:
        store: folder or URI of the file docstrings.parquet.
        max_rows: largest number of docstrings; None: no limit.

    Returns:
        The number of docstrings in the file.
    """
    root = open_store(store)
    stdlib, *installed = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib"))
    with _without_garbage_collection():
        docstrings = collect_docstrings([stdlib], installed, max_rows)
    rows = [{name: getattr(docstring, name) for name in _SCHEMA.names} for docstring in docstrings]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), sink, compression="zstd")
    content = sink.getvalue().to_pybytes()
    if not root.exists(FILE) or root.read(FILE) != content:
        root.write(FILE, content)
    return len(docstrings)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector: it takes 8 of 13 s, and syntax trees have no reference cycles."""
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
        standard: directories that come first; if they have more than `max_rows` docstrings, functions and
            classes are preferred, selected by a hash.
        installed: directories whose packages get equal parts of the remaining rows.
        max_rows: largest number of docstrings; None: no limit.
    """
    seen: set[str] = set()
    from_standard = [
        docstring for package in _packages(standard) for docstring in _distinct_docstrings(package, seen)
    ]
    if max_rows is not None:
        from_standard = sorted(from_standard, key=_priority)[:max_rows]
    streams = [_distinct_docstrings(package, seen, _MAX_METHODS) for package in _packages(installed)]
    remaining = sys.maxsize if max_rows is None else max_rows - len(from_standard)
    return sorted([*from_standard, *_take_equally(streams, remaining)], key=lambda docstring: docstring.id)


def _priority(docstring: Docstring) -> tuple[bool, bytes]:
    """Sort key: functions and classes before methods and modules, then by a hash of the id."""
    id_hash = hashlib.blake2b(docstring.id.encode(), digest_size=8).digest()
    return docstring.kind not in ("function", "class"), id_hash


def _take_equally(streams: list[Iterator[Docstring]], count: int) -> list[Docstring]:
    """Take up to `count` items, equally many from each stream; longer streams make up for short ones."""
    items: list[Docstring] = []
    while streams and len(items) < count:
        per_stream, unfinished = max(1, (count - len(items)) // len(streams)), []
        for stream in streams:
            taken = list(islice(stream, min(per_stream, count - len(items))))
            items += taken
            if len(taken) == per_stream:
                unfinished.append(stream)
        streams = unfinished
    return items


def _packages(directories: Iterable[Path]) -> Iterator[list[PythonFile]]:
    """Yield the modules of each package below the directories; modules nearer to the top come first."""
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
    """Return whether a module or folder is neither private nor one of the skipped kinds, such as tests."""
    return (
        name.isidentifier()
        and not name.startswith(("_", "test_"))
        and not name.endswith("_test")
        and name not in _SKIPPED_NAMES
    )


def _distinct_docstrings(
    modules: list[PythonFile], seen: set[str], max_methods: int = sys.maxsize
) -> Iterator[Docstring]:
    """Yield the docstrings of modules in order, except texts and ids that are already in `seen`.

    Adds the texts and ids to `seen`. At most `max_methods` methods of a module are considered.
    """
    for module in modules:
        methods = 0
        for docstring in parse_docstrings(module):
            methods += docstring.kind == "method"
            is_surplus = docstring.kind == "method" and methods > max_methods
            if not is_surplus and seen.isdisjoint((docstring.text, docstring.id)):
                seen.update((docstring.text, docstring.id))
                yield docstring
