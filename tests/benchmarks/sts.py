"""One table of STS results: every pooling of the packaged MiniLM, raw and after every transform; averages of
static token vectors; SIF.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.sts                                     # a quarter of an
    hour on two cores MANTA_EVAL_DATA=... python -m tests.benchmarks.sts --poolings mean first_last --vectors
    /tmp/sts.npz     # keeps the sentence vectors for the next time

Figures are Spearman x100 of the cosine over all pairs of a set. A transform is fitted on the sentences of the
set itself (`target`: both columns, every split, no scores), on those of SNLI, or on captions: rows of
different fits are different settings.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from pipeline.config import digest_of
from pipeline.errors import DataError
from pipeline.evaluate.similarity import paired
from pipeline.models.folder.locate import locate
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.layers.weights import open_checkpoint
from pipeline.post import Transform
from pipeline.post.chain import fit_transform
from pipeline.settings import EncoderSettings, EncodeSettings, FlowSettings, WhitenSettings
from pipeline.stats.correlation import spearman
from pipeline.stats.moments import Moments
from pipeline.train.flow import FlowFit, HeldOut, one_thread
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
}  # published for this model; dev by sentence-transformers
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
_HELD = 256  # rows that a flow is measured on, not trained


@dataclass(frozen=True)
class Sentences:
    """Everything that is encoded, by where it comes from; each sentence once."""

    folder: Path

    @cached_property
    def pairs(self) -> dict[str, tuple[list[str], list[str], np.ndarray]]:
        """(first sentences, second sentences, gold scores) by file."""
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
        """The sentences that transforms are fitted on: SNLI, captions, and each set's own."""
        nli = pq.read_table(self.folder / "nli/snli.parquet")
        captions = pq.read_table(self.folder / "captions/flickr30k_captions.parquet")["text"].to_pylist()
        own = {
            name: _once(text for split in SPLITS[name] for column in self.pairs[split][:2] for text in column)
            for name in SETS
        }
        return own | {
            "SNLI": _once([*nli["premise"].to_pylist(), *nli["hypothesis"].to_pylist()]),
            "captions": _once(captions[:: len(captions) // CAPTIONS][:CAPTIONS]),
        }

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each sentence among all of them."""
        every = [
            *(text for left, right, _ in self.pairs.values() for text in (*left, *right)),
            *(text for texts in self.fits.values() for text in texts),
        ]
        return {text: place for place, text in enumerate(_once(every))}


@dataclass(frozen=True)
class Table:
    """Vectors of all sentences under one pooling, and the figures that come of them."""

    sentences: Sentences
    vectors: np.ndarray

    def of(self, texts: Sequence[str]) -> np.ndarray:
        return self.vectors[[self.sentences.places[text] for text in texts]]

    def figure(self, name: str, transform: Transform | None = None) -> float:
        """Spearman x100, all pairs of the set."""
        left, right, gold = self.sentences.pairs[name]
        moved = [self.of(side) if transform is None else transform(self.of(side)) for side in (left, right)]
        return 100 * spearman(paired("cosine", *moved), gold)

    def fitted(self, settings: WhitenSettings, texts: Sequence[str]) -> Transform:
        x = self.of(texts)
        return (
            fit_flow(x, settings.flow)
            if settings.transform == "flow"
            else fit_transform(Moments.of(x), settings, "")
        )

    def lines(self, name: str) -> Iterator[tuple[str, ...]]:
        """A line per transform and fit."""
        yield _line(name, "raw", "", [self.figure(each) for each in SETS])
        for what, settings in TRANSFORMS.items():
            for fit in FITS:
                shared = None if fit == "target" else self.fitted(settings, self.sentences.fits[fit])
                own = (
                    {text: self.fitted(settings, self.sentences.fits[text]) for text in SETS}
                    if shared is None
                    else dict.fromkeys(SETS, shared)
                )
                yield _line(name, what, fit, [self.figure(each, own[each]) for each in SETS])


def fit_flow(x: np.ndarray, settings: FlowSettings) -> Transform:
    """One epoch over the rows of x (n, d) in a random order by the seed, some of them held out."""
    rows = np.random.default_rng(settings.seed).permutation(len(x))
    held, fit = HeldOut(x[rows[:_HELD]]), FlowFit(x.shape[1], settings, torch.device("cpu"))
    batches = [x[part] for part in np.array_split(rows[_HELD:], (len(x) - _HELD) // settings.batch_rows)]
    with one_thread():
        fit.begin(batches[0], held)
        for batch in batches:
            fit.take(batch)
        fit.measure(held)
    return fit.fitted(held, len(x) - _HELD, "")


def contextual(sentences: Sentences, kept: Path | None) -> dict[str, Table]:
    """Every pooling from one forward pass, unnormalised."""
    texts = digest_of(list(sentences.places))
    if kept is not None and kept.exists() and str(np.load(kept)["texts"]) == texts:
        vectors = np.load(kept)["vectors"]
    else:
        encoder = load_encoder(
            EncoderSettings(pooling="+".join(POOLINGS), normalize=False),
            EncodeSettings(threads=os.cpu_count() or 1),
        )
        vectors = encoder.encode(list(sentences.places))
        if kept is not None:
            np.savez(kept, vectors=vectors, texts=texts)
    return {
        name: Table(sentences, part)
        for name, part in zip(POOLINGS, np.split(vectors, len(POOLINGS), axis=1), strict=True)
    }


def averages(sentences: Sentences, frequencies: Path) -> Iterator[tuple[str, ...]]:
    """Averages of MiniLM's static token vectors: all tokens, without each kind of tokens that biases them,
    and as word vectors with SIF's weights.
    """
    counted = str(frequencies)
    variants = {
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
    for name, settings in variants.items():
        yield _line(
            "token table", name, "", _of(sentences, load_encoder(settings, EncodeSettings())).values()
        )
    with tempfile.TemporaryDirectory(prefix="manta-bench-") as folder:
        words = str(_word_vectors(Path(folder, "words.txt")))
        plain = load_encoder(EncoderSettings(path=words), EncodeSettings())
        yield _line("word vectors", "average", "", _of(sentences, plain).values())
        sif = load_encoder(EncoderSettings(path=words, sif=1e-3, frequencies=counted), EncodeSettings())
        yield _line("word vectors", "SIF weights", "", _of(sentences, sif).values())
        table = Table(sentences, sif.encode(list(sentences.places)))
        for fit in FITS:
            first = {
                name: table.fitted(
                    WhitenSettings(transform="components", centred=False),
                    sentences.fits[name if fit == "target" else fit],
                )
                for name in SETS
            }
            yield _line("word vectors", "SIF", fit, [table.figure(name, first[name]) for name in SETS])


def _of(sentences: Sentences, encoder: Encoder) -> dict[str, float]:
    table = Table(sentences, encoder.encode(list(sentences.places)))
    return {name: table.figure(name) for name in SETS}


def _word_vectors(file: Path) -> Path:
    """MiniLM's rows of whole words, in GloVe's form: there are no other word vectors at hand."""
    folder = locate("all-MiniLM-L6-v2")
    from pipeline.models.folder.folder import open_folder

    table = (
        open_checkpoint(open_folder(EncoderSettings()))
        .tensor("embeddings.word_embeddings.weight", (30_522, 384))
        .numpy()
    )
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    whole = [place for place, word in enumerate(words) if word and not word.startswith(("##", "["))]
    file.write_text(
        "".join(f"{words[place]} {' '.join(f'{value:.6g}' for value in table[place])}\n" for place in whole),
        encoding="utf-8",
    )
    return file


def _line(encoder: str, transform: str, fit: str, figures: "Sequence[float] | object") -> tuple[str, ...]:
    values = [float(value) for value in figures]  # type: ignore[attr-defined]
    return (encoder, transform, fit, *(f"{value:.2f}" for value in values), f"{np.mean(values):.2f}")


def _once(texts: "Iterator[str] | Sequence[str]") -> list[str]:
    return list(dict.fromkeys(texts))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--poolings", nargs="+", default=POOLINGS, choices=POOLINGS)
    options.add_argument("--vectors", type=Path, help="an .npz file where sentence vectors are kept")
    chosen = options.parse_args()
    sentences, begun = Sentences(Path(os.environ["MANTA_EVAL_DATA"])), time.perf_counter()
    tables = contextual(sentences, chosen.vectors)
    lines = [line for name in chosen.poolings for line in tables[name].lines(name)]
    lines += averages(sentences, sentences.folder / "word_frequencies.parquet")
    seconds = time.perf_counter() - begun
    print_table(
        f"Spearman x100, cosine, all; {seconds:.0f} s, {machine()}",
        lines,
        ("encoder", "transform", "fitted on", *SETS, "mean"),
    )
    check = [(name, f"{known:.2f}", f"{tables['mean'].figure(name):.2f}") for name, known in KNOWN.items()]
    print_table("Mean pooling against the known figures", check, ("set", "known", "here"))
    if wrong := [name for name, known, found in check if known != found]:
        raise DataError(
            "tests.benchmarks.sts",
            "the known figures",
            f"others for {', '.join(wrong)}",
            "find out what changed",
        )


if __name__ == "__main__":
    main()
