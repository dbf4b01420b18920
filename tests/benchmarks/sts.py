"""Print STS scores of the packaged MiniLM: all poolings and token averages, raw and after each transform.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.sts
    MANTA_EVAL_DATA=... python -m tests.benchmarks.sts --poolings mean first_last --vectors /tmp/sts.npz

Takes a quarter of an hour on two cores; --vectors stores the sentence vectors for the next run. Scores are
Spearman x100 of the cosine over all pairs of a set. Each transform is fitted on the sentences of the set
itself (`target`: both columns, every split, without scores), of SNLI or of captions.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.evaluate.similarity import row_similarities
from pipeline.models.folder.folder import open_folder
from pipeline.models.folder.locate import locate
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.layers.numerics import use_threads
from pipeline.models.layers.weights import open_checkpoint
from pipeline.settings import EncoderSettings, EncodeSettings, FlowSettings, WhitenSettings
from pipeline.stats.correlation import spearman
from pipeline.stats.moments import Moments
from pipeline.train.bert_flow import FlowTrainer, HeldOut
from pipeline.transforms.chain import fit_transform
from pipeline.transforms.transform import Transform
from tests.benchmarks.machine import machine, print_table

SETS = ("STS12", "STS13", "STS15", "STSB-dev", "STSB-test")
SPLITS = {name: (name,) for name in SETS[:3]} | dict.fromkeys(
    SETS[3:], ("STSB-train", "STSB-dev", "STSB-test")
)
KNOWN = {
    "STS12": 72.37,
    "STS13": 80.60,
    "STS15": 85.39,
    "STSB-dev": 86.72,
    "STSB-test": 82.03,
}  # published for this model; STSB-dev was measured with sentence-transformers
POOLINGS = ("cls", "mean", "max", "first_last", "static", "last2")
FITS = ("target", "SNLI", "captions")
TRANSFORMS = {
    "standardised": WhitenSettings(transform="standardize"),
    "all-but-the-top, 1": WhitenSettings(transform="components", remove=1),
    "all-but-the-top, 10": WhitenSettings(transform="components", remove=10),
    **{f"whitening, k = {k}": WhitenSettings(k=k) for k in (64, 128, 256)},
    "whitening, all": WhitenSettings(),
    "flow": WhitenSettings(transform="flow"),
}
CAPTIONS = 20_000
_HELD_OUT_ROWS = 256  # rows on which a flow is measured instead of trained


@dataclass(frozen=True)
class Sentences:
    """The sentences of all sets and fits."""

    folder: Path

    @cached_property
    def pairs(self) -> dict[str, tuple[list[str], list[str], np.ndarray]]:
        """First sentences, second sentences and gold scores, by file."""
        tables = {
            name: pq.read_table(self.folder / f"sts/{name}.parquet")
            for splits in SPLITS.values()
            for name in splits
        }
        return {
            name: (table["sentence1"].to_pylist(), table["sentence2"].to_pylist(), table["score"].to_numpy())
            for name, table in tables.items()
        }

    @cached_property
    def fits(self) -> dict[str, list[str]]:
        """The sentences to fit transforms on: those of each set, of SNLI and of captions."""
        nli = pq.read_table(self.folder / "nli/snli.parquet")
        captions = pq.read_table(self.folder / "captions/flickr30k_captions.parquet")["text"].to_pylist()
        own = {
            name: _distinct(
                text for split in SPLITS[name] for column in self.pairs[split][:2] for text in column
            )
            for name in SETS
        }
        return own | {
            "SNLI": _distinct([*nli["premise"].to_pylist(), *nli["hypothesis"].to_pylist()]),
            "captions": _distinct(captions[:: len(captions) // CAPTIONS][:CAPTIONS]),
        }

    @cached_property
    def index_of(self) -> dict[str, int]:
        """The index of each distinct sentence."""
        every = [
            *(text for left, right, _ in self.pairs.values() for text in (*left, *right)),
            *(text for texts in self.fits.values() for text in texts),
        ]
        return {text: index for index, text in enumerate(_distinct(every))}


@dataclass(frozen=True)
class SentenceVectors:
    """The vectors of all sentences by one encoder."""

    sentences: Sentences
    vectors: np.ndarray

    def of(self, texts: Sequence[str]) -> np.ndarray:
        return self.vectors[[self.sentences.index_of[text] for text in texts]]

    def score(self, name: str, transform: Transform | None = None) -> float:
        """Compute Spearman x100 over all pairs of a set."""
        left, right, gold = self.sentences.pairs[name]
        moved = [self.of(side) if transform is None else transform(self.of(side)) for side in (left, right)]
        return 100 * spearman(row_similarities("cosine", *moved), gold)

    def fitted(self, settings: WhitenSettings, texts: Sequence[str]) -> Transform:
        x = self.of(texts)
        return (
            fit_flow(x, settings.flow)
            if settings.transform == "flow"
            else fit_transform(Moments.of(x), settings, "")
        )

    def lines(self, name: str) -> Iterator[tuple[str, ...]]:
        """Yield a line for the raw vectors, and one for each transform and each set that it is fitted on."""
        yield _line(name, "raw", "", [self.score(each) for each in SETS])
        for what, settings in TRANSFORMS.items():
            for fit in FITS:
                shared = None if fit == "target" else self.fitted(settings, self.sentences.fits[fit])
                own = (
                    {each: self.fitted(settings, self.sentences.fits[each]) for each in SETS}
                    if shared is None
                    else dict.fromkeys(SETS, shared)
                )
                yield _line(name, what, fit, [self.score(each, own[each]) for each in SETS])


def fit_flow(x: np.ndarray, settings: FlowSettings) -> Transform:
    """Train a flow for one epoch over the rows of x (n, d) in random order, with some rows held out."""
    rows = np.random.default_rng(settings.seed).permutation(len(x))
    held, fit = HeldOut(x[rows[:_HELD_OUT_ROWS]]), FlowTrainer(x.shape[1], settings, torch.device("cpu"))
    batches = [
        x[part]
        for part in np.array_split(rows[_HELD_OUT_ROWS:], (len(x) - _HELD_OUT_ROWS) // settings.batch_rows)
    ]
    with use_threads(1):
        fit.initialize(batches[0], held)
        for batch in batches:
            fit.train_step(batch)
        fit.evaluate(held)
    return fit.to_flow(held, len(x) - _HELD_OUT_ROWS, "")


def pooled_vectors(sentences: Sentences, kept: Path | None) -> dict[str, SentenceVectors]:
    """Encode all sentences with all poolings at once, unnormalised. kept: file to store the vectors in."""
    texts = digest_of(list(sentences.index_of))
    if kept is not None and kept.exists() and str(np.load(kept)["texts"]) == texts:
        vectors = np.load(kept)["vectors"]
    else:
        encoder = load_encoder(
            EncoderSettings(pooling="+".join(POOLINGS), normalize=False),
            EncodeSettings(threads=os.cpu_count() or 1),
        )
        vectors = encoder.encode(list(sentences.index_of))
        if kept is not None:
            np.savez(kept, vectors=vectors, texts=texts)
    return {
        name: SentenceVectors(sentences, part)
        for name, part in zip(POOLINGS, np.split(vectors, len(POOLINGS), axis=1), strict=True)
    }


def token_averages(sentences: Sentences, frequencies: Path) -> Iterator[tuple[str, ...]]:
    """Yield a line for each average of MiniLM's static token vectors.

    These are averages of all tokens, without the kinds of tokens that bias them, and of word vectors with SIF
    weights. The most frequent tokens are those of the evaluated sets, the probabilities of SIF those of
    `frequencies`.
    """
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as folder:
        counted = str(_token_counts(sentences, Path(folder, "counts.parquet")))
        for name, settings in token_variants(counted).items():
            encoder = load_encoder(settings, EncodeSettings())
            yield _line("token table", name, "", _of(sentences, encoder).values())
        words = str(_word_vectors(Path(folder, "words.txt")))
        plain = load_encoder(EncoderSettings(path=words), EncodeSettings())
        yield _line("word vectors", "average", "", _of(sentences, plain).values())
        settings = EncoderSettings(path=words, sif=1e-3, frequencies=str(frequencies))
        sif = load_encoder(settings, EncodeSettings())
        yield _line("word vectors", "SIF weights", "", _of(sentences, sif).values())
        table = SentenceVectors(sentences, sif.encode(list(sentences.index_of)))
        for fit in FITS:
            first = {
                name: table.fitted(
                    WhitenSettings(transform="components", centred=False),
                    sentences.fits[name if fit == "target" else fit],
                )
                for name in SETS
            }
            yield _line("word vectors", "SIF", fit, [table.score(name, first[name]) for name in SETS])


def token_variants(counted: str) -> dict[str, EncoderSettings]:
    """Return the averages of static tokens without the kinds of tokens that bias them, by name."""
    return {
        "all tokens": EncoderSettings(pooling="table", normalize=False),
        "without the 36 most frequent": EncoderSettings(
            pooling="table", normalize=False, exclude=("frequent",), frequencies=counted
        ),
        "without sub-words": EncoderSettings(pooling="table", normalize=False, exclude=("subword",)),
        "without punctuation": EncoderSettings(pooling="table", normalize=False, exclude=("punctuation",)),
        "without any of them": EncoderSettings(
            pooling="table",
            normalize=False,
            exclude=("frequent", "subword", "punctuation"),
            frequencies=counted,
        ),
    }


def _token_counts(sentences: Sentences, file: Path) -> Path:
    """Write the counts of MiniLM's tokens in the distinct sentences of the evaluated sets."""
    tokenizer = open_folder(EncoderSettings()).tokenizer()
    texts = _distinct(text for name in SETS for side in sentences.pairs[name][:2] for text in side)
    names = {token_id: token for token, token_id in tokenizer.vocabulary().items()}
    counts = Counter(token_id for row in tokenizer.text_ids(texts) for token_id in row)
    tokens = [names[token_id] for token_id in counts]
    pq.write_table(pa.table({"token": tokens, "count": list(counts.values())}), file)
    return file


def _of(sentences: Sentences, encoder: Encoder) -> dict[str, float]:
    table = SentenceVectors(sentences, encoder.encode(list(sentences.index_of)))
    return {name: table.score(name) for name in SETS}


def _word_vectors(file: Path) -> Path:
    """Write MiniLM's token embeddings of whole words in GloVe's format, in place of real word vectors."""
    folder = locate("all-MiniLM-L6-v2")
    table = (
        open_checkpoint(open_folder(EncoderSettings()))
        .tensor("embeddings.word_embeddings.weight", (30_522, 384))
        .numpy()
    )
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    whole = [index for index, word in enumerate(words) if word and not word.startswith(("##", "["))]
    file.write_text(
        "".join(f"{words[index]} {' '.join(f'{value:.6g}' for value in table[index])}\n" for index in whole),
        encoding="utf-8",
    )
    return file


def _line(encoder: str, transform: str, fit: str, scores: Iterable[float]) -> tuple[str, ...]:
    values = list(scores)
    return (encoder, transform, fit, *(f"{value:.2f}" for value in values), f"{np.mean(values):.2f}")


def _distinct(texts: "Iterator[str] | Sequence[str]") -> list[str]:
    return list(dict.fromkeys(texts))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--poolings", nargs="+", default=POOLINGS, choices=POOLINGS)
    options.add_argument("--vectors", type=Path, help="an .npz file where sentence vectors are kept")
    chosen = options.parse_args()
    sentences, started = Sentences(Path(os.environ["MANTA_EVAL_DATA"])), time.perf_counter()
    tables = pooled_vectors(sentences, chosen.vectors)
    lines = [line for name in chosen.poolings for line in tables[name].lines(name)]
    lines += token_averages(sentences, sentences.folder / "word_frequencies.parquet")
    seconds = time.perf_counter() - started
    print_table(
        f"Spearman x100, cosine, all; {seconds:.0f} s, {machine()}",
        lines,
        ("encoder", "transform", "fitted on", *SETS, "mean"),
    )
    check = [(name, f"{known:.2f}", f"{tables['mean'].score(name):.2f}") for name, known in KNOWN.items()]
    print_table("Mean pooling against the known scores", check, ("set", "known", "here"))
    if wrong := [name for name, known, found in check if known != found]:
        raise DataError(
            "tests.benchmarks.sts",
            "the known scores",
            f"others for {', '.join(wrong)}",
            "find out what changed",
        )


if __name__ == "__main__":
    main()
