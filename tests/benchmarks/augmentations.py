"""Compare augmentations: STS-B after equal steps of InfoNCE on captions and their variants.

    export MANTA_EVAL_DATA=... MANTA_EVAL_MODELS=...
    python -m tests.benchmarks.augmentations --root /tmp/augmentations --start small
    python -m tests.benchmarks.augmentations --root /tmp/augmentations --start minilm --only crop_10

The column `published` has the scores of Gao et al. (2021, SimCSE, table 1) for BERT-base after a pass over a
million sentences of Wikipedia; only their order can be compared.

Everything runs in one process with one thread, without Ray and without a network. There is one caption for
each picture, without the captions that the translation models were trained on. Synonyms are the nearest words
in the word embeddings of all-MiniLM-L6-v2, which are often other forms of the same word. Masked words are
guessed by a language model that this program trains on captions for some minutes: the layers of
all-MiniLM-L6-v2 with a new head. back_translation_near is back_translation without variants whose cosine with
their text, by all-MiniLM-L6-v2, is below 0.6 or above 0.98.

A text is the anchor and its variant the positive, with dropout as published; `dropout_only` has the text
twice. A text whose variant is rejected is left out. A second run reuses what an earlier run, or one of
tests.benchmarks.objectives, has written to --root. Scores are Spearman x100 of the cosine; `test` is the
score of the best weights on dev.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import torch.nn.functional as F

from pipeline.config import validated
from pipeline.flows.augment.augment import augment
from pipeline.flows.augment.result import Augmentation
from pipeline.log import Stages
from pipeline.models.folder.folder import open_folder
from pipeline.settings import EncoderSettings, Job
from pipeline.train.metrics import read_metrics
from tests.benchmarks.machine import machine, print_table, spread
from tests.benchmarks.objectives import RATES, Case, Sets, job_of, prepare_rows, run_training

PUBLISHED = {
    "dropout_only": "82.5",
    "crop_10": "77.8",
    "delete_one": "75.9",
    "delete_10": "75.9",
    "synonym": "77.4",
    "masked_lm_15": "62.2",
    "eda": "",
    "back_translation": "",
    "back_translation_near": "",
}
SIZES = {"minilm": (60, 32), "small": (300, 64), "words": (300, 64)}  # steps and rows of a batch
PAIRS = {
    "name": "supervised",
    "options": {"head": "cls_mlp", "keep_head": False},
}  # the same layer as simcse has
GUESSER_STEPS, GUESSER_ROWS, GUESSER_RATE = 300, 32, 3e-4


def captions(file: Path, count: int) -> Path:
    """Write one caption for each of `count` pictures, on which no translation model was trained."""
    if not file.exists():
        data = Path(os.environ["MANTA_EVAL_DATA"])
        known = set(pq.read_table(data / "parallel" / "multi30k.en-de.parquet")["src"].to_pylist())
        rows = (
            pq.read_table(data / "captions" / "flickr30k_captions.parquet", filters=[("split", "=", "train")])
            .select(["image_id", "text"])
            .to_pylist()
        )
        first = {row["image_id"]: row["text"] for row in reversed(rows) if row["text"] not in known}
        chosen = dict(sorted(first.items())[:count])
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": list(chosen), "text": list(chosen.values())}), file)
    return file


def write_word_vectors(file: Path) -> Path:
    """Write the word embeddings of all-MiniLM-L6-v2 for whole words, in word2vec's binary format."""
    if not file.exists():
        from transformers import AutoTokenizer, BertModel

        packaged = open_folder(EncoderSettings()).path
        table = (
            BertModel.from_pretrained(packaged)
            .embeddings.word_embeddings.weight.detach()
            .numpy()
            .astype("<f4")
        )
        numbers = {
            word: number
            for word, number in AutoTokenizer.from_pretrained(packaged).get_vocab().items()
            if word.isascii() and word.isalpha() and len(word) > 1
        }
        rows = b"".join(
            word.encode() + b" " + table[number].tobytes() + b"\n"
            for word, number in sorted(numbers.items(), key=lambda item: item[1])
        )
        file.with_suffix(".part").write_bytes(f"{len(numbers)} {table.shape[1]}\n".encode() + rows)
        file.with_suffix(".part").rename(file)
    return file


def train_guesser(folder: Path) -> Path:
    """Train a masked language model on captions.

    The loop is written here, because Manta's training saves encoders without their head over words.
    """
    if not folder.exists():
        from transformers import AutoTokenizer, BertForMaskedLM, DataCollatorForLanguageModeling

        torch.manual_seed(0)
        packaged = open_folder(EncoderSettings()).path
        tokenizer, model = (
            AutoTokenizer.from_pretrained(packaged),
            BertForMaskedLM.from_pretrained(packaged).train(),
        )
        mask, optimizer = (
            DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
            torch.optim.AdamW(model.parameters(), weight_decay=0.0),
        )
        data = Path(os.environ["MANTA_EVAL_DATA"]) / "captions" / "flickr30k_captions.parquet"
        texts, rng, losses = (
            pq.read_table(data, filters=[("split", "=", "train")])["text"].to_numpy(),
            np.random.default_rng(0),
            [],
        )
        for step in range(GUESSER_STEPS):
            for group in optimizer.param_groups:
                group["lr"] = GUESSER_RATE * min(
                    (step + 1) / 30, (GUESSER_STEPS - step) / (GUESSER_STEPS - 30)
                )
            batch = mask(
                [tokenizer(text, truncation=True, max_length=64) for text in rng.choice(texts, GUESSER_ROWS)]
            )
            labels = batch.pop("labels")
            loss = F.cross_entropy(
                model.cls(model.bert(**batch).last_hidden_state[labels != -100]), labels[labels != -100]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"guesser: loss {np.mean(losses[-30:]):.2f}", file=sys.stderr, flush=True)
        tokenizer.save_pretrained(folder.with_suffix(".part"))
        model.save_pretrained(folder.with_suffix(".part"))
        folder.with_suffix(".part").rename(folder)
    return folder


def back_translation_settings(**keep: Any) -> dict[str, Any]:
    """Return the settings of greedy back-translation through German.

    Variants that are not English are rejected, and others by the settings `keep`.
    """
    models = Path(os.environ["MANTA_EVAL_MODELS"])
    legs = [{"path": str(models / f"translation-{pair}")} for pair in ("en-de", "de-en")]
    return {
        "method": "back_translation",
        "options": {"legs": legs},
        "keep": {"language": "en", "languages": ["en", "de"], **keep},
    }


def method_settings(name: str, root: Path) -> Any:
    """Return the settings of an augmentation, after writing the files that it needs."""
    near = (
        {"synonyms": {"vectors": str(write_word_vectors(root / "words.bin"))}}
        if name in ("synonym", "eda")
        else {}
    )
    made: dict[str, Callable[[], Any]] = {
        "crop_10": lambda: {"method": "crop", "options": {"share": 0.1}},
        "delete_one": lambda: {"method": "delete", "options": {"words": 1}},
        "delete_10": lambda: {"method": "delete", "options": {"share": 0.1}},
        "synonym": lambda: {"method": "synonym", "options": {**near, "words": 1}},
        "masked_lm_15": lambda: {
            "method": "masked_lm",
            "options": {"model": str(train_guesser(root / "guesser")), "share": 0.15},
        },
        "eda": lambda: {"method": "eda", "options": near},
        "back_translation": back_translation_settings,
        "back_translation_near": lambda: back_translation_settings(similarity=[0.6, 0.98]),
    }
    return made[name]()


def run_augmentation(name: str, texts: Path, root: Path) -> Augmentation:
    """Augment the captions, with the variants in a folder of `root`."""
    job = validated(
        Job,
        {
            "corpus": {"uri": str(texts)},
            "release": {"root": str(root / "augmented")},
            "cluster": {"small_rows": 1_000_000_000},
            "augment": {"name": name, "variants": {name: method_settings(name, root)}},
        },
        "augment",
    )
    return augment(job, Stages())


def training_of(name: str, texts: Path, root: Path) -> tuple[Case, dict[str, Any], list[str]]:
    """Return the training with an augmentation, its data, and the cells "kept" and "rejected" of its line."""
    if name == "dropout_only":
        return Case(name, "simcse"), {"uri": str(texts)}, ["100.0 %", ""]
    made = run_augmentation(name, texts, root)
    rates = made.outcome_counts()[name]
    reasons = ", ".join(
        f"{reason} {count / made.manifest.rows:.1%}" for reason, count in rates.items() if reason != "kept"
    )
    read = {"uri": made.uri, "columns": {"anchor": "text", "positive": f"variant_{name}"}, "missing": "drop"}
    return Case(name, PAIRS), read, [f"{100 * rates['kept'] / made.manifest.rows:.1f} %", reasons]


def measure(job: Job, sets: Sets) -> list[float]:
    """Train, and return STS-B dev before the first step, the best and the last one, and STS-B test."""
    run, took = run_training(job)
    dev = [line.dev for line in read_metrics(run.store) if line.dev is not None]
    found = [
        dev[0],
        max(dev),
        dev[-1],
        *sets.scores(EncoderSettings(path=run.encoder.removeprefix("file://"))),
    ]
    print(
        f"{job.train.data[0].uri}: {', '.join(f'{value:.2f}' for value in found)}; {took:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--start", choices=tuple(RATES), default="small")
    parser.add_argument("--steps", type=int, help="steps of each training (default: 300, or 60 from minilm)")
    parser.add_argument("--rows", type=int, help="rows of a batch (default: 64, or 32 from minilm)")
    parser.add_argument(
        "--dev-steps", type=int, help="steps between two measurements (default: a third of all)"
    )
    parser.add_argument("--captions", type=int, default=6_000)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="with several, the median and the range are printed"
    )
    parser.add_argument("--only", nargs="+", choices=tuple(PUBLISHED), default=list(PUBLISHED))
    parser.add_argument("--root", type=Path, required=True)
    options = parser.parse_args()
    if needed := [
        name
        for name in (
            "MANTA_EVAL_DATA",
            *(["MANTA_EVAL_MODELS"] if any("translation" in name for name in options.only) else []),
        )
        if name not in os.environ
    ]:
        sys.exit(f"set {needed[0]} to the folder of evaluation data or models")
    torch.set_num_threads(1)
    steps, rows = SIZES[options.start]
    options.steps, options.rows = options.steps or steps, options.rows or rows
    options.dev_steps = options.dev_steps or -(-options.steps // 3)
    sets, texts = (
        Sets(("STSB-test",)),
        captions(options.root / f"captions-{options.captions}.parquet", options.captions),
    )
    cases = {name: training_of(name, texts, options.root) for name in options.only}
    print_table(
        f"Variants of {options.captions:,} captions",
        [[name, *kept] for name, (_, _, kept) in cases.items()],
        ("augmentation", "kept", "not kept"),
    )
    data = {
        **(prepare_rows(options.root) if options.start == "words" else {}),
        **{name: read for name, (_, read, _) in cases.items()},
    }
    cell: Callable[[Sequence[float]], str] = (
        spread if len(options.seeds) > 1 else lambda values: f"{values[0]:.2f}"
    )
    lines = []
    for name, (case, _, kept) in cases.items():
        figures = zip(
            *[measure(job_of(case, options.start, options, data, seed), sets) for seed in options.seeds],
            strict=True,
        )
        lines.append([name, kept[0], PUBLISHED[name], *map(cell, figures)])
    title = (
        f"From {options.start}, {options.steps} steps of {options.rows} pairs, seeds {options.seeds}; "
        f"{machine()}"
    )
    print_table(title, lines, ("augmentation", "kept", "published", "before", "best", "last", "test"))


if __name__ == "__main__":
    main()
