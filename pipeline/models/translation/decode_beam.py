"""Beam search through transformers' generate."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.models.translation.decode import Request, cut, pad_rows
from pipeline.models.translation.decode_rules import Rules
from pipeline.settings.augment import DecodingSettings


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
def search(
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
