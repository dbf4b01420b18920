"""Token bias: scores of averaged token embeddings equal those of encoders that average the same table."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.decomposition import PCA
from transformers import AutoModelForMaskedLM, AutoTokenizer

from pipeline.errors import DataError, ModelError
from pipeline.flows.evaluate.evaluate import evaluate
from pipeline.flows.evaluate.report import store_evaluation
from pipeline.log import Stages
from pipeline.settings import EncoderSettings
from tests.flows.evaluate.evaluating import job, oracle, write_pairs
from tests.models.folders import folder_of_language_model, save_folder

pytestmark = pytest.mark.usefixtures("cluster")
SETTINGS = ("evaluate.names=[STSB-dev]", "evaluate.geometry.token_bias=true", "encoder.frequent=5")
FILTERS = {"sub-words": "subword", "upper case": "case", "punctuation": "punctuation"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bias")
    save_folder(folder / "bare", "bert")
    model = AutoModelForMaskedLM.from_pretrained(folder_of_language_model(folder / "tied"))
    model.config.tie_word_embeddings = False
    weight = model.cls.predictions.decoder.weight.detach()
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    model.cls.predictions.decoder.weight = torch.nn.Parameter(weight + noise)
    model.save_pretrained(folder / "untied")
    AutoTokenizer.from_pretrained(folder / "tied").save_pretrained(folder / "untied")
    write_pairs(folder / "tasks/sts/STSB-dev.parquet", 40)
    return folder


def measured(folder: Path, name: str, *settings: str):
    evaluation = evaluate(job(folder, folder / name, *SETTINGS, *settings), Stages(), geometry=True)
    (named,) = evaluation.token_bias
    return evaluation, named.bias


def test_both_tables_of_an_untied_head_are_averaged_and_projected(folder: Path):
    evaluation, bias = measured(folder, "untied")
    assert [table.table for table in bias.tables] == ["input", "output"]
    tables = {
        "input": AutoModelForMaskedLM.from_pretrained(folder / "untied").get_input_embeddings().weight,
        "output": AutoModelForMaskedLM.from_pretrained(folder / "untied").get_output_embeddings().weight,
    }
    tokenizer, file = AutoTokenizer.from_pretrained(folder / "untied"), folder / "tasks/sts/STSB-dev.parquet"
    rows = pq.read_table(file)
    for table in bias.tables:
        weights = tables[table.table].detach().numpy()
        left, right = (
            np.stack([weights[tokenizer(text)["input_ids"]].mean(axis=0) for text in rows[side].to_pylist()])
            for side in ("sentence1", "sentence2")
        )
        cosines = (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
        expected = 100 * spearmanr(cosines, rows["score"]).statistic
        assert table.correlations["nothing"] == pytest.approx(expected, abs=0.05)
        points = pq.read_table(folder / "root/evaluations" / table.points.path)
        ids = tokenizer.convert_tokens_to_ids(points["token"].to_pylist())
        assert set(tokenizer.get_vocab()) - set(points["token"].to_pylist()) == {"[CLS]", "[SEP]"}
        pca = PCA(2).fit(weights[ids].astype(np.float64))
        np.testing.assert_allclose(table.explained, pca.explained_variance_ratio_, rtol=1e-5)
        expected = np.abs(pca.transform(weights[ids].astype(np.float64)))
        np.testing.assert_allclose(np.abs(np.column_stack([points["x"], points["y"]])), expected, atol=1e-4)
        pieces = [token.startswith("##") and token != "##" for token in points["token"].to_pylist()]
        assert [group == "piece of a word" for group in points["subword"].to_pylist()] == pieces
    page = Path(store_evaluation(evaluation, "now").report.removeprefix("file://")).read_text()
    assert "Token embeddings in two dimensions: untied frequent=5, output table" in page


def test_averages_of_the_input_table_are_those_of_the_pooling_table(folder: Path):
    _, bias = measured(folder, "tied")
    (table,) = bias.tables
    assert (table.table, bias.missing) == ("tied", "it is the input table")
    counts = folder / "counts.parquet"
    tokenizer = AutoTokenizer.from_pretrained(folder / "tied")
    rows = pq.read_table(folder / "tasks/sts/STSB-dev.parquet")
    texts = {text.strip() for side in ("sentence1", "sentence2") for text in rows[side].to_pylist()}
    tokens = [token for text in texts for token in tokenizer.tokenize(text)]
    pq.write_table(
        pa.table({"token": sorted(set(tokens)), "count": [tokens.count(t) for t in sorted(set(tokens))]}),
        counts,
    )
    _, counted = measured(folder, "tied", f"encoder.frequencies={counts}")
    encoders = {"nothing": {}, "all of these": {"exclude": ("frequent", *FILTERS.values())}}
    encoders |= {label: {"exclude": (name,)} for label, name in FILTERS.items()}
    encoders |= {"the 5 most frequent": {"exclude": ("frequent",)}}
    assert set(encoders) == set(table.correlations)
    for label, changes in encoders.items():
        encoder = EncoderSettings(
            path=str(folder / "tied"), pooling="table", frequent=5, frequencies=str(counts), **changes
        )
        expected = oracle(folder / "tasks/sts/STSB-dev.parquet", encoder)
        assert counted.tables[0].correlations[label] == pytest.approx(expected, abs=0.05), label
    assert counted.counted == str(counts)


def test_an_encoder_without_a_head_has_an_input_table_only(folder: Path):
    _, bias = measured(folder, "bare")
    assert [table.table for table in bias.tables] == ["input"]
    assert bias.missing == "the folder has no language model head"


def test_word_vectors_are_refused_and_pairs_are_needed(folder: Path, tmp_path: Path):
    texts = pq.read_table(folder / "tasks/sts/STSB-dev.parquet")["sentence1"].to_pylist()
    words = sorted({word for text in texts for word in text.lower().split()})
    lines = [f"{word} {number} 1" for number, word in enumerate(words)]
    (tmp_path / "words.txt").write_text("\n".join(lines) + "\n")
    with pytest.raises(ModelError, match="a Transformer with tables of token embeddings"):
        measured(folder, "bare", f"encoder.path={tmp_path / 'words.txt'}")
    table = pa.table({"id": [str(n) for n in range(20)], "text": [f"text {n} of twenty" for n in range(20)]})
    pq.write_table(table, tmp_path / "corpus.parquet")
    with pytest.raises(DataError, match=r"evaluate\.geometry\.token_bias: expected pairs"):
        measured(folder, "bare", "evaluate.tasks=null", f"corpus.uri={tmp_path / 'corpus.parquet'}")
