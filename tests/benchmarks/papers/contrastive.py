"""Claims of contrastive methods beside SimCSE: ConSERT, contrastive tension, QuickThoughts, PSER, CERT."""

from typing import Any, Literal

from tests.benchmarks.papers.claim import Claim, Row, Table, Training, first_is_above
from tests.benchmarks.papers.data import NLI_TEXTS
from tests.benchmarks.papers.simcse import SUPERVISED, UNSUPERVISED

_DEV, _TEST, _CHINESE = "STSB-dev", "STSB-test", "STSB-zh-dev"


def _consert(*views: str) -> Training:
    objective = {"name": "consert", "options": {"views": list(views)}}
    return Training("consert", "STS sentences", {"train.objective": objective})


CONSERT = _consert("feature_cutoff", "shuffle")
TENSION = Training(
    "contrastive-tension",
    "wikipedia",
    {"encoder.normalize": False, "train.schedule": {"name": "linear"}},
    rate=2e-5,
)

METHODS = Table(
    "methods",
    "Gao et al. 2021, SimCSE; Yan et al. 2021, ConSERT; Carlsson et al. 2021, contrastive tension",
    "table 5 of SimCSE: STS-B test",
    (_TEST,),
    (
        Row("start, first and last layer", (53.87,), encoder={"pooling": "first_last"}),
        Row(
            "whitening",
            (68.24,),
            encoder={"pooling": "first_last", "normalize": False},
            fit={"on": NLI_TEXTS, "whiten": {"transform": "whitening"}},
        ),
        Row("contrastive tension", (74.31,), TENSION),
        Row("ConSERT", (73.97,), CONSERT),
        Row("SimCSE", (76.85,), UNSUPERVISED),
        Row("supervised SimCSE", (84.25,), SUPERVISED),
    ),
    (
        Claim("whitening", "start, first and last layer", _TEST),
        Claim("contrastive tension", "start, first and last layer", _TEST),
        Claim("ConSERT", "start, first and last layer", _TEST),
        Claim("contrastive tension", "whitening", _TEST),
        Claim("SimCSE", "whitening", _TEST),
        Claim("SimCSE", "contrastive tension", _TEST),
        Claim("SimCSE", "ConSERT", _TEST),
        Claim("supervised SimCSE", "SimCSE", _TEST),
    ),
)

VIEWS = Table(
    "consert-views",
    "Yan et al. 2021, ConSERT",
    "figure 4: pairs of perturbations, average of seven STS sets (here STS-B dev)",
    (_DEV,),
    (
        Row("feature cut-off, shuffle", (72.74,), CONSERT),
        Row("none, shuffle", (None,), _consert("none", "shuffle")),
        Row("none, token cut-off", (None,), _consert("none", "token_cutoff")),
        Row("none, none", (None,), _consert("none", "none")),
    ),
    first_is_above(_DEV, "feature cut-off, shuffle", "none, shuffle", "none, token cut-off", "none, none"),
)


def _pser(data: str, start: Literal["english", "chinese"], **options: Any) -> Training:
    objective = {"name": "pser", "options": {"temperature": 0.05, **options}}
    return Training("pser", data, {"train.objective": objective}, start=start)


def _pser_table(key: str, source: str, column: str, data: str, start: Literal["english", "chinese"]) -> Table:
    return Table(
        key,
        "Guo et al., PSER",
        source,
        (column,),
        (
            Row("both", (None,), _pser(data, start, alpha=1.0)),
            Row("shuffled positions", (None,), _pser(data, start, alpha=0.0)),
            Row("R-Drop", (None,), _pser(data, start, alpha=1.0, shuffle=False)),
            Row("neither", (None,), _pser(data, start, alpha=0.0, shuffle=False)),
        ),
        (
            Claim("shuffled positions", "neither", column),
            Claim("R-Drop", "neither", column),
            Claim("both", "neither", column),
        ),
    )


PSER = _pser_table(
    "pser-english",
    "the paper's ablation is Chinese, this one is on the English STS-B; numbers are not at hand",
    _DEV,
    "first sentences",
    "english",
)
PSER_STS = _pser_table(
    "pser-stsb-zh",
    "ablation on the Chinese STS-B; numbers are not at hand",
    _CHINESE,
    "first sentences, Chinese",
    "chinese",
)
PSER_QUESTIONS = _pser_table(
    "pser-afqmc",
    "ablation on the questions of AFQMC, here measured on the Chinese STS-B; numbers are not at hand",
    _CHINESE,
    "questions, Chinese",
    "chinese",
)


def _quickthoughts(second: str) -> Training:
    objective = {"name": "quickthoughts", "options": {"second": second, "inference": "first"}}
    return Training(
        "quickthoughts", "documents", {"train.objective": objective, "encoder.normalize": False}, rows=64
    )


QUICKTHOUGHTS = Table(
    "quickthoughts",
    "Logeswaran and Lee 2018, QuickThoughts",
    "section 3: two encoders avoid the trivial solution of one; words, without numbers",
    (_DEV, "transfer"),
    (
        Row("two encoders", training=_quickthoughts("copy")),
        Row("one encoder", training=_quickthoughts("same")),
    ),
    (Claim("two encoders", "one encoder", _DEV), Claim("two encoders", "one encoder", "transfer")),
)


def _cert(data: str) -> Training:
    objective = {"name": "cert", "options": {"queue": 1024, "momentum": 0.99}}
    settings = {"train.objective": objective, "train.optimizer.name": "adamw", "encoder.pooling": "cls"}
    return Training("cert", data, settings)


CERT = Table(
    "cert",
    "Fang et al. 2020, CERT",
    "tables 3 and 5: momentum contrast of the task's texts before fine-tuning. Here vectors are frozen, with "
    "a logistic regression, and the models of back-translation are trained on captions",
    ("CR",),
    (
        Row("start", encoder={"pooling": "cls"}),
        Row("back-translation", training=_cert("reviews, back-translated")),
        Row("EDA", training=_cert("reviews, EDA")),
    ),
    (Claim("back-translation", "start", "CR"), Claim("back-translation", "EDA", "CR")),
)

TABLES = (METHODS, VIEWS, PSER, PSER_STS, PSER_QUESTIONS, QUICKTHOUGHTS, CERT)
