"""Layers after an encoder that are saved in its folder."""

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from pipeline.models.layers.post_pooling import DenseModule
from pipeline.models.layers.weights import open_files
from pipeline.models.trainable.classifier import Classifier, with_classifier
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.mlm_head import LanguageHead, can_be_saved, with_language_head


class SavedHeads(NamedTuple):
    """Heads of an encoder. None: there is no such head.

    Attributes:
        head: head of an objective to add as the last Dense module.
        language_head: head for masked words, which AutoModelForMaskedLM of transformers finds in the folder.
            It is left out if its names are not known (`mlm_head.can_be_saved`), or if the template has new
            words.
        classifier: classifier, which AutoModelForSequenceClassification of transformers finds in the folder.
            The encoder must have the vector of `classifier.pooler_of`. If it reads pairs, the folder is a
            cross-encoder of sentence-transformers instead of an encoder.
    """

    head: DenseModule | None = None
    language_head: LanguageHead | None = None
    classifier: Classifier | None = None

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
