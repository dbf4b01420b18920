"""Each part of the pipeline imports only parts before it; only index/ imports faiss and only flows/ imports
Ray; importing is light.
"""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ORDER = (
    "errors",
    "exit_codes",
    "registry",
    "yaml_tree",
    "config",
    "settings",
    "terminal",
    "log",
    "cores",
    "device",
    "prefetch",
    "keep_alive",
    "daemon",
    "store",
    "text",
    "stats",
    "models",
    "augment",
    "losses",
    "objectives",
    "post",
    "index",
    "evaluate",
    "train",
    "charts",
    "report",
    "targets",
    "flows",
    "serve",
    "manta",
)
FLOWS = (
    "workers",
    "run",
    "corpus",
    "rows",
    "key_tables",
    "encode",
    "transform",
    "index",
    "export",
    "night",
    "augment",
    "evaluate",
    "train",
    "duplicates",
)
MODULES = sorted((ROOT / "pipeline").rglob("*.py"))


def part(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def parts_of(package: Path) -> set[str]:
    """Return the names of the modules and packages directly in a package."""
    files = (file.relative_to(package) for file in package.rglob("*.py"))
    return {file.parts[0].removesuffix(".py") for file in files} - {"__init__"}


def module_name(file: Path, root: Path = ROOT) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def imports(file: Path, root: Path = ROOT) -> set[str]:
    """Return the absolute names of everything that a file imports, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # The first dot is the package of the file, each further one the package above it.
            package = file.relative_to(root).with_suffix("").parts[: -node.level] if node.level else ()
            module = ".".join([*package, *filter(None, [node.module])])
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return names


def test_every_part_has_its_position_in_the_order():
    assert sorted(ORDER) == sorted(parts_of(ROOT / "pipeline"))
    assert sorted(FLOWS) == sorted(parts_of(ROOT / "pipeline" / "flows"))


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("from . import d", {"a.b", "a.b.d"}),
        ("from .d import e", {"a.b.d", "a.b.d.e"}),
        ("from ..d import e", {"a.d", "a.d.e"}),
        ("def late():\n    from a import d", {"a", "a.d"}),
        ("import a.d", {"a.d"}),
    ],
)
@pytest.mark.parametrize("name", ["__init__.py", "c.py"])
def test_relative_imports_and_imports_inside_functions_are_found(
    statement: str, expected: set[str], name: str, tmp_path: Path
):
    file = tmp_path / "a" / "b" / name
    file.parent.mkdir(parents=True)
    file.write_text(statement)
    assert imports(file, tmp_path) == expected


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_a_module_imports_only_parts_before_its_own(file: Path):
    own = file.relative_to(ROOT / "pipeline").parts[0].removesuffix(".py")
    if own == "__init__":
        return
    for name in imports(file):
        top = name.split(".")[0]
        assert top != "jobs" or own == "manta", f"{file} imports {name}: only the command does"
        assert top != "faiss" or own == "index", f"{file} imports faiss: only index/ does"
        assert top != "ray" or own == "flows", f"{file} imports ray: only flows/ does"
        if top == "pipeline" and name != "pipeline":
            assert ORDER.index(part(name)) <= ORDER.index(own), f"{file} imports {name}, which comes later"


@pytest.mark.parametrize(
    "file",
    [file for file in MODULES if "flows" in file.parts],
    ids=lambda file: file.relative_to(ROOT).as_posix(),
)
def test_a_flow_imports_only_flows_before_its_own(file: Path):
    own = file.relative_to(ROOT / "pipeline" / "flows").parts[0].removesuffix(".py")
    for name in imports(file):
        if name.startswith("pipeline.flows.") and own != "__init__":
            assert FLOWS.index(name.split(".")[2]) <= FLOWS.index(own), (
                f"{file} imports {name}, which comes later"
            )


def test_no_modules_import_each_other_in_a_circle():
    modules = {module_name(file): imports(file) for file in MODULES}
    graph = {
        name: {found for found in named if found in modules and found != name}
        for name, named in modules.items()
    }
    TopologicalSorter(graph).prepare()  # CycleError names the modules of a circle


@pytest.mark.parametrize(
    "statement",
    [
        "import manta",
        "import manta.__main__",
        "import jobs.cli",
        "import pipeline",
        "import pipeline.settings",
        "import pipeline.flows.night.stages",
        "import pipeline.store.release, pipeline.text.corpus.ingest, pipeline.models.folder.folder",
    ],
)
def test_detecting_an_unchanged_corpus_imports_no_torch_ray_or_faiss(statement: str):
    heavy = ("torch", "ray", "faiss", "transformers", "sklearn")
    program = f"{statement}\nimport sys\nprint([name for name in {heavy} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert found.stdout.strip() == "[]"


def test_every_module_imports_without_a_gpu_and_without_a_network():
    names = [module_name(file) for file in MODULES]
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    subprocess.run([sys.executable, "-c", program, *names], check=True, cwd=ROOT, timeout=120)


def test_class_names_are_unique():
    files_of: dict[str, list[str]] = {}
    for source in sorted([*(ROOT / "pipeline").rglob("*.py"), *(ROOT / "jobs").rglob("*.py")]):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                files_of.setdefault(node.name, []).append(source.relative_to(ROOT).as_posix())
    assert {name: files for name, files in files_of.items() if len(files) > 1} == {}
