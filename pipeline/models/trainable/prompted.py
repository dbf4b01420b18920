"""Encoders whose vector is the state of a template's mask, with or without template denoising (PromptBERT:
Jiang et al. 2022).
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.averaging import Averages
from pipeline.models.folder.encoder_folder import MASKED, EncoderFolder
from pipeline.models.folder.folder import positions_of
from pipeline.models.layers.post_pooling import (
    DenoiseModule,
    DenoiseTransform,
    DenseModule,
    Normalize,
    apply_tail,
)
from pipeline.models.trainable.backbones import AtEmbedding
from pipeline.models.trainable.denoise import lengths_to, without_texts
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.mlm_head import load_language_head
from pipeline.text.tokens.templates import TemplateFrame, template_frame
from pipeline.text.tokens.tokens import Tokens

_ANY = 1 << 20  # tokens; more than any template has


class PromptedEncoder(TrainableEncoder):
    """`transform(h) - transform(h_hat)`, then a head: h is the state of the mask, h_hat that of the template
    without text, with the positions that its tokens have with the text.

    h_hat is computed in the same pass, once for each template and length of text; in train() it has dropout
    of its own, and a gradient. In eval() it depends on the length only, so a saved folder has a table of it.
    """

    def __init__(
        self,
        encoder: TrainableEncoder,
        template: str | None,
        *,
        limit: int | None,
        denoise: bool,
        readout: DenoiseTransform | DenseModule | None = None,
    ) -> None:
        """Share the backbone of `encoder`.

        Args:
            encoder: to take the folder and the backbone from.
            template: with [X] and [MASK]; None for that of the folder.
            limit: largest number of tokens of a text, without the template; None for as many as the folder
                reads, if its positions hold the template too.
            denoise: subtract the state of the template without text.
            readout: transform of the states before the difference, or a head for the vectors.

        Raises:
            ModelError: the folder cannot have the template.
            ConfigError: the limit is above that of the folder.
        """
        start = encoder.folder.tokenizer()
        if limit is not None and limit > start.room:
            raise ConfigError(
                "limit of the objective",
                "as many tokens of a text as the encoder reads, or fewer",
                f"{limit}, where encoder.max_length leaves room for {start.room}",
                "lower it, or raise encoder.max_length",
            )
        folder = apply_template(encoder.folder, template, limit)
        super().__init__(replace(folder, dim=encoder.backbone.width), encoder.backbone, None, 0)
        self.frame, self.denoise = template_frame(folder.tokenizer()), denoise
        self._specials = (len(start.prefix), len(start.suffix))
        self.transform = readout if isinstance(readout, DenoiseTransform) else None
        self.tail = nn.ModuleList([readout] if isinstance(readout, DenseModule) else [])
        if folder.normalize:
            self.tail.append(Normalize())

    @property
    def limit(self) -> int:
        """Largest number of tokens of a text, without the template."""
        return self.folder.max_length - len(self.frame)

    def framed(self, tokens: Tokens, frame: TemplateFrame) -> Tokens:
        """Truncate texts to the limit, and put them into a frame.

        `tokens` are those of the tokenizer of the encoder that this one was made from.
        """
        limit = min(self.limit, positions_of(self.folder.config) - len(frame))
        return frame.around(tokens, self._specials, limit=limit, cuts=self.folder.cuts)

    def frame_of(self, template: str) -> TemplateFrame:
        """Return the frame of another template."""
        return template_frame(replace(self.folder, template=template, max_length=_ANY).tokenizer())

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Encode texts in a template of this or another length: (n, dim) vectors.

        `positions` and `at_embedding` are those of `TrainableEncoder`.
        """
        if not self.denoise:
            x = self._read(self.pooled(tokens, positions=positions, at_embedding=at_embedding))
            return apply_tail(self.tail, x, tokens.lengths)
        alone, alone_positions, templates = without_texts(tokens, positions)
        own = tokens.positions if positions is None else positions
        joined, positions = Tokens.joined([tokens, alone]), np.concatenate([own, alone_positions])
        x = self._read(self.pooled(joined, positions=positions, at_embedding=at_embedding))
        subtracted = x[len(tokens) :][torch.from_numpy(templates).to(x.device)]
        return apply_tail(self.tail, x[: len(tokens)] - subtracted, tokens.lengths)

    def denoising(self) -> DenoiseModule | None:
        """Return the module of a folder: the transform, and the vector to subtract for each length of text.

        None without denoising and transform.
        """
        if not self.denoise and self.transform is None:
            return None
        alone, positions, _ = without_texts(
            self.frame.around(lengths_to(self.limit), (0, 0), limit=self.limit)
        )
        modes = {module: module.training for module in self.modules()}
        with torch.no_grad():
            table = self.eval()._read(self.pooled(alone, positions=positions)).float().cpu()
        for module, training in modes.items():
            module.training = training
        table = table if self.denoise else torch.zeros_like(table)
        return DenoiseModule(self.transform, table, len(self.frame))

    def _read(self, x: Tensor) -> Tensor:
        return x if self.transform is None else self.transform(x)


def apply_template(folder: EncoderFolder, template: str | None, limit: int | None) -> EncoderFolder:
    """Return the folder with the template around texts of at most `limit` tokens, and mask pooling.

    Args:
        folder: without layers after the pooling.
        template: None for that of the folder.
        limit: tokens of a text; None for as many as the folder reads, if its positions hold the template too.

    Raises:
        ModelError: the folder has layers after the pooling, or too few positions.
    """
    if any(not isinstance(module, str) for module in folder.tail):
        raise ModelError(
            str(folder.path),
            "an encoder without layers after the pooling, to read a template",
            "some",
            "start from another encoder",
        )
    plain = replace(
        folder,
        template=folder.template if template is None else template,
        pooling=MASKED,
        include_prompt=True,
        averages=Averages(),
        max_length=_ANY,
    )
    around, positions = len(template_frame(plain.tokenizer())), positions_of(folder.config)
    whole = min(folder.tokenizer().room + around, positions) if limit is None else limit + around
    if whole > positions:
        raise ModelError(
            str(folder.path),
            f"at most the {positions} positions of the model",
            f"{whole} with the template",
            "lower limit",
        )
    return replace(plain, max_length=whole, tail=("normalize",) if folder.normalize else ())


def transform_of(encoder: TrainableEncoder) -> DenoiseTransform:
    """Return the layer before the words of the folder's masked language model, or a new one if it has none.

    It is on the encoder's device.
    """
    head = load_language_head(encoder)
    made = DenoiseTransform(encoder.backbone.width, head.activation, head.norm.eps)
    made.dense, made.norm = head.dense, head.norm
    return made
