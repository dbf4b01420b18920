"""Claims of PromptBERT (Jiang et al. 2022)."""

from typing import Any

from tests.benchmarks.papers.claim import Claim, Row, Table, Training, falling
from tests.benchmarks.papers.data import COUNTS
from tests.benchmarks.papers.simcse import UNSUPERVISED

_DEV = "STSB-dev"
_PAPER = "Jiang et al. 2022, PromptBERT"
_BEST = 'This sentence : "[X]" means [MASK].'
_TEMPLATES = {
    _BEST: 73.44,
    'This sentence of "[X]" means [MASK].': 70.19,
    "This sentence of [X] means [MASK].": 68.97,
    "This [X] means [MASK].": 64.19,
    "[X] means [MASK].": 63.56,
    "[X] mean [MASK].": 53.94,
    "[X] is [MASK].": 47.26,
    "[X] [MASK].": 39.34,
}


def _prompt(**options: Any) -> Training:
    objective = {"name": "prompt", "options": {"temperature": 0.05, "limit": None, **options}}
    return Training("promptbert-unsupervised", "wikipedia", {"train.objective": objective})


PROMPT = _prompt()

TEMPLATES = Table(
    "prompt-templates",
    _PAPER,
    "greedy search: untrained state of the mask token by template, STS-B dev; the number of mean pooling, "
    "which is lower than that of the best template, is not at hand",
    (_DEV,),
    (
        *(Row(name, (value,), encoder={"template": name}) for name, value in _TEMPLATES.items()),
        Row("mean of the last layer", encoder={"pooling": "mean"}),
    ),
    (*falling(_DEV, *_TEMPLATES), Claim(_BEST, "mean of the last layer", _DEV)),
)

LEARNED = Table(
    "prompt-learned",
    _PAPER,
    "table 3: the best template by hand, and the same with learned tokens (OptiPrompt), STS-B dev",
    (_DEV,),
    (
        Row("by hand", (73.44,), encoder={"template": _BEST}),
        Row("learned", (80.90,), Training("optiprompt", "wikipedia", rate=1e-3)),
    ),
    (Claim("learned", "by hand", _DEV),),
)

DENOISING = Table(
    "prompt-denoising",
    _PAPER,
    "unsupervised training, average of seven STS sets (here STS-B dev); the number without de-noising, which "
    "is lower, is not at hand",
    (_DEV,),
    (
        Row("with de-noising", (78.54,), PROMPT),
        Row("without de-noising", (None,), _prompt(denoise=False)),
        Row("SimCSE", (76.25,), UNSUPERVISED),
    ),
    (Claim("with de-noising", "without de-noising", _DEV), Claim("with de-noising", "SimCSE", _DEV)),
)


def _average(name: str, *exclude: str) -> Row:
    encoder = {"pooling": "table", "normalize": False, "exclude": list(exclude)}
    return Row(name, encoder=encoder | ({"frequencies": COUNTS} if "frequent" in exclude else {}))


TOKENS = Table(
    "prompt-token-bias",
    _PAPER,
    "table 1: averages of static token embeddings without biased tokens, STS; the paper gains 7 to 12 points",
    (_DEV, "STSB-test"),
    (
        _average("all tokens"),
        _average("without frequent", "frequent"),
        _average("without sub-words", "subword"),
        _average("without frequent, sub-words, punctuation", "frequent", "subword", "punctuation"),
    ),
    tuple(
        Claim(name, "all tokens", column)
        for column in (_DEV, "STSB-test")
        for name in ("without frequent", "without sub-words", "without frequent, sub-words, punctuation")
    ),
)

TABLES = (TEMPLATES, LEARNED, DENOISING, TOKENS)
