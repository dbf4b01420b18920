"""Rules of a model's generation_config about the tokens that may come next."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pipeline.errors import ModelError

Scores = Callable[[Tensor, Tensor], Tensor]  # (tokens so far (n, t), scores (n, V)) -> scores


@dataclass(frozen=True)
class Rules:
    """Special tokens of a translation and the tokens that are forbidden in it."""

    start: int
    """decoder start token, which precedes the translation"""
    ends: tuple[int, ...]
    pad: int
    first: int | None = None
    """forced first token of the translation"""
    forced_end: int | None = None
    """forced last token of a translation that reaches its limit; None: it is cut there"""
    banned: tuple[int, ...] = ()
    others: tuple[Scores, ...] = field(default=(), compare=False)
    """logits processors of transformers, for the rarer rules that depend on the tokens before"""

    def apply(
        self, scores: Tensor, step: int, min_tokens: Tensor | None, written: Callable[[], Tensor]
    ) -> Tensor:
        """Set the scores of tokens that are forbidden at `step` to -inf, in place.

        Args:
            scores: (n, V) float32.
            step: tokens written so far.
            min_tokens: (n,) minimum length of each row; None if all rows have reached it.
            written: returns the (n, step + 1) tokens so far; called only if a rule needs them.

        Returns:
            (n, V) scores.
        """
        if self.others:
            tokens = written()
            for other in self.others:
                scores = other(tokens, scores)
        for token in self.banned:  # one by one: a list of them would be copied to the device at every step
            scores[:, token] = -torch.inf
        if min_tokens is not None:
            for end in self.ends:
                scores[:, end].masked_fill_(min_tokens > step, -torch.inf)
        return scores


def rules_of(model: Any, first: int | None, start: int | None, where: str) -> Rules:
    """Read the rules of a transformers model.

    Args:
        model: with a generation_config.
        first: token of the target language, if translations begin with it.
        start: token of the target language, if it is the decoder start token.
        where: the model's path, for errors.

    Raises:
        ModelError: the model does not define the start or the end of a translation.
    """
    known = model.generation_config
    ends = _several(known.eos_token_id)
    candidates = (start, known.decoder_start_token_id, known.bos_token_id)
    begins = next((token for token in candidates if token is not None), None)
    if begins is None or not ends:
        raise ModelError(
            where,
            "the start and end tokens of a translation in generation_config.json or config.json",
            f"decoder_start_token_id {begins}, eos_token_id {known.eos_token_id}",
            "restore the file",
        )
    pad, forced_end = _several(known.pad_token_id), _several(known.forced_eos_token_id)
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
    """Return the token ids of a configuration value, which is None, an id or a list of ids."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (int(value),)
