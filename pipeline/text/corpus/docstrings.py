"""A corpus that every machine has: the docstrings of the standard library and of the Python packages installed beside it."""

import ast
import contextlib
import gc
import hashlib
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.store.base import Store
from pipeline.store.store import open_store

FILE = "docstrings.parquet"
_SCHEMA = pa.schema([(name, pa.string()) for name in ("id", "text", "kind", "signature", "package")])
_FEWEST_WORDS = 4
_METHODS_OF_A_FILE = (
    8  # of a package's file: functions and classes say more, and one large class would fill a package's share
)
_MOST_SIGNATURE = 160  # characters
_SKIPPED = {
    *("test", "tests", "testing", "conftest", "idlelib", "lib2to3", "turtledemo", "site", "dist"),
    *("vendor", "vendored", "thirdparty", "third_party", "extern", "externals", "site_packages"),
}
_DOCUMENTED = re.compile(rb':\s*\n\s+[rRuU]?(?:"""|\'\'\')\s*[A-Z]')
_TAKES_PRIVATE = re.compile(rb"from +(?:\.|[\w.]+\.)_\w")
_DIRECTIVE = re.compile(r"^(\.\.|:|>>>|[-=~*#]{3}|copyright\b)", re.IGNORECASE)


@dataclass(frozen=True)
class Docstring:
    """id: dotted name; text: first paragraph on one line; kind: function, class, method or module; package: top-level name."""

    id: str
    text: str
    kind: str
    signature: str
    package: str


@dataclass(frozen=True)
class _Module:
    name: str
    path: Path


def harvest_docstrings(store: Store | str | Path, max_rows: int | None = None) -> int:
    """How many docstrings the Parquet file at `store` holds afterwards. One that would be equal is left as it is.

    Nothing is imported: the sources are parsed. All of the standard library comes first, then every package in turn gets an equal share of what is left of
    `max_rows`. Tests, vendored copies and private names are left out. Equal environments give equal bytes.
    """
    root = store if isinstance(store, Store) else open_store(store)
    paths = sysconfig.get_paths()
    with _uncollected():
        found = collect([Path(paths["stdlib"])], [Path(paths["purelib"]), Path(paths["platlib"])], max_rows)
    content = _parquet(found)
    if not root.exists(FILE) or root.read(FILE) != content:
        root.write(FILE, content)
    return len(found)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without the cycle collector: it walks over every node of every tree, 8 of 13 s, and trees have no cycles."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect(
    standard: Iterable[Path], installed: Iterable[Path], max_rows: int | None = None
) -> list[Docstring]:
    """Docstrings by id: those below `standard`, spread evenly when there are too many, then those of the packages below `installed` in equal shares."""
    seen: set[str] = set()
    first = [
        one
        for directory in dict.fromkeys(standard)
        for package in _packages(directory)
        for one in _documented(package, seen)
    ]
    if max_rows is not None:
        first = sorted(first, key=_importance)[:max_rows]
    packages = [
        _documented(package, seen, _METHODS_OF_A_FILE)
        for directory in dict.fromkeys(installed)
        for package in _packages(directory)
    ]
    return sorted(
        [*first, *_shared(packages, None if max_rows is None else max_rows - len(first))],
        key=lambda one: one.id,
    )


def _importance(one: Docstring) -> tuple[bool, bytes]:
    """Functions and classes before methods and modules; among those an even spread."""
    return one.kind not in ("function", "class"), hashlib.blake2b(one.id.encode(), digest_size=8).digest()


def _shared(streams: list[Iterator[Docstring]], room: int | None) -> list[Docstring]:
    """Items in equal shares; what short streams leave goes to the others."""
    if room is None:
        return [one for stream in streams for one in stream]
    found: list[Docstring] = []
    while streams and len(found) < room:
        share, left = max(1, (room - len(found)) // len(streams)), []
        for stream in streams:
            taken = list(islice(stream, min(share, room - len(found))))
            found += taken
            if len(taken) == share:
                left.append(stream)
        streams = left
    return found


def _packages(directory: Path) -> list[list[_Module]]:
    """Modules of each package below a directory, by package; those nearest to the top first."""
    grouped: dict[str, list[_Module]] = {}
    for module in _modules(directory):
        grouped.setdefault(module.name.split(".")[0], []).append(module)
    return [
        sorted(grouped[name], key=lambda module: (module.name.count("."), module.name))
        for name in sorted(grouped)
    ]


def _modules(directory: Path) -> Iterator[_Module]:
    for base, folders, names in os.walk(directory):
        parts = Path(base).relative_to(directory).parts
        folders[:] = sorted(folder for folder in folders if _public(folder))
        for name in sorted(names):
            stem = name.removesuffix(".py")
            if stem != name and ((stem == "__init__" and parts) or _public(stem)):
                yield _Module(".".join(parts if stem == "__init__" else (*parts, stem)), Path(base, name))


def _public(name: str) -> bool:
    return (
        name.isidentifier()
        and not name.startswith(("_", "test_"))
        and not name.endswith("_test")
        and name not in _SKIPPED
    )


def _documented(
    modules: list[_Module], seen: set[str], most_methods: int | None = None
) -> Iterator[Docstring]:
    """Docstrings of modules in their order; a text or a name that `seen` has already is passed over."""
    for module in modules:
        methods = 0
        for one in _docstrings(module):
            methods += one.kind == "method"
            if not seen.isdisjoint((one.text, one.id)) or (
                one.kind == "method" and most_methods is not None and methods > most_methods
            ):
                continue
            seen.update((one.text, one.id))
            yield one


def _docstrings(module: _Module) -> Iterator[Docstring]:
    """Of one file: functions and classes, then methods, then the module itself. A package's own file gives what it takes from private ones beside it, too."""
    tree = _parsed(module.path)
    if tree is None:
        return
    nodes = [
        *_definitions(tree.body),
        *(node for path, names in _taken(tree, module) for node in _named(path, names)),
    ]
    package = module.name.split(".")[0]
    methods = [
        (f"{module.name}.{node.name}.{method.name}", method)
        for node in nodes
        if isinstance(node, ast.ClassDef)
        for method in _definitions(node.body)
    ]
    for node in nodes:
        if text := _paragraph(node):
            yield Docstring(
                f"{module.name}.{node.name}",
                text,
                "class" if isinstance(node, ast.ClassDef) else "function",
                _signature(node),
                package,
            )
    for name, method in methods:
        if not isinstance(method, ast.ClassDef) and (text := _paragraph(method)):
            yield Docstring(name, text, "method", _signature(method), package)
    if text := _paragraph(tree):
        yield Docstring(module.name, text, "module", "", package)


def _parsed(path: Path) -> ast.Module | None:
    """None where there is nothing to harvest, or Python cannot parse it (MemoryError: too deeply nested)."""
    try:
        content = path.read_bytes()
        if not _DOCUMENTED.search(content) and not (
            path.name == "__init__.py" and _TAKES_PRIVATE.search(content)
        ):
            return None  # parsing takes most of the time, and one file in three has nothing
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other people's invalid escapes
            return ast.parse(content)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _taken(tree: ast.Module, module: _Module) -> Iterator[tuple[Path, set[str] | None]]:
    """Private files that a package's `__init__` imports from, with the names; None for all: `from ._logistic import LogisticRegression`."""
    for node in tree.body if module.path.name == "__init__.py" else ():
        if isinstance(node, ast.ImportFrom) and node.module and node.level <= 1:
            inside = node.module if node.level else node.module.removeprefix(f"{module.name}.")
            if (
                inside.startswith("_")
                and inside.replace(".", "").isidentifier()
                and (node.level or inside != node.module)
            ):
                names = {alias.name for alias in node.names if alias.asname in (None, alias.name)}
                yield module.path.parent / f"{inside.replace('.', '/')}.py", None if "*" in names else names


def _named(
    path: Path, names: set[str] | None
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    tree = _parsed(path)
    for node in _definitions(tree.body) if tree else ():
        if names is None or node.name in names:
            yield node


def _definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Public functions and classes of a body, those under `if` and `try` too."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.name.startswith("_"):
                yield node
        elif isinstance(node, ast.If | ast.Try):
            handlers = [line for handler in getattr(node, "handlers", []) for line in handler.body]
            yield from _definitions([*node.body, *handlers, *node.orelse])


def _paragraph(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) -> str | None:
    """The first paragraph of a docstring on one line; None without one, or where it says nothing."""
    docstring = ast.get_docstring(node, clean=False)
    if not docstring:
        return None
    text = " ".join(re.split(r"\n\s*\n", inspect.cleandoc(docstring).strip(), maxsplit=1)[0].split())
    text = text.encode(errors="replace").decode()  # a docstring may spell a lone surrogate
    return text if len(text.split()) >= _FEWEST_WORDS and not _DIRECTIVE.match(text) else None


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    inside = (
        ", ".join(map(ast.unparse, node.bases)) if isinstance(node, ast.ClassDef) else ast.unparse(node.args)
    )
    return f"{node.name}({inside})".encode(errors="replace").decode()[:_MOST_SIGNATURE]


def _parquet(found: list[Docstring]) -> bytes:
    columns = [[getattr(one, name) for one in found] for name in _SCHEMA.names]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table([pa.array(column, pa.string()) for column in columns], schema=_SCHEMA),
        sink,
        compression="zstd",
    )
    return bytes(sink.getvalue())
