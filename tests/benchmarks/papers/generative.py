"""Claims of Hill et al. 2016: models that learn sentences from unlabelled text, against each other.

All of them read the same 135,070 captions, for as many steps as the cases of `learning_cases` have.
"""

from tests.benchmarks.papers.claim import Claim, Row, Table
from tests.benchmarks.papers.learning_cases import CASES

_DEV = "STSB-dev"

GENERATIVE = Table(
    "generative",
    "Hill et al. 2016, FastSent and SDAE",
    "tables 3 and 4: STS 2014, SICK and six transfer tasks; numbers are not at hand. The conclusion: sums of "
    "words are better for distances, sequential models for classifiers",
    (_DEV, "transfer"),
    (
        Row("FastSent", training=CASES["fastsent"]),
        Row("FastSent+AE", training=CASES["fastsent, autoencode"]),
        Row("word2vec, CBOW", training=CASES["word2vec, CBOW"]),
        Row("SDAE", training=CASES["sdae"]),
        Row("SAE", training=CASES["sdae, without noise"]),
        Row("Skip-Thought", training=CASES["skip-thought"]),
        Row("Paragraph Vector", training=CASES["paragraph-vector"]),
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
