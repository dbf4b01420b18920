"""Which way of making a second text trains the better encoder: STS-B after equal steps of InfoNCE on captions
and what each augmentation makes of them, beside the figures that Gao et al. (2021, SimCSE, table 1) have for
BERT-base after a pass over a million sentences of Wikipedia, where the order counts, not the height.

    MANTA_EVAL_DATA=... MANTA_EVAL_MODELS=... python -m tests.benchmarks.augmentations --start small --root
    /tmp/augmentations MANTA_EVAL_DATA=... MANTA_EVAL_MODELS=... python -m tests.benchmarks.augmentations
    --start minilm --only crop_10 back_translation --root /tmp/augmentations

One process and one thread, without Ray. Captions are of as many pictures, and none that the translation
models were trained on. What needs a model or word vectors makes do with what is at hand without a network:
synonyms are the nearest words in all-MiniLM-L6-v2's word table, rows of whole words, and often no more than
another form of the word; masked words are guessed by a language model that this program trains, that model's
layers under a new head, some minutes on captions.

back_translation_near is back_translation without results whose cosine with their text, by all-MiniLM-L6-v2,
is below 0.6 or above 0.98.

A text is the anchor, its variant the positive, and dropout is on as published; `dropout_only` has the text
twice. A layer over the vector belongs to the training alone. A text whose variant is not kept is left out.
All that is made stays below --root, so that a second run takes it over, and so does what
tests.benchmarks.objectives left there. Figures are Spearman x100 of the cosine; test is of the best weights
on dev.
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
from tests.benchmarks.objectives import RATES, Case, Sets, job_of, prepared, trained

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
    """One caption of each of `count` pictures, the first that is not among the translation models' own."""
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


def word_vectors(file: Path) -> Path:
    """The word table of all-MiniLM-L6-v2, rows of whole words of letters alone, as word2vec's binary form."""
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


def guesser(folder: Path) -> Path:
    """A masked language model of captions.

    A training's product has no head over words, so this is a plain loop.
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


def translated(**keep: Any) -> dict[str, Any]:
    """English to German and back, greedy; a result that is not English is not kept, nor one that `keep`
    forbids.
    """
    models = Path(os.environ["MANTA_EVAL_MODELS"])
    legs = [{"path": str(models / f"translation-{pair}")} for pair in ("en-de", "de-en")]
    return {
        "method": "back_translation",
        "options": {"legs": legs},
        "keep": {"language": "en", "languages": ["en", "de"], **keep},
    }


def method(name: str, root: Path) -> Any:
    """The settings of an augmentation; what it needs is made first."""
    near = (
        {"synonyms": {"vectors": str(word_vectors(root / "words.bin"))}} if name in ("synonym", "eda") else {}
    )
    made: dict[str, Callable[[], Any]] = {
        "crop_10": lambda: {"method": "crop", "options": {"share": 0.1}},
        "delete_one": lambda: {"method": "delete", "options": {"words": 1}},
        "delete_10": lambda: {"method": "delete", "options": {"share": 0.1}},
        "synonym": lambda: {"method": "synonym", "options": {**near, "words": 1}},
        "masked_lm_15": lambda: {
            "method": "masked_lm",
            "options": {"model": str(guesser(root / "guesser")), "share": 0.15},
        },
        "eda": lambda: {"method": "eda", "options": near},
        "back_translation": translated,
        "back_translation_near": lambda: translated(similarity=[0.6, 0.98]),
    }
    return made[name]()


def augmented(name: str, texts: Path, root: Path) -> Augmentation:
    """The captions and their variants, in units below `root`."""
    job = validated(
        Job,
        {
            "corpus": {"uri": str(texts)},
            "release": {"root": str(root / "augmented")},
            "cluster": {"small_rows": 1_000_000_000},
            "augment": {"name": name, "variants": {name: method(name, root)}},
        },
        "augment",
    )
    return augment(job, Stages())


def rows_of(name: str, texts: Path, root: Path) -> tuple[Case, dict[str, Any], list[str]]:
    """The training with an augmentation, the rows that it reads, and how many of them were kept and what for
    the others were not.
    """
    if name == "dropout_only":
        return Case(name, "simcse"), {"uri": str(texts)}, ["100.0 %", ""]
    made = augmented(name, texts, root)
    rates = made.rates()[name]
    reasons = ", ".join(
        f"{reason} {count / made.manifest.rows:.1%}" for reason, count in rates.items() if reason != "kept"
    )
    read = {"uri": made.uri, "columns": {"anchor": "text", "positive": f"variant_{name}"}, "missing": "drop"}
    return Case(name, PAIRS), read, [f"{100 * rates['kept'] / made.manifest.rows:.1f} %", reasons]


def measured(job: Job, sets: Sets) -> list[float]:
    """STS-B dev before the first step, at its best and after the last one, and test."""
    run, took = trained(job)
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
    parser.add_argument("--steps", type=int, help="300; 60 from minilm")
    parser.add_argument("--rows", type=int, help="of a batch: 64; 32 from minilm")
    parser.add_argument("--dev-steps", type=int, help="between two measurements; a third of the steps")
    parser.add_argument("--captions", type=int, default=6_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="several: median (least to most)")
    parser.add_argument("--only", nargs="+", choices=tuple(PUBLISHED), default=list(PUBLISHED))
    parser.add_argument("--root", type=Path, required=True)
    given = parser.parse_args()
    if needed := [
        name
        for name in (
            "MANTA_EVAL_DATA",
            *(["MANTA_EVAL_MODELS"] if any("translation" in name for name in given.only) else []),
        )
        if name not in os.environ
    ]:
        sys.exit(f"set {needed[0]} to the folder of evaluation data or models")
    torch.set_num_threads(1)
    steps, rows = SIZES[given.start]
    given.steps, given.rows = given.steps or steps, given.rows or rows
    given.dev_steps = given.dev_steps or -(-given.steps // 3)
    sets, texts = (
        Sets(("STSB-test",)),
        captions(given.root / f"captions-{given.captions}.parquet", given.captions),
    )
    cases = {name: rows_of(name, texts, given.root) for name in given.only}
    print_table(
        f"Variants of {given.captions:,} captions",
        [[name, *kept] for name, (_, _, kept) in cases.items()],
        ("augmentation", "kept", "not kept"),
    )
    data = {
        **(prepared(given.root) if given.start == "words" else {}),
        **{name: read for name, (_, read, _) in cases.items()},
    }
    cell: Callable[[Sequence[float]], str] = (
        spread if len(given.seeds) > 1 else lambda values: f"{values[0]:.2f}"
    )
    lines = []
    for name, (case, _, kept) in cases.items():
        figures = zip(
            *[measured(job_of(case, given.start, given, data, seed), sets) for seed in given.seeds],
            strict=True,
        )
        lines.append([name, kept[0], PUBLISHED[name], *map(cell, figures)])
    title = f"From {given.start}, {given.steps} steps of {given.rows} pairs, seeds {given.seeds}; {machine()}"
    print_table(title, lines, ("augmentation", "kept", "published", "before", "best", "last", "test"))


if __name__ == "__main__":
    main()
