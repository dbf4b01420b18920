"""Made-up sentences about topics, whose neighbours and inferences can be learnt."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TOPICS = (
    "dog cat horse animal runs",
    "music song plays guitar loud",
    "rain snow wind cold storm",
    "bread soup eats kitchen salt",
    "car road drives fast wheel",
    "book page reads story words",
)


def sentence(rng: np.random.Generator, topic: int) -> str:
    return " ".join(rng.choice(TOPICS[topic].split(), 4))


def write_books(file: Path) -> Path:
    """Write documents whose topics follow each other in a fixed cycle, so that neighbours are predictable."""
    rng = np.random.default_rng(0)
    rows = [(sentence(rng, number % 6), f"book {book}", number) for book in range(4) for number in range(24)]
    text, document, position = zip(*rows, strict=True)
    pq.write_table(pa.table({"text": text, "document": document, "position": position}), file)
    return file


def write_nli(file: Path) -> Path:
    """Write entailments between sentences of one topic, and contradictions between topics."""
    rng = np.random.default_rng(0)
    premises, hypotheses = rng.integers(0, 6, (2, 192))
    hypotheses[::2] = premises[::2]
    labels = np.where(premises == hypotheses, "entailment", "contradiction")
    first, second = ([sentence(rng, topic) for topic in topics] for topics in (premises, hypotheses))
    pq.write_table(pa.table({"premise": first, "hypothesis": second, "label": labels}), file)
    return file
