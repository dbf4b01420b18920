"""Encoders that pool the mask token of a template, with or without template denoising.

PromptBERT (Jiang et al. 2022).
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pipeline.errors import ConfigError, ModelError
from pipeline.models.folder.averaging import TokenAveraging
from pipeline.models.folder.encoder_folder import MASKED, EncoderFolder
from pipeline.models.folder.folder import positions_of
from pipeline.models.folder.modules import Normalization
from pipeline.models.layers.backbones import AtEmbedding
from pipeline.models.layers.post_pooling import (
    DenoiseModule,
    DenoiseTransform,
    DenseModule,
    Normalize,
    apply_tail,
)
from pipeline.models.trainable.encoder import TrainableEncoder
from pipeline.models.trainable.mlm_head import load_language_head
from pipeline.text.tokens.templates import TemplateFrame, template_frame
from pipeline.text.tokens.tokens import Tokens

_NO_LIMIT = 1 << 20  # tokens; more than any template has


class PromptedEncoder(TrainableEncoder):
    """Encoder of texts in a template: `transform(h) - transform(h_hat)`, then a head.

    h is the state of the mask token, h_hat its state in the template without the text, where the other tokens
    keep their positions. h_hat is computed in the same pass, once for each template and length of text. In
    train() h_hat has its own dropout, and a gradient. In eval() it depends only on the length, so a saved
    folder has a table of h_hat by length.
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
            encoder: encoder that gives the folder and the backbone.
            template: template with [X] and [MASK]; None: the folder's template.
            limit: largest number of tokens of a text, without the template; None: the folder's limit, or less
                if the model has too few positions for such a text and the template.
            denoise: subtract the state of the template without text.
            readout: transform of the states before the subtraction, or a head for the vectors.

        Raises:
            ModelError: the template does not fit the folder.
            ConfigError: the limit is above the folder's.
        """
        tokenizer = encoder.folder.tokenizer()
        if limit is not None and limit > tokenizer.max_text_tokens:
            raise ConfigError(
                "limit of the objective",
                "as many tokens of a text as the encoder reads, or fewer",
                f"{limit}, where encoder.max_length leaves room for {tokenizer.max_text_tokens}",
                "lower it, or raise encoder.max_length",
            )
        folder = apply_template(encoder.folder, template, limit)
        super().__init__(replace(folder, dim=encoder.backbone.width), encoder.backbone, None, 0)
        self.frame, self.denoise = template_frame(folder.tokenizer()), denoise
        self._special_counts = (len(tokenizer.prefix), len(tokenizer.suffix))
        self.transform = readout if isinstance(readout, DenoiseTransform) else None
        self.tail = nn.ModuleList([readout] if isinstance(readout, DenseModule) else [])
        if folder.normalize:
            self.tail.append(Normalize())

    @property
    def limit(self) -> int:
        """Largest number of tokens of a text, without the template."""
        return self.folder.max_length - len(self.frame)

    def put_into(self, tokens: Tokens, frame: TemplateFrame) -> Tokens:
        """Truncate texts to the limit, and put them into a frame.

        Args:
            tokens: texts as the tokenizer of the original encoder returns them.
            frame: tokens of a template.
        """
        limit = min(self.limit, positions_of(self.folder.config) - len(frame))
        return frame.apply(
            tokens, self._special_counts, limit=limit, truncation_side=self.folder.truncation_side
        )

    def frame_of(self, template: str) -> TemplateFrame:
        """Return the tokens of another template. Raises ModelError if it leaves no position for a text."""
        frame = template_frame(replace(self.folder, template=template, max_length=_NO_LIMIT).tokenizer())
        _check_room(self.folder, frame)
        return frame

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """Encode texts that are in this or another template: (n, dim) vectors.

        See `TrainableEncoder.forward` for the arguments.
        """
        if not self.denoise:
            x = self._transform_states(
                self.pool_states(tokens, positions=positions, at_embedding=at_embedding)
            )
            return apply_tail(self.tail, x, tokens.lengths)
        if positions is None:
            positions = tokens.positions
        templates = remove_texts(tokens, positions)
        pooled = self.pool_states(
            Tokens.joined([tokens, templates.tokens]),
            positions=np.concatenate([positions, templates.positions]),
            at_embedding=at_embedding,
        )
        h, h_hat = self._transform_states(pooled).split([len(tokens), len(templates.tokens)])
        x = h - h_hat[torch.from_numpy(templates.index_of_text).to(h.device)]
        return apply_tail(self.tail, x, tokens.lengths)

    def denoising(self) -> DenoiseModule | None:
        """Return the module to save: the transform, and the vector to subtract for each length of text.

        None if there is neither denoising nor a transform.
        """
        if not self.denoise and self.transform is None:
            return None
        templates = remove_texts(self.frame.apply(texts_up_to(self.limit), (0, 0), limit=self.limit))
        modes = {module: module.training for module in self.modules()}
        self.eval()
        with torch.no_grad():
            pooled = self.pool_states(templates.tokens, positions=templates.positions)
            table = self._transform_states(pooled).float().cpu()
        for module, training in modes.items():
            module.training = training
        table = table if self.denoise else torch.zeros_like(table)
        return DenoiseModule(self.transform, table, len(self.frame))

    def _transform_states(self, x: Tensor) -> Tensor:
        return x if self.transform is None else self.transform(x)


def apply_template(folder: EncoderFolder, template: str | None, limit: int | None) -> EncoderFolder:
    """Return the folder with the template around texts of at most `limit` tokens, and mask pooling.

    Args:
        folder: encoder's folder, without layers after the pooling.
        template: template with [X] and [MASK]; None: the folder's template.
        limit: tokens of a text; None: the folder's limit, or less if the model has too few positions.

    Raises:
        ModelError: the folder has layers after the pooling, or too few positions.
    """
    if any(module != Normalization() for module in folder.tail):
        raise ModelError(
            str(folder.path),
            "an encoder without layers after the pooling, for use with a template",
            "layers after the pooling",
            "start from another encoder",
        )
    plain = replace(
        folder,
        template=folder.template if template is None else template,
        pooling=MASKED,
        include_prompt=True,
        averaging=TokenAveraging(),
        max_length=_NO_LIMIT,
    )
    frame = template_frame(plain.tokenizer())
    _check_room(folder, frame)
    frame_length, positions = len(frame), positions_of(folder.config)
    if limit is None:
        max_length = min(folder.tokenizer().max_text_tokens + frame_length, positions)
    else:
        max_length = limit + frame_length
    if max_length > positions:
        raise ModelError(
            str(folder.path),
            f"at most the {positions} positions of the model",
            f"{max_length} with the template",
            "lower limit",
        )
    return replace(plain, max_length=max_length, tail=folder.tail[:1])


def transform_of(encoder: TrainableEncoder) -> DenoiseTransform:
    """Return the transform in the head of the folder's masked language model, or a new one if it has no head.

    The transform is on the encoder's device.
    """
    head = load_language_head(encoder)
    transform = DenoiseTransform(encoder.backbone.width, head.activation, head.norm.eps)
    transform.dense, transform.norm = head.dense, head.norm
    return transform


def _check_room(folder: EncoderFolder, frame: TemplateFrame) -> None:
    """Raise ModelError if a template leaves no position of the model for a text."""
    if len(frame) >= (positions := positions_of(folder.config)):
        raise ModelError(
            str(folder.path),
            f"a template of fewer tokens than the {positions} positions of the model",
            f"a template of {len(frame)} tokens",
            "use a shorter template",
        )


class EmptyTemplates(NamedTuple):
    """The different templates of some texts, without the texts."""

    tokens: Tokens
    positions: np.ndarray
    """(tokens,) positions that the tokens have with a text"""
    index_of_text: np.ndarray
    """(texts,) int64: index of the template of each text"""


def remove_texts(tokens: Tokens, positions: np.ndarray | None = None) -> EmptyTemplates:
    """Remove the texts from their templates.

    Every token keeps the position that it has with the text, so that templates of texts of different lengths
    differ.

    Args:
        tokens: texts in their templates.
        positions: (tokens,) position of each token; None: 0, 1, 2 ...
    """
    assert tokens.in_template is not None
    all_positions = tokens.positions if positions is None else positions
    in_template = np.flatnonzero(tokens.in_template)
    counts = np.bincount(tokens.owners[in_template], minlength=len(tokens))
    template_by_key: dict[bytes, int] = {}
    index_of_text: list[int] = []
    first_uses: list[np.ndarray] = []  # indices of the tokens of each different template
    for indices in np.split(in_template, np.cumsum(counts)[:-1]):
        key = tokens.ids[indices].tobytes() + all_positions[indices].tobytes()
        index_of_text.append(template_by_key.setdefault(key, len(template_by_key)))
        if len(template_by_key) > len(first_uses):
            first_uses.append(indices)
    chosen = np.concatenate(first_uses)
    templates = Tokens(
        ids=tokens.ids[chosen],
        offsets=np.cumsum([0, *map(len, first_uses)]),
        truncated=np.zeros(len(first_uses), bool),
        kept=None if tokens.kept is None else tokens.kept[chosen],
        in_template=np.ones(len(chosen), bool),
    )
    return EmptyTemplates(templates, all_positions[chosen], np.array(index_of_text, np.int64))


def texts_up_to(limit: int) -> Tokens:
    """Return one text of each length from 0 to `limit`, all of token 0."""
    offsets = np.cumsum([0, *range(limit + 1)])
    return Tokens(np.zeros(offsets[-1], np.int32), offsets, np.zeros(limit + 1, bool))
