"""Encoders that several tests share."""

from pathlib import Path

import pytest

from tests.models.folders import FAMILIES, save_folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A random model of every family."""
    top = tmp_path_factory.mktemp("encoders")
    return {family: save_folder(top / family, family) for family in FAMILIES}
