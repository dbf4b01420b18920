"""Claims of SimCSE (Gao et al. 2021)."""

from typing import Any

from tests.benchmarks.papers.claim import Claim, Row, Table, Training, first_is_above

_DEV = "STSB-dev"
_PAPER = "Gao et al. 2021, SimCSE"
_PAIRS = {"temperature": 0.05, "head": "cls_mlp", "keep_head": False}


def _unsupervised(data: str = "wikipedia", /, dropout: float = 0.1, **options: Any) -> Training:
    given = {"temperature": 0.05, "head": "cls_mlp", **options}
    objective = {"name": "simcse", "options": given}
    return Training("simcse-unsupervised", data, {"train.objective": objective, "train.dropout": dropout})


def _supervised(data: str = "triples", /, **options: Any) -> Training:
    given = {"temperature": 0.05, "head": "cls_mlp", "keep_head": True, **options}
    return Training("simcse-supervised", data, {"train.objective": {"name": "supervised", "options": given}})


def _variants(data: str, dropout: float = 0.1) -> Training:
    """Return unsupervised SimCSE with a variant of each text as its positive."""
    objective = {"name": "supervised", "options": _PAIRS}
    return Training("simcse-supervised", data, {"train.objective": objective, "train.dropout": dropout})


UNSUPERVISED, SUPERVISED = _unsupervised(), _supervised()

_RATES = {0.1: 82.5, 0.0: 71.1, 0.5: 71.0, 0.01: 72.6, 0.05: 81.1, 0.15: 81.4, 0.2: 80.5}
DROPOUT = Table(
    "simcse-dropout",
    _PAPER,
    "table 3: dropout of unsupervised SimCSE, STS-B dev",
    (_DEV,),
    (
        Row("0.1, one mask", (43.6,), _unsupervised(masks="shared")),
        *(Row(f"{rate:g}", (value,), _unsupervised(dropout=rate)) for rate, value in _RATES.items()),
    ),
    (
        *first_is_above(_DEV, *(f"{rate:g}" for rate in _RATES), "0.1, one mask"),
        Claim("0", "0.1, one mask", _DEV),
    ),
)

VARIANTS = Table(
    "simcse-variants",
    _PAPER,
    "table 1: augmentations as positives, STS-B dev",
    (_DEV,),
    (
        Row("dropout alone", (82.5,), UNSUPERVISED),
        Row("crop 10 %", (77.8,), _variants("crop")),
        Row("delete one word", (75.9,), _variants("delete one")),
        Row("delete one word, no dropout", (74.2,), _variants("delete one", 0.0)),
        Row("synonym", (77.4,), _variants("synonym")),
        Row("masked words, 15 %", (62.2,), _variants("masked words")),
    ),
    (
        *first_is_above(
            _DEV, "dropout alone", "crop 10 %", "delete one word", "synonym", "masked words, 15 %"
        ),
        Claim("delete one word", "delete one word, no dropout", _DEV),
        Claim("crop 10 %", "masked words, 15 %", _DEV),
    ),
)

POSITIVES = Table(
    "simcse-positives",
    _PAPER,
    "table 2: the next sentence as positive, one encoder or two, STS-B dev",
    (_DEV,),
    (
        Row("itself, one encoder", (82.5,), _unsupervised("documents")),
        Row("itself, two encoders", (80.7,), _unsupervised("documents", second="copy")),
        Row("next, one encoder", (67.1,), _unsupervised("documents", positive="next")),
        Row("next, two encoders", (68.9,), _unsupervised("documents", positive="next", second="copy")),
        Row("one of the next three, one encoder", (67.4,), _unsupervised("documents", positive="next3")),
        Row(
            "one of the next three, two encoders",
            (68.8,),
            _unsupervised("documents", positive="next3", second="copy"),
        ),
    ),
    (
        Claim("itself, one encoder", "next, one encoder", _DEV),
        Claim("itself, one encoder", "one of the next three, one encoder", _DEV),
        Claim("itself, one encoder", "itself, two encoders", _DEV),
        Claim("next, two encoders", "next, one encoder", _DEV),
    ),
)

_TEMPERATURES = {0.05: 86.2, 0.001: 84.9, 0.01: 85.4, 0.1: 82.0, 1.0: 64.0}
TEMPERATURE = Table(
    "simcse-temperature",
    _PAPER,
    "appendix: temperature of supervised SimCSE, STS-B dev",
    (_DEV,),
    (
        *(Row(f"{tau:g}", (value,), _supervised(temperature=tau)) for tau, value in _TEMPERATURES.items()),
        Row("inner product", (85.9,), _supervised(similarity="dot", temperature=1.0)),
    ),
    first_is_above(_DEV, *(f"{tau:g}" for tau in _TEMPERATURES), "inner product"),
)

HARD_NEGATIVES = Table(
    "simcse-hard-negatives",
    _PAPER,
    "table 7: weight of hard negatives, STS-B dev",
    (_DEV,),
    (
        Row("1", (86.2,), SUPERVISED),
        Row("none", (84.9,), _supervised("pairs of triples")),
        Row("1, and neutrals", (85.3,), _supervised("triples with neutrals")),
        Row("0.5", (86.1,), _supervised(hard_negative_weight=0.5)),
        Row("2", (86.2,), _supervised(hard_negative_weight=2.0)),
    ),
    first_is_above(_DEV, "1", "none", "1, and neutrals"),
)

POOLER = Table(
    "simcse-pooler",
    _PAPER,
    "table 6: head of unsupervised SimCSE, STS-B dev",
    (_DEV,),
    (
        Row("layer in training alone", (82.5,), UNSUPERVISED),
        Row("layer kept", (81.7,), _unsupervised(keep_head=True)),
        Row("no layer", (80.9,), _unsupervised(head="none")),
        Row(
            "first and last layer",
            (81.2,),
            Training(
                "simcse-unsupervised",
                "wikipedia",
                {
                    "train.objective": {"name": "simcse", "options": {"temperature": 0.05, "head": "none"}},
                    "encoder.pooling": "first_last",
                    "train.dropout": 0.1,
                },
            ),
        ),
    ),
    first_is_above(_DEV, "layer in training alone", "layer kept", "no layer", "first and last layer"),
)

_WITH_WORDS = [
    {"name": "supervised", "options": {"temperature": 0.05, "head": "cls_mlp", "keep_head": True}},
    {"name": "masked_lm", "weight": 0.1, "options": {"role": "anchor"}},
]
MASKED_WORDS = Table(
    "simcse-masked-words",
    _PAPER,
    "appendix: masked words beside supervised SimCSE, STS-B dev and seven transfer tasks (here three)",
    (_DEV, "transfer"),
    (
        Row("without", (86.2, 85.8), SUPERVISED),
        Row(
            "weight 0.1",
            (85.7, 86.2),
            Training("simcse-supervised", "triples", {"train.objective": _WITH_WORDS}),
        ),
    ),
    (Claim("without", "weight 0.1", _DEV), Claim("weight 0.1", "without", "transfer")),
)

PAIRS = Table(
    "simcse-pairs",
    _PAPER,
    "table 4: data of supervised SimCSE, STS-B dev",
    (_DEV,),
    (
        Row("entailments, contradictions as negatives", (86.2,), SUPERVISED),
        Row("entailments", (84.9,), _supervised("entailments")),
        Row("neutrals", (82.9,), _supervised("neutrals")),
        Row("contradictions", (77.6,), _supervised("contradictions")),
        Row("all NLI pairs", (81.9,), _supervised("all NLI pairs")),
        Row("captions of one picture", (81.4,), _supervised("captions")),
        Row("duplicate questions", (81.8,), _supervised("questions")),
        Row("unsupervised", (82.5,), UNSUPERVISED),
    ),
    (
        *first_is_above(
            _DEV,
            "entailments",
            "neutrals",
            "contradictions",
            "all NLI pairs",
            "captions of one picture",
            "duplicate questions",
            "unsupervised",
        ),
        Claim("entailments, contradictions as negatives", "entailments", _DEV),
    ),
)

SPACE = Table(
    "simcse-space",
    _PAPER,
    "figures 2 and 3: alignment and uniformity on STS-B dev, lower is better; charts, without numbers",
    ("alignment", "uniformity"),
    (
        Row("start, mean", encoder={"pooling": "mean"}),
        Row("unsupervised", training=UNSUPERVISED),
        Row("supervised", training=SUPERVISED),
        Row("without dropout", training=_unsupervised(dropout=0.0)),
    ),
    (
        Claim("start, mean", "unsupervised", "uniformity"),
        Claim("start, mean", "supervised", "uniformity"),
        Claim("without dropout", "unsupervised", "alignment"),
        Claim("unsupervised", "supervised", "alignment"),
    ),
)

TABLES = (
    DROPOUT,
    VARIANTS,
    POSITIVES,
    TEMPERATURE,
    HARD_NEGATIVES,
    POOLER,
    MASKED_WORDS,
    PAIRS,
    SPACE,
)
