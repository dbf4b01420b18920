"""Measure the untrained vectors of the common start, to explain claims that do not show on them.

    MANTA_EVAL_DATA=... python -m tests.benchmarks.papers.reasons pretrained/trainings/pretrain/encoder

Each table measures one difference between two rows of a claim. Scores are Spearman x 100 of the cosine.
Transforms are fitted on the sentences of the measured set itself, without scores.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from pipeline.device import resolve
from pipeline.models.folder.folder import open_folder
from pipeline.models.inference.encoder import Encoder, load_encoder
from pipeline.models.trainable.mask_words import MaskReader
from pipeline.settings import EncoderSettings
from pipeline.stats.geometry import anisotropy
from tests.benchmarks.machine import machine, print_table
from tests.benchmarks.papers.rated_pairs import RatedPairs, read_pairs

_TEMPLATES = ('This sentence : "[X]" means [MASK].', "This sentence of [X] means [MASK].", "[X] [MASK].")
_PACKAGED = "all-MiniLM-L6-v2"  # has the vocabulary of BERT, which the papers use
_REMOVED = (1, 10)  # directions


def standardization(x: np.ndarray, pairs: RatedPairs) -> Iterator[Sequence[str]]:
    """Score vectors after parts of standardization and after removal of directions."""
    centred = x - x.mean(axis=0)
    deviations = centred.std(axis=0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    yield "raw", f"{pairs.score(x):.2f}"
    yield "centred", f"{pairs.score(centred):.2f}"
    yield "centred, divided by the deviations", f"{pairs.score(centred / deviations):.2f}"
    for count in _REMOVED:
        rest = centred - centred @ directions[:count].T @ directions[:count]
        yield f"centred, first {count} directions removed", f"{pairs.score(rest):.2f}"
    yield "largest deviation by the median one", f"{deviations.max() / np.median(deviations):.2f}"
    yield "variance in the first 10 directions", f"{100 * (values[:10] ** 2).sum() / (values**2).sum():.1f} %"


def components(x: np.ndarray, pairs: RatedPairs) -> Iterator[Sequence[str]]:
    """Score ranges of the whitened components, the largest variance first."""
    centred = x - x.mean(axis=0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    white = centred @ directions.T / values
    width = white.shape[1]
    for start, stop in (
        (0, width),
        (0, width // 2),
        (width // 2, width),
        (0, width // 4),
        (3 * width // 4, width),
    ):
        share = (values[start:stop] ** 2).sum() / (values**2).sum()
        yield f"{start + 1} to {stop}", f"{pairs.score(white[:, start:stop]):.2f}", f"{100 * share:.1f} %"


def subwords(encoder: Encoder, filtered: Encoder, pairs: RatedPairs) -> Iterator[Sequence[str]]:
    """Count tokens that continue a word, and score pairs with and without them by averages of tokens."""
    with_all, without = (each.encode(pairs.texts) for each in (encoder, filtered))
    for each in (encoder, load_encoder(_PACKAGED)):
        counts, lengths = count_subwords(each, pairs.texts)
        yield f"of {each.name}: tokens that continue a word", f"{100 * counts.sum() / lengths.sum():.1f} %"
        yield f"of {each.name}: sentences with one", f"{100 * (counts > 0).mean():.1f} %"
    counts, _ = count_subwords(encoder, pairs.texts)
    has_any = counts.reshape(2, -1).sum(axis=0) > 0
    for name, rows in (("pairs with one", has_any), ("pairs without", ~has_any)):
        scores = [f"{pairs.score(x, rows):.2f}" for x in (with_all, without)]
        yield f"{name}, {rows.sum():,}: all tokens; without sub-words", "; ".join(scores)


def count_subwords(encoder: Encoder, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return (n,) tokens of each text that continue a word, and (n,) all of its tokens but special ones."""
    tokenizer = encoder.folder.tokenizer()
    spellings = {number: token for token, number in tokenizer.vocabulary().items()}
    rows = [[spellings[number] for number in row] for row in tokenizer.text_ids(texts)]
    return (
        np.array([sum(token.startswith("##") for token in row) for row in rows]),
        np.array(list(map(len, rows))),
    )


def templates(start: str, mean: np.ndarray, pairs: RatedPairs) -> Iterator[Sequence[str]]:
    """Score the states of mask tokens beside mean pooling, and find the word that is likeliest most often."""
    for template in _TEMPLATES:
        folder = open_folder(EncoderSettings(path=start, template=template))
        reader = MaskReader(folder, resolve("cpu"), top_k=1)
        readings = reader.read(pairs.texts)
        words = reader.spellings(readings.ids[:, 0])
        ((word, count),) = Counter(words).most_common(1)
        yield _row(
            template, readings.states, pairs, f"{word}: {100 * count / len(words):.0f} %; {len(set(words))}"
        )
    yield _row("(mean of the last layer)", mean, pairs, "")


def _row(name: str, x: np.ndarray, pairs: RatedPairs, words: str) -> Sequence[str]:
    centred = x - x.mean(axis=0)
    return name, f"{anisotropy(x):.3f}", f"{pairs.score(x):.2f}", f"{pairs.score(centred):.2f}", words


def main(start: str, data: Path) -> None:
    """Print all tables."""
    dev, test = (read_pairs(data / "sts" / f"{name}.parquet") for name in ("STSB-dev", "STSB-test"))

    def load(**settings: object) -> Encoder:
        return load_encoder(EncoderSettings.model_validate({"path": start, **settings}))

    print(machine())
    last = load(pooling="mean", normalize=False)
    both = load(pooling="first_last", normalize=False)
    table = {"pooling": "table", "normalize": False}
    rows = standardization(last.encode(test.texts), test)
    print_table("Parts of standardization, last layer, STS-B test", list(rows), ("", "score"))
    rows = components(both.encode(test.texts), test)
    print_table(
        "WhiteningDecision components, first and last layer, STS-B test",
        list(rows),
        ("", "score", "variance"),
    )
    rows = subwords(load(**table), load(**table, exclude=["subword"]), dev)
    print_table("Sub-words, averages of token embeddings, STS-B dev", list(rows), ("", ""))
    rows = templates(start, last.encode(dev.texts), dev)
    header = ("", "mean cosine", "score", "centred", "likeliest word; different ones")
    print_table("Templates, STS-B dev", list(rows), header)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("start", help="encoder folder of the common start")
    found = os.environ.get("MANTA_EVAL_DATA") or sys.exit(
        "set MANTA_EVAL_DATA to the folder of evaluation data"
    )
    main(parser.parse_args().start, Path(found))
