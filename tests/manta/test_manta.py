"""`import manta` is the way in from Python: it loads no library, its names are the objects of their modules,
and its errors name a package that hides a part of it.
"""

import ast
import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import manta
from pipeline.flows.encode.encode import EncodeBlocks
from pipeline.index.search.search import open_release
from pipeline.models.inference.encoder import Encoder, encode, load_encoder
from pipeline.settings import EncoderSettings, Job
from pipeline.store.files.open_store import open_store
from tests.conftest import ROOT
from tests.index.published import Publisher


def python(program: str, *, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in a new interpreter, whose module path begins with `path`."""
    environment = {"PATH": "/usr/bin:/bin", **({"PYTHONPATH": str(path)} if path else {})}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_every_public_name_is_the_object_of_its_module():
    assert (manta.encode, manta.load_encoder, manta.open_release, manta.EncodeBlocks) == (
        encode,
        load_encoder,
        open_release,
        EncodeBlocks,
    )
    assert manta.__version__ == importlib.metadata.version("manta-embeddings")
    assert set(manta.__all__) <= set(dir(manta))
    with pytest.raises(AttributeError, match="module 'manta' has no attribute 'encoed'"):
        manta.encoed  # noqa: B018


def test_a_type_checker_reads_the_names_that_python_loads():
    tree = ast.parse((ROOT / "pipeline" / "manta" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    assert {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    } == manta._MODULES
    assert {*manta._MODULES, "__version__"} == set(manta.__all__)
    assert (ROOT / "pipeline" / "manta" / "py.typed").is_file()


def test_encode_in_one_call_equals_a_loaded_encoder(encoder: Path):
    loaded = load_encoder(str(encoder))
    vector = manta.encode("two dogs run", str(encoder))
    assert vector.shape == (loaded.dim,)
    assert (vector == loaded.encode("two dogs run")).all()
    assert manta.encode(["one", "two"], EncoderSettings(path=str(encoder), pooling="cls")).shape == (
        2,
        loaded.dim,
    )


def test_representations_name_path_size_and_settings(minilm: Encoder, encoder: Path, tmp_path: Path):
    assert repr(minilm) == "Encoder('all-MiniLM-L6-v2', 384 dimensions, max_length 256)"
    Publisher(open_store(tmp_path / "root"), encoder, tmp_path)(["two dogs run", "a girl reads"])
    release = open_release(tmp_path / "root")
    assert (
        repr(release)
        == f"OpenRelease('{tmp_path / 'root'}', release 1: 2 rows, index {release.manifest.index.kind})"
    )
    assert repr(EncodeBlocks(str(encoder))).startswith(f"EncodeBlocks(Encoder('{encoder}', ")
    assert (
        repr(EncoderSettings(path="models/new", pooling="cls"))
        == "EncoderSettings(path='models/new', pooling='cls')"
    )
    assert repr(Job()) == "Job()"


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("pipeline/__init__.py", "pipeline"),
        ("pipeline/stages.py", "pipeline"),
        ("pipeline.py", "pipeline.py"),
        ("jobs/__init__.py", "jobs"),
    ],
)
def test_a_package_that_shadows_manta_is_named(tmp_path: Path, file: str, found: str):
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('it was imported')\n")
    ended = python("import manta; manta.encode", cwd=tmp_path)
    name = file.split("/")[0].removesuffix(".py")
    assert (
        f"ImportError: {name}: expected Manta's package, found {tmp_path / found}, which shadows it; rename"
        in ended.stderr
    )
    command = python(
        "import runpy, sys; sys.argv = ['manta', '--help']; runpy.run_module('manta', run_name='__main__')",
        cwd=tmp_path,
    )
    assert (command.returncode, command.stdout) == (2, "")
    assert command.stderr.startswith(f"error: {name}: expected Manta's package")


def test_a_job_names_the_package_that_shadows_pipeline(tmp_path: Path):
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "__init__.py").touch()
    ended = python("import jobs.nightly", cwd=tmp_path)
    assert f"ImportError: pipeline: expected Manta's package, found {tmp_path / 'pipeline'}" in ended.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel of this source tree."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "pipeline", "jobs"):
        (tree / name).symlink_to(ROOT / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(out)], cwd=tree, check=True, capture_output=True, timeout=120
    )
    [archive] = out.glob("*.whl")
    with zipfile.ZipFile(archive) as opened:
        opened.extractall(out / "installed")
    return out / "installed"


def test_a_wheel_holds_manta_once_and_every_data_file(wheel: Path):
    assert {"manta", "pipeline", "jobs"} == {
        path.name for path in wheel.iterdir() if not path.name.endswith(".dist-info")
    }
    assert not (wheel / "pipeline" / "manta").exists()
    for name in (
        "manta/py.typed",
        "pipeline/py.typed",
        "pipeline/report/style.css.j2",
        "jobs/configs/quickstart.yaml",
        "jobs/configs/train/cert.yaml",
    ):
        assert (wheel / name).is_file(), name
    assert "manta = manta.__main__:run" in next(wheel.glob("*.dist-info/entry_points.txt")).read_text()


def test_an_installed_wheel_is_imported_without_numpy_at_first(wheel: Path, tmp_path: Path):
    program = (
        "import manta, sys\nbefore = set(sys.modules)\nmanta.load_encoder\nimport "
        "pipeline\nprint(manta.__file__, pipeline.__file__, 'numpy' in before)"
    )
    ended = python(program, cwd=tmp_path, path=wheel)
    assert ended.stdout.split() == [
        str(wheel / "manta" / "__init__.py"),
        str(wheel / "pipeline" / "__init__.py"),
        "False",
    ], ended.stderr


def test_dir_shows_only_public_names():
    assert {name for name in dir(manta) if not name.startswith("__")} == set(manta.__all__) - {"__version__"}
