"""Each part of the pipeline imports only parts before it; only index/ imports faiss and only flows/ imports
Ray; importing is light.
"""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# The parts of each package, from the first to the last: a part imports only parts before it, and itself.
ORDERS = {
    "pipeline": (
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
        "where",
        "text",
        "stats",
        "models",
        "augment",
        "losses",
        "objectives",
        "transforms",
        "index",
        "evaluate",
        "train",
        "charts",
        "report",
        "targets",
        "flows",
        "serve",
        "manta",
    ),
    "pipeline.store": (
        "files",
        "rows",
        "records",
        "releases",
    ),
    "pipeline.text": (
        "normalize",
        "task_map",
        "key_tables",
        "sources",
        "formats",
        "query_log",
        "tokens",
        "chunks",
        "ingest",
        "rows",
        "pairs",
    ),
    "pipeline.models": (
        "spec",
        "folder",
        "layers",
        "classic",
        "trainable",
        "inference",
        "translation",
        "mlm_guesses",
    ),
    "pipeline.index": (
        "library",
        "gpu",
        "lists",
        "refine",
        "structure",
        "search_parameters",
        "measure",
        "build",
        "gates",
        "files",
        "erase",
        "filter",
        "search",
    ),
    "pipeline.flows": (
        "workers",
        "context",
        "corpus",
        "rows",
        "key_tables",
        "encode",
        "transform",
        "index",
        "export",
        "events",
        "night",
        "augment",
        "evaluate",
        "train",
        "duplicates",
        "erase",
    ),
    "pipeline.flows.night": (
        "key_facts",
        "previous_release",
        "ingest_workers",
        "release_changes",
        "guess_corpus",
        "user_queries",
        "candidate",
        "gates",
        "report",
        "check_gates",
        "release_difference",
        "steps",
        "approval",
        "publish",
        "follow_up",
        "mlflow_run",
        "night_workers",
        "nightly",
        "single_stage",
        "planning",
    ),
}
MODULES = sorted((ROOT / "pipeline").rglob("*.py"))


def parts_of(package: Path) -> set[str]:
    """Return the names of the modules and packages directly in a package."""
    files = (file.relative_to(package) for file in package.rglob("*.py"))
    return {file.parts[0].removesuffix(".py") for file in files} - {"__init__"}


def module_name(file: Path, root: Path = ROOT) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@cache
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


def folder_of(package: str) -> Path:
    return ROOT.joinpath(*package.split("."))


def part_of(name: str, package: str) -> str | None:
    """Return the part of a package that a name belongs to; None for other names."""
    parts = name.split(".")
    depth = package.count(".") + 1
    return parts[depth] if len(parts) > depth and ".".join(parts[:depth]) == package else None


@pytest.mark.parametrize("package", ORDERS)
def test_every_part_has_its_position_in_the_order(package: str):
    assert sorted(ORDERS[package]) == sorted(parts_of(folder_of(package)))


@pytest.mark.parametrize("package", ORDERS)
def test_a_part_imports_only_parts_before_it(package: str):
    order = ORDERS[package]
    for file in sorted(folder_of(package).rglob("*.py")):
        own = part_of(module_name(file), package)
        for name in imports(file) if own else ():
            found = part_of(name, package)
            if found in order:
                assert order.index(found) <= order.index(own), f"{file} imports {name}, which comes later"


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


def test_only_the_parts_that_know_jobs_faiss_and_ray_import_them():
    for file, name in [(source, imported) for source in MODULES for imported in imports(source)]:
        own, top = part_of(module_name(file), "pipeline"), name.split(".")[0]
        assert top != "jobs" or own == "manta", f"{file} imports {name}: only the command does"
        assert top != "faiss" or own == "index", f"{file} imports faiss: only index/ does"
        assert top != "ray" or own == "flows", f"{file} imports ray: only flows/ does"


def test_no_modules_import_each_other_in_a_circle():
    modules = {module_name(file): imports(file) for file in MODULES}
    graph = {
        name: {found for found in named if found in modules and found != name}
        for name, named in modules.items()
    }
    TopologicalSorter(graph).prepare()  # CycleError names the modules of a circle


def test_detecting_an_unchanged_corpus_imports_no_torch_ray_or_faiss():
    modules = (
        *("manta", "manta.__main__", "jobs.cli", "pipeline", "pipeline.settings"),
        *("pipeline.flows.night.steps", "pipeline.store.releases.release", "pipeline.text.ingest.ingest"),
        "pipeline.models.folder.folder",
    )
    heavy = ("torch", "ray", "faiss", "transformers", "sklearn")
    program = (
        "import importlib, sys\n"
        "for module in sys.argv[1:]:\n"
        "    importlib.import_module(module)\n"
        f"    print(*(f'{{module}} imports {{name}}' for name in {heavy} if name in sys.modules))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, *modules], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert found.stdout.split() == []


def test_loading_a_transform_imports_no_torch():
    program = (
        "import sys\n"
        "from pipeline.transforms.transform import TRANSFORMS\n"
        "print(*TRANSFORMS.names(), 'torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert "whiten" in found.stdout
    assert found.stdout.split()[-1] == "False"


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
