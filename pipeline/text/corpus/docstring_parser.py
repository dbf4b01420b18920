"""Parse the docstrings of one Python file into rows for a corpus."""

import ast
import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
            warnings.simplefilter("ignore")  # invalid escapes in other people's code
            return ast.parse(content)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deeply
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
