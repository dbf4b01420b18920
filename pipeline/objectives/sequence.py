"""Base class of fine-tuning on labels (Devlin et al. 2019): a linear layer over the encoder's vector."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch.nn.functional as F
from pydantic import JsonValue
from torch import Tensor, nn

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.modules import Dense
from pipeline.models.layers.post_pooling import draw_weights
from pipeline.models.trainable.classifier import Classifier, pooler_of
from pipeline.objectives import Batch, PredictsRows, Roles, TrainedModel, View
from pipeline.text.tokens.pairs import PairFormat
from pipeline.text.tokens.tokens import Tokens


class FineTuning(PredictsRows):
    """A new linear layer over the encoder's vector of a text, or of two texts that are read together.

    With the pooling cls_mlp this is the model of BERT's fine-tuning: tanh(W h + b) of the state of [CLS],
    then dropout, then the layer. The layer is saved with the encoder.
    """

    min_rows = 1
    target: str
    """role of the column of labels or scores"""
    regresses = False
    """True if the layer has one output, a score"""

    def __init__(self, encoder: nn.Module, *, outputs: int, pairs: bool, dropout: float | None) -> None:
        """Draw the layer.

        Args:
            encoder: encoder from a folder.
            outputs: number of outputs of the layer.
            pairs: read sentence1 and sentence2 as one sequence; False: read text.
            dropout: rate of dropout of the vectors; None for the rate on the encoder's hidden states.

        Raises:
            ModelError: no library could load the result, because an encoder of pairs does not have the
                pooling cls_mlp, is of a family with another classifier, or has a prompt; or the encoder would
                have the layer of cls_mlp twice.
        """
        super().__init__(encoder)
        _check_single_pooler(self.encoder.folder)
        self.columns = self.roles({"pairs": pairs}).required
        self.dropout = self.encoder.backbone.hidden_dropout if dropout is None else dropout
        self.layer = draw_weights(nn.Linear(self.dim, outputs))
        self.pair_format: PairFormat | None = None
        if not pairs:
            return
        folder = self.encoder.folder
        if pooler_of(self.encoder) is None or folder.prompt:
            raise ModelError(
                "encoder.pooling",
                "cls_mlp of BERT, RoBERTa or MPNet, no module after it and no prompt, to read pairs of texts",
                _vector_name(folder) + (f" with the prompt {folder.prompt!r}" if folder.prompt else ""),
                "set encoder.pooling=cls_mlp encoder.normalize=false, or use another encoder",
            )
        self.pair_format = PairFormat.load(folder.transformer_path, folder.tokenizer(), folder.config)

    @classmethod
    def roles(cls, options: Mapping[str, JsonValue]) -> Roles:
        texts = ("sentence1", "sentence2") if options.get("pairs") else ("text",)
        return Roles((*texts, cls.target))

    def views(self, batch: Batch) -> Sequence[View]:
        return [View(self.encoder, self.prediction_tokens(batch))]

    def prediction_tokens(self, batch: Batch) -> Tokens:
        if self.pair_format is None:
            return batch.tokens("text")
        left, right = batch.tokens("sentence1"), batch.tokens("sentence2")
        return self.pair_format.join(left, right, batch.max_length)

    def outputs(self, vectors: Tensor) -> Tensor:
        """Apply the layer to vectors (n, dim): (n, outputs). In training mode, dropout comes first."""
        return cast(Tensor, self.layer(F.dropout(vectors, self.dropout, self.training)))

    def trained_model(self) -> TrainedModel:
        if pooler_of(self.encoder) is None:
            return TrainedModel(self.encoder)
        reads_pairs = self.pair_format is not None
        return TrainedModel(self.encoder, classifier=Classifier(self.layer, reads_pairs, self.regresses))

    def warnings(self) -> list[str]:
        if pooler_of(self.encoder) is not None:
            return []
        return [
            "the trained encoder is saved without its classifier, because transformers has no name for one "
            f"over {_vector_name(self.encoder.folder)}; the pooling cls_mlp of BERT, RoBERTa and MPNet has "
            "one, with encoder.normalize=false"
        ]


def _vector_name(folder: EncoderFolder) -> str:
    """Describe the encoder's vector: its pooling, the modules after the pooling, and the kind of model."""
    modules = "".join(f" and {type(module).__name__}" for module in folder.tail)
    return f"{'+'.join(folder.pooling)}{modules} of {folder.config.get('model_type')}"


def _check_single_pooler(folder: EncoderFolder) -> None:
    """Raise ModelError if cls_mlp is set for a folder that already has this layer after the pooling."""
    if folder.pooling == ("cls_mlp",) and any(isinstance(module, Dense) for module in folder.tail):
        raise ModelError(
            "encoder.pooling",
            f"null, because {folder.path} has the layer of cls_mlp as a module after the pooling",
            "cls_mlp, which adds a second one",
            "set encoder.pooling=null",
        )
