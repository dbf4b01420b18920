"""Fixtures for all tests: the workers that nights run on, small encoders, an S3 server on loopback, and a
proxy in front of it that fails on purpose.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

# Ray's default is 15, with which its workers starve beside any other busy process, such as another test.
os.environ.update(RAY_worker_niceness="0")
if "PYTEST_XDIST_WORKER" in os.environ:
    # There are as many pytest processes as cores: with more than one thread each, threads would only wait.
    os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import HealthCheck, settings
from typer.testing import CliRunner
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from jobs.cli import app
from pipeline.flows.encode.trial_encode import EncodeTexts
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.interface import Workers
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.settings import ClusterSettings, EncoderSettings, EncodeSettings
from tests.faults import FaultyProxy
from tests.server import SERVERS, Server, s3_server

ROOT = Path(__file__).parent.parent

_ANY_HEALTH = {"deadline": None, "suppress_health_check": list(HealthCheck)}
settings.register_profile("fast", max_examples=20, derandomize=True, **_ANY_HEALTH)
settings.register_profile("thorough", max_examples=200, **_ANY_HEALTH)


def pytest_configure(config: pytest.Config) -> None:
    """Property tests try a few fixed examples in the fast suite, and many random ones under `-m slow`."""
    settings.load_profile("thorough" if _is_slow(config) else "fast")


class ByFile(LoadScopeScheduling):
    """Runs the tests of a file in one process, so that they share its module fixtures, and all tests on Ray
    in one process, so that they share the one Ray of the session.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "ray" if "/on_ray/" in file else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    """Distribute whole files over the processes of xdist, in the order of collection."""
    return ByFile(config, log)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark property tests as slow under `-m slow`, so that it runs them too."""
    if _is_slow(item.config) and item.get_closest_marker("hypothesis"):
        item.add_marker("slow")


def _is_slow(config: pytest.Config) -> bool:
    return config.option.markexpr == "slow"


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Restore torch's number of threads, which loading an encoder sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def child(encoder: Path, s3: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalWorkers]:
    """The child process of small nights, shared by the whole session: it loads torch once instead of once per
    night. It sees the S3 server, and a cache of its own.
    """
    process = LocalWorkers()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MANTA_CACHE", str(tmp_path_factory.mktemp("cache")))
        process.warm(EncodeTexts(EncoderSettings(path=str(encoder)), EncodeSettings()))
    yield process
    # Nights kill their child process. This one ends by itself, because only then does it write its coverage.
    process._executor().shutdown()


@pytest.fixture(params=["list", "table"])
def unit_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test with manifests that list their units, and with manifests that name a table of them."""
    if request.param == "table":
        monkeypatch.setattr("pipeline.store.records.release_units.MAX_LISTED", 0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of remote files for one test."""
    monkeypatch.setenv("MANTA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def cluster(child: LocalWorkers) -> Iterator[Workers]:
    """Workers without Ray: every flow of the test runs in the session's child process."""
    with connect(ClusterSettings(), Stages(), local=child) as connected:
        yield connected


@pytest.fixture(scope="session")
def ray_cluster(s3: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """The one local Ray of the session.

    Its workers inherit the environment at its start: the S3 server, a cache, the path of the tests' tasks.
    """
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MANTA_CACHE", str(tmp_path_factory.mktemp("cache")))
        environment.setenv(
            "PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        )
        # Tests of metrics wait for a report, and Ray's default interval is 10,000 ms.
        environment.setenv("RAY_metrics_report_interval_ms", "4000")
        with connect(ClusterSettings(), Stages()) as connected:
            yield connected


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three random layers of width 48 with a tokenizer of 290 pieces."""
    from tests.models.folders import save_folder  # transformers takes seconds to import

    return save_folder(tmp_path_factory.mktemp("encoder"), "bert")


@pytest.fixture(scope="session")
def minilm() -> Encoder:
    """The packaged all-MiniLM-L6-v2."""
    return load_encoder(EncoderSettings(), EncodeSettings(), "cpu")


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """URI of a bucket on a server that speaks S3 over HTTP; endpoint and credentials are in the environment
    while it runs.
    """
    with s3_server("manta-tests") as (uri, _):
        yield uri


REMOTE = ["s3", *(pytest.param(name, marks=pytest.mark.slow) for name in SERVERS)]
"""parameters of a test that runs on moto in the fast suite, and on every other server in the slow one"""


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[str], Server]]:
    """Start a server of tests.server.SERVERS by its name, once for the session."""
    with contextlib.ExitStack() as running:
        yield functools.cache(lambda name: running.enter_context(SERVERS[name]("manta-tests")))


@pytest.fixture
def bucket_at(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return the URI of a bucket at "s3" (moto) or a server of SERVERS, which the environment names."""

    def find(name: str) -> str:
        if name == "s3":
            return str(request.getfixturevalue("s3"))
        server = request.getfixturevalue("servers")(name)
        for variable, value in server.variables.items():
            monkeypatch.setenv(variable, value)
        return str(server.uri)

    return find


class CommandResult(NamedTuple):
    """The result of a command: its exit code, standard output and standard error."""

    code: int
    out: str
    err: str


@pytest.fixture
def manta(capfd: pytest.CaptureFixture[str]) -> Callable[..., CommandResult]:
    """Run the command `manta` in this process.

    Results are read from the file descriptor of standard output, help and messages from Python's streams.
    """

    def run(*arguments: str) -> CommandResult:
        capfd.readouterr()
        ended = CliRunner().invoke(app, arguments, catch_exceptions=False)
        out, err = capfd.readouterr()
        return CommandResult(ended.exit_code, ended.stdout + out, ended.stderr + err)

    return run


@pytest.fixture
def faulty(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy in front of the S3 server, without faults until a test sets its `faults`.

    Stores that this process opens send their requests through it.
    """
    with FaultyProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        yield proxy
