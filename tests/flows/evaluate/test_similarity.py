"""The similarity that an encoder's folder names decides scores, unless a setting does."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

from pipeline.errors import ConfigError, ModelError
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.settings import EncoderSettings
from tests.conftest import CommandResult
from tests.flows.conftest import sentences
from tests.flows.evaluate.evaluating import job, write_pairs
from tests.flows.train.training import write_sentences
from tests.models.folders import edit_json, folder_at, save_folder

pytestmark = pytest.mark.usefixtures("cluster")
FILE = "config_sentence_transformers.json"


@pytest.fixture(scope="module")
def dot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder whose vectors have many lengths."""
    folder = save_folder(tmp_path_factory.mktemp("encoders") / "dot", "bert")
    edit_json(folder / FILE, similarity_fn_name="dot")
    return folder


def test_the_score_is_that_of_the_folders_similarity(
    tmp_path: Path, dot: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("pipeline.models.folder.folder._announced", set())
    texts = sentences(60)
    write_pairs(tmp_path / "tasks/sts/STSB-dev.parquet", 40, 0, texts)
    scores = {}
    for similarity in (None, "cosine", "dot"):
        chosen = job(
            tmp_path, dot, "evaluate.names=[STSB-dev]", f"evaluate.similarity={similarity or 'null'}"
        )
        (task,) = evaluate(chosen, Stages()).measured
        scores[similarity] = task.results[0].result.value
    table, encoder = pq.read_table(tmp_path / "tasks/sts/STSB-dev.parquet"), load_encoder(str(dot))
    left, right = (encoder.encode(table[name].to_pylist()) for name in ("sentence1", "sentence2"))
    expected = 100 * spearmanr((left.astype(np.float64) * right).sum(axis=1), table["score"].to_numpy())[0]
    assert scores[None] == scores["dot"] == pytest.approx(expected, abs=1e-3)
    assert scores["cosine"] != scores["dot"]
    assert capsys.readouterr().err.count("warning: ") == 1, "about the ranking of searches"


def test_candidates_of_different_similarities_are_refused(tmp_path: Path, dot: Path):
    write_pairs(tmp_path / "tasks/sts/STSB-dev.parquet", 40, 0, sentences(60))
    cosine = Path(shutil.copytree(dot, tmp_path / "cosine"))
    (cosine / FILE).unlink()
    chosen = job(
        tmp_path,
        dot,
        "evaluate.names=[STSB-dev]",
        f"evaluate.candidates=[{{}}, {{encoder: {{path: {cosine}}}}}]",
    )
    with pytest.raises(ConfigError, match=r"one similarity for all candidates, found dot for .*, cosine for"):
        evaluate(chosen, Stages())


@pytest.mark.parametrize(
    ("similarity", "normalize", "warns"),
    [
        (None, None, False),
        ("cosine", None, False),
        ("dot", None, True),
        ("dot", True, False),
        ("euclidean", None, True),
        ("euclidean", True, False),
        ("manhattan", True, True),
    ],
)
def test_a_ranking_that_searches_do_not_have_is_a_warning(
    tmp_path: Path, dot: Path, similarity: str | None, normalize: bool | None, warns: bool
):
    folder = Path(shutil.copytree(dot, tmp_path / "encoder"))
    edit_json(folder / FILE, similarity_fn_name=similarity)
    found = open_folder(EncoderSettings(path=str(folder), normalize=normalize)).warnings
    assert bool(found) == warns
    assert all(f"similarity_fn_name is {similarity}" in sentence for sentence in found)


def test_an_unknown_similarity_is_refused(tmp_path: Path, dot: Path):
    folder = Path(shutil.copytree(dot, tmp_path / "encoder"))
    for value in ("hamming", 3, ["dot"]):
        edit_json(folder / FILE, similarity_fn_name=value)
        with pytest.raises(ModelError, match="similarity_fn_name"):
            folder_at(folder)


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("train", ("train.data=rows.parquet", "train.objective=supervised")),
        ("augment", ("augment.variants.cut=crop", "augment.keep.similarity=[0, 1]", "corpus.uri=none")),
        ("search-template", ("evaluate.tasks=none",)),
    ],
)
def test_every_command_announces_the_warnings_of_its_encoder(
    tmp_path: Path,
    dot: Path,
    manta: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    settings: tuple[str, ...],
):
    """Each command ends early, because the files that it reads next cannot be used."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pipeline.models.folder.folder._announced", set())
    write_sentences(tmp_path / "rows.parquet")
    ended = manta(command, f"encoder.path={dot}", *settings)
    assert ended.code in (2, 3)
    assert ended.err.count(f"warning: {dot}: similarity_fn_name is dot") == 1
