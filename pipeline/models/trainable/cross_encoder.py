"""Score pairs of texts with a cross-encoder: one logit for two texts that are read as one sequence."""

from collections.abc import Sequence

import numpy as np
import torch

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.layers.post_pooling import mlp_name
from pipeline.models.layers.weights import open_checkpoint
from pipeline.models.trainable.classifier import classifier_name, pooler_of
from pipeline.models.trainable.encoder import load_trainable
from pipeline.text.tokens.budget import plan_buffers
from pipeline.text.tokens.pairs import PairFormat

_MAX_TOKENS = {"cpu": 1_024, "cuda": 32_768}  # tokens of one forward pass, as in encoding; by type of device


class CrossEncoder:
    """BERT, RoBERTa or MPNet with a linear layer of one output over the layer after [CLS]."""

    def __init__(self, folder: EncoderFolder, device: torch.device) -> None:
        """Load encoder and layer.

        Args:
            folder: folder of a model for sequence classification, with the pooling cls_mlp.
            device: device of the forward pass.

        Raises:
            ModelError: the folder is of another model, has no such layers, or has several outputs.
        """
        encoder, weights = load_trainable(folder), open_checkpoint(folder)
        name = classifier_name(folder.family)
        found = f"{'+'.join(folder.pooling)} of {folder.config.get('model_type')}"
        if pooler_of(encoder) is None or name is None or folder.prompt:
            raise _not_one_score(folder, f"{found}, with a prompt" if folder.prompt else found)
        if mlp_name(weights) is None or f"{name}.weight" not in weights:
            raise _not_one_score(folder, f"weights without {name}.weight or the layer before it")
        outputs = len(weights.tensor(f"{name}.weight"))
        if outputs != 1:
            raise _not_one_score(folder, f"{outputs} outputs")
        self._layer = torch.nn.Linear(encoder.dim, 1)
        weights.fill(self._layer, f"{name}.")
        self._encoder, self._layer = encoder.eval().to(device), self._layer.to(device)
        self._max_length, self._budget = folder.max_length, max(_MAX_TOKENS[device.type], folder.max_length)
        self._tokenizer = folder.tokenizer()
        self._format = PairFormat.load(folder.transformer_path, self._tokenizer, folder.config)

    @torch.inference_mode()
    def scores(self, left: Sequence[str], right: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Score n pairs of texts.

        Returns:
            (n,) float32 logits, to which no activation is applied; and (n,) bool, True for a pair that is
            longer than the model reads, so that its longer text lost its end.

        Raises:
            ModelError: a logit is not finite.
        """
        if not left:
            return np.zeros(0, np.float32), np.zeros(0, bool)
        tokens = self._format.join(self._tokenizer(left), self._tokenizer(right))
        logits = np.zeros(len(left), np.float32)
        for rows in plan_buffers(tokens.lengths, self._budget):
            vectors = self._encoder(tokens.of_rows(rows))
            logits[rows] = self._layer(vectors)[:, 0].float().cpu().numpy()
        if not np.isfinite(logits).all():
            first = int(np.argmin(np.isfinite(logits)))
            raise ModelError(
                "scores of the cross-encoder",
                "finite numbers",
                f"{logits[first]} for {left[first][:80]!r} and {right[first][:80]!r}",
                "use another cross-encoder",
            )
        return logits, tokens.truncated


def _not_one_score(folder: EncoderFolder, found: str) -> ModelError:
    """Return the error for a folder that is not a cross-encoder with one score."""
    return ModelError(
        str(folder.path),
        "a cross-encoder with one score: BERT, RoBERTa or MPNet for sequence classification, no prompt",
        found,
        "name such a folder in encoder.path; manta train --config train/cross-encoder makes one",
    )
