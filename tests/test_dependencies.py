"""Declared packages: every one that is imported and no other, in no version with a known vulnerability."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = [
    Requirement(line)
    for name, lines in PROJECT["optional-dependencies"].items()
    if name not in ("bench", "test")
    for line in lines
]
# Modules that are not named like their package.
MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn", "faiss-cpu": "faiss", "faiss-gpu": "faiss"}
# Trackers that a training reports to if its user has installed them; no extra installs them.
TRACKERS = {"mlflow", "wandb"}


def modules(requirements: list[Requirement]) -> set[str]:
    """Return the top-level module of each package."""
    names = (canonicalize_name(requirement.name) for requirement in requirements)
    return {MODULES.get(name, name.replace("-", "_")) for name in names}


def imported_names(source: str) -> Iterator[str]:
    """Yield the name in each absolute import, those inside functions included."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module)


@pytest.fixture(scope="module")
def imported() -> dict[str, str]:
    """Third-party modules that the project imports, each with one of the files that import it."""
    own = {"pipeline", "jobs", "manta"}
    found: dict[str, str] = {}
    for folder in ("pipeline", "jobs"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name in imported_names(file.read_text()):
                found.setdefault(name.partition(".")[0], str(file.relative_to(ROOT)))
    return {name: file for name, file in found.items() if name not in own | set(sys.stdlib_module_names)}


@pytest.mark.parametrize(
    ("package", "vulnerable"),
    [
        ("torch", "2.9.1"),  # CVE-2026-24747
        ("transformers", "5.2.0"),  # CVE-2026-4372, CVE-2026-5241
    ],
)
def test_versions_with_known_vulnerabilities_are_not_accepted(package: str, vulnerable: str):
    (requirement,) = (each for each in BASE if each.name == package)
    assert vulnerable not in requirement.specifier


def test_every_imported_package_is_declared(imported: dict[str, str]):
    declared = modules(BASE) | modules(EXTRAS) | TRACKERS
    assert {name: file for name, file in imported.items() if name not in declared} == {}


def test_every_declared_package_is_imported(imported: dict[str, str]):
    """Extras are not checked: other packages use some of theirs, as transformers uses sentencepiece."""
    assert modules(BASE) - set(imported) == set()


def test_only_modules_of_extras_need_their_packages_to_be_imported():
    """Other modules import these late. Every installation has faiss, for CPUs or for GPUs."""
    missing = sorted(modules(EXTRAS) - modules(BASE) - {"faiss"})
    of_extras = ("pipeline.serve.", "pipeline.text.sources.iceberg_io")
    files = (file.relative_to(ROOT).with_suffix("") for file in sorted((ROOT / "pipeline").rglob("*.py")))
    names = [".".join(file.parts).removesuffix(".__init__") for file in files]
    names = ["jobs.cli", *(name for name in names if not name.startswith(of_extras))]
    program = f"""
import importlib, sys
sys.modules |= dict.fromkeys({missing!r})
for name in sys.argv[1:]: importlib.import_module(name)
"""
    subprocess.run([sys.executable, "-c", program, *names], check=True, cwd=ROOT, timeout=120)
