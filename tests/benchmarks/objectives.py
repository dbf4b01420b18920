"""Train an encoder with every objective, and compare STS scores before and after.

    export MANTA_EVAL_DATA=...
    python -m tests.benchmarks.objectives --root /tmp/objectives --start minilm --steps 200
    python -m tests.benchmarks.objectives --root /tmp/objectives --start small --only simcse --seeds 0 1 2

Training starts from the packaged all-MiniLM-L6-v2 (`minilm`), from a small BERT with random weights
(`small`), or from that BERT after masked language modelling (`words`), as published trainings do.

Each training runs in this process with one thread, without Ray, in a folder below --root, so that a second
run reuses finished trainings. The best weights on STS-B dev are scored on the other sets. Scores are Spearman
x100 of the cosine over all pairs of a set.
"""

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from pipeline.config import validated
from pipeline.evaluate.similarity import row_similarities
from pipeline.flows.train.plan import open_dev, plan_of
from pipeline.flows.train.rank import TrainRank
from pipeline.flows.train.run_folder import RunFolder, open_run
from pipeline.flows.train.train import record_start
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import load_encoder
from pipeline.objectives import OBJECTIVES, Batch, Loss
from pipeline.objectives.supervised import Supervised
from pipeline.settings import EncoderSettings, EncodeSettings, Job
from pipeline.stats.correlation import spearman
from pipeline.text.rows.batches import RankSlice
from pipeline.train.metrics import read_metrics
from tests.benchmarks.machine import machine, print_table
from tests.benchmarks.triples import write_pairs_of_triples, write_triples

SETS = ("STSB-dev", "STSB-test", "STS12", "STS13", "STS15")
RATES = {"minilm": 2e-5, "small": 5e-4, "words": 1e-4}
WORDS_STEPS, WORDS_RATE = 2_000, 1e-3
SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "max_position_embeddings": 128,
}


@dataclass(frozen=True)
class Case:
    """Settings of one training."""

    data: str
    """name of the training rows; see `prepare_rows`"""
    objective: Any
    train: Mapping[str, Any] = field(default_factory=dict)
    encoder: Mapping[str, Any] = field(default_factory=dict)
    rate: float = 1.0
    """factor of the learning rate that all trainings have"""


TEXTS = {"template": 'This sentence : "[X]" means [MASK].', "pooling": "mask"}
CASES: dict[str, Case] = {
    "simcse": Case("wikipedia", "simcse"),
    "simcse, no dropout": Case("wikipedia", "simcse", {"dropout": 0.0}),
    "simcse, one mask": Case("wikipedia", {"name": "simcse", "options": {"masks": "shared"}}),
    "simcse on captions": Case("sentences of captions", "simcse"),
    "pser, embedding": Case("wikipedia", "pser"),
    "pser, similarity": Case("wikipedia", {"name": "pser", "options": {"kl_on": "similarity"}}),
    "consert": Case("wikipedia", "consert", {"dropout": 0.0}),
    "contrastive tension": Case(
        "wikipedia",
        "contrastive_tension",
        {"dropout": 0.0, "optimizer": {"name": "rmsprop"}},
        {"normalize": False},
        rate=0.5,
    ),
    "cert": Case("wikipedia", {"name": "cert", "options": {"queue": 4096, "pairs": False}}),
    "quickthoughts": Case(
        "documents",
        {"name": "quickthoughts", "options": {"inference": "first"}},
        encoder={"normalize": False},
    ),
    "prompt, unsupervised": Case("wikipedia", "prompt", encoder=TEXTS),
    "nli classification": Case("snli", "classification"),
    "regression": Case("stsb-train", "regression"),
    "triplet": Case("triples", "triplet", encoder={"normalize": False}),
    "supervised, hard negatives": Case("triples", "supervised"),
    "supervised, no negatives": Case("pairs of triples", "supervised"),
    "supervised on captions": Case("captions", "supervised"),
    "supervised on captions, GradCache": Case("captions", "supervised", {"chunk_rows": 8}),
    "supervised on captions, naive accumulation": Case("captions", "accumulated"),
    "supervised + masked words": Case(
        "triples", ["supervised", {"name": "masked_lm", "weight": 0.1, "options": {"role": "anchor"}}]
    ),
    "supervised, Matryoshka": Case("triples", "supervised", {"matryoshka": [32, 64, 128]}),
    "joint nli + consert": Case(
        "snli",
        ["classification", {"name": "consert", "weight": 0.15}],
        {"data": {"columns": {"text": "premise"}}, "dropout": 0.0},
    ),
}


@OBJECTIVES.register("accumulated")
class Accumulated(Supervised):
    """Supervised SimCSE with accumulated gradients: each part of a batch has only its own candidates."""

    def __init__(self, encoder: nn.Module, *, rows: int = 8) -> None:
        super().__init__(encoder)
        self.rows = rows

    def loss(self, reps: tuple[Tensor, ...], batch: Batch) -> Loss:
        row_parts = np.array_split(np.arange(len(batch)), len(batch) // self.rows)
        parts = [
            super(Accumulated, self).loss(
                tuple(rep[torch.from_numpy(part)] for rep in reps), batch.of_rows(part)
            )
            for part in row_parts
        ]
        return Loss.of(info_nce=sum((part.total for part in parts), torch.zeros(())) / len(parts))


def small_bert(folder: Path) -> Path:
    """Write an encoder folder: MiniLM's tokenizer and a small BERT with mean pooling and random weights."""
    if not folder.exists():
        from sentence_transformers import SentenceTransformer, models
        from transformers import AutoTokenizer, BertConfig, BertModel

        packaged = open_folder(EncoderSettings()).path
        torch.manual_seed(0)
        made = folder.with_suffix(".hf")
        BertModel(BertConfig(**SMALL), add_pooling_layer=False).save_pretrained(made)
        AutoTokenizer.from_pretrained(packaged).save_pretrained(made)
        transformer = models.Transformer(str(made), max_seq_length=64)
        SentenceTransformer(
            modules=[transformer, models.Pooling(SMALL["hidden_size"], "mean")], device="cpu"
        ).save(str(folder))
    return folder


def pretrained(root: Path, data: Mapping[str, Any]) -> Path:
    """Train the small BERT by masked language modelling on captions and Wikipedia."""
    train = {
        "root": str(root / "pretraining"),
        "name": "words",
        "epochs": 1_000.0,
        "max_steps": WORDS_STEPS,
        "fresh": True,
        "objective": "masked_lm",
        "data": [data["sentences of captions"], data["wikipedia"]],
        "order": {"batch_rows": 64},
        "checkpoint": {"steps": 500},
        "optimizer": {"learning_rate": WORDS_RATE},
        "schedule": {"warmup": 0.1},
    }
    job = validated(
        Job,
        {"encoder": {"path": str(small_bert(root / "small-bert")), "max_length": 64}, "train": train},
        "pretraining",
    )
    run, seconds = run_training(job)
    print(
        f"masked words: {seconds:.0f} s, loss {read_metrics(run.store)[-1].loss:.2f}",
        file=sys.stderr,
        flush=True,
    )
    return Path(run.encoder.removeprefix("file://"))


def start_of(start: str, root: Path, data: Mapping[str, Any]) -> str:
    """Return the path of the encoder that training starts from."""
    if start == "minilm":
        return "all-MiniLM-L6-v2"
    return str(small_bert(root / "small-bert") if start == "small" else pretrained(root, data))


def prepare_rows(root: Path) -> dict[str, Any]:
    """Write training rows to files in `root`, and return the settings of the data by name."""
    data = Path(os.environ["MANTA_EVAL_DATA"])
    root.mkdir(parents=True, exist_ok=True)
    if not (root / "captions.parquet").exists():
        captions = pq.read_table(
            data / "captions" / "flickr30k_captions.parquet", filters=[("split", "=", "train")]
        )
        texts, number = (
            np.array(captions["text"].to_pylist(), object),
            np.array([int(each[-1]) for each in captions["caption_id"].to_pylist()]),
        )
        pq.write_table(pa.table({"text": texts}), root / "sentences.parquet", row_group_size=8_192)
        couples = pa.table(
            {
                "anchor": np.concatenate([texts[number == 1], texts[number == 3]]),
                "positive": np.concatenate([texts[number == 2], texts[number == 4]]),
            }
        )
        pq.write_table(couples, root / "captions.parquet", row_group_size=8_192)
    write_triples(data / "nli" / "snli.parquet", root)
    return {
        "wikipedia": {"uri": str(data / "wiki" / "sentences.parquet")},
        "sentences of captions": {"uri": str(root / "sentences.parquet")},
        "captions": {"uri": str(root / "captions.parquet")},
        "triples": {"uri": str(root / "triples")},
        "pairs of triples": {"uri": str(write_pairs_of_triples(root))},
        "snli": {"uri": str(data / "nli" / "snli.parquet")},
        "stsb-train": {"uri": str(data / "sts" / "STSB-train.parquet")},
        "documents": {"uri": str(data / "running" / "documents.parquet"), "columns": {"document": "doc_id"}},
    }


def job_of(case: Case, start: str, options: argparse.Namespace, data: Mapping[str, Any], seed: int) -> Job:
    """Build the settings of one training."""
    train = {
        "root": str(options.root / start),
        "epochs": 1_000.0,
        "max_steps": options.steps,
        "seed": seed,
        "order": {"seed": seed, "batch_rows": options.rows},
        "schedule": {"warmup": 0.1},
        "fresh": start == "small",
        "checkpoint": {"steps": options.steps, "minutes": None},
        "dev": {
            "uri": str(Path(os.environ["MANTA_EVAL_DATA"]) / "sts" / "STSB-dev.parquet"),
            "steps": options.dev_steps,
        },
        "objective": case.objective,
        **case.train,
        "data": {**data[case.data], **case.train.get("data", {})},
        "optimizer": {"learning_rate": RATES[start] * case.rate, **case.train.get("optimizer", {})},
    }
    path = start_of(start, options.root, data)
    return validated(
        Job, {"encoder": {"path": path, "max_length": 64, **case.encoder}, "train": train}, "case"
    )


def run_training(job: Job) -> tuple[RunFolder, float]:
    """Run a training, unless it has ended before. Returns its folder, and the seconds that it took now."""
    run = open_run(job.train, open_folder(job.encoder))
    started = time.perf_counter()
    if run.result() is None:
        plan = plan_of(job.train)
        record_start(run, plan, job.encoder.path)
        TrainRank(run, job.encoder, job.train, plan, open_dev(job.train))(RankSlice(), "cpu", lambda *_: None)
    return run, time.perf_counter() - started


class Sets:
    """STS sets. Each distinct sentence is encoded once."""

    def __init__(self, names: Sequence[str] = SETS) -> None:
        folder = Path(os.environ["MANTA_EVAL_DATA"]) / "sts"
        self.tables = {name: pq.read_table(folder / f"{name}.parquet") for name in names}
        every = [
            text
            for table in self.tables.values()
            for column in ("sentence1", "sentence2")
            for text in table[column].to_pylist()
        ]
        self.index_of = {text: index for index, text in enumerate(dict.fromkeys(every))}

    def scores(self, encoder: EncoderSettings) -> list[float]:
        """Compute Spearman x100 of each set."""
        vectors = load_encoder(encoder, EncodeSettings()).encode(list(self.index_of))
        scores = []
        for table in self.tables.values():
            left, right = (
                vectors[[self.index_of[text] for text in table[column].to_pylist()]]
                for column in ("sentence1", "sentence2")
            )
            scores.append(100 * spearman(row_similarities("cosine", left, right), table["score"].to_numpy()))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--start", choices=tuple(RATES), default="minilm")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dev-steps", type=int, default=50)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", default=list(CASES), help="names of the objectives to train")
    parser.add_argument("--root", type=Path, required=True)
    options = parser.parse_args()
    if "MANTA_EVAL_DATA" not in os.environ:
        sys.exit("set MANTA_EVAL_DATA to the folder of evaluation data")
    torch.set_num_threads(1)
    sets, data, cell = Sets(), prepare_rows(options.root), lambda value: f"{value:.2f}"
    lines = []
    for name in options.only:
        for seed in options.seeds:
            case = CASES[name]
            run, seconds = run_training(job_of(case, options.start, options, data, seed))
            dev = [line.dev for line in read_metrics(run.store) if line.dev is not None]
            scores = sets.scores(EncoderSettings(path=run.encoder.removeprefix("file://")))
            ended = run.final_result()
            lines.append(
                [
                    name,
                    case.data,
                    f"{seed}",
                    f"{ended.steps}",
                    *map(cell, (dev[0], max(dev), dev[-1])),
                    f"{ended.best_step}",
                    *map(cell, scores),
                    f"{seconds:.0f}",
                ]
            )
            print(" | ".join(lines[-1]), file=sys.stderr, flush=True)
    if options.start != "small":
        lines.append(
            [
                "(before)",
                "",
                "",
                "0",
                "",
                "",
                "",
                "",
                *map(cell, sets.scores(EncoderSettings(path=start_of(options.start, options.root, data)))),
                "",
            ]
        )
    header = (
        "objective",
        "data",
        "seed",
        "steps",
        "dev before",
        "dev best",
        "dev last",
        "best step",
        *SETS,
        "s",
    )
    print_table(f"From {options.start}, batches of {options.rows}; {machine()}", lines, header)


if __name__ == "__main__":
    main()
