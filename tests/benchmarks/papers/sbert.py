"""Claims of Sentence-BERT (Reimers and Gurevych 2019)."""

from collections.abc import Sequence

from tests.benchmarks.papers.claim import Claim, Row, Table, Training, first_is_above

_DEV, _TEST = "STSB-dev", "STSB-test"
_PAPER = "Reimers and Gurevych 2019, SBERT"
_FEATURES = {
    "u, v, |u-v|": 80.78,
    "u, v": 66.04,
    "|u-v|": 69.78,
    "u*v": 70.54,
    "|u-v|, u*v": 78.37,
    "u, v, u*v": 77.44,
    "u, v, |u-v|, u*v": 80.44,
}


def _classification(features: Sequence[str], pooling: str = "mean") -> Training:
    objective = {"name": "classification", "options": {"features": list(features), "classes": 3}}
    return Training("sbert-nli", "nli", {"train.objective": objective, "encoder.pooling": pooling})


def _regression(pooling: str = "mean", after: Training | None = None) -> Training:
    return Training("sbert-sts", "STS-B train", {"encoder.pooling": pooling}, after=after)


NLI = _classification(["u", "v", "|u-v|"])

FEATURES = Table(
    "sbert-features",
    _PAPER,
    "table 6: features of the classifier, STS-B dev",
    (_DEV,),
    tuple(Row(name, (value,), _classification(name.split(", "))) for name, value in _FEATURES.items()),
    first_is_above(_DEV, *_FEATURES),
)

POOLING = Table(
    "sbert-pooling",
    _PAPER,
    "table 6: pooling, trained on NLI or on STS-B, STS-B dev",
    (_DEV,),
    (
        Row("NLI, mean", (80.78,), NLI),
        Row("NLI, max", (79.07,), _classification(["u", "v", "|u-v|"], "max")),
        Row("NLI, cls", (79.80,), _classification(["u", "v", "|u-v|"], "cls")),
        Row("STS-B, mean", (87.44,), _regression()),
        Row("STS-B, max", (69.92,), _regression("max")),
        Row("STS-B, cls", (86.62,), _regression("cls")),
    ),
    (
        *first_is_above(_DEV, "NLI, mean", "NLI, max", "NLI, cls"),
        *first_is_above(_DEV, "STS-B, mean", "STS-B, max", "STS-B, cls"),
        Claim("STS-B, cls", "STS-B, max", _DEV),
    ),
)

STAGES = Table(
    "sbert-stages",
    _PAPER,
    "table 2: NLI, STS-B, and NLI then STS-B, STS-B test",
    (_TEST,),
    (
        Row("start, mean", (46.35,), encoder={"pooling": "mean"}),
        Row("NLI", (77.03,), NLI),
        Row("STS-B", (84.67,), _regression()),
        Row("NLI, then STS-B", (85.35,), _regression(after=NLI)),
    ),
    (
        Claim("NLI", "start, mean", _TEST),
        Claim("STS-B", "NLI", _TEST),
        Claim("NLI, then STS-B", "STS-B", _TEST),
    ),
)

UNTRAINED = Table(
    "sbert-untrained",
    _PAPER,
    "table 1: BERT without training, average of seven STS sets (here STS-B test)",
    (_TEST,),
    (
        Row("mean", (54.81,), encoder={"pooling": "mean"}),
        Row("cls", (29.19,), encoder={"pooling": "cls"}),
    ),
    (Claim("mean", "cls", _TEST),),
)

TABLES = (FEATURES, POOLING, STAGES, UNTRAINED)
