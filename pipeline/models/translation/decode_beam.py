"""Beam search through transformers' generate."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.models.translation.decode import Request, cut, padded
from pipeline.models.translation.decode_rules import Rules
from pipeline.settings.augment import DecodingSettings


class Bounds:
    """Holds every row of a batch within its own bounds: what a row becomes does not depend on its neighbours. A logits processor of transformers."""

    def __init__(self, rules: Rules, requests: Sequence[Request], beams: int, device: torch.device) -> None:
        self._ends = torch.tensor(rules.ends, device=device)
        self._least, self._most = (
            torch.tensor([getattr(request, name) for request in requests], device=device).repeat_interleave(
                beams
            )
            for name in ("least", "most")
        )

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        written = tokens.shape[1] - 1  # the start token is none of them
        early, last = self._least > written, self._most <= written + 1
        end = scores.new_full(scores.shape[1:], -torch.inf)
        end[self._ends[0]] = 0.0
        kept = scores.clone()
        kept[:, self._ends] = scores[:, self._ends].masked_fill(early[:, None], -torch.inf)
        return torch.where(last[:, None], end, kept)


@torch.inference_mode()
def search(
    model: Any, rules: Rules, requests: Sequence[Request], decoding: DecodingSettings, device: torch.device
) -> list[list[list[int]]]:
    """Tokens of the best `decoding.hypotheses` translations of each request, the best first; the rows of one batch."""
    from transformers import LogitsProcessorList

    ids, mask = padded([request.ids for request in requests], rules.pad, device)
    bounds = LogitsProcessorList([Bounds(rules, requests, decoding.beams, device)])  # type: ignore[no-untyped-call, unused-ignore]
    longest = max(request.most for request in requests)
    found = model.generate(
        input_ids=ids,
        attention_mask=mask,
        generation_config=_configuration(model, rules, decoding, longest),
        logits_processor=bounds,
    )
    ends = set(rules.ends)
    rows = [cut(row[1:], ends) for row in found.tolist()]
    return [rows[place : place + decoding.hypotheses] for place in range(0, len(rows), decoding.hypotheses)]


def _configuration(model: Any, rules: Rules, decoding: DecodingSettings, longest: int) -> Any:
    """The model's own, with what the settings and the languages say; how long a translation may be is in `Bounds`."""
    own = copy.deepcopy(model.generation_config)
    own.update(
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
    return own
