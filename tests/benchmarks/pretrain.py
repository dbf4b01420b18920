"""Pretrain a small BERT of our own on the evaluation data, to begin the measurements of papers from.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.pretrain pretrained --epochs 10

Learns a vocabulary of pieces of words from the running text, the Wikipedia sentences and the captions
(about 420,000 sentences), writes a BERT with random weights, and trains it by `manta train` with the
objective masked_lm alone. With --language chinese the sentences are those of the Chinese pairs, and most
pieces are single characters. Prints the perplexity of held-out sentences over the steps. Takes hours on two
cores; the same command continues where a killed one stopped. The trained encoder is
pretrained/trainings/pretrain/encoder. With --export, writes the encoder of the last checkpoint of a training
that has not ended, and ends. With --start, in a folder of its own, trains an encoder of an earlier command
further, with a new schedule: a training that has ended cannot be made longer. With --device, trains in this
process, without Ray.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from pipeline.config import load_settings, validated
from pipeline.flows.train.run_folder import CHECKPOINTS
from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import load_trainable
from pipeline.models.trainable.saving import SavedHeads, save_folder
from pipeline.objectives.build import build_objective
from pipeline.settings import EncoderSettings, Job
from pipeline.settings.training import CheckpointSettings, TrainSettings
from pipeline.store.files.open_store import open_store
from pipeline.train.checkpoint import Checkpoints, load_state
from pipeline.train.metrics import read_metrics
from tests.benchmarks.machine import machine, print_table
from tests.benchmarks.train_alone import train_alone

_SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"} | {
    "mask_token": "[MASK]"
}
_PAIR = ("sentence1", "sentence2")
_TEXTS = {
    "english": (
        ("captions/shards", ("text",)),
        ("running/documents.parquet", ("text",)),
        ("wiki/sentences.parquet", ("text",)),
    ),
    "chinese": (
        ("pairs/afqmc_zh.parquet", _PAIR),
        ("pairs/pawsx_zh_dev.parquet", _PAIR),
        ("stsb-multi/STSB-zh-train.parquet", _PAIR),
        ("nli/ocnli_zh.parquet", ("premise", "hypothesis")),
    ),
}
"""files of each language, and their columns of sentences"""
_LENGTH = 128  # most tokens of a text
_HELD_OUT = 4_000  # sentences
_SHOWN = 20  # measurements in the table


def sentences(data: Path, language: str, count: int | None) -> list[str]:
    """Return the distinct sentences of a language in random order, all or the first `count`."""
    tables = (pq.read_table(data / file, columns=list(names)) for file, names in _TEXTS[language])
    columns = (column.to_pylist() for table in tables for column in table.columns)
    distinct = sorted({text for column in columns for text in column if text and text.strip()})
    order = np.random.default_rng(0).permutation(len(distinct))
    return [distinct[index] for index in order[:count]]


def write_start(folder: Path, texts: list[str], *, pieces: int, layers: int, width: int) -> None:
    """Write a BERT with random weights and a vocabulary of at most `pieces` pieces of words."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = list(_SPECIAL.values())
    trainer = trainers.WordPieceTrainer(vocab_size=pieces, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        max_position_embeddings=_LENGTH,
        pad_token_id=tokenizer.token_to_id("[PAD]"),
    )
    BertForMaskedLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=_LENGTH, **_SPECIAL).save_pretrained(
        folder
    )


def prepare(folder: Path, data: Path, given: argparse.Namespace) -> None:
    """Write the texts and the start, unless an earlier run has written both."""
    start = folder / "start"
    if (start / "tokenizer.json").exists():  # the last file to be written
        return
    texts = sentences(data, given.language, given.rows)
    folder.mkdir(parents=True, exist_ok=True)
    held_out = min(_HELD_OUT, len(texts) // 10)
    pq.write_table(pa.table({"text": texts[:held_out]}), folder / "dev.parquet")
    pq.write_table(pa.table({"text": texts[held_out:]}), folder / "texts.parquet")
    if given.start is not None:
        shutil.copytree(given.start, folder / "start.part")
        (folder / "start.part").rename(start)
        return
    write_start(start, texts[held_out:], pieces=given.pieces, layers=given.layers, width=given.width)


def train(folder: Path, given: argparse.Namespace) -> None:
    """Run `manta train`, which continues a training that was killed."""
    dev = {"uri": f"{folder}/dev.parquet", "measure": "log_likelihood", "steps": given.steps}
    settings = {
        "encoder.path": f"{folder}/start",
        "encoder.pooling": "mean",
        "train.data": f"{folder}/texts.parquet",
        "train.root": f"{folder}/trainings",
        "train.name": "pretrain",
        "train.objective": "masked_lm",
        "train.dropout": given.dropout,
        "train.epochs": given.epochs,
        "train.order.batch_rows": given.batch_rows,
        "train.optimizer": json.dumps({"learning_rate": given.learning_rate, "weight_decay": 0.01}),
        "train.order.seed": given.seed,
        "train.schedule": json.dumps({"name": "linear", "warmup": 0.05}),
        "train.precision": given.precision,
        "train.dev": json.dumps(dev),
        "train.threads": given.threads,
        "cluster.cpus_per_worker": given.threads,
    }
    arguments = [f"{name}={value}" for name, value in settings.items()]
    if given.device is not None:
        train_alone(load_settings(Job, None, tuple(arguments)), given.device)
        return
    code = subprocess.run([sys.executable, "-m", "jobs.train", *arguments], check=False).returncode
    if code:
        sys.exit(code)  # it has said why; 75 if it was stopped, and continues when run again


def export(folder: Path, target: Path) -> None:
    """Write the encoder of the last checkpoint, with its language model head, and print its step."""
    with closing(
        Checkpoints(open_store(f"{folder}/trainings/pretrain"), CHECKPOINTS, CheckpointSettings())
    ) as saved:
        file = saved.last() or sys.exit(f"{folder} has no checkpoint yet")
        state = load_state(file)
    settings = validated(TrainSettings, {"objective": "masked_lm"}, "pretrain")
    start = EncoderSettings(path=f"{folder}/start", pooling="mean")
    objective = build_objective(settings, load_trainable(open_folder(start)))
    objective.load_state_dict(state["objective"])
    model = objective.trained_model()
    save_folder(model.encoder, model.encoder.folder, target, SavedHeads(language_head=model.language_head))
    print(f"{target} has the weights of step {state['step']:,}")


def measured(folder: Path) -> Iterator[tuple[int, float]]:
    """Yield (step, log likelihood) of each measurement on held-out sentences."""
    for line in read_metrics(open_store(f"{folder}/trainings/pretrain")):
        if line.dev is not None:
            yield line.step, line.dev


def main(folder: Path, given: argparse.Namespace) -> None:
    """Prepare, train, and print the perplexity of held-out sentences over the steps."""
    data = os.environ.get("MANTA_EVAL_DATA") or sys.exit(
        "set MANTA_EVAL_DATA to the folder of evaluation data"
    )
    prepare(folder, Path(data), given)
    train(folder, given)
    points = list(measured(folder))
    shown = sorted({round(at) for at in np.linspace(0, len(points) - 1, min(_SHOWN, len(points)))})
    rows = [
        (f"{step:,}", f"{score:.3f}", f"{math.exp(-score):.2f}")
        for step, score in (points[index] for index in shown)
    ]
    count = pq.read_metadata(folder / "texts.parquet").num_rows
    config = json.loads((folder / "start" / "config.json").read_text(encoding="utf-8"))
    shape = f"{config['num_hidden_layers']} layers of {config['hidden_size']}"
    title = f"{count:,} sentences, {given.epochs:g} epochs, {shape}, {given.precision}; {machine()}"
    print_table(title, rows, ("step", "log likelihood", "perplexity of masked words"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=float, default=10.0)
    parser.add_argument("--language", choices=sorted(_TEXTS), default="english")
    parser.add_argument("--rows", type=int, help="sentences to use (default: all)")
    parser.add_argument("--pieces", type=int, default=12_000)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch-rows", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--precision", default="bfloat16", choices=("float32", "bfloat16"))
    parser.add_argument("--seed", type=int, default=0, help="of the order of the sentences")
    parser.add_argument("--start", type=Path, metavar="ENCODER", help="encoder to train further")
    parser.add_argument("--steps", type=int, default=500, help="steps between two measurements")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="train in this process, without Ray, on this device"
    )
    parser.add_argument("--export", type=Path, metavar="FOLDER")
    given = parser.parse_args()
    if given.export is not None:
        sys.exit(export(given.folder.resolve(), given.export))
    main(given.folder.resolve(), given)
