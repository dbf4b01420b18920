"""Settings of the transform of the vectors."""

from typing import Annotated, Literal

from pydantic import Field

from pipeline.config import Settings


class FlowSettings(Settings):
    """The normalising flow of BERT-flow (Li et al. 2020): Glow on vectors, trained by maximum likelihood."""

    levels: Annotated[int, Field(ge=1)] = 2
    """number of levels. After each but the last, half of the dimensions are final, so the dimension must be
    divisible by 2^levels"""
    depth: Annotated[int, Field(ge=1)] = 3
    """number of steps of a level, each an actnorm, a permutation and an additive coupling"""
    width: Annotated[int, Field(ge=1)] = 32
    """hidden units of a coupling's network"""
    permutation: Literal["reverse", "random"] = "random"
    """order of the dimensions before each coupling. random: drawn once by seed, as in the paper; reverse: as
    in its published program"""
    epochs: Annotated[float, Field(gt=0)] = 1.0
    """passes over the vectors; may be a fraction"""
    batch_rows: Annotated[int, Field(ge=2)] = 32
    """vectors of one training step"""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """learning rate of Adam, constant"""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """decoupled weight decay of the couplings' matrices, as in AdamW; the paper's Adam has none"""
    clip: Annotated[float, Field(gt=0)] = 1.0
    """largest norm of the gradient"""
    checkpoint_steps: Annotated[int, Field(ge=1)] = 1_000
    """steps between two checkpoints: a killed training repeats at most this number of steps"""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """seed of the initial weights, the order of the vectors and a random permutation"""


class WhitenSettings(Settings):
    """The transform of the published index: by default whitening (Su et al. 2021). Stored vectors are raw."""

    mode: Literal["auto", "on", "off"] = "auto"
    """auto compares raw and transformed vectors, and uses the transform unless it is worse"""
    transform: str = "whitening"
    """whitening, standardize (zero mean, unit variance per dimension), components (all-but-the-top, or SIF
    with `centred: false`) or flow; joined by + to apply several, such as standardize+components. A flow is
    not linear: only `manta whiten` and `manta evaluate` can use it, not the index"""
    k: Annotated[int, Field(ge=1)] | Literal["dev", "likelihood"] | None = None
    """number of components that whitening keeps; null: the rank of the covariance; dev: the best on `dev`;
    likelihood: the most likely for held-out rows (probabilistic PCA)"""
    rotation: Literal["pca", "zca"] = "pca"
    """zca rotates whitened vectors back to the original axes, which leaves cosines equal if all components
    are kept"""
    shrinkage: Annotated[float, Field(ge=0, le=1)] | Literal["auto"] = 0.0
    """weight of a multiple of the identity that is mixed into the covariance before it is inverted; auto:
    oracle approximating shrinkage (Chen et al. 2010)"""
    ridge: Annotated[float, Field(ge=0)] = 0.0
    """number that is added to every eigenvalue, as a proportion of their mean, so that directions of small
    variance are scaled up less"""
    remove: Annotated[int, Field(ge=0)] | Literal["dev"] = 1
    """number of directions that `components` removes; dev: the best on `dev`"""
    centred: bool = True
    """whether `components` subtracts the mean and removes principal directions; false: it removes the first
    singular vectors of the uncentred vectors (SIF)"""
    dev: str | None = None
    """an STS file (sentence1, sentence2, score), used by `mode: auto`, `k: dev` and `remove: dev`; null:
    split-half retrieval on texts of the corpus"""
    max_drift: Annotated[float, Field(gt=0)] = 0.1
    """drift of the vectors since the transform was fitted, up to which nights keep the fit: 0.1 means that
    the mean moved by a tenth of a standard deviation, or that variances changed by 10 %"""
    dev_texts: Annotated[int, Field(ge=10)] = 1_000
    """number of texts of eight words or more that are sampled for split-half retrieval"""
    write_vectors: bool = False
    """whether `manta whiten` also writes the transformed vectors as units"""
    flow: FlowSettings = FlowSettings()
