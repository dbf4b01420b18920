"""Modules of sentence-transformers for encoders that pool the mask token of a template (PromptBERT).

Jiang et al. 2022. Every folder of such an encoder has a copy of this file, which imports nothing of the
project that wrote it: SentenceTransformer(folder, trust_remote_code=True) loads the folder.
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


class _ConfiguredModule(nn.Module):
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
    def load(cls, input_path: str) -> "_ConfiguredModule":
        """Load a module that `save` wrote."""
        module = cls(**json.loads((Path(input_path) / "config.json").read_text(encoding="utf-8")))
        weights = Path(input_path) / "model.safetensors"
        if weights.is_file():
            module.load_state_dict(load_file(weights))
        return module


class MaskPooling(_ConfiguredModule):
    """Pooling to the hidden state of the template's mask token.

    `mask` in config.json is the index of that token: from a text's first token, or from its end if negative.
    It does not matter whether the text itself contains a mask token.
    """

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Set sentence_embedding (B, D) to the hidden state (B, T, D) at the template's mask."""
        attention_mask, mask = features["attention_mask"], int(self.config["mask"])
        first = attention_mask.argmax(dim=1)  # padding may be on either side
        indices = first + (mask if mask >= 0 else attention_mask.sum(dim=1) + mask)
        features["sentence_embedding"] = features["token_embeddings"][
            torch.arange(len(indices), device=indices.device), indices
        ]
        return features


class Denoise(_ConfiguredModule):
    """Subtract the vector of the template without a text, which depends on the number of tokens.

    Its config.json has:
        width: number of components of the vectors.
        activation: activation of the dense layer of a masked language model's head, which is applied to a
            text's vector first; None without such a layer. The vectors of the table are its outputs already.
        epsilon: epsilon of the LayerNorm after the dense layer.
        shortest: number of tokens, those of the template included, that the table's first row is for.
        longest: number of tokens that its last row is for.
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
        """Subtract the vector of the template from sentence_embedding (B, D)."""
        x = features["sentence_embedding"]
        if self.transform is not None:
            x = self.transform["norm"](_ACTIVATIONS[self.config["activation"]](self.transform["dense"](x)))
        lengths = features["attention_mask"].sum(dim=1)
        features["sentence_embedding"] = x - self.get_buffer("table")[lengths - self.config["shortest"]]
        return features
