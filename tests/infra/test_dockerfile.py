"""The image cannot be built here: its instructions are parsed, what it copies and installs exists, and pip resolves its install lines."""

import fnmatch
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.infra.manifests import INFRA, ROOT

INSTRUCTIONS = {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
HOME = "/opt/manta"             # where the image has the project


def instructions() -> list[tuple[str, str]]:
    """(instruction, its arguments) in order, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (INFRA / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in instructions() if name == instruction]


def stages() -> dict[str, str]:
    """What each named stage is built from."""
    return {words[2]: words[0] for words in (rest.split() for rest in arguments("FROM")) if words[1:2] == ["AS"]}


def test_every_instruction_is_known_and_every_argument_is_used():
    assert {name for name, _ in instructions()} <= INSTRUCTIONS
    text = "\n".join(rest for name, rest in instructions() if name != "ARG")
    for argument in arguments("ARG"):
        assert re.search(rf"\$\{{?{argument.split('=')[0]}\b", text), argument


def test_the_device_is_a_build_argument_and_names_a_stage():
    assert "DEVICE=cpu" in arguments("ARG")
    assert arguments("FROM")[-1] == "${DEVICE}"
    assert stages() == {"base": "python:${PYTHON}-slim", "cpu": "base", "gpu": "base"}


def test_what_is_copied_exists_and_reaches_the_build():
    kept = [line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    sources = [source for rest in arguments("COPY") for source in rest.split()[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), f".dockerignore leaves {source} out"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml", "pipeline", "jobs"} <= set(sources)


def test_it_runs_as_a_user_and_passes_signals_on():
    assert arguments("USER") == ["1000"]
    assert arguments("ENTRYPOINT") == ['["tini", "-g", "--"]']
    assert arguments("CMD") == ['["manta", "--help"]']
    assert any("--uid 1000" in rest for rest in arguments("RUN"))
    last = [name for name, _ in instructions()].index("USER")
    assert not [rest for name, rest in instructions()[last:] if name == "RUN"], "nothing is installed as that user"


def installs() -> list[list[str]]:
    """Arguments of each `pip install`, without the optional index."""
    lines = [rest for rest in arguments("RUN") if rest.startswith("pip install ")]
    return [shlex.split(re.sub(r"\$\{TORCH_INDEX:\+[^}]*\}", "", line))[2:] for line in lines]


def test_everything_is_installed_under_the_constraints_with_extras_that_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = [line[-1] for line in installs()]
    assert wanted == ["torch", f"{HOME}[cpu,cluster,augment,lora,watch]", "torch", f"{HOME}[gpu,cluster,augment,lora,watch]"]
    assert all(line[:2] == ["-c", f"{HOME}/constraints.txt"] for line in installs())
    assert {"cpu", "gpu", "cluster", "augment", "lora", "watch"} <= extras.keys()
    pins = (INFRA / "constraints.txt").read_text()
    assert re.search(r"^faiss-cpu==(\S+)$", pins, re.MULTILINE)[1] == re.search(r"^faiss-gpu==(\S+)$", pins, re.MULTILINE)[1]


@pytest.mark.alone
@pytest.mark.parametrize("line", [line for line in installs() if line[-1] != "torch"], ids=lambda line: line[-1])
def test_pip_resolves_the_install_lines(line: list[str], tmp_path: Path):
    here = [word.replace(f"{HOME}/constraints.txt", str(INFRA / "constraints.txt")).replace(HOME, str(ROOT)) for word in line]
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--report", str(report), *here]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"] for item in yaml.safe_load(report.read_text())["install"]}
    pins = dict(pin.split("==") for pin in (INFRA / "constraints.txt").read_text().splitlines() if "==" in pin)
    assert found["ray"] == pins["ray"]
    assert (("faiss-gpu" in found), ("faiss-cpu" in found)) == (("gpu" in line[-1]), ("cpu" in line[-1]))
    unpinned = found.keys() - {name.lower().replace("_", "-") for name in pins} - {"manta-embeddings", "setuptools"}
    assert {name for name in unpinned if not name.startswith(("nvidia-", "cuda-", "triton"))} == set(), "infra/constraints.txt names every package of the image"
