"""Claims of Hill et al. 2016: models that learn sentences from unlabelled text, against each other."""

from typing import Any

from tests.benchmarks.papers.claim import Claim, Row, Table, Training

_DEV = "STSB-dev"
_RECURRENT = {"width": 256, "directions": 1, "readout": "last", "vocabulary": 8_000, "word_dim": 100}
_TABLE = {"dim": 100, "vocabulary": 8_000}
_PARAGRAPHS = {"dim": 50, "vocabulary": 8_000, "words": 8, "steps": 20}


def _new(
    config: str, data: str, rate: float | None = None, *, steps: float = 1.0, **settings: Any
) -> Training:
    dotted = {key.replace("__", "."): value for key, value in settings.items()}
    return Training(config, data, dotted, rate=rate, steps=steps, start="new")


def _sdae(noise: float) -> Training:
    objective = {"name": "sdae", "options": {"omit": noise, "swap": noise, "decoder": "lstm"}}
    return _new(
        "sdae", "documents", 1e-3, train__objective=objective, train__recurrent={"cell": "lstm", **_RECURRENT}
    )


def _fastsent(autoencode: bool) -> Training:
    objective = {"name": "fastsent", "options": {"autoencode": autoencode, "negatives": 5}}
    return _new(
        "fastsent",
        "documents",
        1e-3,
        steps=4,
        train__objective=objective,
        train__word_table=_TABLE,
        train__optimizer__name="adam",
    )


GENERATIVE = Table(
    "generative",
    "Hill et al. 2016, FastSent and SDAE",
    "tables 3 and 4: STS 2014, SICK and six transfer tasks; numbers are not at hand. The conclusion: sums of "
    "words are better for distances, sequential models for classifiers",
    (_DEV, "transfer"),
    (
        Row("FastSent", training=_fastsent(False)),
        Row("FastSent+AE", training=_fastsent(True)),
        Row(
            "word2vec, CBOW",
            training=_new(
                "word2vec",
                "documents",
                1e-3,
                steps=4,
                train__word_table=_TABLE,
                train__optimizer__name="adam",
                train__schedule__final=0.0,
            ),
        ),
        Row("SDAE", training=_sdae(0.1)),
        Row("SAE", training=_sdae(0.0)),
        Row(
            "Skip-Thought",
            training=_new("skip-thought", "documents", 1e-3, train__recurrent={"cell": "gru", **_RECURRENT}),
        ),
        Row(
            "Paragraph Vector",
            training=_new("paragraph-vector", "wikipedia", steps=4, train__paragraph_vectors=_PARAGRAPHS),
        ),
    ),
    (
        Claim("FastSent", "SDAE", _DEV),
        Claim("FastSent", "Skip-Thought", _DEV),
        Claim("word2vec, CBOW", "Skip-Thought", _DEV),
        Claim("word2vec, CBOW", "Paragraph Vector", _DEV),
        Claim("SDAE", "SAE", _DEV),
        Claim("Skip-Thought", "FastSent", "transfer"),
        Claim("SDAE", "SAE", "transfer"),
        Claim("Skip-Thought", "Paragraph Vector", "transfer"),
    ),
)

TABLES = (GENERATIVE,)
