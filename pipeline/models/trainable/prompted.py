"""An encoder that reads a template's mask, with what the template alone says taken off or not, over a
backbone that it shares (Jiang et al. 2022, PromptBERT).
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

_ANY = 1 << 20  # tokens: more than any template has


class PromptedEncoder(TrainableEncoder):
    """`transform(h) - transform(h_hat)`, then a head: h is the mask's state, h_hat that of the template alone
    at the positions which the text leaves it.

    h_hat goes through the same pass, once for each template and length of text in it; in train() it has
    dropout of its own, and the gradient goes through it. In eval() it depends on the length alone: the folder
    that is saved of the encoder has a table of it.
    """

    def __init__(
        self,
        encoder: TrainableEncoder,
        template: str | None,
        *,
        limit: int,
        denoise: bool,
        transform: DenoiseTransform | None = None,
        head: DenseModule | None = None,
    ) -> None:
        """Over the backbone of `encoder`. template: None, that of its own folder. limit: tokens of a text.
        head: the layer that stays behind all of it.

        ModelError where the folder cannot have the template; ConfigError for a limit above what the folder's
        own is.
        """
        start = encoder.folder.tokenizer()
        folder = apply_template(encoder.folder, template, _checked(limit, start.room))
        super().__init__(replace(folder, dim=encoder.backbone.width), encoder.backbone, None, 0)
        self.frame, self.denoise, self.transform = template_frame(folder.tokenizer()), denoise, transform
        self._specials = (len(start.prefix), len(start.suffix))
        self.tail = nn.ModuleList(
            [module for module in (head, Normalize() if folder.normalize else None) if module is not None]
        )

    @property
    def limit(self) -> int:
        """Tokens of a text beside the template."""
        return self.folder.max_length - len(self.frame)

    def framed(self, tokens: Tokens, frame: TemplateFrame) -> Tokens:
        """The texts as the tokenizer of the encoder that this one was made of gives them, cut to the limit
        and put into a frame.
        """
        return frame.around(tokens, self._specials, limit=self.limit, cuts=self.folder.cuts)

    def frame_of(self, template: str) -> TemplateFrame:
        """Another template's frame."""
        return template_frame(replace(self.folder, template=template, max_length=_ANY).tokenizer())

    def forward(
        self, tokens: Tokens, *, positions: np.ndarray | None = None, at_embedding: AtEmbedding | None = None
    ) -> Tensor:
        """(n, dim) vectors of texts in a template of this length or another; positions and at_embedding as of
        any encoder.
        """
        if not self.denoise:
            return apply_tail(
                self.tail,
                self._read(self.pooled(tokens, positions=positions, at_embedding=at_embedding)),
                tokens.lengths,
            )
        alone, places, which = without_texts(tokens, positions)
        own = tokens.positions if positions is None else positions
        x = self._read(
            self.pooled(
                Tokens.joined([tokens, alone]),
                positions=np.concatenate([own, places]),
                at_embedding=at_embedding,
            )
        )
        taken = x[len(tokens) :][torch.from_numpy(which).to(x.device)]
        return apply_tail(self.tail, x[: len(tokens)] - taken, tokens.lengths)

    def denoising(self) -> DenoiseModule | None:
        """As a module of a folder: the transform and, for each length of text up to the limit, what is taken
        off. In eval(). None where nothing is.
        """
        if not self.denoise and self.transform is None:
            return None
        alone, places, _ = without_texts(self.frame.around(lengths_to(self.limit), (0, 0), limit=self.limit))
        modes = {module: module.training for module in self.modules()}
        with torch.no_grad():
            table = self.eval()._read(self.pooled(alone, positions=places)).float().cpu()
        for module, training in modes.items():
            module.training = training
        return DenoiseModule(
            self.transform, table if self.denoise else torch.zeros_like(table), len(self.frame)
        )

    def _read(self, x: Tensor) -> Tensor:
        return x if self.transform is None else self.transform(x)


def apply_template(folder: EncoderFolder, template: str | None, limit: int) -> EncoderFolder:
    """The folder with that template around texts of up to `limit` tokens, read at the mask.

    None: the template that it has.
    """
    if any(not isinstance(module, str) for module in folder.tail):
        raise ModelError(
            str(folder.path),
            "no layers behind the pooling of an encoder that is to read a template",
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
    whole = limit + len(template_frame(plain.tokenizer()))
    if whole > positions_of(folder.config):
        raise ModelError(
            str(folder.path),
            f"at most the {positions_of(folder.config)} positions of the model",
            f"{whole} with the template",
            "lower limit",
        )
    return replace(plain, max_length=whole, tail=("normalize",) if folder.normalize else ())


def transform_of(encoder: TrainableEncoder) -> DenoiseTransform:
    """The layer in front of the words of the folder's masked language model, or a new one where it has none;
    on the encoder's device.
    """
    head = load_language_head(encoder)
    made = DenoiseTransform(encoder.backbone.width, head.activation, head.norm.eps)
    made.dense, made.norm = head.dense, head.norm
    return made


def _checked(limit: int, room: int) -> int:
    if limit > room:
        found = f"{limit}, where encoder.max_length leaves room for {room}"
        raise ConfigError(
            "limit of the objective",
            "as many tokens of a text as the encoder reads, or fewer",
            found,
            "lower it, or raise encoder.max_length",
        )
    return limit
