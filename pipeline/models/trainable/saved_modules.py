"""Contents of the folders of the modules after the transformer, as sentence-transformers reads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pipeline.models.folder.modules import Dense
from pipeline.models.layers.post_pooling import DenseModule, TruncationModule
from pipeline.models.layers.weights import open_files
from pipeline.models.spec.pooling import POOLINGS, ST_FLAGS
from pipeline.models.trainable.classifier import Classifier, with_classifier
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.mlm_head import LanguageHead, can_be_saved, with_language_head


class SavedHeads(NamedTuple):
    """Heads of an encoder. None: there is no such head."""

    head: DenseModule | None = None
    """head of an objective to add as the last Dense module"""
    language_head: LanguageHead | None = None
    """head for masked words, which AutoModelForMaskedLM of transformers finds in the folder. It is left out
    if its names are not known (`mlm_head.can_be_saved`), or if the template has new words"""
    classifier: Classifier | None = None
    """classifier, which AutoModelForSequenceClassification of transformers finds in the folder. The encoder
    must have the vector of `classifier.pooler_of`. If it reads pairs, the folder is a cross-encoder of
    sentence-transformers instead of an encoder"""

    @property
    def is_cross_encoder(self) -> bool:
        """True if the encoder reads pairs of texts."""
        return self.classifier is not None and self.classifier.reads_pairs

    def named(self, encoder: TrainableEncoder, file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return language head and classifier with the encoder's weights, named as transformers names them.

        Args:
            encoder: the encoder.
            file: the weights of the encoder alone.

        Returns:
            All tensors, and the changes of config.json; both empty if there is neither head.
        """
        language_head = self.language_head if can_be_saved(encoder.folder) else None
        if language_head is None and self.classifier is None:
            return {}, {}
        written = open_files(str(file), [file])
        tensors = {name: written.raw(name) for name in written.names}
        named: dict[str, Tensor] = {}
        changed: dict[str, Any] = {}
        if language_head is not None:
            named |= with_language_head(tensors, language_head, encoder.folder)
            changed["tie_word_embeddings"] = language_head.table is None
        if self.classifier is not None:
            named |= with_classifier(tensors, self.classifier, encoder)
            changed |= self.classifier.config(str(encoder.folder.config["model_type"]))
        return named, changed


def pooling_config(pooling: Sequence[str], width: int, include_prompt: bool) -> dict[str, Any]:
    """Return the config.json of the pooling.

    It has a flag for each pooling, which servers and every version of sentence-transformers read. If a
    pooling has no flag, or their order is not that of the flags, it has a list of poolings instead.
    """
    config: dict[str, Any] = {"word_embedding_dimension": width, "include_prompt": include_prompt}
    if list(pooling) == [name for name in ST_FLAGS.values() if name in pooling]:
        return config | {flag: name in pooling for flag, name in ST_FLAGS.items()}
    return config | {"pooling_mode": [POOLINGS[name].st_name or name for name in pooling]}


def without_truncations(layers: Sequence[nn.Module], width: int) -> tuple[list[nn.Module], int | None]:
    """Replace truncations, for which sentence-transformers has no module.

    A truncation at the end becomes truncate_dim, which that library applies last; one before another layer
    becomes a Dense module whose matrix selects the first components, so that values stay the same.

    Args:
        layers: layers after the pooling, in order.
        width: dimension of the pooled vectors.

    Returns:
        The layers, and truncate_dim or None.
    """
    portable: list[nn.Module] = []
    for layer in layers:
        if isinstance(layer, TruncationModule):
            portable.append(_selection(width, layer.width))
            width = layer.width
        else:
            portable.append(layer)
            width = layer.config.out_features if isinstance(layer, DenseModule) else width
    is_last = bool(layers) and isinstance(layers[-1], TruncationModule)
    return (portable[:-1], width) if is_last else (portable, None)


def _selection(width: int, kept: int) -> DenseModule:
    """Return a layer that keeps the first `kept` components of vectors (n, width)."""
    dense = DenseModule(Dense("", width, kept, bias=False, activation="Identity", residual=False))
    dense.linear.weight = nn.Parameter(torch.eye(kept, width))
    return dense
