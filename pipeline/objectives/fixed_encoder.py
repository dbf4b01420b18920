"""A second encoder that a training reads and does not change: the teacher of a distillation, a guide."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from pipeline.models.folder.folder import open_folder
from pipeline.models.trainable.encoder import TrainableEncoder, load_trainable
from pipeline.objectives import Batch, View
from pipeline.settings import EncoderSettings
from pipeline.text.tokens.tokens import Tokenizer


class FixedEncoder:
    """Encoder of a folder, used without dropout and with its own tokenizer.

    It is not an `nn.Module`, so that it is not part of the state of an objective, nor trained with it.
    """

    encoder: TrainableEncoder

    def __init__(self, path: str) -> None:
        """Load the encoder of a folder.

        Raises:
            ModelError: it cannot be loaded.
        """
        self.encoder = load_trainable(open_folder(EncoderSettings(path=path)))
        self.encoder.eval().requires_grad_(False)
        self._tokenizer: Tokenizer | None = None  # loaded with the first batch, because it cannot be pickled

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tokenizer": None}

    def views(self, batch: Batch, roles: Sequence[str], trained: nn.Module) -> list[View]:
        """Return the views of the texts of some roles, on the device and in the precision of `trained`."""
        tokenize = self._tokenizer = self._tokenizer or self.encoder.folder.tokenizer()
        self.encoder.to(next(trained.parameters()))
        texts = ([str(text) for text in batch.column(role)] for role in roles)
        return [View(self.encoder, tokenize(column), grad=False) for column in texts]
