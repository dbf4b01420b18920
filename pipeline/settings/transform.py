"""Settings of the transform of the vectors."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config import Settings


class FlowSettings(Settings):
    """The normalising flow of BERT-flow (Li et al. 2020): Glow on vectors, trained by maximum likelihood."""

    levels: Annotated[int, Field(ge=1)] = 2
    """after each level but the last, half of the dimensions are final; the dimension must be divisible by
    2^levels"""
    depth: Annotated[int, Field(ge=1)] = 3
    """steps of a level: actnorm, permutation, additive coupling"""
    width: Annotated[int, Field(ge=1)] = 32
    """hidden units of a coupling's network"""
    permutation: Literal["reverse", "random"] = "reverse"
    """of the dimensions before each coupling: turned round, or drawn once by seed"""
    epochs: Annotated[float, Field(gt=0)] = 1.0
    """passes over the vectors; a part of one is allowed"""
    batch_rows: Annotated[int, Field(ge=2)] = 32
    """vectors of one training step"""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """of AdamW, constant"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """of AdamW, on the matrices of couplings alone; locations and scales are left as learned"""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """largest norm of the gradient"""
    checkpoint_steps: Annotated[int, Field(ge=1)] = 1_000
    """steps between two checkpoints: what a killed training repeats at most"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """of the initial weights, the order of the vectors and a random permutation"""


class WhitenSettings(Settings):
    """The transform of the published index, whitening (Su et al. 2021) unless another is named; stored
    vectors stay raw.
    """

    mode: Literal["auto", "on", "off"] = "auto"
    """auto compares raw and transformed, and transforms only where that is not worse"""
    transform: str = "whitening"
    """whitening, standardize (zero mean, unit variance per dimension), components (all-but-the-top; SIF's
    with `centred: false`) or flow; several in a row joined by +, such as standardize+components. A flow is no
    linear map and serves `manta whiten` and `manta evaluate` only, not the index"""
    k: Annotated[int, Field(ge=1)] | Literal["dev", "likelihood"] | None = None
    """components whitening keeps; null: all of the covariance's rank; dev: best on `dev`; likelihood: best
    for rows held out (probabilistic PCA)"""
    rotation: Literal["pca", "zca"] = "pca"
    """zca turns whitened vectors back to the old axes: equal cosines where nothing is cut off"""
    shrinkage: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = 0.0
    """how far the covariance is drawn to a multiple of the identity before it is inverted; auto: oracle
    approximating shrinkage (Chen et al. 2010)"""
    ridge: Annotated[float, Field(ge=0)] = 0.0
    """added to every eigenvalue, as a share of their mean: small directions are blown up less"""
    remove: Annotated[int, Field(ge=0)] | Literal["dev"] = 1
    """directions that `components` takes out; dev: best on `dev`"""
    centred: bool = True
    """whether `components` subtracts the mean and takes principal directions; false: the first singular
    vectors of the vectors as they are (SIF)"""
    dev: str | None = None
    """an STS file (sentence1, sentence2, score) for auto and for k and remove by dev; null: split-half
    retrieval on the corpus itself"""
    max_drift: Annotated[float, Field(gt=0)] = 0.1
    """the fit of an earlier night is kept until vectors have moved this far from those it was fitted on: 0.1
    is a tenth of a standard deviation, or 10 % of variance"""
    dev_texts: Annotated[int, Field(ge=10)] = 1_000
    """sampled texts of eight words or more for split-half retrieval"""
    write_vectors: bool = False
    """`manta whiten` also writes the transformed vectors as units"""
    flow: FlowSettings = FlowSettings()
