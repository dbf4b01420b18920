"""Trainings of new encoders, small enough for minutes on one core: the files' settings except for sizes."""

from typing import Any

from tests.benchmarks.papers.claim import Training

VECTORS = "vectors of "
"""beginning of a setting whose value is the file of word vectors that another case trains"""

_RECURRENT = {"width": 128, "directions": 1, "readout": "last", "vocabulary": 3_000, "word_dim": 64}
_TABLE = {"dim": 100, "vocabulary": 10_000}
_DAN = {"width": 256, "layers": 3, "buckets": 2**15, "vocabulary": 8_000, "word_dim": 100}
_CONSTANT = {"name": "constant"}  # the plateau of the files needs pairs that are not trained on
_WORDS = f"{VECTORS}word2vec, skip-gram"


def _new(config: str, data: str, max_steps: int, rows: int, rate: float | None, **settings: Any) -> Training:
    dotted = {f"train.{key.replace('__', '.')}": value for key, value in settings.items()}
    return Training(config, data, dotted, rate=rate, rows=rows, start="new", max_steps=max_steps)


def _word2vec(model: str, max_steps: int) -> Training:
    options = {"model": model, "window": 5, "negatives": 5, "subsample": 1e-4}
    return _new(
        "word2vec",
        "caption texts",
        max_steps,
        256,
        None,
        word_table=_TABLE,
        objective={"name": "word2vec", "options": options},
    )


def _fastsent(autoencode: bool) -> Training:
    options = {"autoencode": autoencode, "negatives": 5}
    return _new(
        "fastsent",
        "captions of pictures",
        1_000,
        256,
        None,
        word_table=_TABLE,
        objective={"name": "fastsent", "options": options},
    )


def _sdae(noise: float) -> Training:
    options = {"omit": noise, "swap": noise, "decoder": "lstm"}
    return _new(
        "sdae",
        "caption texts",
        5_000,
        32,
        1e-3,
        objective={"name": "sdae", "options": options},
        recurrent={"cell": "lstm", **_RECURRENT},
    )


CASES: dict[str, Training] = {
    "word2vec, skip-gram": _word2vec("skipgram", 3_200),
    "word2vec, CBOW": _word2vec("cbow", 6_000),
    "fastsent": _fastsent(False),
    "fastsent, autoencode": _fastsent(True),
    "paragraph-vector": _new(
        "paragraph-vector",
        "caption texts",
        2_000,
        256,
        None,
        paragraph_vectors={"dim": 50, "vocabulary": 8_000, "words": 8, "steps": 20},
    ),
    "skip-thought": _new(
        "skip-thought", "captions of pictures", 3_000, 32, 1e-3, recurrent={"cell": "gru", **_RECURRENT}
    ),
    "nmt": _new("nmt", "translations", 3_000, 32, 1e-3, recurrent={"cell": "gru", **_RECURRENT}),
    "sdae": _sdae(0.1),
    "sdae, without noise": _sdae(0.0),
    "quickthoughts-gru": _new(
        "quickthoughts-gru",
        "captions of pictures",
        400,
        400,
        1e-3,
        recurrent={"cell": "gru", "width": 128, "directions": 2, "vocabulary": 8_000, "word_dim": 100},
    ),
    "use-dan": _new("use-dan", "captions", 1_500, 128, 1e-3, dan=_DAN),
    "use-transformer": _new(
        "use-transformer",
        "captions",
        1_500,
        64,
        5e-4,
        transformer={"width": 128, "layers": 2, "heads": 4, "output": 256, "vocabulary": 8_000},
    ),
    "use-multitask": _new("use-multitask", "three tasks", 1_500, 64, 1e-3, dan=_DAN),
    "infersent": _new(
        "infersent",
        "nli",
        3_000,
        64,
        None,
        recurrent={"cell": "lstm", "width": 128, "directions": 2, "readout": "max", "words": _WORDS},
        schedule=_CONSTANT,
    ),
    "infersent-convnet": _new(
        "infersent-convnet",
        "nli",
        1_500,
        64,
        None,
        convolutional={"width": 128, "layers": 4, "words": _WORDS},
        schedule=_CONSTANT,
    ),
}
