"""Modules of sentence-transformers for encoders that read the mask token of a template (PromptBERT, Jiang et
al. 2022).

A copy of this file is stored in every folder of such an encoder. It imports nothing of the program that wrote
it, so that sentence-transformers alone can load the folder: SentenceTransformer(folder,
trust_remote_code=True).
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

_ACTIVATIONS = {
    "gelu": nn.functional.gelu,
    "gelu_new": lambda x: nn.functional.gelu(x, approximate="tanh"),
    "relu": nn.functional.relu,
}


class _Configured(nn.Module):
    """A module with a config.json."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        self.config = config

    def get_embedding_dimension(self) -> int:
        """Return the number of components of the vectors."""
        return int(self.config.get("width") or self.config["word_embedding_dimension"])

    get_sentence_embedding_dimension = get_embedding_dimension

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write config.json and, if the module has any, its tensors."""
        (Path(output_path) / "config.json").write_text(
            json.dumps(self.config, indent=2) + "\n", encoding="utf-8"
        )
        if self.state_dict():
            save_file(self.state_dict(), Path(output_path) / "model.safetensors")

    @classmethod
    def load(cls, input_path: str) -> "_Configured":
        """Load a module that `save` wrote."""
        made = cls(**json.loads((Path(input_path) / "config.json").read_text(encoding="utf-8")))
        weights = Path(input_path) / "model.safetensors"
        if weights.is_file():
            made.load_state_dict(load_file(weights))
        return made


class MaskPooling(_Configured):
    """Pooling to the hidden state of the template's mask token.

    The setting `mask` is the index of that token: from a text's first token, or from its end if negative. A
    text that spells out a mask token itself changes nothing.
    """

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Set sentence_embedding (B, D) to the hidden state (B, T, D) at the template's mask."""
        real, mask = features["attention_mask"], int(self.config["mask"])
        first = real.argmax(dim=1)  # padding may be on either side
        indices = first + (mask if mask >= 0 else real.sum(dim=1) + mask)
        features["sentence_embedding"] = features["token_embeddings"][
            torch.arange(len(indices), device=indices.device), indices
        ]
        return features


class Denoise(_Configured):
    """Subtraction of the vector that the template alone has at a text's length.

    If the folder has the dense layer of a masked language model's head, the vector goes through it first; the
    table was made through it too.
    """

    def __init__(
        self, width: int, activation: str | None, epsilon: float, shortest: int, longest: int
    ) -> None:
        super().__init__(
            width=width, activation=activation, epsilon=epsilon, shortest=shortest, longest=longest
        )
        self.register_buffer("table", torch.zeros(longest - shortest + 1, width))
        self.transform = (
            None
            if activation is None
            else nn.ModuleDict({"dense": nn.Linear(width, width), "norm": nn.LayerNorm(width, epsilon)})
        )

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Replace sentence_embedding (B, D) by itself minus the template's own vector."""
        x = features["sentence_embedding"]
        if self.transform is not None:
            x = self.transform["norm"](_ACTIVATIONS[self.config["activation"]](self.transform["dense"](x)))
        lengths = features["attention_mask"].sum(dim=1)
        features["sentence_embedding"] = x - self.get_buffer("table")[lengths - self.config["shortest"]]
        return features
