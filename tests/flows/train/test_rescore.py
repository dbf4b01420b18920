"""Training rows with the scores of a cross-encoder: equal to sentence-transformers, and trained on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, RobertaConfig
from transformers import RobertaForSequenceClassification as RobertaForClassification

from pipeline.config import load_settings
from pipeline.errors import ConfigError, ModelError
from pipeline.flows.train import rescore as module
from pipeline.flows.train.rescore import Rescored, rescore
from pipeline.flows.workers.cluster import connect
from pipeline.flows.workers.local import LocalWorkers
from pipeline.log import Stages
from pipeline.settings import Job
from pipeline.settings.training import NEGATIVES, OrderSettings, SourceSettings
from pipeline.text.rows.batches import rank_rows
from pipeline.text.rows.order import ShuffledOrder
from pipeline.text.rows.training_rows import open_training_rows
from tests.flows.conftest import sentences
from tests.models.folders import LONG
from tests.models.pair_folders import pair_folder

ROWS, LENGTH = 9, 32


def cross_encoder(folder: Path, family: str, outputs: int = 1) -> Path:
    """Write a small random cross-encoder, as transformers saves it."""
    pair_folder(folder, family)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    kind, config = {
        "bert": (BertForSequenceClassification, BertConfig),
        "roberta": (RobertaForClassification, RobertaConfig),
    }[family]
    torch.manual_seed(0)
    model = kind(
        config(
            vocab_size=len(tokenizer),
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
            num_labels=outputs,
            pad_token_id=tokenizer.pad_token_id,
            initializer_range=0.3,
        )
    )
    model.eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["bert", "roberta"])
def teacher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cross_encoder(tmp_path_factory.mktemp("teachers") / request.param, request.param)


def rows() -> dict[str, list[Any]]:
    texts = sentences(4 * ROWS, 0)
    lists = [[texts[4 * row + 2], texts[4 * row + 3]][: 1 + row % 2] for row in range(ROWS)]
    lists[0] = [LONG, texts[0]]  # longer than the model reads
    return {"anchor": texts[::4], "positive": texts[1::4], "negatives": lists}


@pytest.fixture
def workers(child: LocalWorkers) -> Iterator[None]:
    with connect(Job().cluster, Stages(), local=child):
        yield


def job(folder: Path, teacher: Path, *overrides: str) -> Job:
    given = (
        f"encoder.path={teacher}",
        f"encoder.max_length={LENGTH}",
        "pairs.kind=rescore",
        f"pairs.data={folder}/rows.parquet",
        f"pairs.root={folder}/pairs",
        "pairs.name=scored",
    )
    return load_settings(Job, None, (*given, *overrides))


def rescored(folder: Path, teacher: Path, *overrides: str) -> Rescored:
    if not (folder / "rows.parquet").exists():
        pq.write_table(pa.table(rows()), folder / "rows.parquet", row_group_size=4)
    return rescore(job(folder, teacher, *overrides), Stages())


def test_scores_are_the_logits_of_sentence_transformers(tmp_path: Path, teacher: Path, workers: None):
    result = rescored(tmp_path, teacher)
    table = pq.read_table(f"{tmp_path}/pairs/scored/train.parquet")
    given, model = rows(), CrossEncoder(str(teacher), device="cpu", max_length=LENGTH)
    for row in range(ROWS):
        texts = [given["positive"][row], *given["negatives"][row]]
        expected = model.predict(
            [(given["anchor"][row], text) for text in texts], activation_fn=torch.nn.Identity()
        )
        found = table["scores"][row].as_py()
        np.testing.assert_allclose(found[: len(texts)], expected, rtol=0, atol=2e-5)
        assert found[len(texts) :] == [None] * (3 - len(texts))
        assert [table[role][row].as_py() for role in NEGATIVES[: len(texts) - 1]] == texts[1:]
    assert (
        np.ptp([score for each in table["scores"].to_pylist() for score in each if score is not None]) > 0.1
    )
    pairs = [
        (given["anchor"][row], text)
        for row in range(ROWS)
        for text in (given["positive"][row], *given["negatives"][row])
    ]
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    cut = sum(len(tokenizer(*pair, padding=False, truncation=False).input_ids) > LENGTH for pair in pairs)
    assert cut
    assert result.result.counts == {"missing": 0, "rows": ROWS, "texts": len(pairs), "truncated": cut}


def test_a_training_reads_the_rows_with_their_scores(tmp_path: Path, teacher: Path, workers: None):
    uri = rescored(tmp_path, teacher).train
    read = open_training_rows(
        SourceSettings(uri=uri), ("anchor", "positive", "negative", "scores"), NEGATIVES
    )
    batch = next(rank_rows(ShuffledOrder(read, OrderSettings(batch_rows=ROWS)), 0))
    missing = np.array([text == " " for text in batch.columns["negative2"]])
    np.testing.assert_array_equal(np.isnan(batch.columns["scores"]), np.outer(missing, [0, 0, 1]) > 0)


def test_the_same_command_continues_and_does_not_repeat_a_finished_one(
    tmp_path: Path, teacher: Path, workers: None, monkeypatch: pytest.MonkeyPatch
):
    """The command is stopped before it joins the units. Units that are finished are not scored again."""
    folder = tmp_path / "pairs" / "scored"
    monkeypatch.setattr(module, "join_files", interrupt)
    with pytest.raises(KeyboardInterrupt):
        rescored(tmp_path, teacher)
    assert not (folder / "train.parquet").exists()
    (folder / "_units" / "00001.json").unlink()
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("_units/*.parquet")}
    assert sorted(before) == ["00000.parquet", "00001.parquet", "00002.parquet"]
    with pytest.raises(KeyboardInterrupt):
        rescored(tmp_path, teacher)
    monkeypatch.undo()
    after = {path.name: path.stat().st_mtime_ns for path in folder.glob("_units/*.parquet")}
    assert [name for name in before if after[name] != before[name]] == ["00001.parquet"]
    first = rescored(tmp_path, teacher)
    content = (folder / "train.parquet").read_bytes()
    again = rescored(tmp_path, teacher)
    assert (first.status, again.status, again.result) == ("built", "unchanged", first.result)
    rescored(tmp_path, teacher, "pairs.name=whole")
    assert (tmp_path / "pairs" / "whole" / "train.parquet").read_bytes() == content


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pairs.options={neutral: true}", r"pairs.options: expected none, because the kind rescore"),
        ("pairs.test=0.1", r"pairs.test: expected none"),
        ("pairs.data=null", r"pairs.data: expected files with rows"),
    ],
)
def test_settings_without_effect_are_refused(tmp_path: Path, teacher: Path, override: str, message: str):
    with pytest.raises(ConfigError, match=message):
        rescored(tmp_path, teacher, override)


def test_an_encoder_that_is_no_cross_encoder_is_refused(tmp_path: Path, workers: None):
    with pytest.raises(ModelError, match=r"a cross-encoder with one score.*found weights without classifier"):
        rescored(tmp_path, pair_folder(tmp_path / "encoder", "bert"))
    with pytest.raises(ModelError, match=r"a cross-encoder with one score.*found 3 outputs"):
        rescored(tmp_path, cross_encoder(tmp_path / "classes", "bert", outputs=3), "pairs.name=other")


def test_another_teacher_is_not_mixed_with_the_scores_of_an_earlier_one(
    tmp_path: Path, teacher: Path, workers: None
):
    rescored(tmp_path, teacher)
    with pytest.raises(ConfigError, match=r"rows of the same settings and files.*encoder.* changed"):
        rescored(tmp_path, cross_encoder(tmp_path / "other", "bert", outputs=2))
    record = json.loads((tmp_path / "pairs" / "scored" / "run.json").read_text())
    assert record["definition"]["kind"] == module.KIND
