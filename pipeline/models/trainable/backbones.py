"""Forward passes that can be trained, under the checkpoint's own parameter names: packed where the family is
known, else padded through transformers.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pipeline.errors import ModelError
from pipeline.models.folder.encoder_folder import PACKED_FAMILIES, EncoderFolder
from pipeline.models.inference.padded import encoder_of, hidden_states, load_model
from pipeline.models.layers.attention import Block, attend_blocks, blocks_of, relative_bias
from pipeline.models.layers.linear import ACTIVATIONS, TrainableLinear
from pipeline.models.layers.pooling import TABLE_STATE, Segments, segments
from pipeline.models.layers.shape import Shape, shape_of
from pipeline.models.layers.transfer import to_device
from pipeline.models.layers.weights import NAMES, Checkpoint, Names
from pipeline.text.tokens.budget import longest_first
from pipeline.text.tokens.tokens import Tokens

AtEmbedding = Callable[[Tensor, Segments], Tensor]
"""(H[0] (tokens, d), where the tokens of each text lie in it, prompt and special tokens included) -> what the
first layer gets instead, of that shape. Only rows that the segments name count."""


@dataclass(frozen=True)
class ForwardRequest:
    """What one forward pass is to give."""

    tokens: Tokens
    """texts of at least one token each"""
    wanted: set[int]
    """numbers of hidden states, as of `pool`"""
    skip: int = 0
    """leading tokens of each text that are not pooled"""
    positions: np.ndarray | None = None
    """(tokens,) place that each token believes to have in its text, from 0; None: the one it has"""
    at_embedding: AtEmbedding | None = None


@dataclass(frozen=True)
class Rates:
    """Dropout rates by place."""

    embedding: float
    """behind the embeddings' normalisation"""
    attention: float
    """of the attention's probabilities"""
    output: float
    """of the attention's output, before the residual sum; DistilBERT has none there"""
    feed_forward: float


def rates_of(folder: EncoderFolder, dropout: float | None) -> Rates:
    """As config.json says, or `dropout` in every place that the family has."""

    def rate(*names: str) -> float:
        return (
            dropout
            if dropout is not None
            else float(
                next((folder.config[name] for name in names if folder.config.get(name) is not None), 0.1)
            )
        )

    hidden, attention = (
        rate("hidden_dropout_prob", "dropout"),
        rate("attention_probs_dropout_prob", "attention_dropout"),
    )
    return Rates(hidden, attention, 0.0 if folder.family == "distilbert" else hidden, hidden)


class Layer(nn.Module):
    """One post-norm Transformer layer (Vaswani et al. 2017); its parts stand under the family's names and may
    be exchanged for adapted ones.

    compiled: whether what lies between its matrix products is one kernel each; the products have kernels of
        their own.
    """

    def __init__(self, shape: Shape, names: Names, rates: Rates) -> None:
        super().__init__()
        self.compiled = False
        self._heads, self._names, self._rates, self._activation = (
            shape.heads,
            names,
            rates,
            ACTIVATIONS[shape.activation],
        )
        width, inner = shape.width, shape.inner
        for name in (names.query, names.key, names.value, names.output):
            _plant(self, name, TrainableLinear(width, width, device="meta"))
        _plant(self, names.up, TrainableLinear(width, inner, device="meta"))
        _plant(self, names.down, TrainableLinear(inner, width, device="meta"))
        for name in (names.output_norm, names.down_norm):
            _plant(self, name, nn.LayerNorm(width, shape.epsilon, device="meta"))

    def forward(self, x: Tensor, blocks: tuple[Block, ...], bias: Tensor | None) -> Tensor:
        """(T, d) for (T, d)."""
        names, rates = self._names, self._rates
        query, key, value = (self._part(name)(x) for name in (names.query, names.key, names.value))
        mixed = attend_blocks(
            (query, key, value), blocks, self._heads, rates.attention if self.training else 0.0, bias
        )
        x = self._added(x, self._part(names.output)(mixed), names.output_norm, rates.output)
        inner = self._maybe_compiled(self._activation)(self._part(names.up)(x))
        return self._added(x, self._part(names.down)(inner), names.down_norm, rates.feed_forward)

    def _part(self, name: str) -> Any:
        return self.get_submodule(name)

    def _added(self, x: Tensor, update: Tensor, name: str, rate: float) -> Tensor:
        norm = self._part(name)
        return self._maybe_compiled(_norm_of_sum)(
            x, update, norm.weight, norm.bias, norm.eps, rate if self.training else 0.0
        )

    def _maybe_compiled(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return _compiled(function) if self.compiled else function


def _norm_of_sum(
    x: Tensor, update: Tensor, weight: Tensor, bias: Tensor, epsilon: float, rate: float
) -> Tensor:
    return F.layer_norm(x + F.dropout(update, rate, rate > 0), weight.shape, weight, bias, epsilon)


@functools.cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """For any number of tokens: one kernel for all layers."""
    return torch.compile(function, dynamic=True)


class Backbone(nn.Module):
    """What makes hidden states of a request.

    How it computes does not change what it is: its parameters keep their names, and their float32.
    """

    width: int
    """values of a hidden state"""
    layers: int
    checkpointing = False
    """whether layers compute their inner values anew in the backward pass, with equal dropout, instead of
    keeping them"""
    precision = torch.float32
    """of products, where it is half (autocast); sums over the layers and normalisations stay float32"""

    def __call__(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Hidden states of the wanted numbers, and where the texts lie in them."""
        kind, half = next(self.parameters()).device.type, self.precision != torch.float32
        with torch.autocast(kind, self.precision if half else None, enabled=half):
            found: tuple[dict[int, Tensor], Segments] = super().__call__(request)
        return found

    @property
    def words(self) -> Tensor:
        """(vocabulary, d) rows of the word table, which a language model's decoder shares."""
        raise NotImplementedError

    @property
    def drops(self) -> bool:
        """Whether two passes over one text differ in train()."""
        return any(isinstance(module, nn.Dropout) and module.p > 0 for module in self.modules())

    def draw(self) -> None:
        """New weights from torch's generator, as the architecture begins."""
        raise NotImplementedError

    def _put(self, values: np.ndarray) -> Tensor:
        return to_device(values, next(self.parameters()).device)

    def compile_layers(self) -> None:
        """Compile what can be compiled, in place."""
        raise ModelError(
            type(self).__name__, "layers that can be compiled", "none", "leave train.compile out"
        )


class PackedBackbone(Backbone):
    """BERT, RoBERTa, XLM-R, DistilBERT and MPNet on all tokens of a call side by side, none of them padding
    outside the attention.
    """

    def __init__(self, folder: EncoderFolder, weights: Checkpoint, rates: Rates) -> None:
        super().__init__()
        self.shape = shape_of(folder.family, folder.config)
        self.width, self.layers = self.shape.width, self.shape.layers
        self._rates, self._where = rates, str(folder.path)
        self._deviation = float(folder.config.get("initializer_range", 0.02))
        self._names = [
            NAMES[folder.family].layer.format(i=number).rstrip(".") for number in range(self.layers)
        ]
        self._plant_embeddings()
        for name in self._names:
            _plant(self, name, Layer(self.shape, NAMES[folder.family], rates))
        self._relative = folder.family == "mpnet"
        if self._relative:
            _plant(
                self,
                "encoder.relative_attention_bias",
                nn.Embedding(
                    int(folder.config.get("relative_attention_num_buckets", 32)),
                    self.shape.heads,
                    device="meta",
                ),
            )
        weights.fill(self)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Hidden states (T, d) of the wanted numbers, and where the texts lie in them."""
        order = longest_first(request.tokens.lengths)
        ids, positions, everything = self._laid_out(request, order)
        blocks = blocks_of(request.tokens.lengths[order], self._put)
        words = self._table("word")(ids)
        x = self._embedded(words, positions)
        x = x if request.at_embedding is None else request.at_embedding(x, everything)
        states = {TABLE_STATE: words, 0: x}
        bias = relative_bias(self._relative_table(), blocks[0].longest) if self._relative else None
        for number, name in enumerate(self._names[: max(0, *request.wanted)], start=1):
            x = states[number] = self._run(self.get_submodule(name), x, blocks, bias)
        where = everything
        if request.skip or request.tokens.kept is not None:
            where = self._segments(request.tokens, order, request.skip)
        return {number: states[number] for number in request.wanted}, where

    @property
    def words(self) -> Tensor:
        return self._table("word").weight

    @property
    def drops(self) -> bool:
        return super().drops or any(rate > 0 for rate in astuple(self._rates))

    def compile_layers(self) -> None:
        for module in self.modules():
            if isinstance(module, Layer):
                module.compiled = True

    def draw(self) -> None:
        """N(0, initializer_range) (0.02 by default), zero biases, normalisations that change nothing; rows of
        the padding token are zero (Devlin et al. 2019).
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=self._deviation)
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                nn.init.zeros_(module.weight[module.padding_idx])
            if isinstance(module, nn.LayerNorm):
                nn.init.ones_(module.weight)
            if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def _run(self, layer: nn.Module, x: Tensor, blocks: tuple[Block, ...], bias: Tensor | None) -> Tensor:
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(layer, x, blocks, bias, use_reentrant=False)
        return layer(x, blocks, bias)

    def _laid_out(self, request: ForwardRequest, order: np.ndarray) -> tuple[Tensor, Tensor, Segments]:
        """(T,) ids and (T,) rows of the position table by falling length of the texts, and where each text
        lies, in the order of the call.
        """
        part = request.tokens.of_rows(order)
        starts, ids = part.offsets[:-1], part.ids.astype(np.int64)
        if request.positions is None:
            positions = self.shape.position_rows(part)
        else:
            places = np.arange(len(ids)) + (request.tokens.offsets[order] - starts)[part.owners]
            positions = np.asarray(request.positions, np.int64)[places] + (
                self.shape.pad_id + 1 if self.shape.counts_from_pad else 0
            )
        self._check(positions)
        plain = Tokens(request.tokens.ids, request.tokens.offsets, request.tokens.truncated)
        return self._put(ids), self._put(positions), self._segments(plain, order, 0)

    def _check(self, positions: np.ndarray) -> None:
        if positions.min() < 0 or positions.max() >= self.shape.positions:
            found = f"{positions.min()} to {positions.max()}"
            raise ModelError(
                self._where,
                f"rows 0 to {self.shape.positions - 1} of the position table",
                found,
                "shorten the texts, or give places inside the table",
            )

    def _segments(self, tokens: Tokens, order: np.ndarray, skip: int) -> Segments:
        lengths, starts = tokens.lengths, np.empty(len(order), np.int64)
        starts[order] = np.cumsum(lengths[order]) - lengths[order]
        return segments(starts, lengths, skip, self._put, tokens.kept)

    def _embedded(self, words: Tensor, positions: Tensor) -> Tensor:
        x = words + self._table("position")(positions)
        if self.shape.token_types:
            x = x + self._part("token_type_embeddings").weight[0]  # every token has type 0
        return F.dropout(self._part("LayerNorm")(x), self._rates.embedding, self.training)

    def _plant_embeddings(self) -> None:
        shape, width = self.shape, self.width
        pad_id = shape.pad_id if shape.counts_from_pad else None
        _plant(
            self,
            "embeddings.word_embeddings",
            nn.Embedding(shape.vocabulary, width, shape.pad_id, device="meta"),
        )
        _plant(
            self,
            "embeddings.position_embeddings",
            nn.Embedding(shape.positions, width, pad_id, device="meta"),
        )
        if shape.token_types:
            _plant(
                self,
                "embeddings.token_type_embeddings",
                nn.Embedding(shape.token_types, width, device="meta"),
            )
        _plant(self, "embeddings.LayerNorm", nn.LayerNorm(width, shape.epsilon, device="meta"))

    def _table(self, kind: str) -> Any:
        return self._part(f"{kind}_embeddings")

    def _part(self, name: str) -> Any:
        return self.get_submodule(f"embeddings.{name}")

    def _relative_table(self) -> Any:
        return self.get_submodule("encoder.relative_attention_bias").weight


class PaddedBackbone(Backbone):
    """A transformers model, texts padded to the longest of the call.

    What is not its encoder (a decoder) is saved with it, not trained.
    """

    def __init__(self, folder: EncoderFolder, dropout: float | None) -> None:
        super().__init__()
        self.model = load_model(folder, torch.float32, dropout)
        self._checkpointed, self._where = False, str(folder.path)
        config = self.model.config.get_text_config()
        self.width, self.layers, self._pad_id = (
            int(config.hidden_size),
            int(config.num_hidden_layers),
            int(config.pad_token_id or 0),
        )
        self._offset = (
            self._pad_id + 1
            if PACKED_FAMILIES.get(str(folder.config.get("model_type"))) in ("roberta", "mpnet")
            else 0
        )
        trained = {id(parameter) for parameter in encoder_of(self.model).parameters()}
        for parameter in self.model.parameters():
            parameter.requires_grad_(id(parameter) in trained)

    def forward(self, request: ForwardRequest) -> tuple[dict[int, Tensor], Segments]:
        """Hidden states (n * L, d) of the wanted numbers, and where the texts lie in them.

        ModelError for what only the packed pass can do.
        """
        if request.at_embedding is not None:
            raise ModelError(
                self._where,
                "one of the packed families for views made at the embeddings",
                str(self.model.config.model_type),
                "use another view",
            )
        self._set_checkpointing()
        tokens, lengths = request.tokens, request.tokens.lengths
        longest = int(lengths.max())
        real = np.arange(longest) < lengths[:, None]
        inputs = {
            "input_ids": self._spread(tokens.ids, real, self._pad_id),
            "attention_mask": self._put(real.astype(np.int64)),
        } | self._places(request, real)
        where = segments(np.arange(len(lengths)) * longest, lengths, request.skip, self._put, tokens.kept)
        return hidden_states(encoder_of(self.model), inputs, request.wanted), where

    @property
    def words(self) -> Tensor:
        return encoder_of(self.model).get_input_embeddings().weight

    def draw(self) -> None:
        """As transformers begins a model of this architecture."""
        self.model.load_state_dict(type(self.model)(self.model.config).state_dict())

    def _places(self, request: ForwardRequest, real: np.ndarray) -> dict[str, Tensor]:
        if request.positions is None:
            return {}
        if "position_ids" not in inspect.signature(encoder_of(self.model).forward).parameters:
            raise ModelError(
                self._where,
                "a model that takes position_ids, for tokens out of their order",
                str(self.model.config.model_type),
                "use another view",
            )
        return {"position_ids": self._spread(np.asarray(request.positions) + self._offset, real, 0)}

    def _spread(self, values: np.ndarray, real: np.ndarray, filling: int) -> Tensor:
        padded = np.full(real.shape, filling, np.int64)
        padded[real] = values
        return self._put(padded)

    def _set_checkpointing(self) -> None:
        if self.checkpointing and not self._checkpointed:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        elif self._checkpointed and not self.checkpointing:
            self.model.gradient_checkpointing_disable()
        self._checkpointed = self.checkpointing


def _plant(root: nn.Module, name: str, module: nn.Module) -> None:
    """Put the module under its dotted name, bare modules standing for what is between."""
    *path, last = name.split(".")
    for part in path:
        if part not in root._modules:
            root.add_module(part, nn.Module())
        root = root.get_submodule(part)
    root.add_module(last, module)
