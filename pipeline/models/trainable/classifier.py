"""Classifiers over BERT's pooler, saved under the names of transformers' models for sequence classification.

Encoder and classifier are BERT's model for fine-tuning (Devlin et al. 2019, section 4.1):
logits = A tanh(W h + b) + c for the state h of [CLS].
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from pipeline.models.folder.cross_encoder import LIBRARY
from pipeline.models.layers.post_pooling import DenseModule
from pipeline.models.trainable.encoder import TrainableEncoder


class _Names(NamedTuple):
    """Names of the two layers of a family's model."""

    pooler: str
    classifier: str


_HEAD = _Names("classifier.dense", "classifier.out_proj")
_NAMES = {"bert": _Names("bert.pooler.dense", "classifier"), "roberta": _HEAD, "mpnet": _HEAD}
_ARCHITECTURES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "camembert": "Camembert",
    "mpnet": "MPNet",
}
"""beginning of the name of a class of transformers, by model_type"""


@dataclass(frozen=True, eq=False)
class Classifier:
    """Linear layer from the encoder's vectors to logits, or to one score."""

    layer: nn.Linear
    """the layer, (n, dim) -> (n, classes) or (n, 1)"""
    reads_pairs: bool
    """True if the encoder was trained on pairs of texts as one sequence"""
    regresses: bool
    """True if the only output is a score"""

    def config(self, model_type: str) -> dict[str, Any]:
        """Return the keys of config.json that describe the classifier."""
        labels = [f"LABEL_{number}" for number in range(self.layer.out_features)]
        return {
            "id2label": {str(number): label for number, label in enumerate(labels)},
            "label2id": {label: number for number, label in enumerate(labels)},
            "problem_type": "regression" if self.regresses else "single_label_classification",
            **(self._pair_config(model_type) if self.reads_pairs else {}),
        }

    def _pair_config(self, model_type: str) -> dict[str, Any]:
        """Return the keys of config.json that only cross-encoders have."""
        return {
            "architectures": [f"{_ARCHITECTURES[model_type]}ForSequenceClassification"],
            LIBRARY: {"activation_fn": "torch.nn.modules.linear.Identity"},  # scores are the logits
        }


def classifier_name(family: str) -> str | None:
    """Return the name that transformers gives to the layer of the logits; None if it has none."""
    return _NAMES[family].classifier if family in _NAMES else None


def pooler_of(encoder: TrainableEncoder) -> DenseModule | None:
    """Return the layer tanh(W h + b) over the first token's state, if that is the encoder's vector.

    It is the layer of the pooling cls_mlp, or the only module after the pooling cls. None if the
    encoder's vector is computed otherwise, or if transformers has another classifier for the family.
    """
    folder = encoder.folder
    if folder.family not in _NAMES:
        return None
    if folder.pooling == ("cls_mlp",) and not encoder.tail:
        return encoder.mlp
    if folder.pooling != ("cls",) or len(encoder.tail) != 1:
        return None
    layer = encoder.tail[0]
    is_pooler = (
        isinstance(layer, DenseModule)
        and layer.config.activation == "Tanh"
        and layer.config.bias
        and not layer.config.residual
        and layer.linear.in_features == layer.linear.out_features
    )
    return layer if is_pooler and isinstance(layer, DenseModule) else None


def with_classifier(
    tensors: Mapping[str, Tensor], classifier: Classifier, encoder: TrainableEncoder
) -> dict[str, Tensor]:
    """Return the tensors of a model for sequence classification, as transformers names them.

    Args:
        tensors: tensors of the encoder, by names without prefix. A pooler among them is left out.
        classifier: the classifier of the encoder's vectors.
        encoder: the encoder, for which `pooler_of` must return a layer.
    """
    pooler, family = pooler_of(encoder), encoder.folder.family
    assert pooler is not None, "such encoders only are given a classifier"
    named = {f"{family}.{name}": each for name, each in tensors.items() if not name.startswith("pooler.")}
    for layer, name in zip((pooler.linear, classifier.layer), _NAMES[family], strict=True):
        named |= {f"{name}.{part}": value for part, value in layer.named_parameters()}
    return named
