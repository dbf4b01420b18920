"""The instructions of the Dockerfile are parsed: copied files exist, and every installed package is locked by
version and sha256. `test_image.py` builds the image.
"""

import fnmatch
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.infra.manifests import INFRA, ROOT

INSTRUCTIONS = {"ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}
HOME = "/opt/manta"  # where the image has the project


def instructions() -> list[tuple[str, str]]:
    """Return each instruction with its arguments, in order; continued lines are joined."""
    text = re.sub(r"^\s*#.*\n", "", (INFRA / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line]


def arguments(instruction: str) -> list[str]:
    return [rest for name, rest in instructions() if name == instruction]


def stages() -> dict[str, str]:
    """Return the image that each named stage is built from."""
    return {
        words[2]: words[0] for words in (rest.split() for rest in arguments("FROM")) if words[1:2] == ["AS"]
    }


def test_every_instruction_is_valid_and_every_argument_is_used():
    assert {name for name, _ in instructions()} <= INSTRUCTIONS
    text = "\n".join(rest for name, rest in instructions() if name != "ARG")
    for argument in arguments("ARG"):
        assert re.search(rf"\$\{{?{argument.split('=')[0]}\b", text), argument


def test_the_device_is_a_build_argument_and_names_a_stage():
    assert "DEVICE=cpu" in arguments("ARG")
    assert arguments("FROM")[-1] == "${DEVICE}"
    assert stages() == {"base": "${BASE}", "cpu": "base", "gpu": "base"}
    python = re.search(r"^BASE=python:(3\.\d+)-slim$", "\n".join(arguments("ARG")), re.MULTILINE)[1]
    assert f"--python-version {python} " in (INFRA / "lock.sh").read_text()


def test_copied_files_exist_and_are_not_ignored():
    kept = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    sources = [source for rest in arguments("COPY") for source in rest.split()[:-1]]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), f".dockerignore leaves {source} out"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {
        project["project"]["readme"],
        *project["project"]["license-files"],
        "pyproject.toml",
        "pipeline",
        "jobs",
    } <= set(sources)


def test_the_image_runs_as_a_user_and_forwards_signals():
    assert arguments("USER") == ["1000"]
    assert arguments("ENTRYPOINT") == ['["tini", "-g", "--"]']
    assert arguments("CMD") == ['["manta", "--help"]']
    assert any("--uid 1000" in rest for rest in arguments("RUN"))
    last = [name for name, _ in instructions()].index("USER")
    assert not [rest for name, rest in instructions()[last:] if name == "RUN"], (
        "everything is installed before"
    )


DEVICES = ("cpu", "gpu")


def locked(name: str) -> dict[str, tuple[str, set[str]]]:
    """Return the packages of infra/locked/NAME.txt with version and hashes. Every other line is an error."""
    lines = [
        line
        for line in (INFRA / "locked" / f"{name}.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    found: dict[str, tuple[str, set[str]]] = {}
    for line in lines:
        if pin := re.fullmatch(r"([a-z0-9-]+)(?:\[[a-z0-9,-]+\])?==(\S+) \\", line):
            hashes: set[str] = set()
            found[pin[1]] = pin[2], hashes
        else:
            hashes.add(re.fullmatch(r" {4}--hash=sha256:([0-9a-f]{64})(?: \\)?", line)[1])
    assert all(hashes for _, hashes in found.values())
    return found


FURTHER = {
    "serve": ("serve",),
    "exports": ("pgvector", "qdrant", "lancedb", "milvus", "opensearch", "elasticsearch"),
    "lakes": ("delta", "iceberg", "gcs", "azure"),
}


def image(device: str) -> dict[str, tuple[str, set[str]]]:
    return locked("torch") | locked(device)


def pins() -> dict[str, str]:
    lines = [line for line in (INFRA / "constraints.txt").read_text().splitlines() if "==" in line]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_pip_installs_only_locked_files_with_hashes():
    environment = dict(word.split("=") for word in " ".join(arguments("ENV")).split())
    assert environment.items() >= {"PIP_REQUIRE_HASHES": "1", "PIP_NO_DEPS": "1"}.items()
    lines = re.findall(r"(PIP_\S+ )?pip install ([^;&]+)", " ; ".join(arguments("RUN")))
    own = [(before, words.strip()) for before, words in lines if "-r" not in words.split()]
    assert own == [("PIP_REQUIRE_HASHES=0 ", f"--no-build-isolation {HOME}")], (
        "only the project itself is installed without hashes, and built with the installed packages"
    )
    files = [words.split()[-1] for _, words in lines if "-r" in words.split()]
    names = ("torch-there", "torch", "cpu", "torch", "gpu", "$extra")
    assert [file.strip('"') for file in files] == [f"{HOME}/locked/{name}.txt" for name in names]


def test_each_layer_with_packages_is_pruned():
    layers = [line for line in arguments("RUN") if "-r " in line]
    assert len(layers) == 5
    assert [line for line in layers if not line.endswith(f"sh {HOME}/prune.sh")] == []


def test_pip_uses_one_package_index():
    texts = {
        file: file.read_text() for file in INFRA.rglob("*") if file.is_file() and file.suffix != ".png"
    } | {ROOT / "README.md": (ROOT / "README.md").read_text()}
    assert not [file for file, text in texts.items() if "extra-index" in text.lower()], (
        "anybody could publish a package in the second index under a name of the first"
    )


@pytest.mark.parametrize("device", DEVICES)
def test_locked_versions_are_the_tested_ones(device: str):
    known = pins()
    found = image(device)
    assert {
        name: version for name, (version, _) in found.items() if name in known and known[name] != version
    } == {}
    floating = {name for name in found if name not in known}
    assert {name for name in floating if not name.startswith(("nvidia-", "cuda-", "triton"))} <= {
        "setuptools"
    }
    assert not locked(device).keys() & {"torch", "triton"}, "torch may come from elsewhere"


@pytest.mark.parametrize("name", FURTHER)
def test_further_packages_are_the_tested_ones_and_complete_the_image(name: str):
    found = {package: version for package, (version, _) in locked(name).items()}
    assert found == {package: version for package, version in pins().items() if package in found}
    for device in DEVICES:
        assert not found.keys() & image(device).keys(), "an image has one version of a package"
        assert names_of(FURTHER[name]) - image(device).keys() - found.keys() == set()


@pytest.mark.parametrize("extras", ["", "serve", "serve exports lakes"])
@pytest.mark.parametrize("failing", ["", "serve"])
def test_the_image_installs_the_named_extras_and_is_not_built_if_one_fails(
    extras: str, failing: str, tmp_path: Path
):
    [line] = [line for line in arguments("RUN") if "$EXTRAS" in line]
    pip = tmp_path / "pip"
    pip.write_text(f'#!/bin/sh\necho "$*"\ncase "$*" in *{failing or "none"}.txt) exit 1; esac\n')
    pip.chmod(0o700)
    done = subprocess.run(
        ["/bin/sh", "-c", line.removesuffix(f"; sh {HOME}/prune.sh")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "EXTRAS": extras},
        capture_output=True,
        text=True,
        timeout=20,
    )
    fails = failing in extras.split()
    assert done.returncode == fails
    tried = extras.split()[: 1 if fails else None]
    assert done.stdout.splitlines() == [f"install -r {HOME}/locked/{name}.txt" for name in tried]


def test_every_extra_of_the_project_is_in_the_image_or_a_choice():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    here = {"cpu", "gpu", "cluster", "augment", "lora", "watch"}
    assert {extra for extras in FURTHER.values() for extra in extras} | here == project[
        "optional-dependencies"
    ].keys() - {"local", "bench", "test"}
    [default] = [value for value in arguments("ARG") if value.startswith("EXTRAS=")]
    assert default == "EXTRAS=serve", "kuberay/serve.yaml needs it"
    documented = re.search(r"^# EXTRAS names .*$", (INFRA / "Dockerfile").read_text(), re.MULTILINE)[0]
    assert [name for name in FURTHER if f" {name} (" not in documented] == []
    locks = {file.stem for file in (INFRA / "locked").glob("*.txt")}
    assert locks == {"torch", *DEVICES, *FURTHER}
    written = re.findall(r"^further (\w+) (.*)$", (INFRA / "lock.sh").read_text(), re.MULTILINE)
    assert {name: tuple(extras.split()) for name, extras in written} == FURTHER


@pytest.mark.parametrize("device", DEVICES)
def test_all_requirements_of_the_project_and_its_packages_are_locked(device: str):
    """Requirements are followed through the packages that are installed here; in the image, `pip check` does
    the same.
    """
    names = names_of((device, "cluster", "augment", "lora", "watch"))
    assert len(names) > 80
    assert {
        name for name in names - image(device).keys() if not name.startswith(("nvidia-", "cuda-"))
    } == set()


def names_of(extras: tuple[str, ...]) -> set[str]:
    """Return the names of all packages that the project needs with some of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chosen = [project["optional-dependencies"][extra] for extra in extras]
    wanted = [Requirement(line) for lines in (project["dependencies"], *chosen) for line in lines]
    seen: set[str] = set()
    while wanted:
        each = wanted.pop()
        if str(each) not in seen:
            seen.add(str(each))
            wanted += asked_by(each)
    return {canonicalize_name(Requirement(line).name) for line in seen}


def asked_by(requirement: Requirement) -> list[Requirement]:
    """Return the requirements of a package on the image's Python; none if it is not installed here, as
    faiss-gpu.
    """
    try:
        found = [Requirement(line) for line in distribution(requirement.name).requires or ()]
    except PackageNotFoundError:
        return []
    python = {"python_version": "3.11", "python_full_version": "3.11.9"}
    return [
        each
        for each in found
        if each.marker is None
        or any(each.marker.evaluate({"extra": extra, **python}) for extra in {"", *requirement.extras})
    ]


@pytest.mark.alone
@pytest.mark.parametrize("device", DEVICES)
def test_pip_accepts_the_locked_files_for_the_platform(device: str, tmp_path: Path):
    report = tmp_path / "report.json"
    extras = f"{ROOT}[{device},cluster,augment,lora,watch]"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--ignore-installed",
        "--report",
        str(report),
        "-c",
        str(INFRA / "constraints.txt"),
        extras,
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {
        canonicalize_name(item["metadata"]["name"]): item
        for item in json.loads(report.read_text())["install"]
    }
    wanted = image(device)
    assert found.keys() - {"manta-embeddings"} <= wanted.keys()
    other = found.pop("torch") if "+" in found["torch"]["metadata"]["version"] else None
    for name, item in found.items():
        version, hashes = wanted.get(name, (None, set()))
        if version == item["metadata"]["version"]:  # a package without a pin may have a newer release
            assert item["download_info"]["archive_info"]["hashes"]["sha256"] in hashes, name
        else:
            assert name not in pins()
    if other is not None:
        build = other["metadata"]["version"]
        pytest.skip(
            f"torch {build} is a build of another index, with other bytes; all others are the locked files"
        )
