"""What a template says without any text is taken off what it says with one (template de-noising: Jiang et al.
2022, PromptBERT, section 4.3).
"""

import numpy as np
from torch import Tensor, nn

from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.modules import Denoising
from pipeline.models.layers.linear import ACTIVATIONS
from pipeline.models.layers.post_pooling import ByLength
from pipeline.models.layers.weights import open_weights
from pipeline.text.tokens.tokens import Tokens


class DenoiseTransform(nn.Module):
    """norm(activation(W h + b)), (n, d) for (n, d): what stands between a masked language model's states and
    its words.
    """

    def __init__(self, width: int, activation: str, epsilon: float) -> None:
        super().__init__()
        self.dense, self.norm, self.activation = (
            nn.Linear(width, width),
            nn.LayerNorm(width, epsilon),
            activation,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(ACTIVATIONS[self.activation](self.dense(x)))


class DenoiseModule(ByLength, nn.Module):
    """`transform(x)` less the table's row for each text's length."""

    table: Tensor

    def __init__(self, transform: DenoiseTransform | None, table: Tensor, shortest: int) -> None:
        """table (lengths, d), whose first row is for texts of `shortest` tokens; what it was made from may
        move on, it stays.
        """
        super().__init__()
        self.transform, self.shortest = transform, shortest
        self.register_buffer("table", table)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """(n, d) for (n, d) of texts of so many tokens."""
        return (x if self.transform is None else self.transform(x)) - self.table[lengths - self.shortest]

    def described(self, weights: str = "") -> Denoising:
        """What its folder's config.json says."""
        width, transform = self.table.shape[1], self.transform
        return Denoising(
            weights,
            width,
            None if transform is None else transform.activation,
            0.0 if transform is None else transform.norm.eps,
            self.shortest,
        )


def load_denoise_module(folder: EncoderFolder, described: Denoising) -> DenoiseModule:
    """A Denoise module of the folder. ModelError for weights that do not fit."""
    weights, width = open_weights(folder.file(described.weights)), described.width
    transform = (
        None
        if described.activation is None
        else DenoiseTransform(width, described.activation, described.epsilon)
    )
    if transform is not None:
        names = {
            f"{part}.{kind}": (width, width) if (part, kind) == ("dense", "weight") else (width,)
            for part in ("dense", "norm")
            for kind in ("weight", "bias")
        }
        transform.load_state_dict(
            {name: weights.tensor(f"transform.{name}", shape) for name, shape in names.items()}
        )
    return DenoiseModule(transform, weights.tensor("table"), described.shortest)


def without_texts(
    tokens: Tokens, positions: np.ndarray | None = None
) -> tuple[Tokens, np.ndarray, np.ndarray]:
    """(each template that `tokens` have, without text, once for each length of text; positions of its tokens;
    (n,) which of them belongs to each text).

    Every token keeps the position that it has behind the text: the template alone knows how long the text
    was.
    """
    assert tokens.around is not None
    own = inside(tokens) if positions is None else positions
    owners = np.repeat(np.arange(len(tokens)), tokens.lengths)
    counts = np.bincount(owners[tokens.around], minlength=len(tokens))
    ends = np.cumsum(counts)
    ids, places = tokens.ids[tokens.around], own[tokens.around]
    first: dict[bytes, int] = {}
    keys = [
        ids[end - count : end].tobytes() + places[end - count : end].tobytes()
        for count, end in zip(counts.tolist(), ends.tolist(), strict=True)
    ]
    which = np.array([first.setdefault(key, len(first)) for key in keys], np.int64)
    rows = np.unique(which, return_index=True)[1]
    alone = tokens.of_rows(rows)
    assert alone.around is not None
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[rows])])
    kept = None if alone.kept is None else alone.kept[alone.around]
    bare = Tokens(
        alone.ids[alone.around], offsets, np.zeros(len(rows), bool), kept, np.ones(offsets[-1], bool)
    )
    return bare, np.concatenate([places[ends[row] - counts[row] : ends[row]] for row in rows]), which


def inside(tokens: Tokens) -> np.ndarray:
    """(tokens,) place of each in its own text."""
    return np.arange(len(tokens.ids)) - np.repeat(tokens.offsets[:-1], tokens.lengths)


def lengths_to(limit: int) -> Tokens:
    """A text of each length from 0 to `limit`, of one token over and over."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.arange(limit + 1))])
    return Tokens(np.zeros(offsets[-1], np.int32), offsets, np.zeros(limit + 1, bool))
