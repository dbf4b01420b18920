"""Form that ruff does not check: docstrings, parameters, sizes of files."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.conftest import ROOT

SOURCES = sorted([*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "jobs").rglob("*.py")])
# Beginnings of a relative clause without a noun before it: "What an earlier run left".
HEADLESS = re.compile(
    r"^(What|Where|Who|Whoever|Whatever|Whether|Those|Of |That |How |When |One that |Its |Their )"
)
NUMERICS = (
    "losses",
    "stats",
    "transforms",
    "objectives",
    "solvers",
)  # parameters are the symbols of a formula
Documented = ast.Module | ast.ClassDef | ast.FunctionDef


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def documented(file: Path) -> Iterator[Documented]:
    return (node for node in ast.walk(parsed(file)) if isinstance(node, Documented))


def found_in_sources(check: Callable[[Path], Iterable[object]]) -> dict[str, list[object]]:
    """Return what a check finds in each source file; files without a finding are left out."""
    found = {file.relative_to(ROOT).as_posix(): list(check(file)) for file in SOURCES}
    return {file: findings for file, findings in found.items() if findings}


@cache
def classes() -> dict[str, ast.ClassDef]:
    found = (node for file in SOURCES for node in documented(file))
    return {node.name: node for node in found if isinstance(node, ast.ClassDef)}


def inherited(owner: ast.ClassDef, method: str) -> bool:
    """Return whether a base class of `owner` in this project documents the method."""
    for base in owner.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        name = plain.id if isinstance(plain, ast.Name) else getattr(plain, "attr", "")
        parent = classes().get(name)
        if parent is None or parent is owner:
            continue
        own = [node for node in parent.body if isinstance(node, ast.FunctionDef) and node.name == method]
        if any(map(ast.get_docstring, own)) or inherited(parent, method):
            return True
    return False


def undocumented(body: list[ast.stmt], owner: ast.ClassDef | None = None) -> Iterator[str]:
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node) and not (owner and inherited(owner, node.name)):
            yield f"{node.lineno}: {owner.name + '.' if owner else ''}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from undocumented(node.body, node)


def body_lines(function: ast.FunctionDef) -> int:
    """Count the lines below the signature and the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_the_body_of_a_function_has_at_most_forty_lines():
    def long_functions(file: Path) -> Iterator[str]:
        functions = (node for node in documented(file) if isinstance(node, ast.FunctionDef))
        return (f"{each.lineno}: {each.name}" for each in functions if body_lines(each) > 40)

    assert found_in_sources(long_functions) == {}


def test_a_docstring_begins_with_a_verb_or_with_the_noun_for_the_return_value():
    def headless(file: Path) -> Iterator[str]:
        texts = (ast.get_docstring(node) or "" for node in documented(file))
        return (text.split("\n")[0] for text in texts if HEADLESS.match(text))

    assert found_in_sources(headless) == {}


def test_public_classes_and_functions_have_a_docstring():
    assert found_in_sources(lambda file: undocumented(parsed(file).body)) == {}


def is_command(node: ast.FunctionDef) -> bool:
    """Return whether the function is a command, whose parameters are its options."""
    return any("command" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_functions_outside_numerics_take_at_most_five_parameters():
    def with_more(file: Path) -> Iterator[tuple[str, list[str]]]:
        if set(NUMERICS) & set(file.relative_to(ROOT).parts):
            return
        for node in documented(file):
            if isinstance(node, ast.FunctionDef) and not is_command(node):
                names = [a.arg for a in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]]
                parameters = [name for name in names if name not in ("self", "cls")]
                if len(parameters) > 5:
                    yield f"{node.lineno}: {node.name}", parameters

    assert found_in_sources(with_more) == {}


def test_a_file_has_at_most_500_lines():
    """An alarm: a file ends where its thought ends, and a thought of more lines is several."""
    lines = {file: len(file.read_text().splitlines()) for file in SOURCES}
    assert {file: count for file, count in lines.items() if count > 500} == {}


def test_a_declared_field_is_described_below_it_and_not_in_the_docstring_of_its_class():
    def described_twice(file: Path) -> Iterator[str]:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ClassDef) and "Attributes:" in (doc := ast.get_docstring(node) or ""):
                fields = {field.target.id for field in node.body if isinstance(field, ast.AnnAssign)}
                described = re.findall(r"^    (\w+): ", doc.partition("Attributes:")[2], re.MULTILINE)
                yield from (f"{node.name}.{name}" for name in described if name in fields)

    assert found_in_sources(described_twice) == {}
