"""Encoder folders for the tests of prompt objectives."""

from pathlib import Path

import pytest

from tests.models.folders import folder_of_language_model, save_folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write two encoders with a masked language model head, and one without."""
    top = tmp_path_factory.mktemp("encoders")
    return {
        "bert": folder_of_language_model(top / "bert"),
        "roberta": folder_of_language_model(top / "roberta", family="roberta"),
        "no language model head": save_folder(top / "bare", "bert"),
    }
