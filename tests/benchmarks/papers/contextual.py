"""Claims about the layers of BERT (Ethayarajh 2019)."""

from tests.benchmarks.papers.claim import Claim, Row, Table

_COSINE, _SELF = "word cosine", "self-similarity, adjusted"
_INTRA, _EXPLAINED = "intra-sentence similarity, adjusted", "explained variance, adjusted"
_LAYERS = 4  # of the common start; layer 0 is the output of the embedding layer

LAYERS = Table(
    "layers",
    "Ethayarajh 2019, contextuality",
    "figures 1 to 4: charts of BERT's twelve layers, without numbers; explained variance as in the published "
    "program",
    (_COSINE, _SELF, _INTRA, _EXPLAINED),
    tuple(Row(f"layer {number}", layer=number) for number in range(_LAYERS + 1)),
    (
        *(Claim(f"layer {number + 1}", f"layer {number}", _COSINE) for number in range(_LAYERS)),
        *(Claim(f"layer {number}", f"layer {number + 1}", _SELF) for number in range(_LAYERS)),
        Claim(f"layer {_LAYERS}", "layer 0", _INTRA),
    ),
)

TABLES = (LAYERS,)
