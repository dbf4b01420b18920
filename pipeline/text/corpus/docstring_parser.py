"""Parse the docstrings of one Python file."""

import ast
import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

_MIN_WORDS = 4
_MAX_SIGNATURE = 160  # characters
# An indented string after a colon, as in `def f():`, that begins with a capital letter.
_DOCUMENTED = re.compile(rb':\s*\n\s+[rRuU]?(?:"""|\'\'\')\s*[A-Z]')
_IMPORTS_PRIVATE = re.compile(rb"from +(?:\.|[\w.]+\.)_\w")
_DIRECTIVE = re.compile(r"^(\.\.|:|>>>|[-=~*#]{3}|copyright\b)", re.IGNORECASE)


@dataclass(frozen=True)
class Docstring:
    """The first paragraph of a docstring."""

    id: str
    """dotted name"""
    text: str
    """the paragraph on one line"""
    kind: str
    """function, class, method or module"""
    signature: str
    package: str
    """top-level name"""


@dataclass(frozen=True)
class PythonFile:
    """A Python file and its dotted module name."""

    name: str
    path: Path


def parse_docstrings(module: PythonFile) -> Iterator[Docstring]:
    """Yield the docstrings of one file: functions and classes, then methods, then the module.

    A package's `__init__` also gives the definitions that it imports from private modules.
    """
    tree = _parse(module.path)
    if tree is None:
        return
    nodes = [*_definitions(tree.body), *_private_imports(tree, module)]
    package = module.name.split(".")[0]
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    named = [(node.name, node, "class" if node in classes else "function") for node in nodes]
    methods = [
        (f"{node.name}.{each.name}", each, "method") for node in classes for each in _definitions(node.body)
    ]
    for name, node, kind in [*named, *methods]:
        nested = kind == "method" and isinstance(node, ast.ClassDef)
        if not nested and (text := _first_paragraph(node)):
            yield Docstring(f"{module.name}.{name}", text, kind, _signature(node), package)
    if text := _first_paragraph(tree):
        yield Docstring(module.name, text, "module", "", package)


def _parse(path: Path) -> ast.Module | None:
    """Parse a file; None if it has no docstring or cannot be parsed (MemoryError: nested too deeply)."""
    try:
        content = path.read_bytes()
        imports = path.name == "__init__.py" and _IMPORTS_PRIVATE.search(content)
        if not _DOCUMENTED.search(content) and not imports:
            return None  # parsing takes most of the time, and one file in three has no docstring
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's code
            return ast.parse(content)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _private_imports(tree: ast.Module, module: PythonFile) -> Iterator[Definition]:
    """Yield the definitions that a package's `__init__` imports from its private modules.

    An example is `from ._logistic import LogisticRegression`.
    """
    for node in tree.body if module.path.name == "__init__.py" else ():
        if isinstance(node, ast.ImportFrom) and node.module and node.level <= 1:
            # relative to the package: `from ._a import b` and `from package._a import b` are both `_a`
            inside = node.module if node.level else node.module.removeprefix(f"{module.name}.")
            in_package = node.level or inside != node.module
            if in_package and inside.startswith("_") and inside.replace(".", "").isidentifier():
                names = {alias.name for alias in node.names if alias.asname in (None, alias.name)}
                private = _parse(module.path.parent / f"{inside.replace('.', '/')}.py")
                found = _definitions(private.body) if private else ()
                yield from (each for each in found if "*" in names or each.name in names)


def _definitions(body: list[ast.stmt]) -> Iterator[Definition]:
    """Yield the public functions and classes of a body, including those under `if` and `try`."""
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            handlers = [line for handler in getattr(node, "handlers", []) for line in handler.body]
            yield from _definitions([*node.body, *handlers, *node.orelse])


def _first_paragraph(node: Definition | ast.Module) -> str | None:
    """Return the first paragraph on one line; None if it is missing, too short or a directive."""
    docstring = ast.get_docstring(node, clean=False)
    if not docstring:
        return None
    text = " ".join(re.split(r"\n\s*\n", inspect.cleandoc(docstring).strip(), maxsplit=1)[0].split())
    text = text.encode(errors="replace").decode()  # a docstring may contain a lone surrogate
    return text if len(text.split()) >= _MIN_WORDS and not _DIRECTIVE.match(text) else None


def _signature(node: Definition) -> str:
    inside = ", ".join(map(ast.unparse, node.bases if isinstance(node, ast.ClassDef) else [node.args]))
    return f"{node.name}({inside})".encode(errors="replace").decode()[:_MAX_SIGNATURE]
