"""Collect docstrings of the standard library and the installed packages, as a corpus for tests and trials."""

import ast
import contextlib
import gc
import hashlib
import inspect
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.files.open_store import open_store

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_MIN_WORDS = 4  # docstrings with fewer words in their first paragraph are left out
_MAX_SIGNATURE = 160  # characters
# Start of a docstring: an indented string after a colon, as in `def f():`, that begins with a capital letter.
_HAS_DOCSTRING = re.compile(rb':[^\S\n]*+\n\s++[rRuU]?(?:"""|\'\'\')\s*+[A-Z]')
_IMPORTS_PRIVATE = re.compile(rb"from +(?:\.|[\w.]+\.)_\w")
_BLANK_LINE = re.compile(r"\n\s*\n")
_DIRECTIVE = re.compile(r"^(\.\.|:|>>>|[-=~*#]{3}|copyright\b)", re.IGNORECASE)


@dataclass(frozen=True)
class Docstring:
    """The first paragraph of one docstring, with the definition that it belongs to."""

    id: str
    """dotted name of the definition"""
    text: str
    """the paragraph on one line"""
    kind: str
    """function, class, method or module"""
    signature: str
    package: str
    """top-level package of the module"""


@dataclass(frozen=True)
class PythonFile:
    """A Python file and its dotted module name."""

    name: str
    path: Path


def parse_docstrings(module: PythonFile) -> Iterator[Docstring]:
    """Yield the docstrings of one file: functions and classes, then methods, then the module.

    The definitions that a package's `__init__` imports from private modules count as its own. Nested classes
    are left out.
    """
    tree = _parse(module.path)
    if tree is None:
        return
    nodes = [*_definitions(tree.body), *_private_imports(tree, module)]
    package = module.name.split(".")[0]
    for node in nodes:
        if text := _first_paragraph(node):
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            yield Docstring(f"{module.name}.{node.name}", text, kind, _signature(node), package)
    for node in nodes:
        for method in _definitions(node.body) if isinstance(node, ast.ClassDef) else ():
            if not isinstance(method, ast.ClassDef) and (text := _first_paragraph(method)):
                name = f"{module.name}.{node.name}.{method.name}"
                yield Docstring(name, text, "method", _signature(method), package)
    if text := _first_paragraph(tree):
        yield Docstring(module.name, text, "module", "", package)


def _parse(path: Path) -> ast.Module | None:
    """Parse a file; None if it has no docstring or cannot be parsed."""
    try:
        content = path.read_bytes()
        imports_private = path.name == "__init__.py" and _IMPORTS_PRIVATE.search(content)
        if not _HAS_DOCSTRING.search(content) and not imports_private:
            return None  # parsing takes most of the time, and one file in three has no docstring
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about invalid escapes in other people's code
            return ast.parse(content)
    # the last two are raised for code that is nested too deeply
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _private_imports(tree: ast.Module, module: PythonFile) -> Iterator[Definition]:
    """Yield the definitions that a package's `__init__` imports from its private modules.

    An example is `from ._logistic import LogisticRegression`.
    """
    for node in tree.body if module.path.name == "__init__.py" else ():
        name = _private_module(node, module.name) if isinstance(node, ast.ImportFrom) else None
        private = _parse(module.path.parent / f"{name.replace('.', '/')}.py") if name else None
        if isinstance(node, ast.ImportFrom) and private is not None:
            names = {alias.name for alias in node.names if alias.asname in (None, alias.name)}
            definitions = _definitions(private.body)
            yield from (item for item in definitions if "*" in names or item.name in names)


def _private_module(node: ast.ImportFrom, package: str) -> str | None:
    """Return the private module of the package that a statement imports from, as a name relative to it.

    It is "_a" for `from ._a import b` and for `from package._a import b`; None for other modules.
    """
    if not node.module or node.level > 1:
        return None
    name = node.module if node.level else node.module.removeprefix(f"{package}.")
    in_package = node.level == 1 or name != node.module
    is_private = name.startswith("_") and name.replace(".", "").isidentifier()
    return name if in_package and is_private else None


def _definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield the public functions and classes of a body, including those under `if` and `try`."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            in_handlers = [each for handler in getattr(node, "handlers", []) for each in handler.body]
            yield from _definitions([*node.body, *in_handlers, *node.orelse])


def _first_paragraph(node: Definition | ast.Module) -> str | None:
    """Return the first paragraph on one line; None if it is missing, too short or a directive."""
    docstring = ast.get_docstring(node, clean=False)
    if not docstring:
        return None
    text = " ".join(_BLANK_LINE.split(inspect.cleandoc(docstring).strip(), maxsplit=1)[0].split())
    text = text.encode(errors="replace").decode()  # a docstring may contain a lone surrogate
    return text if len(text.split()) >= _MIN_WORDS and not _DIRECTIVE.match(text) else None


def _signature(node: Definition) -> str:
    """Return the name with the arguments, or the base classes, in parentheses."""
    arguments = ", ".join(map(ast.unparse, node.bases if isinstance(node, ast.ClassDef) else [node.args]))
    return f"{node.name}({arguments})".encode(errors="replace").decode()[:_MAX_SIGNATURE]


FILE = "docstrings.parquet"
_SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "text", "kind", "signature", "package")])
_MAX_METHODS = 8  # methods taken from one file, so that a large class does not use up its package's rows
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
