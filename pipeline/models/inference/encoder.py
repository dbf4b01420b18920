"""Encode texts: tokenize ahead, plan the forward passes, run them, return the vectors in input order."""

import functools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from pipeline.device import Device, resolve
from pipeline.errors import MODEL_FAILURES, ConfigError, ModelError, is_out_of_memory
from pipeline.models.classic.convolutional import ConvolutionalModel
from pipeline.models.classic.dan import DanModel
from pipeline.models.classic.paragraph import ParagraphModel
from pipeline.models.classic.recurrent import SteppedModel
from pipeline.models.classic.word_table import BagModel
from pipeline.models.folder.encoder_folder import EncoderFolder
from pipeline.models.folder.folder import announce_warnings, open_folder
from pipeline.models.folder.token_filter import load_filter
from pipeline.models.inference.packed import PackedModel
from pipeline.models.inference.padded import PaddedModel
from pipeline.models.inference.windows import Counters, EncodedBatch, Window, as_strings, windows
from pipeline.models.layers.backbones import Model
from pipeline.models.layers.ngrams import load_ngrams
from pipeline.models.layers.numerics import (
    Arithmetic,
    arithmetic_of,
    use_threads,
    usual_threads,
    whole_float32,
)
from pipeline.models.layers.post_pooling import FixedRows, apply_tail, load_mlp, load_tail
from pipeline.models.layers.transfer import to_host
from pipeline.models.layers.weights import open_checkpoint
from pipeline.models.spec.pooling import NGRAMS, Segments, layers_of, pool
from pipeline.prefetch import prefetch
from pipeline.settings import EncoderSettings, EncodeSettings
from pipeline.text.tokens.tokens import TokenCounts, Tokenizer, Tokens

if TYPE_CHECKING:
    from pipeline.models.inference.hidden_states import HiddenStates

_SMALLEST_BUFFER = 16  # tokens; with fewer rows, matrix kernels switch to slower variants
_MAX_PENDING = 4  # copies from the GPU that may be under way at the same time
_CHECK_TEXTS = ("A sentence to try the encoder with.", "Another one.")
_OWN_MODELS = {
    "recurrent": SteppedModel,
    "convolutional": ConvolutionalModel,
    "dan": DanModel,
    "paragraph": ParagraphModel,
}
"""class of the models of each family without attention"""

OnProgress = Callable[[float], None]  # called with the proportion of the tokens that are encoded, up to 1


class Encoder:
    """Encoder loaded from a folder, on a device."""

    def __init__(
        self, folder: EncoderFolder, encode: EncodeSettings, device: Device, name: str | None = None
    ) -> None:
        self.folder, self.name = folder, name or str(folder.path)
        self.dim, self.space_id, self.max_length = folder.dim, folder.space_id, folder.max_length
        self.similarity = folder.similarity
        self.counters = Counters()
        longest = 0 if folder.holds_any_text else folder.max_length
        self.arithmetic = arithmetic_of(encode, device, longest)
        self._window_rows = encode.window_rows
        self._threads = encode.threads if device.kind == "cpu" else None
        self._tokenizer = folder.tokenizer()
        self._parts = [Encoder(part, encode, device) for part in folder.parts]
        for part in self._parts:
            part.counters = self.counters
        self._model: Model
        self._mlp: nn.Module | None
        with torch.random.fork_rng(devices=[]):  # loading leaves torch's generator as it was
            self._model, self._mlp = (
                (self._parts[0]._model, None)
                if self._parts
                else load_backbone(folder, self.arithmetic, self._tokenizer)
            )
            self._ngrams = load_ngrams(folder, self._model.width, trained=True)
            if self._ngrams is not None:
                self._ngrams.to(self.arithmetic.torch_device)
            self._tail = load_tail(folder, fixed_rows=True).to(self.arithmetic.torch_device).eval()
        self._is_pooled = load_filter(folder, self._tokenizer)  # by token id; None: all tokens are pooled
        self._query_tokenizer = replace(self._tokenizer, prompt=folder.query_prompt)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        device = f", {self.arithmetic.device}" if self.arithmetic.device.kind != "cpu" else ""
        return f"Encoder({self.name!r}, {self.dim} dimensions, max_length {self.max_length}{device})"

    @property
    def numerics_id(self) -> str:
        """sha256 of everything that can change the bits of a vector; equal ids give bit-identical vectors."""
        return self.arithmetic.numerics_id(type(self._model).__name__)

    @property
    def max_tokens(self) -> int:
        """Tokens of one packed buffer."""
        return self.arithmetic.max_tokens

    def encode(self, texts: str | Sequence[str], *, query: bool = False) -> np.ndarray:
        """Encode one text or several.

        A single string, or queries, are computed in the smallest buffer that holds them, which takes a
        fraction of the time. The size of that buffer changes a vector by rounding, by about 1e-5.

        Args:
            texts: a string; or n strings: a sequence, NumPy or pyarrow array, or pandas or Polars series.
            query: put the query prompt before the texts.

        Returns:
            float32, (dim,) for a string, else (n, dim) in input order.

        Raises:
            TypeError: a text is not a string.
            ModelError: a vector has NaN or infinity.
        """
        vectors = self.encode_unchecked(texts, query=query)
        finite = np.isfinite(np.atleast_2d(vectors)).all(axis=1)
        if not finite.all():
            raise ModelError(
                str(self.folder.path),
                "finite vectors",
                f"NaN or infinity for {np.count_nonzero(~finite):,} of {len(finite):,} texts",
                "check its weights, or set encode.dtype=float32",
            )
        return vectors

    def encode_unchecked(self, texts: str | Sequence[str], *, query: bool = False) -> np.ndarray:
        """Encode texts as `encode` does, for a caller that expects NaN and infinity."""
        tokenizer = self._query_tokenizer if query else self._tokenizer
        is_single = isinstance(texts, str)
        window = Window.of([[texts] if isinstance(texts, str) else as_strings(texts)], tokenizer)
        max_tokens = self._small_buffer(window.tokens) if query or is_single else self.max_tokens
        vectors = self._encode_window(window, max_tokens, tokenizer).vectors
        return vectors[0] if is_single else vectors

    def encode_each(self, texts: Sequence[str], *, query: bool = False) -> tuple[np.ndarray, dict[int, str]]:
        """Encode texts as `encode` does, but tolerate texts for which the encoder raises.

        Returns:
            (n, dim) float32 in input order, with NaN for texts that cannot be encoded; and the reason for
            each of these, by the text's number.

        Raises:
            ModelError: the encoder cannot encode a plain sentence either.
        """
        try:
            return self.encode_unchecked(texts, query=query), {}
        except (*MODEL_FAILURES, ModelError) as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if len(texts) == 1:
            self.check()
            return np.full((1, self.dim), np.nan, np.float32), {0: reason}
        middle = len(texts) // 2
        first, errors = self.encode_each(texts[:middle], query=query)
        second, later = self.encode_each(texts[middle:], query=query)
        errors |= {middle + number: reason for number, reason in later.items()}
        return np.concatenate([first, second]), errors

    def check(self) -> None:
        """Encode two plain sentences, to find an unusable encoder before any text is read.

        Raises:
            ModelError: the encoder raises, or gives NaN, infinity or zeros.
        """
        path = str(self.folder.path)
        remedy = "fetch the model's files again, check encode.dtype, or use another encoder"
        try:
            vectors = self.encode_unchecked(_CHECK_TEXTS)
        except MODEL_FAILURES as error:
            if is_out_of_memory(error):
                raise MemoryError(str(error)) from error
            raise ModelError(
                path,
                "an encoder that encodes a plain sentence",
                f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
                remedy,
            ) from error
        if not np.isfinite(vectors).all():
            raise ModelError(path, "finite vectors", f"NaN or infinity for {_CHECK_TEXTS[0]!r}", remedy)
        # an encoder of whole words may know none of these words
        if not self.folder.whole_words and not vectors.any(axis=1).all():
            raise ModelError(path, "vectors that are not zero", f"zeros for {_CHECK_TEXTS[0]!r}", remedy)

    def count_tokens(self, texts: Sequence[str]) -> TokenCounts:
        """Count the tokens of n texts as they would be encoded, without encoding them."""
        return self._tokenizer.counts(self._tokenizer(texts))

    def hidden_states(self) -> "HiddenStates":
        """Give access to the hidden states, layer by layer, and the tokens.

        Raises:
            ModelError: the encoder is a concatenation of several encoders.
        """
        # imported here, because that module imports scipy, which takes a quarter of a second
        from pipeline.models.inference.hidden_states import HiddenStates

        if self._parts:
            raise ModelError(
                str(self.folder.path),
                "a single encoder, to read its layers",
                f"{len(self._parts)} concatenated encoders",
                f"name one of its parts: {self.folder.parts[0].path}",
            )
        return HiddenStates(self._model, replace(self._tokenizer, mask=None), self.folder, self.max_tokens)

    def encode_stream(
        self, batches: Iterable[pa.Array | Sequence[str]], on_rows: Callable[[int], None] | None = None
    ) -> Iterator[EncodedBatch]:
        """Encode batches of texts; yield one EncodedBatch per batch, in order.

        A thread reads and tokenizes ahead. Batches in a window of `encode.window_rows` rows share buffers.

        Args:
            batches: sequences of strings.
            on_rows: called after each forward pass with an estimate of the number of rows encoded so far.
        """
        done = rows = 0

        def on_progress(proportion: float) -> None:
            if on_rows is not None:
                on_rows(done + int(proportion * rows))

        tokenized = (Window.of(window, self._tokenizer) for window in windows(batches, self._window_rows))
        with closing(prefetch(tokenized)) as ready:
            began = time.perf_counter()
            for window in ready:
                self.counters.waiting_s += time.perf_counter() - began
                rows = len(window.inverse)
                encoded = self._encode_window(window, self.max_tokens, self._tokenizer, on_progress)
                yield from encoded.split(window.rows)
                done += rows
                began = time.perf_counter()

    def _small_buffer(self, tokens: Tokens) -> int:
        """Return the smallest power of two that holds all tokens, but at most max_tokens.

        There are few sizes, because the first use of each is slow.
        """
        return min(self.max_tokens, 1 << (max(len(tokens.ids), _SMALLEST_BUFFER) - 1).bit_length())

    def _encode_window(
        self, window: Window, max_tokens: int, tokenizer: Tokenizer, on_progress: OnProgress | None = None
    ) -> EncodedBatch:
        """Encode the distinct texts of a window, and return one vector for each of its rows."""
        began = time.perf_counter()
        tokens, inverse = window.tokens, window.inverse
        if self._is_pooled is not None:
            tokens = replace(tokens, kept=self._is_pooled[tokens.ids])
        skip = 0 if self.folder.include_prompt else tokenizer.prompt_tokens
        vectors = self._compute(tokens, max_tokens, skip, on_progress)
        self.counters.forward_s += time.perf_counter() - began
        self.counters.texts += len(inverse)
        self.counters.repeats += len(inverse) - len(tokens)
        self.counters.tokens += len(tokens.ids)
        bad = ~np.isfinite(vectors).all(axis=1) | ~vectors.any(axis=1)
        return EncodedBatch(vectors[inverse], bad[inverse], tokenizer.counts(tokens).of_rows(inverse))

    def _compute(
        self, tokens: Tokens, max_tokens: int, skip: int, on_progress: OnProgress | None
    ) -> np.ndarray:
        """Encode into (texts, dim) float32; if the GPU lacks memory, start over with half max_tokens."""
        while True:
            with suppress(torch.OutOfMemoryError):  # on a GPU; a CPU without memory raises another error
                return self._run_passes(tokens, max_tokens, skip, on_progress)
            max_tokens = self._halve(max_tokens)  # outside the handler, which holds memory of the failed pass

    def _halve(self, max_tokens: int) -> int:
        """Halve max_tokens, for this and later windows; ModelError if a text of max_length would not fit."""
        if max_tokens // 2 < (_SMALLEST_BUFFER if self.folder.holds_any_text else self.max_length):
            raise ModelError(
                str(self.arithmetic.device),
                "memory for one text of max_length tokens",
                f"out of memory even with encode.max_tokens={max_tokens}",
                "lower encoder.max_length or use a larger device",
            )
        torch.cuda.empty_cache()
        self.arithmetic = replace(self.arithmetic, max_tokens=min(self.max_tokens, max_tokens // 2))
        return max_tokens // 2

    def _run_passes(
        self, tokens: Tokens, max_tokens: int, skip: int, on_progress: OnProgress | None
    ) -> np.ndarray:
        """Run the planned forward passes; copies to the host overlap with the following passes."""
        vectors = np.zeros((len(tokens), self.dim), np.float32)
        computed, total = 0, max(1, int(tokens.lengths.sum()))
        # rows, and a function that waits for their vectors and returns them
        pending: list[tuple[np.ndarray, Callable[[], np.ndarray]]] = []
        # One thread at a time: a pass may change the model until it ends, and sets torch's number of threads.
        with (
            self._lock,
            torch.inference_mode(),
            use_threads(self._threads),
            whole_float32(self.arithmetic.device),
        ):
            for rows in self._model.plan(tokens.lengths, max_tokens):
                pending.append((rows, to_host(self._forward(tokens, rows, max_tokens, skip))))
                if len(pending) > _MAX_PENDING:
                    oldest, wait = pending.pop(0)
                    vectors[oldest] = wait()
                computed += int(tokens.lengths[rows].sum())
                if on_progress is not None:
                    on_progress(computed / total)
            for rows, wait in pending:
                vectors[rows] = wait()
        return vectors

    def _forward(self, tokens: Tokens, rows: np.ndarray, max_tokens: int, skip: int) -> Tensor:
        """Encode the texts `rows` in one forward pass: (len(rows), dim) float32 on the device."""
        if self._parts:
            x = torch.cat([part._forward(tokens, rows, max_tokens, skip) for part in self._parts], dim=-1)
        else:
            x = self._pool_states(tokens, rows, max_tokens, skip)
        return apply_tail(self._tail, x, tokens.lengths[rows])

    def _pool_states(self, tokens: Tokens, rows: np.ndarray, max_tokens: int, skip: int) -> Tensor:
        """Compute and pool the hidden states of the texts `rows`, for the modules after the pooling."""
        wanted = layers_of(self.folder.pooling, self._model.layers)
        states, segments = self._model.states(tokens, rows, wanted, max_tokens, skip)
        if self._model.has_token_states:
            self.counters.padding += len(states[min(wanted)]) - int(tokens.lengths[rows].sum())
        return torch.cat([self._pool(name, states, segments) for name in self.folder.pooling], dim=-1)

    def _pool(self, name: str, states: dict[int, Tensor], segments: Segments) -> Tensor:
        if name == NGRAMS and self._ngrams is not None:
            return self._ngrams(states[self._model.layers], segments)
        pooled = pool(name, states, self._model.layers, segments)
        return self._mlp(pooled) if name == "cls_mlp" and self._mlp is not None else pooled


def load_encoder(
    settings: EncoderSettings | str, encode: EncodeSettings | None = None, device: Device | str = "cpu"
) -> Encoder:
    """Load an encoder, and announce the warnings of its folder.

    Args:
        settings: a folder, URI, file of word vectors or hub id, alone or with settings that override
            the folder's own.
        encode: numerical settings; None: the defaults, with as many threads as torch has now, but at most one
            for each core that this process may use. torch's own number of threads does not change.
        device: cpu, cuda, or auto.

    Raises:
        ModelError: the folder cannot be used; the message says which file, and why.
    """
    settings = EncoderSettings(path=settings) if isinstance(settings, str) else settings
    encode = encode or EncodeSettings(threads=usual_threads())
    encoder = Encoder(open_folder(settings), encode, resolve(device), settings.path)
    announce_warnings(encoder.folder)
    return encoder


def load_backbone(
    folder: EncoderFolder, arithmetic: Arithmetic, tokenizer: Tokenizer
) -> tuple[Model, nn.Module | None]:
    """Load the backbone, and the layer of the pooling cls_mlp, or None without that pooling."""
    checkpoint = open_checkpoint(folder)
    if folder.family in ("words", "static"):
        return BagModel(folder, checkpoint, arithmetic, tokenizer), None
    if arithmetic.is_quantized and folder.family in ("other", "convolutional"):
        raise ConfigError(
            "encode.dtype",
            "float32, bfloat16 or float16 for an encoder without a packed forward pass",
            f"int8 for {folder.path}",
            "set encode.dtype=float32, or use an encoder of another family",
        )
    if (kind := _OWN_MODELS.get(folder.family)) is not None:
        return kind(folder, checkpoint, arithmetic), None
    is_packed = folder.family != "other"
    model = PackedModel(folder, checkpoint, arithmetic) if is_packed else PaddedModel(folder, arithmetic)
    if "cls_mlp" not in folder.pooling:
        return model, None
    return model, FixedRows(load_mlp(checkpoint, model.width)).to(arithmetic.torch_device)


_load_cached = functools.lru_cache(maxsize=2)(load_encoder)  # two encoders, so that a caller can compare them


def encode(
    texts: str | Sequence[str],
    encoder: str | EncoderSettings = "all-MiniLM-L6-v2",
    *,
    query: bool = False,
    device: str = "cpu",
) -> np.ndarray:
    """Encode one text or several. The encoder is loaded at the first call; the last two used are cached.

    Args:
        texts: a string; or n strings as a sequence, a NumPy or pyarrow array, or a pandas or Polars series.
        encoder: a folder, URI, file of word vectors or hub id, alone or with further settings.
        query: put the query prompt before the texts, for searching among texts encoded without it.
        device: cpu, cuda, or auto.

    Returns:
        float32, (dim,) for a string, else (n, dim) in input order.

    Raises:
        TypeError: a text is not a string.
        ModelError: the encoder cannot be used; the message says which file, and why; or a vector has NaN or
            infinity.
    """
    settings = EncoderSettings(path=encoder) if isinstance(encoder, str) else encoder
    return _load_cached(settings, device=device).encode(texts, query=query)
