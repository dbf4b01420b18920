"""The first night of the default encoder says if it does not know the language of the texts."""

import html
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import load_settings
from pipeline.flows.night.gates import corpus_language
from pipeline.flows.night.nightly import nightly
from pipeline.log import Stages, listening
from pipeline.settings import EncoderSettings, Job
from tests.jobs.test_init import GERMAN

ENGLISH = [
    "The dog runs quickly through the large garden.",
    "The cat is sleeping on the warm roof today.",
    "Tomorrow we are going home by train.",
]

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def default(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small encoder in the place of the default one, which takes seconds to load."""
    monkeypatch.setattr(corpus_language, "EncoderSettings", lambda: EncoderSettings(path=str(encoder)))
    return str(encoder)


class FirstNight:
    """A first night over 24 texts: what it logs, and its warnings about the language."""

    def __init__(self, folder: Path, encoder: Path, sentences: list[str]) -> None:
        texts = [f"{sentence} {number}" for number, sentence in enumerate(sentences * 8)]
        pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), folder / "corpus.parquet")
        settings = (
            f"corpus.uri={folder / 'corpus.parquet'}",
            f"release.root={folder / 'root'}",
            f"encoder.path={encoder}",
            "whiten.mode=off",
            "index.kind=flat",
        )
        with listening() as self.said:
            facts = nightly(load_settings(Job, None, settings), Stages()).facts
        self.warnings = [sentence for sentence in facts["warnings"] if "English" in sentence]
        page = (folder / "root/releases/00000001/report.html").read_text()
        assert all(html.escape(warning) in page for warning in self.warnings)
        assert all(f"warning: {warning}" in self.said for warning in self.warnings)

    @property
    def named(self) -> list[str]:
        """The lines about the language in the log."""
        return [sentence for sentence in self.said if sentence.startswith("language: ")]


def test_texts_in_another_language_are_reported(default: str, encoder: Path, tmp_path: Path):
    pytest.importorskip("py3langid")
    night = FirstNight(tmp_path, encoder, GERMAN)
    assert night.named == ["language: de, from 24 sampled texts"]
    assert night.warnings == [
        f"the texts seem to be in de; {default} knows English only: name another encoder"
    ]


@pytest.mark.usefixtures("default")
def test_texts_in_english_are_not(encoder: Path, tmp_path: Path):
    pytest.importorskip("py3langid")
    night = FirstNight(tmp_path, encoder, ENGLISH)
    assert (night.named, night.warnings) == (["language: en, from 24 sampled texts"], [])


def test_a_language_that_is_not_checked_is_reported(
    default: str, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "py3langid", None)
    night = FirstNight(tmp_path, encoder, GERMAN)
    assert night.named == ["language: not checked: pip install py3langid"]
    assert night.warnings == [
        f"the language of the texts was not checked: pip install py3langid; {default} knows English only"
    ]


def test_nothing_is_said_of_other_encoders(encoder: Path, tmp_path: Path):
    night = FirstNight(tmp_path, encoder, GERMAN)
    assert (night.named, night.warnings) == ([], [])
