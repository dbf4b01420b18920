"""What a model's generation_config says about the tokens that may come next."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import ModelError

Scores = Callable[[Tensor, Tensor], Tensor]  # (tokens so far (n, t), scores (n, V)) -> scores


@dataclass(frozen=True)
class Rules:
    """Which token may stand where in a translation."""

    start: int
    """stands before it"""
    ends: tuple[int, ...]
    pad: int
    first: int | None = None
    """what it begins with"""
    forced_end: int | None = None
    """what a translation that reaches its bound ends with; null: it is cut there"""
    banned: tuple[int, ...] = ()
    others: tuple[Scores, ...] = field(default=(), compare=False)
    """rarer ones, which look at the tokens before: transformers' own"""

    def apply(
        self, scores: Tensor, step: int, least: Tensor, least_at_all: int, written: Callable[[], Tensor]
    ) -> Tensor:
        """Scores (n, V), float32, in place: -inf for what may not come at `step`; least (n,): tokens of each row at least, their maximum beside it."""
        if self.others:
            scores = self._looked_back(scores, written())
        for token in self.banned:  # one by one: a list of them would be copied to the device at every step
            scores[:, token] = -torch.inf
        if step < least_at_all:
            for end in self.ends:
                scores[:, end].masked_fill_(least > step, -torch.inf)
        return scores

    def _looked_back(self, scores: Tensor, written: Tensor) -> Tensor:
        for other in self.others:
            scores = other(written, scores)
        return scores


def rules_of(model: Any, first: int | None, start: int | None, where: str) -> Rules:
    """Of a transformers model; first and start: the target language's token, where the tokenizer says it. ModelError where the model does not say how a translation
    starts or ends.
    """
    known = model.generation_config
    ends = _several(known.eos_token_id)
    begins = next(
        (each for each in (start, known.decoder_start_token_id, known.bos_token_id) if each is not None), None
    )
    if begins is None or not ends:
        found = f"decoder_start_token_id {begins}, eos_token_id {known.eos_token_id}"
        raise ModelError(
            where,
            "how a translation starts and ends in generation_config.json or config.json",
            found,
            "restore the file",
        )
    pad = _several(known.pad_token_id)
    forced_end = _several(known.forced_eos_token_id)
    single = {words[0] for words in known.bad_words_ids or () if len(words) == 1 and words[0] not in ends}
    return Rules(
        start=_several(begins)[0],
        ends=ends,
        pad=pad[0] if pad else ends[0],
        first=first if first is not None else known.forced_bos_token_id,
        forced_end=forced_end[0] if forced_end else None,
        banned=tuple(sorted(single | set(known.suppress_tokens or ()))),
        others=_others(known, ends),
    )


def _others(known: Any, ends: tuple[int, ...]) -> tuple[Scores, ...]:
    from transformers import (
        NoBadWordsLogitsProcessor,
        NoRepeatNGramLogitsProcessor,
        RepetitionPenaltyLogitsProcessor,
    )

    found: list[Scores] = []
    if known.repetition_penalty not in (None, 1.0):
        found.append(RepetitionPenaltyLogitsProcessor(penalty=known.repetition_penalty))
    if known.no_repeat_ngram_size:
        found.append(NoRepeatNGramLogitsProcessor(known.no_repeat_ngram_size))
    if longer := [words for words in known.bad_words_ids or () if len(words) > 1]:
        found.append(NoBadWordsLogitsProcessor(longer, eos_token_id=list(ends)))
    return tuple(found)


def _several(value: Any) -> tuple[int, ...]:
    """Ids in a configuration: one, several or none."""
    return () if value is None else tuple(value) if isinstance(value, list | tuple) else (int(value),)
