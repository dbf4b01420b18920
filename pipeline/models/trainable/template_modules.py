"""The mask of a template, and what is taken off its vectors, as modules of sentence-transformers.

This file lies in every encoder folder that reads a template's mask and is all that library needs: SentenceTransformer(folder, trust_remote_code=True). It imports
nothing of the program that wrote it. Templates are of PromptBERT (Jiang et al. 2022).
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
        """Components of its vectors."""
        return int(self.config.get("width") or self.config["word_embedding_dimension"])

    get_sentence_embedding_dimension = get_embedding_dimension

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Its config.json and, where it has any, its tensors."""
        (Path(output_path) / "config.json").write_text(
            json.dumps(self.config, indent=2) + "\n", encoding="utf-8"
        )
        if self.state_dict():
            save_file(self.state_dict(), Path(output_path) / "model.safetensors")

    @classmethod
    def load(cls, input_path: str) -> "_Configured":
        """As `save` left it."""
        made = cls(**json.loads((Path(input_path) / "config.json").read_text(encoding="utf-8")))
        weights = Path(input_path) / "model.safetensors"
        if weights.is_file():
            made.load_state_dict(load_file(weights))
        return made


class MaskPooling(_Configured):
    """The state of the template's own mask token: at a known place from a text's first token or, below 0, from its end, whatever the text spells out."""

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        real, mask = features["attention_mask"], int(self.config["mask"])
        first = real.argmax(dim=1)  # padding may stand on either side
        places = first + (mask if mask >= 0 else real.sum(dim=1) + mask)
        features["sentence_embedding"] = features["token_embeddings"][
            torch.arange(len(places), device=places.device), places
        ]
        return features


class Denoise(_Configured):
    """What the template alone gives, by a text's length, is taken off; both through the layer in front of a language model's words, where there is one."""

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
        x = features["sentence_embedding"]
        if self.transform is not None:
            x = self.transform["norm"](_ACTIVATIONS[self.config["activation"]](self.transform["dense"](x)))
        lengths = features["attention_mask"].sum(dim=1)
        features["sentence_embedding"] = x - self.get_buffer("table")[lengths - self.config["shortest"]]
        return features
