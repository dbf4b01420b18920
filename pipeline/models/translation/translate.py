"""Translate texts with one loaded model. Imports torch."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.device import Device
from pipeline.errors import ModelError
from pipeline.models.layers.padded_mask import without_cudnn
from pipeline.models.translation.decode import GeneralStepper, Request, cut, decode_batch, pad_rows
from pipeline.models.translation.decode import plan as plan_batches
from pipeline.models.translation.decode_fused import FusedStepper, is_fused
from pipeline.models.translation.decode_rules import Rules, rules_of
from pipeline.models.translation.seq2seq import TranslatorFolder, load_model, open_tokenizer
from pipeline.settings.augment import DecodingSettings, TranslatorSettings


class LengthBounds:
    """Logits processor of transformers that keeps each row of a batch within its own length bounds.

    A translation therefore does not depend on the other texts of its batch.
    """

    def __init__(self, rules: Rules, requests: Sequence[Request], beams: int, device: torch.device) -> None:
        self._ends = torch.tensor(rules.ends, device=device)
        limits = [(request.min_tokens, request.max_tokens) for request in requests for _ in range(beams)]
        self._min, self._max = torch.tensor(limits, device=device).unbind(1)

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Forbid the end token before min_tokens and force it at max_tokens.

        Args:
            tokens: (n, t) tokens so far, start token included.
            scores: (n, V) scores of the next token.
        """
        length = tokens.shape[1] - 1  # without the start token
        is_early, is_last = self._min > length, self._max <= length + 1
        only_end = scores.new_full(scores.shape[1:], -torch.inf)
        only_end[self._ends[0]] = 0.0
        bounded = scores.clone()
        bounded[:, self._ends] = scores[:, self._ends].masked_fill(is_early[:, None], -torch.inf)
        return torch.where(is_last[:, None], only_end, bounded)


@torch.inference_mode()
def beam_search(
    model: Any, rules: Rules, requests: Sequence[Request], decoding: DecodingSettings, device: torch.device
) -> list[list[list[int]]]:
    """Decode one batch by beam search.

    Returns:
        For each request the tokens of its `decoding.hypotheses` best translations, best first.
    """
    from transformers import LogitsProcessorList

    ids, mask = pad_rows([request.ids for request in requests], rules.pad, device)
    bounds = LengthBounds(rules, requests, decoding.beams, device)
    longest = max(request.max_tokens for request in requests)
    found = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=_configuration(model, rules, decoding, longest),
        logits_processor=LogitsProcessorList([bounds]),  # type: ignore[no-untyped-call, unused-ignore]
    )
    ends = set(rules.ends)
    rows = [cut(row[1:], ends) for row in found.tolist()]  # without the start token
    count = decoding.hypotheses
    return [rows[start : start + count] for start in range(0, len(rows), count)]


def _configuration(model: Any, rules: Rules, decoding: DecodingSettings, longest: int) -> Any:
    """Copy the model's generation config and apply the settings and language rules.

    The length of each translation is limited by `LengthBounds`, not here.
    """
    config = copy.deepcopy(model.generation_config)
    config.update(
        num_beams=decoding.beams,
        num_return_sequences=decoding.hypotheses,
        length_penalty=decoding.length_penalty,
        do_sample=False,
        max_new_tokens=longest,
        max_length=None,
        min_length=0,
        min_new_tokens=None,
        decoder_start_token_id=rules.start,
        forced_bos_token_id=rules.first,
        forced_eos_token_id=None,
        pad_token_id=rules.pad,
        eos_token_id=list(rules.ends),
        return_dict_in_generate=False,
        use_cache=True,
    )
    return config


BATCH_TOKENS = {"cpu": 2_048, "cuda": 65_536}  # source tokens of a batch, padding included, by kind of device
Uniforms = Callable[[int, int], np.ndarray]
"""Function that draws random numbers in [0, 1) for a text: (its index, max_tokens) -> an array of shape
(hypotheses, max_tokens)"""


class Translator:
    """Translation model with its tokenizer and decoding settings, on one device.

    Attributes:
        longest: largest number of source tokens that the model reads.
        tokenizer: tokenizer of source and target.
        batch_tokens: limit on the source tokens of a batch, padding and copies included.
        copies: rows that decoding needs for each text: its beams or its hypotheses.
    """

    def __init__(
        self, folder: TranslatorFolder, settings: TranslatorSettings, device: Device, dtype: str
    ) -> None:
        self.longest, self._positions, self._path = folder.longest, folder.positions, str(folder.path)
        self._decoding, self._device = settings.decoding, device.torch()
        self.tokenizer = open_tokenizer(folder, settings)
        self._model: Any = load_model(folder, getattr(torch, dtype)).to(self._device)
        self._rules = rules_of(self._model, self.tokenizer.first, self.tokenizer.start, self._path)
        self._stepper = FusedStepper(self._model) if is_fused(self._model) else GeneralStepper(self._model)
        self.batch_tokens = settings.batch_tokens or BATCH_TOKENS[device.kind]
        self.copies = self._decoding.beams if self._decoding.method == "beam" else self._decoding.hypotheses

    def request(self, ids: Sequence[int], index: int, uniforms: Uniforms | None) -> Request:
        """Build the request of one text, with length bounds from the settings and the model's positions.

        Args:
            ids: source tokens of the text.
            index: passed to `uniforms`.
            uniforms: random numbers for sampling; None for greedy decoding and beam search.
        """
        decoding = self._decoding
        max_tokens = max(1, min(int(decoding.max_ratio * len(ids) + decoding.max_extra), self._positions))
        min_tokens = min(int(decoding.min_ratio * len(ids)), max_tokens)
        return Request(ids, min_tokens, max_tokens, uniforms(index, max_tokens) if uniforms else None)

    def __call__(self, requests: Sequence[Request]) -> Iterator[tuple[np.ndarray, list[list[list[int]]]]]:
        """Translate in batches, longest texts first. Halves batch_tokens whenever the GPU runs out of memory.

        Yields:
            Indices of the requests of a batch, and for each of them the tokens of its hypotheses.

        Raises:
            ModelError: the device does not have enough memory for one text.
        """
        batches = plan_batches([len(request.ids) for request in requests], self.batch_tokens, self.copies)
        while batches:
            hypotheses = self._decode([requests[index] for index in batches[0]])
            if hypotheses is not None:
                yield batches.pop(0), hypotheses
                continue
            self._halve(len(batches[0]))
            remaining = np.concatenate(batches)
            lengths = [len(requests[index].ids) for index in remaining]
            batches = [remaining[part] for part in plan_batches(lengths, self.batch_tokens, self.copies)]

    def _decode(self, requests: list[Request]) -> list[list[list[int]]] | None:
        """Decode one batch; None if the GPU ran out of memory (a CPU without memory raises another error)."""
        try:
            with without_cudnn(self._device):  # the number of keys grows with every step
                if self._decoding.method == "beam":
                    return beam_search(self._model, self._rules, requests, self._decoding, self._device)
                return decode_batch(self._stepper, self._rules, requests, self._decoding, self._device)
        except torch.OutOfMemoryError:
            return None

    def _halve(self, texts: int) -> None:
        """Halve batch_tokens after a batch of `texts` texts; raise ModelError if it was a single one."""
        if texts == 1:
            raise ModelError(
                self._path,
                f"memory of {self._device} for one text",
                f"out of memory with one text of at most {self.longest} tokens",
                "lower max_length, hypotheses or beams, or use a larger device",
            )
        torch.cuda.empty_cache()
        self.batch_tokens //= 2
