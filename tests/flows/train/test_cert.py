"""CERT on real text, by its three configs: each stage starts from the product of the one before."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pipeline.flows.train.rank import TrainRank
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings
from pipeline.train.metrics import read_metrics
from tests.conftest import CommandResult
from tests.flows.train.test_fine_tuning import CONFIGS
from tests.flows.train.test_fine_tuning import TEXTS as SENTENCES
from tests.flows.train.training import rank_of_config, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "MANTA_EVAL_DATA" not in os.environ or "MANTA_EVAL_MODELS" not in os.environ,
        reason="MANTA_EVAL_DATA and MANTA_EVAL_MODELS are not set",
    ),
]
Overrides = tuple[str, ...]
TEXTS, MEASURED = 160, 500  # texts of the corpus; sentences of dev, and of test
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SYNONYMS = "movie\tfilm\nstory\ttale,plot\nman\tguy,person\nwoman\tlady,person\nfunny\tcomic,amusing\n"
CERT = CONFIGS / "cert.yaml"


def new_bert(folder: Path) -> Path:
    """Write a BERT of two random layers of width 32 with its pooler, and the tokenizer of MiniLM.

    With the usual initialization all texts would have nearly one vector.
    """
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(open_folder(EncoderSettings()).path)
    tokenizer.save_pretrained(folder)
    BertModel(BertConfig(vocab_size=len(tokenizer), initializer_range=0.2, **SMALL)).save_pretrained(folder)
    return folder


def write_task(folder: Path) -> None:
    """Write sentences of SUBJ to train, for dev and for test, and the first training texts as a corpus."""
    table = pq.read_table(Path(os.environ["MANTA_EVAL_DATA"]) / "senteval" / "SUBJ.parquet")
    rows = table.take(np.random.default_rng(0).permutation(len(table))).select(["text", "label"])
    test, dev, training = rows[:MEASURED], rows[MEASURED : 2 * MEASURED], rows[2 * MEASURED :]
    for name, part in (("test", test), ("dev", dev), ("train", training)):
        pq.write_table(part, folder / f"{name}.parquet")
    ids = [f"sentence-{number}" for number in range(TEXTS)]
    pq.write_table(pa.table({"id": ids, "text": training["text"][:TEXTS]}), folder / "texts.parquet")


def back_translation() -> tuple[Overrides, Overrides]:
    """Return what changes in the first stage and in the second: two ways through the same language."""
    models = Path(os.environ["MANTA_EVAL_MODELS"])

    def through_german(decoding: dict[str, Any]) -> str:
        paths = (str(models / f"translation-{pair}") for pair in ("en-de", "de-en"))
        return json.dumps([{"path": path, "decoding": decoding} for path in paths])

    ways: dict[str, dict[str, Any]] = {
        "zh": {"method": "sample", "top_k": 10},
        "de": {"method": "greedy"},
    }
    first = (f"augment.variants.{name}.options.legs={through_german(way)}" for name, way in ways.items())
    return tuple(first), ()


def eda() -> tuple[Overrides, Overrides]:
    """Return what changes in the first stage and in the second: edits of words, as documented."""
    Path("synonyms.tsv").write_text(SYNONYMS)
    method = "{method: eda, options: {count: 2, synonyms: {thesaurus: synonyms.tsv}}}"
    return (
        ("augment.name=eda", f"augment.variants={{eda: {method}}}"),
        (
            "train.data.uri=out/cert/augmented/eda",
            "train.data.columns={anchor: variant_eda_1, positive: variant_eda_2}",
        ),
    )


def fine_tuned(folder: Path, encoder: str) -> TrainRank:
    """Fine-tune on the labels of SUBJ, and return the completed training."""
    rank = rank_of_config(
        SENTENCES,
        folder,
        "subj",
        f"encoder.path={encoder}",
        "encoder.pooling=null",
        "train.data={uri: train.parquet, values: {labels: [subjective, objective]}}",
        "train.dev={uri: dev.parquet, measure: matthews, steps: 100}",
        "train.test.uri=test.parquet",
        "train.checkpoint={steps: 1000, minutes: null}",
        "train.optimizer.learning_rate=0.003",
        "train.max_steps=300",
    )
    train(rank)
    return rank


@pytest.mark.parametrize("augmentation", [back_translation, eda])
def test_cert_leads_from_texts_to_a_classifier(
    augmentation: Callable[[], tuple[Overrides, Overrides]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    manta: Callable[..., CommandResult],
):
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path)
    first, second = augmentation()
    start = new_bert(tmp_path / "bert")
    own = ("corpus.uri=texts.parquet", f"encoder.path={start}", "cluster.small_rows=1000000")
    ended = manta("augment", "--config", str(CERT), "--json", *own, *first)
    assert ended.code == 0, ended.err
    augmented = json.loads(ended.out)
    assert augmented["rows"] == TEXTS
    assert len(augmented["variants"]) == 2
    assert all(counts["kept"] > TEXTS / 4 for counts in augmented["variants"].values())

    contrast = rank_of_config(
        CERT,
        tmp_path,
        "cert",
        f"encoder.path={start}",
        *second,
        "train.objective.options.queue=100",
        "train.optimizer.learning_rate=0.005",
        "train.checkpoint={steps: 1000, minutes: null}",
        "train.max_steps=40",
    )
    assert [source.uri for source in contrast.settings.data] == [augmented["manifest"]]
    train(contrast)
    assert contrast.run.result().space_id != contrast.run.definition["encoder"]["space_id"]

    tuned = fine_tuned(tmp_path, contrast.run.encoder)
    assert tuned.run.definition["encoder"]["space_id"] == contrast.run.result().space_id
    scores = [line.dev for line in read_metrics(tuned.run.store) if line.dev is not None]
    metrics = tuned.run.result().metrics
    assert metrics["dev_matthews"] == max(scores)
    assert scores[0] < 15
    assert min(metrics["dev_matthews"], metrics["test_matthews"]) > 30
