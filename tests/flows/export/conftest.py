"""The root that all tests of exports read."""

from pathlib import Path

import pytest

from pipeline.flows.workers.local import LocalWorkers
from tests.flows.export.nights import publish_all


@pytest.fixture(scope="session")
def root(child: LocalWorkers, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of six nights."""
    return publish_all(tmp_path_factory.mktemp("exported"), child)
